//! The daemon is killed and restarted: no container restarts, and statuses are right.

use crate::common;

use std::time::Duration;

use common::{Cluster, FOREVER, TIMEOUT, condition, phase, run_of, script, uid};
use longshore_testkit::fakecri::{Calls, Fault};
use longshore_testkit::{Host, wait_until};
use serde_json::json;

const PODS: usize = 5;

#[tokio::test]
async fn restart_after_a_kill_adopts_running_pods() {
    let mut cluster = Cluster::start().await;
    let names: Vec<String> = (0..PODS).map(|index| format!("pod-{index}")).collect();
    for name in &names {
        cluster.create(name, script(FOREVER)).await;
    }
    let mut before = Vec::new();
    for name in &names {
        before.push(run_of(&cluster.until_ready(name).await));
    }
    cluster.node.daemon().kill().expect("killed");
    // While the daemon is down: one container ends, one pod is deleted, one is created.
    let (ended, deleted) = (&names[0], &names[1]);
    let id = before[0].1.trim_start_matches("containerd://").to_owned();
    cluster.host.ctr(["tasks", "kill", "--signal", "SIGKILL", &id]).expect("a container is killed");
    let gone = uid(&cluster.pod(deleted).await);
    cluster.delete(deleted).await;
    cluster.create("late", script(FOREVER)).await;

    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(TIMEOUT, "the ended container is reported", async || {
        let (restarts, _) = run_of(&cluster.pod(ended).await);
        if restarts == 1 { Ok(()) } else { Err(restarts.to_string()) }
    })
    .await
    .unwrap();
    cluster.until_gone(deleted).await;
    cluster.until_removed(&gone).await;
    cluster.until_ready("late").await;
    for (name, run) in names.iter().zip(&before).skip(2) {
        let pod = cluster.pod(name).await;
        assert_eq!(run_of(&pod), *run, "{name} was not touched");
        assert_eq!(phase(&pod), "Running");
    }
    cluster.host.assert_clean();
}

#[tokio::test]
async fn restart_without_changes_writes_no_status() {
    let mut cluster = Cluster::start().await;
    cluster.create("web", script(FOREVER)).await;
    let before = cluster.until_ready("web").await;
    cluster.node.restart(&cluster.host).expect("started again");
    wait_until(TIMEOUT, "the node runs again", async || match cluster.node.daemon().log() {
        log if log.contains("node started") => Ok(()),
        log => Err(log),
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let after = cluster.pod("web").await;
    assert_eq!(
        after.metadata.resource_version, before.metadata.resource_version,
        "{:#?}\n{:#?}",
        before.status, after.status
    );
    cluster.host.assert_clean();
}

#[tokio::test]
async fn restart_with_failing_relist_starts_nothing_twice() {
    let host = Host::start().expect("a host");
    let (mut cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    cluster.create("web", script(FOREVER)).await;
    let before = run_of(&cluster.until_ready("web").await);
    cluster.node.daemon().kill().expect("killed");
    let refusal = Fault::Error(longshore_cri::Code::Unavailable, "busy".to_owned());
    proxy.inject("ContainerStatus", refusal);
    let created = proxy.calls("CreateContainer");
    cluster.node.restart(&cluster.host).expect("started again");
    tokio::time::sleep(Duration::from_secs(4)).await;
    let pod = cluster.pod("web").await;
    assert_eq!((run_of(&pod), condition(&pod, "Ready").as_str()), (before.clone(), "True"));
    proxy.release("ContainerStatus");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(proxy.calls("CreateContainer"), created);
    assert_eq!(run_of(&cluster.until_ready("web").await), before);
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn restart_with_hanging_call_delays_only_its_pod() {
    let host = Host::start().expect("a host");
    let (mut cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    for name in ["ill", "well"] {
        cluster.create(name, script(FOREVER)).await;
    }
    let before = run_of(&cluster.until_ready("ill").await);
    cluster.until_ready("well").await;
    cluster.node.daemon().kill().expect("killed");
    proxy.inject(Calls::of("ContainerStatus").about("ill"), Fault::Hang);
    cluster.node.restart(&cluster.host).expect("started again");
    cluster.create("new", script(FOREVER)).await;
    cluster.until_ready("new").await;
    cluster.delete("well").await;
    cluster.until_gone("well").await;
    cluster.node_ready().await.expect("the node is Ready");
    let ill = cluster.pod("ill").await;
    assert_eq!((run_of(&ill), condition(&ill, "Ready").as_str()), (before.clone(), "True"));
    // A pod of which not everything is known does not end before it is.
    cluster.delete("ill").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(cluster.pod("ill").await.metadata.deletion_timestamp.is_some());
    proxy.release_all();
    cluster.until_gone("ill").await;
    cluster.until_removed(&uid(&ill)).await;
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn restart_during_a_container_start_starts_nothing_twice() {
    let host = Host::start().expect("a host");
    let (cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    let refusal = Fault::Error(longshore_cri::Code::Unavailable, "busy".to_owned());
    proxy.inject("ContainerStatus", refusal);
    cluster.create("web", script(FOREVER)).await;
    wait_until(TIMEOUT, "the container is started", async || {
        if proxy.calls("StartContainer") > 0 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await
    .unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.release("ContainerStatus");
    assert_eq!(run_of(&cluster.until_ready("web").await).0, 0);
    assert_eq!(proxy.calls("CreateContainer"), 1);
    drop(proxy);
    cluster.host.assert_clean();
}

#[tokio::test]
async fn runtime_restart_keeps_containers_running() {
    let mut cluster = Cluster::start().await;
    cluster.create("web", script(FOREVER)).await;
    let before = run_of(&cluster.until_ready("web").await);
    cluster.host.containerd().expect("containerd").kill().expect("killed");
    wait_until(TIMEOUT, "the node is not Ready", async || match cluster.node_ready().await {
        Err(reason) if reason.contains("runtime") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await
    .unwrap();
    cluster.host.start_containerd().expect("containerd again");
    wait_until(TIMEOUT, "the node is Ready again", async || cluster.node_ready().await)
        .await
        .unwrap();
    assert_eq!(run_of(&cluster.pod("web").await), before);
    cluster.host.assert_clean();
}
