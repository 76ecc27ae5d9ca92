//! The wall clock.

use std::time::Duration;

use jiff::Timestamp;

/// The current time. With the feature `testing` it is the time at the first call plus what has passed
/// on tokio's clock since, so that a test that pauses that clock pauses this one, too.
#[must_use]
pub fn now() -> Timestamp {
    #[cfg(not(feature = "testing"))]
    return Timestamp::now();
    #[cfg(feature = "testing")]
    return testing::now();
}

/// Waits until that time; without one, forever.
pub async fn until(at: Option<Timestamp>) {
    match at {
        Some(at) => {
            let left = at.duration_since(now());
            tokio::time::sleep(Duration::try_from(left).unwrap_or_default()).await;
        }
        None => std::future::pending().await,
    }
}

#[cfg(feature = "testing")]
mod testing {
    use std::sync::OnceLock;

    use jiff::{SignedDuration, Timestamp};
    use tokio::time::Instant;

    static START: OnceLock<(Timestamp, Instant)> = OnceLock::new();

    pub(super) fn now() -> Timestamp {
        let (start, instant) = *START.get_or_init(|| (Timestamp::now(), Instant::now()));
        let now = Instant::now();
        let span = |passed| SignedDuration::try_from(passed).unwrap_or(SignedDuration::MAX);
        // Each runtime has a clock of its own, which may be behind that of the first call.
        let shifted = match now.checked_duration_since(instant) {
            Some(passed) => start.checked_add(span(passed)),
            None => start.checked_sub(span(instant.saturating_duration_since(now))),
        };
        shifted.unwrap_or(start)
    }
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use std::time::Duration;

    use super::{now, until};

    #[tokio::test(start_paused = true)]
    async fn clock_follows_paused_time() {
        for _ in 0..2 {
            let before = now();
            tokio::time::sleep(Duration::from_secs(1000)).await;
            assert_eq!(now().duration_since(before).as_secs(), 1000);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clock_is_waited_for() {
        let at = now().checked_add(jiff::SignedDuration::from_secs(60));
        let at = at.unwrap_or(jiff::Timestamp::MAX);
        until(Some(at)).await;
        assert!(now() >= at);
        until(Some(jiff::Timestamp::MIN)).await;
    }
}
