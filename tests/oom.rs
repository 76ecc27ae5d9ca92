//! OOM kills: of a container at its limit, and of the machine.

use crate::common;

use std::fs;

use common::{Cluster, FOREVER, TIMEOUT, container, phase, run_of, script, uid};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, ListParams};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

/// Takes memory until it is refused some.
const HOG: &str = "exec tail /dev/zero";

fn limited(text: &str, memory: &str) -> Value {
    let mut spec = script(text);
    spec["restartPolicy"] = json!("Never");
    spec["containers"][0]["resources"] = json!({"limits": {"memory": memory}});
    spec
}

/// Exit code and reason of the container's end.
fn end(pod: &Pod) -> Result<(i32, String), String> {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let state = statuses.and_then(|all| all.first()).and_then(|status| status.state.as_ref());
    let ended = state.and_then(|state| state.terminated.as_ref());
    ended
        .map(|ended| (ended.exit_code, ended.reason.clone().unwrap_or_default()))
        .ok_or_else(|| format!("{state:?}"))
}

async fn events_of(cluster: &Cluster, reason: &str) -> Vec<Event> {
    let events: Api<Event> = Api::all(cluster.client.clone());
    let all = events.list(&ListParams::default()).await.unwrap();
    all.items.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
}

#[tokio::test]
async fn oom_kill_of_container_is_reported_on_the_pod() {
    let cluster = Cluster::start().await;
    let calm = cluster.create("calm", limited(FOREVER, "64Mi")).await;
    cluster.until_ready("calm").await;
    cluster.create("hog", limited(HOG, "24Mi")).await;
    let hog = cluster.until("hog", "ended", |pod| end(pod).map(drop)).await;
    assert_eq!(end(&hog).unwrap(), (137, "OOMKilled".to_owned()));
    assert_eq!(
        phase(&cluster.until("hog", "failed", |pod| is_phase(pod, "Failed")).await),
        "Failed"
    );
    // What was begun before is reported by now: the next pod's start comes after it.
    cluster.create("next", limited("true", "64Mi")).await;
    cluster.until("next", "ended", |pod| is_phase(pod, "Succeeded")).await;
    let events = events_of(&cluster, "SystemOOM").await;
    let victim = "victim process: tail";
    let ours =
        events.iter().filter(|event| event.message.as_deref().unwrap_or_default().contains(victim));
    assert_eq!(ours.count(), 0, "{events:?}");
    assert_eq!(uid(&cluster.pod("calm").await), uid(&calm));
    assert_eq!(phase(&cluster.pod("calm").await), "Running");
    cluster.host.assert_clean();
}

fn is_phase(pod: &Pod, wanted: &str) -> Result<(), String> {
    if phase(pod) == wanted { Ok(()) } else { Err(phase(pod).to_owned()) }
}

/// The kernel is asked to choose a victim, as it does when the machine is out of memory: that is
/// the BestEffort container, whose score is the highest.
#[tokio::test]
#[ignore = "ends a process of the machine: `make vm-test` runs it in a virtual one"]
async fn oom_of_the_machine_is_an_event_of_the_node() {
    let cluster = Cluster::start().await;
    let mut spec = script("");
    spec["containers"] = json!([container("c", "exec sleep 1000")]);
    cluster.create("victim", spec).await;
    let (_, before) = run_of(&cluster.until_ready("victim").await);
    fs::write("/proc/sysrq-trigger", "f").unwrap();
    let event = cluster
        .until_event("SystemOOM", "System OOM encountered, victim process: sleep, pid: ")
        .await;
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.involved_object.kind.as_deref(), Some("Node"));
    assert_eq!(event.involved_object.name, Some(cluster.host.name()));
    wait_until(TIMEOUT, "the victim runs again", async || {
        match run_of(&cluster.pod("victim").await) {
            (1.., id) if id != before => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    assert_eq!(events_of(&cluster, "SystemOOM").await.len(), 1);
    cluster.host.assert_clean();
}
