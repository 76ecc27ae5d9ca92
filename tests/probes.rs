//! Probes on a real containerd: readiness, restarts by liveness probes, and restarts of the daemon.

use crate::common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{Cluster, FOREVER, condition, phase, run_of, script};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use longshore_testkit::Host;
use longshore_testkit::fakecri::{self, Fault, FaultProxy};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// Serves the files of `/data` on port 8080.
const SERVER: &str = "exec httpd -f -p 8080 -h /data";

/// A folder of the host that a pod sees as `/data`: what a test puts there, the probes of the pod
/// find.
fn data(host: &Host, name: &str) -> PathBuf {
    let folder = host.dir().join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A pod that runs `text`, sees the folder as `/data`, and has these fields in its container.
fn probed(folder: &Path, text: &str, fields: Value) -> Value {
    let mut spec = script(text);
    spec["volumes"] = json!([{"name": "data", "hostPath": {"path": folder}}]);
    let container = spec["containers"][0].as_object_mut().unwrap();
    container.insert("volumeMounts".to_owned(), json!([{"name": "data", "mountPath": "/data"}]));
    container.extend(fields.as_object().unwrap().clone());
    spec
}

fn has(file: &str) -> Value {
    json!({"command": ["cat", format!("/data/{file}")]})
}

/// The status of the container `c`.
fn status_of(pod: &Pod) -> ContainerStatus {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.clone());
    statuses.unwrap_or_default().into_iter().find(|status| status.name == "c").unwrap_or_default()
}

async fn until_ready_is(cluster: &Cluster, name: &str, ready: &'static str) -> Pod {
    cluster
        .until(name, &format!("Ready={ready}"), |pod| match condition(pod, "Ready") {
            is if is == ready && phase(pod) == "Running" => Ok(()),
            is => Err(is),
        })
        .await
}

/// A server that begins after a second, whose `/ready` is asked for with this period.
fn served(folder: &Path, period: u32) -> Value {
    probed(
        folder,
        &format!("sleep 1; {SERVER}"),
        json!({
            "ports": [{"name": "web", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"port": "web", "path": "/ready"},
                "periodSeconds": period, "failureThreshold": 1},
        }),
    )
}

#[tokio::test]
async fn readiness_probe_early_attempts_wait_for_no_period() {
    let host = Host::start().unwrap();
    let args = vec!["--early-readiness-probes".to_owned()];
    let cluster = Cluster::with_args(host, json!({}), &[], args).await;
    let folder = data(&cluster.host, "web");
    // Longer than is waited for anything here.
    cluster.create("slow", served(&folder, 3600)).await;
    until_ready_is(&cluster, "slow", "False").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(condition(&cluster.pod("slow").await, "Ready"), "False");
    fs::write(folder.join("ready"), "yes").unwrap();
    let pod = until_ready_is(&cluster, "slow", "True").await;
    assert_eq!((status_of(&pod).ready, status_of(&pod).started), (true, Some(true)));
    cluster.host.assert_clean();
}

