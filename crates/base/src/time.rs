//! Points in time that are computed from numbers of others. `Instant + Duration` panics when the sum
//! cannot be represented; a lint refuses it (`clippy::arithmetic_side_effects`), and these take its
//! place.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Maximum duration of timers: about 30 years, as in tokio.
pub const FOREVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The time `wait` after now, at most [`FOREVER`] away.
#[must_use]
pub fn after(wait: Duration) -> Instant {
    later(Instant::now(), wait)
}

/// The time `wait` after `start`, at most [`FOREVER`] after it.
#[must_use]
pub fn later(start: Instant, wait: Duration) -> Instant {
    start.checked_add(wait.min(FOREVER)).unwrap_or(start)
}

/// Waits until that time; without one, forever.
pub async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// An equal part of a span. Of no parts there is none.
#[must_use]
pub fn part(span: Duration, parts: u32) -> Duration {
    span.checked_div(parts).unwrap_or_default()
}

/// A number of seconds from outside as a duration: negative ones count as none, and no duration is
/// longer than [`FOREVER`].
#[must_use]
pub fn seconds(count: i64) -> Duration {
    u64::try_from(count).map_or(Duration::ZERO, |count| Duration::from_secs(count).min(FOREVER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_is_waited_for_if_there_is_one() {
        let at = after(Duration::from_secs(9));
        until(Some(at)).await;
        assert!(Instant::now() >= at);
        assert!(tokio::time::timeout(FOREVER, until(None)).await.is_err());
    }

    #[test]
    fn time_arithmetic_does_not_overflow() {
        for wait in [Duration::ZERO, Duration::from_secs(1), Duration::MAX, FOREVER] {
            assert!(after(wait) <= later(Instant::now(), FOREVER));
        }
        assert_eq!(part(Duration::from_secs(3), 2), Duration::from_millis(1500));
        assert_eq!(part(FOREVER, 0), Duration::ZERO);
        assert_eq!(seconds(i64::MIN), Duration::ZERO);
        assert_eq!(seconds(-1), Duration::ZERO);
        assert_eq!(seconds(30), Duration::from_secs(30));
        assert_eq!(seconds(i64::MAX), FOREVER);
    }
}
