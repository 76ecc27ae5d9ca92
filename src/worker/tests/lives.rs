//! The main lives of a pod, one test each.

use std::time::Duration;

use longshore_testkit::scripted::{Behaviour, Fault};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::lifecycle::exit_codes;
use crate::testing::{Node, pod};

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

fn exits(after: u64, code: i32) -> Behaviour {
    Behaviour { exits: Some((seconds(after), code)), ..Behaviour::default() }
}

#[tokio::test(start_paused = true)]
async fn pod_life_from_admission_to_removal() {
    let node = Node::start().await;
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.phase(5, "p", "Running").await;
    let status = node.api.status("p");
    assert_eq!(status["podIP"], "192.0.2.7");
    assert_eq!(status["containerStatuses"][0]["ready"], true);
    node.api.delete_pod("p", 30);
    node.within(5, "the object is deleted", |node| node.api.objects().pods.is_empty()).await;
    node.clean().await;
    assert_eq!(node.runtime.count("RunPodSandbox", "p"), 1);
    assert_eq!(node.runtime.count("StartContainer", "c"), 1);
    assert_eq!(node.runtime.count("StopContainer", "c"), 1);
    let events = node.api.objects().events.clone();
    let reasons: Vec<&str> = events.iter().map(|(reason, _)| reason.as_str()).collect();
    assert_eq!(reasons, ["Pulling", "Pulled", "Created", "Started", "Killing"]);
}

#[tokio::test(start_paused = true)]
async fn pod_completion_is_final() {
    for (code, phase) in [(0, "Succeeded"), (3, "Failed")] {
        let node = Node::start().await;
        node.runtime.set_behaviour("c", exits(20, code));
        node.api.put_pod(pod("p", json!({"restartPolicy": "Never"}), json!({})));
        node.phase(10, "p", "Running").await;
        node.phase(30, "p", phase).await;
        node.within(5, "nothing runs", |node| {
            !node.runtime.world().sandboxes.values().any(|sandbox| sandbox.ready)
        })
        .await;
        let exit = &node.api.status("p")["containerStatuses"][0]["state"]["terminated"]["exitCode"];
        assert_eq!(*exit, code);
        // Its containers and logs are kept while the object exists.
        sleep(seconds(100)).await;
        assert_eq!(node.runtime.world().runs.len(), 1);
        assert_eq!(node.daemon().context.admission.reserved(), 0, "it needs no resources");
        assert_eq!(node.runtime.count("StartContainer", "c"), 1);
        node.api.delete_pod("p", 30);
        node.clean().await;
        assert_eq!(node.api.objects().phases["p"], ["Pending", "Running", phase]);
    }
}

/// The scheduler gives the resources of a pod whose object is gone to others at once.
#[tokio::test(start_paused = true)]
async fn pod_that_was_removed_leaves_its_resources_to_others_while_it_ends() {
    let node = Node::start().await;
    let with_cpu = |name: &str| {
        let resources = json!({"requests": {"cpu": "3"}});
        pod(name, json!({}), json!({"name": name, "resources": resources}))
    };
    node.runtime.set_behaviour("a", Behaviour { stops_in: seconds(25), ..Behaviour::default() });
    node.api.put_pod(with_cpu("a"));
    node.running(5, &["a"]).await;
    node.api.put_pod(with_cpu("b"));
    node.phase(5, "b", "Failed").await;
    assert_eq!(node.api.status("b")["reason"], "OutOfcpu");
    node.api.delete_pod("a", 0);
    node.api.put_pod(with_cpu("c"));
    node.running(5, &["a", "c"]).await;
    node.running(40, &["c"]).await;
    for name in ["b", "c"] {
        node.api.delete_pod(name, 30);
    }
    node.clean().await;
    assert_eq!(node.daemon().context.admission.reserved(), 0);
}

