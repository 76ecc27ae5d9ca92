//! Returns memory to the kernel that is free, or that holds code which is not in use.
//!
//! glibc has an arena per thread, which returns free memory at its end only: after a peak, most of the
//! memory would stay with the process.
//!
//! Most code of a daemon runs at its start only; of 17 MiB, an idle one uses three. As long as pages
//! are mapped, the kernel takes them for in use and reclaims others first.

use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use rustix::mm::{Advice, madvise};
use tokio::time::sleep;

use crate::panics;

/// Arenas of the process; the default of glibc is eight per CPU.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 4;
/// Blocks from this size on are mapped separately, and returned to the kernel when they are freed.
/// Responses below 1 MiB use smaller blocks, whose pages are reused.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: i32 = 2 << 20;
/// Free memory that an arena keeps at its end. With glibc's 128 KiB, buffers of large responses would
/// be returned and faulted in again each time.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD: i32 = 2 << 20;
/// How often code that is not in use is unmapped and all free memory is returned, in checks.
const CODE_PERIOD: u32 = 4;
/// Check interval.
const PERIOD: Duration = Duration::from_secs(15);
/// Amount of free memory from which on it is returned at the next check.
const MIN_FREE: u64 = 32 << 20;

/// Limits the number of arenas, and fixes thresholds that glibc otherwise adapts up to 64 MiB. Must be
/// called before threads are started.
pub fn configure_allocator() {
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (nix::libc::M_ARENA_MAX, ARENAS),
        (nix::libc::M_MMAP_THRESHOLD, MMAP_THRESHOLD),
        (nix::libc::M_TRIM_THRESHOLD, TRIM_THRESHOLD),
    ] {
        #[allow(unsafe_code, reason = "no crate wraps it")]
        // SAFETY: sets a number, and no other thread uses the allocator yet.
        unsafe {
            nix::libc::mallopt(parameter, value);
        }
    }
}

/// Returns free memory periodically. Never ends.
pub async fn trim_periodically() {
    for check in 1_u32.. {
        sleep(PERIOD).await;
        let is_due = check.is_multiple_of(CODE_PERIOD);
        if is_due {
            let _ = panics::blocking(unmap_code).await;
        }
        // code and stacks count as free here; they are small
        if is_due || resident() >= allocated().saturating_add(MIN_FREE) {
            // it takes a millisecond for some 10 MiB
            let _ = panics::blocking(release).await;
        }
    }
}

fn release() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code, reason = "no crate wraps it")]
    // SAFETY: takes no pointer, and may be called at any time.
    unsafe {
        nix::libc::malloc_trim(0);
    }
}

/// Unmaps the pages of the program's files. They stay in the page cache, from where the next access
/// maps them again, sixteen at a time.
fn unmap_code() {
    let Ok(maps) = Process::myself().and_then(|process| process.smaps()) else { return };
    for map in maps.iter().filter(|map| is_unchanged_file(map)) {
        let (start, end) = map.address;
        let Some(length) = end.checked_sub(start) else { continue };
        let (Ok(start), Ok(length)) = (usize::try_from(start), usize::try_from(length)) else {
            continue;
        };
        let start = std::ptr::with_exposed_provenance_mut(start);
        #[allow(unsafe_code, reason = "no crate wraps it")]
        // SAFETY: each of these pages is that of the file, and cannot be written: the next access
        // finds the same content.
        let _ = unsafe { madvise(start, length, Advice::LinuxDontNeed) };
    }
}

/// Whether the mapping cannot be written, and has no page that differs from the file (relocations, or
/// breakpoints of a debugger).
fn is_unchanged_file(map: &MemoryMap) -> bool {
    matches!(map.pathname, MMapPath::Path(_))
        && map.perms.contains(MMPermissions::PRIVATE)
        && !map.perms.contains(MMPermissions::WRITE)
        && map.extension.map.get("Anonymous") == Some(&0)
}

/// Bytes allocated by the program; without glibc, the maximum.
#[must_use]
pub fn allocated() -> u64 {
    #[cfg(target_env = "gnu")]
    {
        #[allow(unsafe_code, reason = "no crate wraps it")]
        // SAFETY: takes no pointer, and may be called at any time. Its successor `mallinfo2`, with
        // numbers of 64 bits, is not in the C libraries of all supported systems.
        let info = unsafe { nix::libc::mallinfo() };
        // values above 32 bits wrap: with more than 4 GiB, too little is returned
        [info.uordblks, info.hblkhd].into_iter().map(|bytes| u64::from(bytes.cast_unsigned())).sum()
    }
    #[cfg(not(target_env = "gnu"))]
    u64::MAX
}

/// Resident bytes of the process; 0 if unknown.
#[must_use]
pub fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| size.try_into().ok());
    pages.saturating_mul(size.unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Resident KiB of the program's code.
    fn code() -> u64 {
        let maps = Process::myself().unwrap().smaps().unwrap();
        let executable = |map: &&MemoryMap| map.perms.contains(MMPermissions::EXECUTE);
        maps.iter().filter(executable).filter_map(|map| map.extension.map.get("Rss")).sum()
    }

    #[test]
    fn memory_of_unused_code_is_unmapped_and_what_is_used_stays() {
        assert!(Process::myself().unwrap().smaps().unwrap().iter().any(is_unchanged_file));
        for _ in 0..3 {
            let _ = "0.1 µs".parse::<f64>();
            let before = code();
            unmap_code();
            assert!(code() < before, "{before}");
            // code, tables of constants and relocated pointers are as they were
            let text = format!("{:?} {:.3}", [Some("a"), None], std::f64::consts::PI);
            assert_eq!(text, "[Some(\"a\"), None] 3.142");
            assert!(panics::contain_sync(|| panic!("unwinds")).is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_returned_after_a_peak() {
        let before = resident();
        assert!(before > 0);
        // every hundredth one is kept, so that the arena has no free end
        let mut peak: Vec<Option<Vec<u8>>> = (0..20_000).map(|_| Some(vec![1; 10_000])).collect();
        let releasing = tokio::spawn(trim_periodically());
        // memory in use at the first checks is returned when it is free later
        for _ in 0..5 {
            sleep(PERIOD).await;
        }
        for (index, piece) in peak.iter_mut().enumerate() {
            if index % 100 != 99 {
                *piece = None;
            }
        }
        let at_peak = resident();
        assert!(at_peak > before + (100 << 20), "{before} {at_peak}");
        for _ in 0..50 {
            sleep(PERIOD).await;
        }
        let after = resident();
        assert!(after < before + (60 << 20), "{before} {at_peak} {after}");
        releasing.abort();
        drop(peak);
    }
}
