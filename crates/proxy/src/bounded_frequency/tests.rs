use std::cell::RefCell;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::time::{advance, sleep};

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const PERIODS: Periods =
    Periods { min: SECOND, max: Duration::from_secs(30), retry: Duration::from_secs(2) };

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A scheduler after a sync that began at 0 and took that long.
fn after(cost: f64, succeeded: bool) -> (BoundedFrequency, Instant) {
    let start = Instant::now();
    let mut bounded_frequency = BoundedFrequency::new(PERIODS, start);
    bounded_frequency.begin(start);
    bounded_frequency.end(start + seconds(cost), succeeded);
    (bounded_frequency, start + seconds(cost))
}

#[test]
fn sync_frequency_first_change_is_immediate() {
    let start = Instant::now();
    let mut bounded_frequency = BoundedFrequency::new(PERIODS, start);
    assert_eq!(bounded_frequency.next(), (start + PERIODS.max, Reason::Period));
    bounded_frequency.change();
    assert_eq!(bounded_frequency.next(), (start, Reason::Change));
}

#[test]
fn sync_frequency_min_sync_period() {
    let (mut bounded_frequency, end) = after(0.1, true);
    assert_eq!(bounded_frequency.next(), (end + PERIODS.max, Reason::Period));
    bounded_frequency.change();
    assert_eq!(bounded_frequency.next(), (end + SECOND, Reason::Change));
}

#[test]
fn sync_frequency_follows_the_duration_of_two_syncs() {
    let (mut bounded_frequency, end) = after(5.0, true);
    bounded_frequency.change();
    assert_eq!(bounded_frequency.next(), (end + SECOND, Reason::Change));
    bounded_frequency.begin(end + SECOND);
    let end = end + seconds(5.0);
    bounded_frequency.end(end, true);
    bounded_frequency.change();
    assert_eq!(bounded_frequency.next(), (end + seconds(4.0), Reason::Change));
}

#[test]
fn sync_failures_back_off() {
    let (mut bounded_frequency, mut end) = after(0.1, false);
    for pause in [2, 4, 8, 16, 30, 30] {
        let (at, reason) = bounded_frequency.next();
        assert_eq!(at, end + SECOND * pause);
        assert!(reason == Reason::Retry || pause == 30, "{reason:?}");
        bounded_frequency.begin(at);
        bounded_frequency.end(at, false);
        end = at;
    }
    // A change may be what it takes.
    bounded_frequency.change();
    assert_eq!(bounded_frequency.next(), (end + SECOND, Reason::Change));
    bounded_frequency.begin(end + SECOND);
    bounded_frequency.end(end + SECOND, true);
    assert_eq!(bounded_frequency.next(), (end + SECOND + PERIODS.max, Reason::Period));
}

#[tokio::test(start_paused = true)]
async fn sync_frequency_bounds_a_burst_to_two_syncs() {
    let changes = Notify::new();
    let syncs = RefCell::new(Vec::new());
    let start = Instant::now();
    let syncing = run("test", PERIODS, &changes, |reason| {
        syncs.borrow_mut().push((start.elapsed(), reason));
        async {
            sleep(seconds(0.5)).await;
            Ok::<_, String>(())
        }
    });
    let test = async {
        for _ in 0..10 {
            changes.notify_one();
            sleep(seconds(0.01)).await;
        }
        sleep(seconds(40.0)).await;
    };
    tokio::select! { () = syncing => {}, () = test => {} }
    let expected = [(0.0, Reason::Change), (1.5, Reason::Change), (32.0, Reason::Period)];
    assert_eq!(*syncs.borrow(), expected.map(|(at, reason)| (seconds(at), reason)));
}

#[tokio::test(start_paused = true)]
async fn sync_failure_is_retried() {
    let changes = Notify::new();
    let mut left = 3;
    let mut reasons = Vec::new();
    let syncing = run("test", PERIODS, &changes, |reason| {
        reasons.push(reason);
        left -= 1;
        std::future::ready(if left > 0 { Err("no luck") } else { Ok(()) })
    });
    changes.notify_one();
    let _ = tokio::time::timeout(seconds(10.0), syncing).await;
    assert_eq!(reasons, [Reason::Change, Reason::Retry, Reason::Retry]);
    advance(SECOND).await;
}

proptest! {
    /// Whatever happens: syncs keep their distance, none is further off than the longest period,
    /// and a change is taken in by a sync that begins after it.
    #[test]
    fn bounds_hold(events in vec((0u64..4000, any::<bool>(), 0u64..3000, any::<bool>()), 1..60)) {
        let start = Instant::now();
        let mut now = start;
        let mut bounded_frequency = BoundedFrequency::new(PERIODS, now);
        let mut last_end = None;
        let mut unsynced: Option<Instant> = None;
        for (wait, change, cost, succeeded) in events {
            let (at, reason) = bounded_frequency.next();
            prop_assert!(at <= last_end.unwrap_or(start) + PERIODS.max);
            let arrival = now + Duration::from_millis(wait);
            if change && arrival < at {
                now = arrival;
                bounded_frequency.change();
                unsynced.get_or_insert(now);
                continue;
            }
            now = now.max(at);
            if let Some(last_end) = last_end {
                prop_assert!(now >= last_end + PERIODS.min);
            } else if reason == Reason::Change {
                prop_assert_eq!(unsynced, Some(now));
            }
            prop_assert_eq!(reason == Reason::Change && unsynced.is_none(), false);
            if let (Some(since), Some(last_end)) = (unsynced.take(), last_end) {
                prop_assert!(now <= (last_end + PERIODS.min.max(seconds(3.0))).max(since));
            }
            bounded_frequency.begin(now);
            now += Duration::from_millis(cost);
            bounded_frequency.end(now, succeeded);
            last_end = Some(now);
        }
    }
}
