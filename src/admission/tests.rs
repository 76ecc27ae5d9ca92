use std::collections::HashSet;
use std::sync::Barrier;

use longshore_client::events::Recorder;
use longshore_devices::Devices;
use longshore_devices::testing::{Script, ScriptedPlugin, device};
use longshore_gates::DeclaredFeatures;
use longshore_pod::admission::Sysctls;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

const CRITICAL: i32 = 2_000_000_000;

/// On a node of 4 CPUs and 10 pods without an apiserver, under that pressure.
fn admission(pressure: NodePressure) -> Admission {
    admission_with(pressure, Devices::default())
}

fn admission_with(pressure: NodePressure, devices: Devices) -> Admission {
    let node = json!({
        "metadata": {"name": "n"},
        "status": {"allocatable": {"cpu": "4", "memory": "1Gi", "pods": "10"}},
    });
    let (recorder, _) = Recorder::start(None, "n");
    Admission::new(Sources {
        capabilities: NodeCapabilities {
            sysctls: Sysctls::new(&[], (6, 1)).unwrap(),
            app_armor: false,
            supplemental_groups_policy: false,
            pod_level_resources: true,
            toleration_comparisons: false,
            declared_features: Some(DeclaredFeatures::default()),
        },
        own: serde_json::from_value(node).unwrap(),
        api_node: None,
        pressure: watch::channel(pressure).1,
        shutting_down: watch::channel(false).1,
        pod_events: PodEventRecorder::new(recorder),
        terminator: PodTerminator::default(),
        managers: Managers::default(),
        devices,
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
async fn admission_of_concurrent_pods_does_not_overcommit() {
    let admission = admission(NodePressure::default());
    let barrier = Barrier::new(8);
    let reservations: Vec<_> = std::thread::scope(|scope| {
        let admit = |index: usize| {
            let (admission, barrier) = (&admission, &barrier);
            scope.spawn(move || {
                let pod = pod(&format!("p{index}"), "1500m", 0);
                barrier.wait();
                admission.admit(&pod)
            })
        };
        let threads: Vec<_> = (0..8).map(admit).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().ok()).collect()
    });
    assert_eq!(reservations.len(), 2);
    let late = || admission.admit(&pod("late", "1500m", 0));
    assert_eq!(reason(late()).as_deref(), Some("OutOfcpu"));
    drop(reservations);
    assert_eq!(reason(late()), None, "who has ended holds nothing");
}

#[tokio::test]
async fn admission_keeps_and_counts_admitted_pods() {
    let admission = admission(NodePressure { disk: true, ..NodePressure::default() });
    assert_eq!(reason(admission.admit(&pod("new", "1", 0))).as_deref(), Some("Evicted"));
    let kept: Vec<_> = (0..3).map(|n| admission.keep(&pod(&format!("p{n}"), "2", 0))).collect();
    let critical = admission.admit(&pod("critical", "1", CRITICAL)).unwrap();
    // 6 are in use of 4, so two have to go for one more.
    assert_eq!(admission.counts().preemptions, [("cpu".to_owned(), 2)].into());
    drop((kept, critical));
}

#[tokio::test]
async fn admission_of_critical_pod_waits_for_victims_with_a_timeout() {
    let admission = admission(NodePressure::default());
    let mut victim = Some(admission.admit(&pod("victim", "3", 0)).unwrap());
    assert!(victim.as_mut().unwrap().take_preemption_wait().is_none(), "no victims");
    let other = admission.admit(&pod("other", "1", 0)).unwrap();
    let mut reservation = admission.admit(&pod("critical", "2", CRITICAL)).unwrap();
    let mut wait = reservation.take_preemption_wait().unwrap();
    assert!(reservation.take_preemption_wait().is_none());
    let soon = Duration::from_millis(100);
    assert!(timeout(soon, wait.finished()).await.is_err());
    drop(other);
    assert!(timeout(soon, wait.finished()).await.is_err(), "another one's end is no matter");
    let clear = tokio::spawn(async move { wait.finished().await });
    drop(victim.take());
    timeout(Duration::from_secs(5), clear).await.unwrap().unwrap();

    // A victim that does not end is waited for as long as it may take, and half of that again.
    let stuck = admission.admit(&pod("stuck", "2", 0)).unwrap();
    let mut reservation = admission.admit(&pod("impatient", "1", CRITICAL)).unwrap();
    let mut wait = reservation.take_preemption_wait().unwrap();
    let remaining = wait.until.duration_since(Instant::now()).as_secs_f64().round();
    assert_eq!(remaining, 30.0);
    wait.until = Instant::now() + soon;
    timeout(Duration::from_secs(5), wait.finished()).await.unwrap();
    drop(stuck);
}

#[tokio::test]
async fn admission_preemption_terminates_victims_with_its_reason() {
    let admission = admission(NodePressure::default());
    let reservations: Vec<_> =
        ["a", "b"].iter().map(|uid| admission.admit(&pod(uid, "2", 0)).unwrap()).collect();
    let orders = admission.shared.sources.terminator.listen("b");
    let _critical = admission.admit(&pod("critical", "1", CRITICAL)).unwrap();
    let end = orders().unwrap();
    assert_eq!((end.verdict.reason.as_str(), end.grace), ("Preempting", None));
    assert_eq!(end.verdict.message, "Preempted in order to admit critical pod");
    let message = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(end.verdict.disruption.as_deref(), Some(message));
    drop(reservations);
}

#[tokio::test]
async fn admission_counts_no_pod_that_has_left_and_its_preemptor_waits() {
    let admission = admission(NodePressure::default());
    let first = admission.admit(&pod("a", "3", 0)).unwrap();
    assert_eq!(reason(admission.admit(&pod("b", "3", 0))).as_deref(), Some("OutOfcpu"));
    admission.leave("a");
    admission.leave("unknown");
    let second = admission.admit(&pod("b", "3", 0)).unwrap();
    let mut critical = admission.admit(&pod("critical", "3", CRITICAL)).unwrap();
    let mut wait = critical.take_preemption_wait().unwrap();
    admission.leave("b");
    let soon = Duration::from_millis(100);
    assert!(timeout(soon, wait.finished()).await.is_err(), "it still runs");
    drop((first, second));
    timeout(Duration::from_secs(5), wait.finished()).await.unwrap();
    assert_eq!(reason(admission.admit(&pod("c", "2", 0))).as_deref(), Some("OutOfcpu"));
}

#[tokio::test]
async fn admission_of_resize_needs_free_resources() {
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
async fn admission_rejections_are_counted() {
    let admission = admission(NodePressure::default());
    let (big, elsewhere) = (pod("big", "9", 0), {
        let mut pod = pod("elsewhere", "1", 0);
        pod.spec.as_mut().unwrap().node_selector = Some([("a".into(), "b".into())].into());
        pod
    });
    for pod in [&big, &big, &elsewhere] {
        let refusal = admission.admit(pod).unwrap_err();
        assert!(admission.admit_with_current_node(pod, refusal).await.is_err());
    }
    let counted: HashSet<_> = admission.counts().rejections.into_iter().collect();
    assert_eq!(counted, [("OutOfcpu".to_owned(), 2), ("Other".to_owned(), 1)].into());
}

#[tokio::test]
async fn admission_names_features_that_an_update_needs_and_the_node_does_not_declare() {
    let admission = admission(NodePressure::default());
    let with = |cpu: &str| {
        pod_of(json!({"metadata": {"name": "p"}, "spec": {
            "containers": [], "resources": {"requests": {"cpu": cpu}},
        }}))
    };
    let name = "InPlacePodLevelResourcesVerticalScaling";
    let message = format!("Pod requires node features that are not available: {name}");
    assert_eq!(admission.refusal_of_update(&with("1"), &with("2")), Some(message));
    assert_eq!(admission.refusal_of_update(&with("1"), &with("1")), None);
}

#[tokio::test]
async fn admission_asks_device_plugins() {
    const GPU: &str = "example.com/gpu";
    let root = tempfile::tempdir().unwrap();
    let settings = longshore_devices::Settings {
        root_dir: root.path().to_owned(),
        reports_health: true,
        waits_for_plugins: false,
        numa_nodes: Vec::new,
    };
    let metrics = longshore_devices::Metrics::new(&longshore_metrics::Registry::default());
    let devices = Devices::open(settings, metrics);
    let running = tokio::spawn(devices.clone().run());
    let folder = root.path().join("device-plugins");
    while !folder.join("kubelet.sock").exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let options = longshore_devices::v1beta1::DevicePluginOptions {
        get_preferred_allocation_available: true,
        pre_start_required: false,
    };
    let script = Script { options, prefers: vec!["b".to_owned()], ..Script::default() };
    let list = ["a", "b"].map(|id| device(id, "Healthy")).into();
    let plugin = ScriptedPlugin::start(&folder, "p.sock", list, script).unwrap();
    plugin.register(GPU).await.unwrap();
    devices.capacity().wait_for(|seen| seen.0.contains_key(GPU)).await.unwrap();

    let admission = admission_with(NodePressure::default(), devices.clone());
    let gpu = |uid: &str, cpu: &str, count: u32| {
        let amounts = json!({"cpu": cpu, GPU: count});
        pod_of(json!({
            "metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {"containers": [
                {"name": "c", "resources": {"requests": amounts, "limits": {GPU: count}}},
            ]},
        }))
    };
    let admit = async |pod: &Pod| match admission.admit(pod) {
        Ok(reservation) => Ok(reservation),
        Err(refusal) => admission.admit_with_current_node(pod, refusal).await,
    };
    let large = gpu("0", "5", 1);
    assert_eq!(admit(&large).await.unwrap_err().reason, "OutOfcpu");
    assert!(!devices.concerns(&pod("0", "5", 0)), "it holds nothing");
    let first = gpu("1", "1", 1);
    let _first = admit(&first).await.unwrap();
    assert_eq!(admission.allocate_devices(&first).await, Ok(()));
    assert_eq!(plugin.calls().last().unwrap(), "Allocate b");
    let verdict = admit(&gpu("2", "1", 2)).await.unwrap_err();
    assert_eq!(verdict.reason, "UnexpectedAdmissionError");
    let expected = "Allocate failed due to requested number of devices unavailable for \
                    example.com/gpu. Requested: 2, Available: 1, which is unexpected";
    assert_eq!(verdict.message, expected);
    assert_eq!(admission.counts().rejections["UnexpectedAdmissionError"], 1);
    plugin.stop().await;
    let gone = |seen: &longshore_devices::Capacity| seen.0[GPU].allocatable == 0;
    devices.capacity().wait_for(gone).await.unwrap();
    let verdict = admit(&gpu("3", "1", 1)).await.unwrap_err();
    let expected = "Allocate failed due to no healthy devices present; cannot allocate unhealthy \
                    devices example.com/gpu, which is unexpected";
    assert_eq!(verdict.message, expected);
    // One that was admitted before would be rejected now, unless it runs.
    assert!(admission.must_readmit(&first, false) && !admission.must_readmit(&first, true));
    running.abort();
}
