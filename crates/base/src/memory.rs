//! Memory that the process had use for once goes back to the kernel.
//!
//! glibc gives each of a process' threads an arena, and an arena gives back what is free at its end
//! alone: after a peak most of it stays with the process, as much as each thread had at some time.

use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};
use tokio::time::sleep;

use crate::panics;

/// Arenas of the whole process; glibc's default is eight for each processor.
#[cfg(target_env = "gnu")]
const ARENAS: i32 = 4;
/// Blocks from this size on are mapped by themselves, and go back to the kernel when they are freed.
#[cfg(target_env = "gnu")]
const MMAP_THRESHOLD: i32 = 512 << 10;
/// What may be free at an arena's end. With glibc's 128 KiB, each answer of some size that is written
/// and freed gives its pages back, and the next one has to take them again, one fault a page.
#[cfg(target_env = "gnu")]
const TRIM_THRESHOLD: i32 = 1 << 20;
/// How often is looked.
const PERIOD: Duration = Duration::from_secs(15);
/// Free memory from which on it is worth to give it back.
const MUCH: u64 = 32 << 20;

/// Has few arenas made, and fixes the sizes that glibc otherwise raises with each large block that is
/// freed, up to 64 MiB. To be called before there are threads.
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

/// Gives free memory back after each peak, for ever.
pub async fn release_after_peaks() {
    loop {
        sleep(PERIOD).await;
        // code and stacks count as free here; they are far less
        if resident() >= allocated().saturating_add(MUCH) {
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

/// Bytes that the program has from the allocator; without glibc, as many as there may be.
fn allocated() -> u64 {
    #[cfg(target_env = "gnu")]
    {
        #[allow(unsafe_code, reason = "no crate wraps it")]
        // SAFETY: takes no pointer, and may be called at any time. Its successor `mallinfo2`, with
        // numbers of 64 bits, is not in the C libraries of all supported systems.
        let info = unsafe { nix::libc::mallinfo() };
        // sums that went beyond 32 bits: with more than 4 GiB, too little is given back
        [info.uordblks, info.hblkhd].into_iter().map(|bytes| u64::from(bytes.cast_unsigned())).sum()
    }
    #[cfg(not(target_env = "gnu"))]
    u64::MAX
}

/// Bytes of the process that are in memory; 0 where the kernel does not say.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = text.split(' ').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
    let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| size.try_into().ok());
    pages.saturating_mul(size.unwrap_or(4096))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_free_after_a_peak_goes_back() {
        let before = resident();
        assert!(before > 0);
        // every other one is kept, so that the arena has no free end
        let mut peak: Vec<Option<Vec<u8>>> = (0..20_000).map(|_| Some(vec![1; 10_000])).collect();
        let releasing = tokio::spawn(release_after_peaks());
        // what is in use at the first looks is not forgotten when it is free later
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
