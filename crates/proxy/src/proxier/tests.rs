use std::time::Duration;

use jiff::Timestamp;

use super::pending::PendingWork;
use super::*;
use crate::model::Changes;

#[test]
fn full_sync_frequency_follows_its_duration() {
    let seconds = Duration::from_secs;
    let cheap = Duration::from_millis(30);
    for (duration, elapsed, reason, large, old) in [
        (cheap, seconds(29), Reason::Period, false, false),
        (cheap, seconds(30), Reason::Period, false, true),
        (cheap, seconds(30), Reason::Period, true, true),
        (cheap, seconds(30), Reason::Change, false, false),
        (seconds(2), seconds(1999), Reason::Period, false, false),
        (seconds(2), seconds(2000), Reason::Period, true, true),
        (seconds(8), seconds(3600), Reason::Period, true, false),
        (seconds(8), seconds(3600), Reason::Change, false, true),
        (Duration::MAX, seconds(3599), Reason::Period, false, false),
    ] {
        let last = LastFull { ended: Instant::now(), duration };
        assert_eq!(last.is_old(elapsed, reason, large), old, "{duration:?} {elapsed:?} {reason:?}");
    }
}

#[test]
fn sync_failure_keeps_pending_work() {
    let name = ServiceName::new("default", "it");
    let at = |second| Timestamp::from_second(second).unwrap();
    let warning = |reason| Warning {
        kind: "Service",
        namespace: "default".to_owned(),
        name: "it".to_owned(),
        reason,
        message: String::new(),
    };
    let mut pending = PendingWork::default();
    for (udp, second) in [(false, 7), (true, 5), (false, 9)] {
        pending.add(Changes {
            udp,
            triggers: vec![(name.clone(), at(second))],
            warnings: vec![warning("A"); 40],
            ..Changes::default()
        });
    }
    assert!(pending.udp);
    let (triggers, warnings) = pending.take_reports();
    assert_eq!(triggers, BTreeMap::from([(name, at(5))]), "the oldest is the latency");
    assert_eq!(warnings.len(), 64);
    assert!(pending.udp, "flows are another matter");
    pending.delete_stale_flows();
    assert!(!pending.udp && pending.take_reports().0.is_empty());
}

#[test]
fn sync_future_is_send() {
    fn any_thread<T: Send>(_: impl FnOnce(&'static Proxier) -> T) {}
    any_thread(|proxier| proxier.sync(Reason::Change));
}