#[tokio::test]
async fn readiness_probe_follows_the_server() {
    let cluster = Cluster::start().await;
    let folder = data(&cluster.host, "web");
    fs::write(folder.join("ready"), "yes").unwrap();
    cluster.create("web", served(&folder, 1)).await;
    let before = run_of(&until_ready_is(&cluster, "web", "True").await);
    fs::remove_file(folder.join("ready")).unwrap();
    let pod = until_ready_is(&cluster, "web", "False").await;
    assert_eq!(condition(&pod, "ContainersReady"), "False");
    assert!(!status_of(&pod).ready);
    let failed = "Readiness probe failed: HTTP probe failed with statuscode: 404";
    let event = cluster.until_event("Unhealthy", failed).await;
    assert_eq!(event.involved_object.field_path.as_deref(), Some("spec.containers{c}"));
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    fs::write(folder.join("ready"), "yes").unwrap();
    let pod = until_ready_is(&cluster, "web", "True").await;
    assert_eq!(run_of(&pod), before, "one that is not ready is not restarted for it");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn probes_of_every_kind() {
    let cluster = Cluster::start().await;
    let folder = data(&cluster.host, "web");
    fs::write(folder.join("ready"), "yes").unwrap();
    let fields = json!({
        "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        "livenessProbe": {"httpGet": {"port": 8080, "path": "/ready"}, "periodSeconds": 1},
        "readinessProbe": {"exec": has("ready"), "periodSeconds": 1},
    });
    let mut spec = probed(&folder, SERVER, fields);
    cluster.create("own", spec.clone()).await;
    // On the host's network the pod has the host's address.
    spec["hostNetwork"] = json!(true);
    cluster.create("hosts", spec.clone()).await;
    // Nobody speaks gRPC there.
    spec["hostNetwork"] = json!(false);
    spec["containers"][0]["readinessProbe"] = json!({"grpc": {"port": 8081}, "periodSeconds": 1});
    cluster.create("grpc", spec).await;
    cluster.until_ready("own").await;
    cluster.until_ready("hosts").await;
    let ip = |pod: Pod| pod.status.unwrap().pod_ip.unwrap();
    let ip = ip(until_ready_is(&cluster, "grpc", "False").await);
    let why = format!(
        "Readiness probe failed: timeout: failed to connect service \"{ip}:8081\" within 1s: context deadline exceeded"
    );
    cluster.until_event("Unhealthy", &why).await;
    for name in ["own", "hosts", "grpc"] {
        assert_eq!(run_of(&cluster.pod(name).await).0, 0, "{name}");
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn liveness_and_startup_probes_restart_containers() {
    let cluster = Cluster::start().await;
    let folder = data(&cluster.host, "live");
    fs::write(folder.join("healthy"), "yes").unwrap();
    let mut spec = probed(
        &folder,
        // Deaf to its stop signal.
        "trap '' TERM; while true; do sleep 1; done",
        json!({"livenessProbe": {"exec": has("healthy"), "periodSeconds": 1, "failureThreshold": 2,
            "terminationGracePeriodSeconds": 1}}),
    );
    spec["terminationGracePeriodSeconds"] = json!(600);
    let starts = probed(
        &folder,
        FOREVER,
        json!({
            "startupProbe": {"exec": has("started"), "periodSeconds": 1, "failureThreshold": 600},
            "livenessProbe": {"exec": has("never"), "periodSeconds": 1, "failureThreshold": 1},
        }),
    );
    cluster.create("live", spec).await;
    cluster.create("starts", starts).await;
    cluster.until_ready("live").await;
    fs::remove_file(folder.join("healthy")).unwrap();
    cluster
        .until_event("Unhealthy", "Liveness probe failed: cat: can't open '/data/healthy'")
        .await;
    cluster.until_event("Killing", "Container c failed liveness probe, will be restarted").await;
    fs::write(folder.join("healthy"), "yes").unwrap();
    let restarted = |pod: &Pod| match run_of(pod) {
        (1, _) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    // The probe has a grace period of its own: that of the pod is longer than is waited.
    let pod = cluster.until("live", "restarted", restarted).await;
    let last = status_of(&pod).last_state.and_then(|state| state.terminated).expect("how it ended");
    assert_eq!((last.exit_code, last.reason.as_deref()), (137, Some("Error")));
    cluster.until_ready("live").await;

    let pod = cluster.pod("starts").await;
    assert_eq!((run_of(&pod).0, status_of(&pod).started), (0, Some(false)));
    fs::write(folder.join("started"), "yes").unwrap();
    cluster.until("starts", "restarted once it had started", restarted).await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn probe_that_hangs_delays_no_other() {
    let host = Host::start().expect("a host");
    let socket = host.dir().join("proxy.sock");
    let proxy = FaultProxy::start(&socket, host.socket()).expect("a proxy");
    let endpoint = format!("unix://{}", socket.display());
    let cluster = Cluster::on(host, json!({"containerRuntimeEndpoint": endpoint})).await;
    let folder = data(&cluster.host, "web");
    fs::write(folder.join("ready"), "yes").unwrap();
    let fields = json!({
        "livenessProbe": {"exec": {"command": ["sleep", "1000"]}, "periodSeconds": 1,
            "failureThreshold": 1000},
        "readinessProbe": {"httpGet": {"port": 8080, "path": "/ready"}, "periodSeconds": 1},
    });
    cluster.create("web", probed(&folder, SERVER, fields)).await;
    cluster.until_ready("web").await;
    let cut = "Liveness probe failed: command timed out: \"sleep 1000\" timed out after 1s";
    let event = cluster.until_event("Unhealthy", cut).await;
    // Even when the runtime itself does not answer any more.
    proxy.inject("ExecSync", Fault::Hang);
    let count = event.count.unwrap_or(1);
    let events: Api<k8s_openapi::api::core::v1::Event> =
        Api::namespaced(cluster.client.clone(), "default");
    longshore_testkit::wait_until(common::TIMEOUT, "the hung probe is cut again", async || {
        let event = events.get(event.metadata.name.as_deref().unwrap()).await.unwrap();
        if event.count.unwrap_or(1) > count + 2 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
    fs::remove_file(folder.join("ready")).unwrap();
    until_ready_is(&cluster, "web", "False").await;
    // A runtime that does not respond says nothing about the container.
    proxy.inject(fakecri::ANY_METHOD, Fault::Hang);
    let unknown =
        "Liveness probe errored and resulted in unknown state: rpc error: code = DeadlineExceeded";
    cluster.until_event("Unhealthy", unknown).await;
    assert_eq!(run_of(&cluster.pod("web").await).0, 0);
    proxy.release(fakecri::ANY_METHOD);
    proxy.release("ExecSync");
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn readiness_survives_a_restart_of_the_daemon() {
    let mut cluster = Cluster::start().await;
    let folder = data(&cluster.host, "web");
    fs::write(folder.join("ready"), "yes").unwrap();
    let with = |file: &str| {
        let fields = json!({
            "startupProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 3},
            "readinessProbe": {"httpGet": {"port": 8080, "path": format!("/{file}")},
                "periodSeconds": 3, "failureThreshold": 1},
            "livenessProbe": {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 3,
                "failureThreshold": 100},
        });
        probed(&folder, SERVER, fields)
    };
    cluster.create("ready", with("ready")).await;
    cluster.create("not-ready", with("missing")).await;
    let mut before = Vec::new();
    for (name, ready) in [("ready", "True"), ("not-ready", "False")] {
        let pod = until_ready_is(&cluster, name, ready).await;
        before.push((name, ready, run_of(&pod)));
    }
    // A blip may be short: every version is looked at.
    let pods = cluster.pods();
    let version = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version;
    let mut watch = pods.watch(&WatchParams::default(), &version.unwrap()).await.unwrap().boxed();
    let versions = Arc::new(Mutex::new(Vec::new()));
    let seen = versions.clone();
    tokio::spawn(async move {
        while let Some(event) = watch.next().await {
            if let WatchEvent::Modified(pod) = event.expect("the watch goes on") {
                seen.lock().push(pod);
            }
        }
    });
    cluster.node.restart(&cluster.host).expect("started again");
    // Two periods, so that the probes have had their say.
    tokio::time::sleep(Duration::from_secs(6)).await;
    for (name, ready, run) in before {
        let pod = cluster.pod(name).await;
        assert_eq!((condition(&pod, "Ready").as_str(), run_of(&pod)), (ready, run), "{name}");
    }
    for pod in versions.lock().drain(..) {
        let ready = pod.metadata.name.as_deref() == Some("ready");
        let is =
            (condition(&pod, "Ready") == "True", status_of(&pod).ready, status_of(&pod).started);
        assert_eq!(is, (ready, ready, Some(true)), "{:#?}", pod.status);
    }
    // And they are looked at again.
    fs::write(folder.join("missing"), "found").unwrap();
    fs::remove_file(folder.join("ready")).unwrap();
    until_ready_is(&cluster, "not-ready", "True").await;
    until_ready_is(&cluster, "ready", "False").await;
    assert!(!versions.lock().is_empty(), "changes are seen");
    cluster.host.assert_clean();
}
