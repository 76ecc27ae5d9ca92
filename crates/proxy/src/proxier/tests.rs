use std::time::Duration;

use jiff::Timestamp;

use super::owed::Owed;
use super::*;
use crate::model::Changes;

#[test]
fn all_is_compared_as_often_as_it_costs() {
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
fn what_a_failed_sync_owes_is_kept() {
    let name = ServiceName::new("default", "it");
    let at = |second| Timestamp::from_second(second).unwrap();
    let warning = |reason| Warning {
        kind: "Service",
        namespace: "default".to_owned(),
        name: "it".to_owned(),
        reason,
        message: String::new(),
    };
    let mut owed = Owed::default();
    for (udp, second) in [(false, 7), (true, 5), (false, 9)] {
        owed.add(Changes {
            udp,
            triggers: vec![(name.clone(), at(second))],
            warnings: vec![warning("A"); 40],
            ..Changes::default()
        });
    }
    assert!(owed.udp);
    let (triggers, warnings) = owed.tell();
    assert_eq!(triggers, BTreeMap::from([(name, at(5))]), "the oldest is the latency");
    assert_eq!(warnings.len(), 64);
    assert!(owed.udp, "flows are another matter");
    owed.end_flows();
    assert!(!owed.udp && owed.tell().0.is_empty());
}

#[test]
fn a_sync_may_run_on_any_thread() {
    fn any_thread<T: Send>(_: impl FnOnce(&'static Proxier) -> T) {}
    any_thread(|proxier| proxier.sync(Reason::Change));
}