/// Ids made the messages of events unique, and were missing where people look for them.
#[tokio::test(start_paused = true)]
async fn pod_start_error_has_the_id_in_the_status_alone() {
    let node = Node::start().await;
    node.runtime.world().unstartable.insert("c".to_owned());
    node.api.put_pod(pod("p", json!({}), json!({})));
    let waiting =
        |node: &Node| node.api.status("p")["containerStatuses"][0]["state"]["waiting"].clone();
    node.within(5, "the reason", |node| waiting(node)["reason"] == "RunContainerError").await;
    let message = waiting(&node)["message"].as_str().unwrap().to_owned();
    let id = message.strip_prefix("no task for container \"").unwrap();
    assert!(!id.starts_with("c\"") && id.len() > 2, "{message}");
    let text = "Error: no task for container \"c\"";
    node.within(5, "the event", |node| node.api.event("Failed").as_deref() == Some(text)).await;
    node.runtime.world().unstartable.clear();
    node.running(60, &["c"]).await;
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_sandbox_that_cannot_be_inspected_is_an_event() {
    let node = Node::start().await;
    node.runtime.inject("PodSandboxStatus", Fault::Fails);
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.within(5, "an event", |node| node.api.event("FailedPodSandBoxStatus").is_some()).await;
    let message = node.api.event("FailedPodSandBoxStatus").unwrap();
    assert!(message.starts_with("Unable to get pod sandbox status: "), "{message}");
    node.running(60, &["c"]).await;
    assert_eq!(node.runtime.count("RunPodSandbox", "p"), 1, "it is there");
    node.api.delete_pod("p", 30);
    node.clean().await;
}

/// A container that exits while the network is away is not started before it is back.
#[tokio::test(start_paused = true)]
async fn pod_in_a_lost_network_waits_for_it() {
    let node = Node::start().await;
    node.runtime.set_behaviour("c", exits(20, 1));
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.running(5, &["c"]).await;
    let set = |error: Option<&str>| {
        node.health.send_modify(|health| health.network_error = error.map(str::to_owned));
    };
    set(Some("it is away"));
    let text = "network is not ready: it is away";
    node.within(5, "an event", |node| node.api.event("NetworkNotReady").as_deref() == Some(text))
        .await;
    sleep(seconds(100)).await;
    assert_eq!(node.runtime.count("StartContainer", "c"), 1);
    set(None);
    node.running(5, &["c"]).await;
    // It ends, whatever the network does.
    set(Some("it is away"));
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_status_shows_recursive_read_only_mounts() {
    let node = Node::start().await;
    let pod = |name: &str| {
        let mounts = json!([
            {"name": "v", "mountPath": "/v", "readOnly": true, "recursiveReadOnly": "IfPossible"},
        ]);
        let volumes = json!([{"name": "v", "emptyDir": {}}]);
        pod(name, json!({"volumes": volumes}), json!({"name": name, "volumeMounts": mounts}))
    };
    let shown = |name: &str| {
        let container = node.api.status(name)["containerStatuses"][0].clone();
        container["volumeMounts"][0]["recursiveReadOnly"].clone()
    };
    node.api.put_pod(pod("p"));
    node.phase(5, "p", "Running").await;
    assert_eq!(shown("p"), "Disabled");
    node.health.send_modify(|health| {
        health.handlers = serde_json::from_value(json!([
            {"name": "", "features": {"recursiveReadOnlyMounts": true}},
        ]))
        .unwrap();
    });
    node.within(5, "it is enabled", |_| shown("p") == "Enabled").await;
    node.api.delete_pod("p", 1);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_crash_loop_backs_off() {
    let node = Node::start().await;
    node.runtime.set_behaviour("c", exits(1, 1));
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.within(200, "six starts", |node| node.runtime.count("StartContainer", "c") == 6).await;
    let starts = node.runtime.calls("StartContainer", "c");
    let pauses: Vec<u64> = starts.windows(2).map(|two| (two[1] - two[0]).as_secs() - 1).collect();
    assert_eq!(pauses, [0, 10, 20, 40, 40], "up to the configured maximum");
    node.within(5, "the reason is reported", |node| {
        let container = &node.api.status("p")["containerStatuses"][0];
        container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })
    .await;
    let container = node.api.status("p")["containerStatuses"][0].clone();
    assert_eq!(container["restartCount"], 5);
    let message = "back-off 40s restarting failed container=c pod=p_default(p)";
    assert_eq!(container["state"]["waiting"]["message"], message);
    // One for each delay, as none is longer than a minute; repetitions have only the message.
    let text = "Back-off restarting failed container c in pod p_default(p)";
    assert_eq!(node.api.event("BackOff").as_deref(), Some(text));
    let count = |node: &Node| {
        node.api.objects().events.iter().filter(|(_, message)| message == text).count()
    };
    node.within(5, "five events", |node| count(node) == 5).await;
    node.api.delete_pod("p", 30);
    node.clean().await;
}

/// A new sandbox is written with the start of its container, unless that takes long.
#[tokio::test(start_paused = true)]
async fn pod_start_writes_a_status_twice() {
    for (hangs, written) in [(false, 2), (true, 3)] {
        let node = Node::start().await;
        if hangs {
            node.runtime.inject("CreateContainer", Fault::Late(seconds(5)));
        }
        node.api.put_pod(pod("p", json!({}), json!({})));
        let has_address = |node: &Node| node.api.status("p")["podIP"] == "192.0.2.7";
        node.within(2, "the address is reported", has_address).await;
        node.phase(10, "p", "Running").await;
        assert_eq!(status_writes(&node, "p"), written, "hangs: {hangs}");
        node.api.delete_pod("p", 30);
        node.clean().await;
    }
}

/// How many statuses of the pod were written.
fn status_writes(node: &Node, name: &str) -> usize {
    let objects = node.api.objects();
    let writes = objects.requests.iter().filter(|request| request.starts_with("PATCH"));
    writes.filter(|request| request.ends_with(&format!("/pods/{name}/status"))).count()
}

/// The exit of the last container is written with the end of the pod, unless that takes long.
#[tokio::test(start_paused = true)]
async fn pod_deletion_writes_a_status_once() {
    for (hangs, written) in [(false, 1), (true, 2)] {
        let node = Node::start().await;
        node.api.put_pod(pod("p", json!({}), json!({})));
        node.phase(5, "p", "Running").await;
        if hangs {
            node.runtime.inject("StopPodSandbox", Fault::Hangs);
        }
        node.api.objects().requests.clear();
        node.api.delete_pod("p", 30);
        if hangs {
            let exited = |node: &Node| {
                !node.api.status("p")["containerStatuses"][0]["state"]["terminated"].is_null()
            };
            node.within(2, "the exit is reported", exited).await;
            node.runtime.end_faults();
        }
        node.clean().await;
        assert_eq!(status_writes(&node, "p"), written, "hangs: {hangs}");
    }
}

/// Containers that take long to stop do not delay the stop signals of others, nor lose a part of their grace period
/// by waiting.
#[tokio::test(start_paused = true)]
async fn pod_deletions_do_not_wait_for_slow_containers() {
    // The last waits for more than a second: two slots, 50 ms each.
    const COUNT: usize = 60;
    let node = Node::start().await;
    let start = Instant::now();
    for n in 0..COUNT {
        let behaviour = Behaviour { stops_in: Duration::from_millis(9500), ..Behaviour::default() };
        node.runtime.set_behaviour(&format!("c{n}"), behaviour);
        let mut manifest = pod(&format!("p{n}"), json!({}), json!({"name": format!("c{n}")}));
        manifest["metadata"]["finalizers"] = json!(["keep.test/it"]);
        node.api.put_pod(manifest);
    }
    node.within(60, "all run", |node| node.runtime.running().len() == COUNT).await;
    let deleted = Instant::now();
    (0..COUNT).for_each(|n| node.api.delete_pod(&format!("p{n}"), 10));
    node.within(60, "all have ended", |node| {
        (0..COUNT).all(|n| node.api.status(&format!("p{n}"))["phase"] == "Failed")
    })
    .await;
    for n in 0..COUNT {
        let status = node.api.status(&format!("p{n}"));
        assert_eq!(exit_codes(&status), [(format!("c{n}"), 143)], "its whole grace period");
        let stops = node.runtime.calls("StopContainer", &format!("c{n}"));
        assert_eq!(stops.len(), 1, "c{n}, {:?} since the start", start.elapsed());
        let delay = stops[0].duration_since(deleted);
        assert!(delay <= seconds(2), "c{n} after {delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pod_deletion_grace_can_be_shortened_and_not_extended() {
    // The first and second deletion after 10 s, and how long the container ran after the first.
    for (first, second, expected) in [(30, None, 30), (30, Some(5), 15), (30, Some(60), 30)] {
        let node = Node::start().await;
        node.runtime.set_behaviour("c", Behaviour { stops_in: seconds(1000), exits: None });
        node.api.put_pod(pod("p", json!({}), json!({})));
        node.running(5, &["c"]).await;
        let began = Instant::now();
        node.api.delete_pod("p", first);
        sleep(seconds(10)).await;
        if let Some(second) = second {
            node.api.delete_pod("p", second);
        }
        node.running(100, &[]).await;
        let took = began.elapsed().as_secs();
        assert!((expected..=expected + 1).contains(&took), "{first}, {second:?}: {took} s");
        node.clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pod_deletion_grace_covers_failed_calls() {
    for fault in [Fault::Fails, Fault::FailsAfter, Fault::Late(seconds(3))] {
        let node = Node::start().await;
        node.runtime.set_behaviour("c", Behaviour { stops_in: seconds(1000), exits: None });
        node.api.put_pod(pod("p", json!({}), json!({})));
        node.running(5, &["c"]).await;
        let began = Instant::now();
        node.api.delete_pod("p", 20);
        sleep(seconds(10)).await;
        // The call in progress is made again for the shorter grace period, and so is one that fails.
        node.runtime.inject("StopContainer", fault.clone());
        node.api.delete_pod("p", 5);
        node.running(100, &[]).await;
        let took = began.elapsed().as_secs();
        assert!((15..=19).contains(&took), "{fault:?}: {took} s");
        node.clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pod_eviction_reports_its_verdict() {
    let node = Node::start().await;
    node.runtime.set_behaviour("c", Behaviour { stops_in: seconds(1000), exits: None });
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.running(5, &["c"]).await;
    let began = Instant::now();
    node.evict("p", Some(0));
    node.phase(10, "p", "Failed").await;
    assert!(began.elapsed() < seconds(5), "{:?}", began.elapsed());
    let status = node.api.status("p");
    assert_eq!(status["reason"], "Evicted");
    assert_eq!(status["message"], "The node was low on resource: memory.");
    assert!(node.api.objects().pods.contains_key("p"), "its object stays");
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_mount_failure_is_retried_as_root() {
    let node = Node::start().await;
    let volumes = json!([{"name": "v", "configMap": {"name": "settings"}}]);
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    node.api.put_pod(pod("p", json!({"volumes": volumes}), json!({"volumeMounts": mounts})));
    node.within(10, "an event", |node| node.api.event("FailedMount").is_some()).await;
    let message = node.api.event("FailedMount").unwrap();
    assert!(message.contains("settings") && message.contains("not found"), "{message}");
    sleep(seconds(30)).await;
    assert_eq!(node.runtime.count("StartContainer", "c"), 0);
    assert!(node.runtime.count("RunPodSandbox", "p") <= 1, "no sandbox is made in vain again");
    let reason = &node.api.status("p")["containerStatuses"][0]["state"]["waiting"]["reason"];
    assert_eq!(*reason, "ContainerCreating");
    let settings = json!({
        "metadata": {"name": "settings", "namespace": "default", "resourceVersion": "1"},
        "data": {"key": "value"},
    });
    node.api.objects().config_maps.insert("settings".to_owned(), settings);
    node.running(30, &["c"]).await;
    let file = node.pods_dir().join("p/volumes/kubernetes.io~configmap/v/key");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "value");
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_with_a_hung_step_delays_no_other() {
    for method in ["RunPodSandbox", "PullImage", "CreateContainer", "StartContainer"] {
        let node = Node::start().await;
        node.runtime.inject(method, Fault::Hangs);
        node.api.put_pod(pod("hung", json!({}), json!({"name": "a"})));
        sleep(seconds(1)).await;
        node.api.put_pod(pod("other", json!({}), json!({"name": "b"})));
        node.running(5, &["b"]).await;
        if method == "PullImage" {
            node.runtime.end_faults(); // it has no deadline, as large images take long
        }
        // The call has a deadline, and is made again.
        node.running(60, &["a", "b"]).await;
        node.api.delete_pod("hung", 30);
        node.api.delete_pod("other", 30);
        node.clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pod_with_a_lost_sandbox_gets_another() {
    let node = Node::start().await;
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.running(5, &["c"]).await;
    node.runtime.lose_sandboxes();
    node.running(10, &["c"]).await;
    assert_eq!(node.runtime.count("RunPodSandbox", "p"), 2);
    assert!(node.api.event("SandboxChanged").is_some());
    node.within(5, "the restart is counted", |node| {
        node.api.status("p")["containerStatuses"][0]["restartCount"] == 1
    })
    .await;
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_orphan_is_removed_after_a_restart() {
    let mut node = Node::start().await;
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.running(5, &["c"]).await;
    node.kill_daemon().await;
    node.api.delete_pod("p", 0);
    node.start_daemon().await;
    node.running(60, &[]).await;
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_restart_of_the_daemon_keeps_containers() {
    let mut node = Node::start().await;
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.phase(5, "p", "Running").await;
    for _ in 0..3 {
        node.kill_daemon().await;
        sleep(seconds(10)).await;
        node.start_daemon().await;
        sleep(seconds(10)).await;
    }
    assert_eq!(node.runtime.count("RunPodSandbox", "p"), 1);
    assert_eq!(node.runtime.count("StartContainer", "c"), 1);
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_restart_of_the_daemon_reports_at_once_what_ended_meanwhile() {
    let mut node = Node::start().await;
    for name in ["p", "q"] {
        node.api.put_pod(pod(name, json!({}), json!({"name": name})));
        node.phase(5, name, "Running").await;
    }
    node.kill_daemon().await;
    node.runtime.exit("p", 1);
    sleep(seconds(30)).await;
    node.start_daemon().await;
    node.within(2, "the restart is reported", |node| {
        let container = &node.api.status("p")["containerStatuses"][0];
        container["restartCount"] == 1 && container["state"]["running"].is_object()
    })
    .await;
    assert_eq!(node.runtime.count("StartContainer", "q"), 1);
    for name in ["p", "q"] {
        node.api.delete_pod(name, 30);
    }
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_removal_while_its_image_is_pulled() {
    for fault in [Fault::Hangs, Fault::Late(seconds(8))] {
        for grace in [0, 30] {
            let node = Node::start().await;
            node.runtime.inject("PullImage", fault.clone());
            node.api.put_pod(pod("p", json!({}), json!({})));
            node.within(5, "it pulls", |node| node.api.event("Pulling").is_some()).await;
            sleep(seconds(1)).await;
            let began = Instant::now();
            node.api.delete_pod("p", grace);
            node.clean().await;
            assert!(began.elapsed() < seconds(5), "{fault:?}: {:?}", began.elapsed());
            assert_eq!(node.runtime.count("CreateContainer", "c"), 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pod_worker_that_panics_takes_over_what_runs() {
    let node = Node::start().await;
    node.api.put_pod(pod("p", json!({}), json!({})));
    node.api.put_pod(pod("other", json!({}), json!({"name": "o"})));
    node.running(5, &["c", "o"]).await;
    node.panic_next("p");
    node.runtime.exit("c", 1);
    node.within(5, "the panic", |node| node.api.event("FailedSync").is_some()).await;
    assert!(node.api.event("FailedSync").unwrap().starts_with("error syncing pod: "));
    node.running(10, &["c", "o"]).await;
    assert_eq!(node.runtime.count("RunPodSandbox", "p"), 1);
    assert_eq!(node.runtime.count("StartContainer", "o"), 1);
    for name in ["p", "other"] {
        node.api.delete_pod(name, 30);
    }
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_probes_decide_readiness_and_restarts() {
    let node = Node::start().await;
    let probe = json!({"exec": {"command": ["x"]}, "periodSeconds": 5, "failureThreshold": 2});
    let probes = json!({"readinessProbe": probe, "livenessProbe": probe});
    node.api.put_pod(pod("p", json!({}), probes));
    let ready = |node: &Node| node.api.status("p")["containerStatuses"][0]["ready"] == true;
    node.within(10, "it is ready", ready).await;
    node.runtime.world().unhealthy = true;
    node.within(15, "it is not ready", |node| !ready(node)).await;
    node.within(15, "it is restarted", |node| node.runtime.count("StartContainer", "c") == 2).await;
    assert!(node.api.event("Killing").unwrap().contains("failed liveness probe"));
    node.runtime.world().unhealthy = false;
    node.within(30, "it is ready again", ready).await;
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_is_resized_in_place() {
    let node = Node::start().await;
    let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
    node.api.put_pod(pod("p", json!({}), json!({"resources": requests("100m")})));
    node.phase(5, "p", "Running").await;
    // A failure of the runtime is reported, and retried.
    node.runtime.inject("UpdateContainerResources", Fault::Fails);
    node.api.change_pod("p", |pod| {
        pod["metadata"]["generation"] = json!(2);
        pod["spec"]["containers"][0]["resources"] = requests("200m");
    });
    node.within(10, "it is resized", |node| node.api.event("ResizeCompleted").is_some()).await;
    assert!(node.api.event("ResizeError").is_some());
    assert_eq!(node.runtime.count("UpdateContainerResources", "c"), 1);
    assert_eq!(node.runtime.count("StartContainer", "c"), 1);
    let status = &node.api.status("p")["containerStatuses"][0];
    assert_eq!(status["allocatedResources"]["cpu"], "200m");
    node.api.delete_pod("p", 30);
    node.clean().await;
}

#[tokio::test(start_paused = true)]
async fn pod_status_is_written_once_the_apiserver_answers() {
    let node = Node::start().await;
    node.api.objects().failures = 6;
    node.api.put_pod(pod("p", json!({"restartPolicy": "Never"}), json!({})));
    node.phase(60, "p", "Running").await;
    node.api.objects().failures = 3;
    node.api.delete_pod("p", 30);
    node.clean().await;
}
