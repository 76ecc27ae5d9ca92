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
/// How often is looked.
const PERIOD: Duration = Duration::from_secs(15);
/// Growth from which on it is worth to look for free pages.
const GROWTH: u64 = 32 << 20;

/// Has few arenas made. To be called before there are threads.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code, reason = "no crate wraps it")]
    // SAFETY: sets a number, and no other thread uses the allocator yet.
    unsafe {
        nix::libc::mallopt(nix::libc::M_ARENA_MAX, ARENAS);
    }
}

/// Gives free memory back after each peak, for ever.
pub async fn release_after_peaks() {
    let mut least = resident();
    loop {
        sleep(PERIOD).await;
        let now = resident();
        if now >= least.saturating_add(GROWTH) {
            // it takes a millisecond for some 10 MiB
            let _ = panics::blocking(release).await;
            least = resident();
        }
        least = least.min(now);
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
        let releasing = tokio::spawn(release_after_peaks());
        tokio::task::yield_now().await;
        // every other one is kept, so that the arena has no free end
        let mut peak: Vec<Option<Vec<u8>>> = (0..20_000).map(|_| Some(vec![1; 10_000])).collect();
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
