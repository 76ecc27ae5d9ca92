//! Start of the daemon and its errors.

use crate::common;

use std::fs;
use std::process::Command;
use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, script};
use longshore_testkit::fakecri::{Fault, FaultProxy};
use longshore_testkit::{Host, wait_until};
use serde_json::json;

fn kubelet(config: &str) -> (bool, String) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yaml");
    fs::write(&file, config).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_longshore"))
        .args(["kubelet", "--config"])
        .arg(&file)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn start_rejects_config_values_with_their_path() {
    let (ok, text) = kubelet(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nauthentication: {x509: {clientCAFile: [1]}}\n",
    );
    assert!(!ok);
    assert!(text.contains("config.yaml"), "{text}");
    assert!(text.contains("authentication.x509.clientCAFile"), "{text}");
}

#[test]
fn start_prints_the_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_longshore"))
        .args(["kubelet", "--version"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("Kubernetes v1.36."), "{text}");
}

#[tokio::test]
async fn start_waits_for_the_runtime_and_reports_it() {
    let host = Host::bare().expect("a host without containerd");
    let mut cluster = Cluster::on(host, json!({})).await;
    wait_until(TIMEOUT, "the node says that its runtime is down", async || {
        match cluster.node_ready().await {
            Err(reason) if reason.contains("container runtime") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .unwrap();
    cluster.host.start_containerd().expect("containerd");
    for image in [longshore_testkit::Image::pause(), longshore_testkit::Image::busybox()] {
        cluster.host.import(&image.unwrap()).unwrap();
    }
    wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await).await.unwrap();
    cluster.create("web", script(FOREVER)).await;
    cluster.until_ready("web").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn stop_keeps_containers_running() {
    let mut cluster = Cluster::start().await;
    cluster.create("web", script(FOREVER)).await;
    cluster.until_ready("web").await;
    let status =
        cluster.node.daemon().terminate(Duration::from_secs(20)).expect("it stops in time");
    assert!(status.success(), "{status}");
    let tasks = cluster.host.ctr(["tasks", "ls"]).unwrap();
    assert_eq!(tasks.matches("RUNNING").count(), 2, "{tasks}");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn stop_does_not_wait_for_a_hanging_runtime() {
    let host = Host::start().expect("a host");
    let socket = host.dir().join("proxy.sock");
    let proxy = FaultProxy::start(&socket, host.socket()).expect("a proxy");
    proxy.inject("Version", Fault::Hang);
    let endpoint = format!("unix://{}", socket.display());
    let mut cluster = Cluster::on(host, json!({"containerRuntimeEndpoint": endpoint})).await;
    wait_until(TIMEOUT, "the node waits for the runtime", async || {
        match proxy.pending("Version") {
            0 => Err("no call yet"),
            _ => Ok(()),
        }
    })
    .await
    .unwrap();
    cluster.node.daemon().terminate(Duration::from_secs(60)).expect("it stops");
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn relist_that_hangs_delays_no_new_pod() {
    let host = Host::start().expect("a host");
    let socket = host.dir().join("proxy.sock");
    let proxy = FaultProxy::start(&socket, host.socket()).expect("a proxy");
    let endpoint = format!("unix://{}", socket.display());
    let cluster = Cluster::on(host, json!({"containerRuntimeEndpoint": endpoint})).await;
    wait_until(TIMEOUT, "the node is Ready", async || cluster.node_ready().await).await.unwrap();
    proxy.inject("ListContainers", Fault::Hang);
    // A new pod needs no list to run.
    cluster.create("web", script(FOREVER)).await;
    cluster.until_ready("web").await;
    cluster.delete("web").await;
    cluster.until_gone("web").await;
    proxy.release("ListContainers");
    drop(proxy);
    cluster.host.assert_clean();
}
