//! A runtime that errs, tarries or hangs: what does not depend on the call goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{Cluster, FOREVER, run_of, script};
use longshore_testkit::Host;
use longshore_testkit::fakecri::{Fault, FaultProxy};
use serde_json::json;

fn kill_container(cluster: &Cluster, id: &str) {
    let id = id.trim_start_matches("containerd://");
    cluster.host.ctr(["tasks", "kill", "--signal", "SIGKILL", id]).expect("a container is killed");
}

#[tokio::test]
async fn an_end_is_seen_without_a_relist() {
    let host = Host::start().expect("a host");
    let (mut cluster, proxy) = Cluster::behind_proxy(host, json!({})).await;
    cluster.create("web", script(FOREVER)).await;
    let (_, first) = run_of(&cluster.until_ready("web").await);
    let mut last = first;
    for count in 1..=2 {
        proxy.inject("ListContainers", Fault::Hang);
        // The runtime of some machines has events, and they are not what is tested here.
        proxy.inject("GetContainerEvents", Fault::Hang);
        kill_container(&cluster, &last);
        let pod = cluster
            .until("web", "restarted", |pod| match run_of(pod) {
                (restarts, id) if restarts == count && id != last => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await;
        last = run_of(&pod).1;
        proxy.release("ListContainers");
        // Known from its predecessor, a container's end is awaited as well.
        cluster.node.restart(&cluster.host).expect("started again");
        proxy_relisted(&proxy).await;
    }
    drop(proxy);
    cluster.host.assert_clean();
}

/// Until one more relist has come.
async fn proxy_relisted(proxy: &FaultProxy) {
    let before = proxy.calls("ListContainers");
    longshore_testkit::wait_until(common::PATIENCE, "a relist", async || {
        if proxy.calls("ListContainers") > before + 1 { Ok(()) } else { Err("not yet") }
    })
    .await
    .unwrap();
}
