//! Pods on a real containerd: start, exit, restart with back-off, removal.

use crate::common;

use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, condition, container, phase, run_of, script, uid};
use k8s_openapi::api::core::v1::ContainerStatus;
use longshore_testkit::wait_until;
use serde_json::json;

/// What a container that failed by itself waits at its second failure, in seconds.
const RESTART_DELAY: i64 = 10;

#[tokio::test]
async fn pod_runs_reports_status_and_is_removed() {
    let cluster = Cluster::start().await;
    wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await).await.unwrap();
    let text = format!("echo hello from $NAME at $IP; {FOREVER}");
    let mut spec = script(&text);
    spec["containers"][0]["env"] = json!([
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]);
    cluster.create("web", spec).await;
    let pod = cluster.until_ready("web").await;
    let status = pod.status.clone().unwrap();
    let ip = status.pod_ip.clone().expect("an address");
    assert_eq!(status.host_ip.as_deref(), Some(cluster.host.node_ip().to_string().as_str()));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    assert_eq!(condition(&pod, "PodReadyToStartContainers"), "True");
    assert!(
        status.container_statuses.unwrap()[0]
            .container_id
            .as_deref()
            .unwrap()
            .starts_with("containerd://")
    );

    let kubectl = cluster.apiserver.kubectl();
    let table = kubectl.run(["get", "pods"]).expect("kubectl get pods");
    assert!(
        table.lines().any(|line| line.starts_with("web")
            && line.contains("1/1")
            && line.contains("Running")),
        "{table}"
    );
    let log = kubectl.run(["logs", "web"]).expect("kubectl logs");
    assert_eq!(log, format!("hello from web at {ip}\n"));
    for reason in ["Pulled", "Created", "Started"] {
        cluster.until_event(reason, "ontainer").await;
    }

    cluster.delete("web").await;
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn pod_that_is_rejected_fails_and_starts_nothing() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    spec["securityContext"] = json!({"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]});
    cluster.create("greedy", spec).await;
    let pod = cluster
        .until("greedy", "Failed", |pod| match phase(pod) {
            "Failed" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await;
    let status = pod.status.clone().unwrap();
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    let why = "forbidden sysctl: \"kernel.msgmax\" not allowlisted";
    assert_eq!(status.message, Some(format!("Pod was rejected: {why}")));
    assert!(status.container_statuses.is_none());
    cluster.until_event("SysctlForbidden", why).await;
    cluster.delete("greedy").await;
    cluster.until_gone("greedy").await;
    cluster.until_removed(&uid(&pod)).await;
}

#[tokio::test]
async fn restart_rule_restarts_all_containers() {
    let cluster = Cluster::start().await;
    // once both run: one that had yet to start would have its first start afterwards
    let once = format!(
        "[ -e /v/seen ] || {{ until [ -e /v/b ]; do sleep 0.1; done; touch /v/seen; exit 42; }}; {FOREVER}"
    );
    let mut spec = json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "volumes": [{"name": "v", "emptyDir": {}}],
        "initContainers": [container("i", "exit 0")],
        "containers": [
            container("a", &once),
            container("b", &format!("touch /v/b; {FOREVER}")),
        ],
    });
    for index in 0..2 {
        spec["containers"][index]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    }
    spec["containers"][0]["restartPolicy"] = json!("Never");
    spec["containers"][0]["restartPolicyRules"] = json!([{
        "action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]},
    }]);
    cluster.create("again", spec).await;
    let pod = cluster
        .until("again", "all ran twice", |pod| {
            let status = pod.status.clone().unwrap_or_default();
            let all = status.container_statuses.into_iter().chain(status.init_container_statuses);
            let counts: Vec<_> = all.flatten().map(|status| status.restart_count).collect();
            match counts == [1, 1, 1] && condition(pod, "Ready") == "True" {
                true => Ok(()),
                false => Err(format!("{counts:?}")),
            }
        })
        .await;
    assert_eq!(condition(&pod, "AllContainersRestarting"), "False");
    let statuses = pod.status.as_ref().unwrap().container_statuses.clone().unwrap();
    for status in statuses {
        let last = status.last_state.unwrap().terminated.expect("an end");
        assert_eq!(last.reason.as_deref(), Some("RestartingAllContainers"));
    }
    cluster.delete("again").await;
    cluster.until_gone("again").await;
    cluster.until_removed(&uid(&pod)).await;
}

#[tokio::test]
async fn restart_policy_decides_the_pod_phase() {
    let cluster = Cluster::start().await;
    for (name, policy, exit_code, expected) in [
        ("never-ok", "Never", 0, "Succeeded"),
        ("never-bad", "Never", 3, "Failed"),
        ("onfailure-ok", "OnFailure", 0, "Succeeded"),
    ] {
        let mut spec = script(&format!("echo bye >/dev/termination-log; exit {exit_code}"));
        spec["restartPolicy"] = json!(policy);
        cluster.create(name, spec).await;
        let pod = cluster
            .until(name, expected, |pod| match phase(pod) {
                phase if phase == expected => Ok(()),
                other => Err(other.to_owned()),
            })
            .await;
        let state = first_status(&pod).state.unwrap().terminated.expect("terminated");
        assert_eq!(state.exit_code, exit_code);
        assert_eq!(state.message.as_deref(), Some("bye\n"));
        assert!(state.finished_at >= state.started_at);
    }
    // An ended pod keeps its object and its log until it is deleted.
    assert_eq!(phase(&cluster.pod("never-bad").await), "Failed");
    let ended = cluster.pod("never-bad").await;
    cluster.delete("never-bad").await;
    cluster.until_gone("never-bad").await;
    cluster.until_removed(&uid(&ended)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn crash_loop_back_off_of_failing_container() {
    let cluster = Cluster::start().await;
    cluster.create("crash", script("exit 1")).await;
    let waiting = |pod: &k8s_openapi::api::core::v1::Pod| {
        let status = first_status(pod);
        let waiting =
            status.state.and_then(|state| state.waiting).and_then(|waiting| waiting.reason);
        (status.restart_count, waiting.unwrap_or_default())
    };
    let pod = cluster
        .until("crash", "in its first back-off", |pod| match waiting(pod) {
            (1, reason) if reason == "CrashLoopBackOff" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    let ended = first_status(&pod).last_state.unwrap().terminated.expect("how it ended");
    assert_eq!((ended.exit_code, ended.reason.as_deref()), (1, Some("Error")));
    cluster
        .until_event("BackOff", "Back-off restarting failed container c in pod crash_default")
        .await;
    let finished = ended.finished_at.as_ref().unwrap().0;
    // When its next run began; that may have ended already.
    let next_start = |pod: &k8s_openapi::api::core::v1::Pod| {
        let status = first_status(pod);
        let (state, last) =
            (status.state.unwrap_or_default(), status.last_state.unwrap_or_default());
        let running = state.running.and_then(|run| run.started_at);
        let ends = state.terminated.into_iter().chain(last.terminated);
        let later = ends.filter(|run| run.container_id != ended.container_id);
        let mut starts = running.into_iter().chain(later.filter_map(|run| run.started_at));
        starts.next().map(|time| time.0)
    };
    let again = cluster
        .until("crash", "restarted a second time", |pod| match next_start(pod) {
            Some(_) => Ok(()),
            None => Err(format!("{:?}", waiting(pod))),
        })
        .await;
    // Times in a status are whole seconds.
    let pause = next_start(&again).unwrap().duration_since(finished).as_secs();
    assert!(pause >= 9, "after 10 s, not at once: {pause} s");
    cluster.delete("crash").await;
    cluster.until_gone("crash").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn init_containers_run_first_and_share_volumes() {
    let cluster = Cluster::start().await;
    let mut spec = script(&format!("cat /shared/made; {FOREVER}"));
    let mounts = json!([{"name": "work", "mountPath": "/shared"}]);
    spec["volumes"] = json!([{"name": "work", "emptyDir": {}}]);
    spec["containers"][0]["volumeMounts"] = mounts.clone();
    let mut init = common::container("i", "echo made by init >/shared/made");
    init["volumeMounts"] = mounts;
    spec["initContainers"] = json!([init]);
    let pod = cluster.create("init", spec).await;
    cluster.until_ready("init").await;
    let log = cluster.apiserver.kubectl().run(["logs", "init", "-c", "c"]).expect("logs");
    assert_eq!(log, "made by init\n");
    cluster.delete("init").await;
    cluster.until_gone("init").await;
    cluster.until_removed(&uid(&pod)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn container_that_cannot_be_started_has_a_reason() {
    let cluster = Cluster::start().await;
    let mut missing = script(FOREVER);
    missing["containers"][0]["image"] = json!("longshore.local/none:1");
    cluster.create("no-image", missing).await;
    let mut command = script(FOREVER);
    command["containers"][0]["command"] = json!(["/no/such/program"]);
    cluster.create("no-program", command).await;
    let mut config = script(FOREVER);
    config["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "absent"}}]);
    cluster.create("no-config", config).await;
    let mut root = script(FOREVER);
    root["securityContext"] = json!({"runAsNonRoot": true});
    cluster.create("no-root", root).await;
    cluster.create("good", script(FOREVER)).await;
    cluster.until_ready("good").await;
    for (name, reasons, text) in [
        ("no-image", ["ErrImageNeverPull", ""], "not present with pull policy of Never"),
        ("no-program", ["RunContainerError", "CrashLoopBackOff"], ""),
        ("no-config", ["CreateContainerConfigError", ""], "configmap \"absent\" not found"),
        ("no-root", ["CreateContainerConfigError", ""], "runAsNonRoot"),
    ] {
        cluster
            .until(name, reasons[0], |pod| {
                let waiting = first_status(pod).state.and_then(|state| state.waiting);
                let (reason, message) = waiting
                    .map(|waiting| {
                        (waiting.reason.unwrap_or_default(), waiting.message.unwrap_or_default())
                    })
                    .unwrap_or_default();
                match reasons.contains(&reason.as_str())
                    && !reason.is_empty()
                    && message.contains(text)
                {
                    true => Ok(()),
                    false => Err(format!("{reason}: {message}")),
                }
            })
            .await;
        assert_eq!(condition(&cluster.pod(name).await, "Ready"), "False");
    }
    assert_eq!(run_of(&cluster.pod("good").await).0, 0);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn termination_grace_period_is_respected_and_can_be_shortened() {
    let cluster = Cluster::start().await;
    let mut stubborn = script("trap '' TERM; while true; do sleep 1; done");
    stubborn["terminationGracePeriodSeconds"] = json!(300);
    let pod = cluster.create("stubborn", stubborn).await;
    cluster.until_ready("stubborn").await;
    cluster.delete("stubborn").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(phase(&cluster.pod("stubborn").await), "Running", "it may take its time");
    let params = kube::api::DeleteParams::default().grace_period(1);
    cluster.pods().delete("stubborn", &params).await.expect("a shorter grace");
    cluster.until_gone("stubborn").await;
    cluster.until_removed(&uid(&pod)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn pod_recreated_under_its_name_is_a_new_pod() {
    let cluster = Cluster::start().await;
    let first = cluster.create("twin", script(FOREVER)).await;
    cluster.until_ready("twin").await;
    let force = kube::api::DeleteParams::default().grace_period(0);
    cluster.pods().delete("twin", &force).await.expect("forced");
    let second = cluster.create("twin", script(FOREVER)).await;
    assert_ne!(uid(&first), uid(&second));
    let ready = cluster.until_ready("twin").await;
    assert_eq!(uid(&ready), uid(&second));
    cluster.until_removed(&uid(&first)).await;
    assert_eq!(run_of(&cluster.pod("twin").await).0, 0);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn status_overwritten_by_others_is_restored_on_the_apiserver() {
    let cluster = Cluster::start().await;
    cluster.create("web", script(FOREVER)).await;
    let before = run_of(&cluster.until_ready("web").await);
    // As a control plane does that has not heard of the node for a while.
    let unready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    let patch = kube::api::Patch::Strategic(&unready);
    let params = kube::api::PatchParams::default();
    let pod = cluster.pods().patch_status("web", &params, &patch).await.expect("a patch");
    assert_eq!(condition(&pod, "Ready"), "False");
    assert_eq!(run_of(&cluster.until_ready("web").await), before);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn image_update_replaces_the_container() {
    let cluster = Cluster::start().await;
    let mut spec = script(FOREVER);
    spec["restartPolicy"] = json!("OnFailure");
    cluster.create("web", spec).await;
    let (_, before) = run_of(&cluster.until_ready("web").await);
    let other = "longshore.local/other:1";
    cluster.host.ctr(["images", "tag", longshore_testkit::BUSYBOX, other]).expect("a tag");
    let image = json!({"spec": {"containers": [{"name": "c", "image": other}]}});
    let patch = kube::api::Patch::Strategic(&image);
    let params = kube::api::PatchParams::default();
    cluster.pods().patch("web", &params, &patch).await.expect("a patch");
    // It ends with 0 when it is asked to stop, which must not pass for the pod's success.
    cluster
        .until("web", "runs the other image", |pod| match (phase(pod), run_of(pod)) {
            ("Running", (1, id)) if id != before && condition(pod, "Ready") == "True" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn sandbox_that_died_is_replaced_and_removed() {
    let cluster = Cluster::start().await;
    let pod = cluster.create("web", script(FOREVER)).await;
    cluster.until_ready("web").await;
    for death in 1..=3 {
        let (_, container) = run_of(&cluster.pod("web").await);
        let container = container.trim_start_matches("containerd://");
        let tasks = cluster.host.ctr(["tasks", "ls"]).unwrap();
        let running = tasks.lines().filter(|line| line.contains("RUNNING"));
        let mut ids = running.filter_map(|line| line.split_whitespace().next());
        let sandbox = ids.find(|id| *id != container).expect("a sandbox");
        cluster.host.ctr(["tasks", "kill", "--signal", "SIGKILL", sandbox]).expect("killed");
        cluster
            .until("web", "runs in another sandbox", |pod| match run_of(pod) {
                (restarts, _) if restarts == death && condition(pod, "Ready") == "True" => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await;
    }
    // Two sandboxes and two runs: those that are, and those before.
    wait_until(TIMEOUT, "what is older is removed", async || {
        let left = cluster.host.ctr(["containers", "ls", "-q"]).unwrap();
        if left.lines().count() <= 4 { Ok(()) } else { Err(left) }
    })
    .await
    .unwrap();
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    cluster.until_removed(&uid(&pod)).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn sandbox_stopped_by_others_is_replaced() {
    let cluster = Cluster::start().await;
    cluster.create("web", script(FOREVER)).await;
    cluster.until_ready("web").await;
    let socket = cluster.host.socket().display().to_string();
    let runtime = longshore_cri::Runtime::new(longshore_cri::Options::new(socket)).unwrap();
    let sandboxes = runtime.list_pod_sandboxes(None).await.unwrap();
    // Its container ends some time before it is gone itself, so one run may meet its end in there.
    runtime.stop_pod_sandbox(&sandboxes[0].id).await.unwrap();
    cluster
        .until("web", "runs in another sandbox", |pod| match run_of(pod) {
            (1..=2, _) if condition(pod, "Ready") == "True" => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    // It does not wait as if it had failed.
    let events: kube::Api<k8s_openapi::api::core::v1::Event> =
        kube::Api::all(cluster.client.clone());
    let events = events.list(&kube::api::ListParams::default()).await.unwrap();
    let changed = events.iter().find(|event| event.reason.as_deref() == Some("SandboxChanged"));
    let changed = changed.unwrap().first_timestamp.as_ref().unwrap().0;
    let state = first_status(&cluster.pod("web").await).state.unwrap();
    let started = state.running.unwrap().started_at.unwrap().0;
    let pause = started.duration_since(changed);
    assert!(pause.as_secs() < RESTART_DELAY, "it waited for {pause}");
    cluster.host.assert_clean();
}

fn first_status(pod: &k8s_openapi::api::core::v1::Pod) -> ContainerStatus {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
    statuses.unwrap_or_default().into_iter().next().unwrap_or_default()
}
