#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::sync::Barrier;

use longshore_client::events::Recorder;
use longshore_pod::admission::Sysctls;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

const CRITICAL: i32 = 2_000_000_000;

/// On a node of 4 CPUs and 10 pods without an apiserver, under that pressure.
fn admission(pressure: NodePressure) -> Admission {
    let node = json!({
        "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "10"}},
    });
    let (recorder, _) = Recorder::start(None, "n");
    Admission::new(Sources {
        abilities: Abilities {
            sysctls: Sysctls::new(&[], (6, 1)).unwrap(),
            app_armor: false,
            supplemental_groups_policy: false,
            pod_level_resources: true,
            toleration_comparisons: false,
        },
        own: serde_json::from_value(node).unwrap(),
        told: None,
        pressure: watch::channel(pressure).1,
        pod_events: PodEventRecorder::new(recorder),
        terminator: PodTerminator::default(),
        managers: Managers::default(),
    })
}

fn pod(uid: &str, cpu: &str, priority: i32) -> Pod {
    pod_of(json!({
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {
            "priority": priority, "terminationGracePeriodSeconds": 20,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        },
    }))
}

fn pod_of(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn reason(outcome: Result<Reservation, Refusal>) -> Option<String> {
    outcome.err().map(|refusal| refusal.verdict.reason)
}

#[tokio::test]
async fn pods_that_come_together_do_not_get_the_last_seat_twice() {
    let admission = admission(NodePressure::default());
    let barrier = Barrier::new(8);
    let seats: Vec<_> = std::thread::scope(|scope| {
        let ask = |index: usize| {
            let (admission, barrier) = (&admission, &barrier);
            scope.spawn(move || {
                let pod = pod(&format!("p{index}"), "1500m", 0);
                barrier.wait();
                admission.admit(&pod)
            })
        };
        let asked: Vec<_> = (0..8).map(ask).collect();
        asked.into_iter().filter_map(|asked| asked.join().unwrap().ok()).collect()
    });
    assert_eq!(seats.len(), 2);
    let late = || admission.admit(&pod("late", "1500m", 0));
    assert_eq!(reason(late()).as_deref(), Some("OutOfcpu"));
    drop(seats);
    assert_eq!(reason(late()), None, "who has ended holds nothing");
}

#[tokio::test]
async fn who_was_taken_in_before_stays_and_counts() {
    let admission = admission(NodePressure { disk: true, ..NodePressure::default() });
    assert_eq!(reason(admission.admit(&pod("new", "1", 0))).as_deref(), Some("Evicted"));
    let kept: Vec<_> = (0..3).map(|n| admission.keep(&pod(&format!("p{n}"), "2", 0))).collect();
    let critical = admission.admit(&pod("critical", "1", CRITICAL)).unwrap();
    // 6 are in use of 4, so two have to go for one more.
    assert_eq!(admission.counts().preemptions, [("cpu".to_owned(), 2)].into());
    drop((kept, critical));
}

#[tokio::test]
async fn a_critical_pod_waits_for_those_that_make_way_but_not_forever() {
    let admission = admission(NodePressure::default());
    let mut victim = Some(admission.admit(&pod("victim", "3", 0)).unwrap());
    assert!(victim.as_mut().unwrap().way().is_none(), "nobody is in the way");
    let other = admission.admit(&pod("other", "1", 0)).unwrap();
    let mut seat = admission.admit(&pod("critical", "2", CRITICAL)).unwrap();
    let mut way = seat.way().unwrap();
    assert!(seat.way().is_none());
    let soon = Duration::from_millis(100);
    assert!(timeout(soon, way.cleared()).await.is_err());
    drop(other);
    assert!(timeout(soon, way.cleared()).await.is_err(), "another one's end is no matter");
    let clear = tokio::spawn(async move { way.cleared().await });
    drop(victim.take());
    timeout(Duration::from_secs(5), clear).await.unwrap().unwrap();

    // A victim that does not end is waited for as long as it may take, and half of that again.
    let stuck = admission.admit(&pod("stuck", "2", 0)).unwrap();
    let mut seat = admission.admit(&pod("impatient", "1", CRITICAL)).unwrap();
    let mut way = seat.way().unwrap();
    let patience = way.until.duration_since(Instant::now()).as_secs_f64().round();
    assert_eq!(patience, 30.0);
    way.until = Instant::now() + soon;
    timeout(Duration::from_secs(5), way.cleared()).await.unwrap();
    drop(stuck);
}

#[tokio::test]
async fn victims_are_ended_with_the_reason() {
    let admission = admission(NodePressure::default());
    let seats: Vec<_> =
        ["a", "b"].iter().map(|uid| admission.admit(&pod(uid, "2", 0)).unwrap()).collect();
    let orders = admission.shared.sources.terminator.listen("b");
    let _critical = admission.admit(&pod("critical", "1", CRITICAL)).unwrap();
    let end = orders().unwrap();
    assert_eq!((end.verdict.reason.as_str(), end.grace), ("Preempting", None));
    assert_eq!(end.verdict.message, "Preempted in order to admit critical pod");
    let told = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(end.verdict.disruption.as_deref(), Some(told));
    drop(seats);
}

#[tokio::test]
async fn a_resize_takes_what_is_free_and_keeps_what_it_has_otherwise() {
    let admission = admission(NodePressure::default());
    let _other = admission.admit(&pod("other", "1", 0)).unwrap();
    let _seat = admission.admit(&pod("p", "1", 0)).unwrap();
    let refused = admission.resize(&pod("p", "3500m", 0)).unwrap_err();
    assert_eq!(refused.reason, "OutOfcpu");
    let message =
        "Node didn't have enough resource: cpu, requested: 3500, used: 1000, capacity: 4000";
    assert_eq!(refused.message, message);
    assert_eq!(reason(admission.admit(&pod("fits", "2", 0))), None);
    assert_eq!(admission.resize(&pod("p", "3", 0)), Ok(()));
    assert_eq!(reason(admission.admit(&pod("late", "1m", 0))).as_deref(), Some("OutOfcpu"));
    assert_eq!(admission.resize(&pod("p", "1", 0)), Ok(()));
    assert_eq!(reason(admission.admit(&pod("late", "2", 0))), None);
    assert_eq!(admission.resize(&pod("unknown", "9", 0)), Ok(()));
}

#[tokio::test]
async fn refusals_are_counted_once_they_are_told() {
    let admission = admission(NodePressure::default());
    let (big, elsewhere) = (pod("big", "9", 0), {
        let mut pod = pod("elsewhere", "1", 0);
        pod.spec.as_mut().unwrap().node_selector = Some([("a".into(), "b".into())].into());
        pod
    });
    for pod in [&big, &big, &elsewhere] {
        let refusal = admission.admit(pod).unwrap_err();
        assert!(admission.admit_anew(pod, refusal).await.is_err());
    }
    let counted: HashSet<_> = admission.counts().rejections.into_iter().collect();
    assert_eq!(counted, [("OutOfcpu".to_owned(), 2), ("Other".to_owned(), 1)].into());
}
