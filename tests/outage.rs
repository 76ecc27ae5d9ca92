//! An outage of the apiserver: pods keep running, and all changes are reported afterwards.

use crate::common;

use common::{Cluster, FOREVER, TIMEOUT, condition, phase, run_of, script, uid};
use longshore_testkit::wait_until;
use serde_json::json;

#[tokio::test]
async fn apiserver_outage_changes_are_reported_afterwards() {
    let mut cluster = Cluster::start().await;
    // The host's own file says when each is to end.
    let sign = cluster.host.dir().join("sign");
    std::fs::create_dir_all(&sign).unwrap();
    let waiting = |text: &str| {
        let mut spec = script(text);
        spec["volumes"] = json!([{"name": "sign", "hostPath": {"path": sign}}]);
        spec["containers"][0]["volumeMounts"] = json!([{"name": "sign", "mountPath": "/sign"}]);
        spec
    };
    let mut ends = waiting("while [ ! -e /sign/end ]; do sleep 0.1; done; exit 3");
    ends["restartPolicy"] = json!("Never");
    let again = "[ -e /sign/end ] && exec sleep 1000";
    let restarts =
        waiting(&format!("{again}; while [ ! -e /sign/end ]; do sleep 0.1; done; exit 4"));
    let mut leaves = waiting(
        "trap 'while [ ! -e /sign/end ]; do sleep 0.1; done; exit 0' TERM; \
         while true; do sleep 0.1; done",
    );
    leaves["terminationGracePeriodSeconds"] = json!(60);
    for (name, spec) in
        [("ends", ends), ("restarts", restarts), ("leaves", leaves), ("stays", script(FOREVER))]
    {
        cluster.create(name, spec).await;
    }
    for name in ["ends", "restarts", "leaves", "stays"] {
        cluster.until_ready(name).await;
    }
    let (stays, leaving) = (cluster.pod("stays").await, cluster.pod("leaves").await);
    cluster.delete("leaves").await;
    cluster.until_event("Killing", "Stopping container c").await;

    cluster.apiserver.daemon().kill().expect("the apiserver ends");
    std::fs::write(sign.join("end"), "").unwrap();
    // All three ends have come and gone before they can be reported.
    wait_until(TIMEOUT, "one container is left of each that goes on", async || {
        let tasks = cluster.host.ctr(["tasks", "ls"]).map_err(|error| error.to_string())?;
        let running = tasks.lines().filter(|line| line.contains("RUNNING")).count();
        // Two containers that run, each with the sandbox that it runs in.
        if running == 4 { Ok(()) } else { Err(tasks) }
    })
    .await
    .unwrap();

    cluster.apiserver.restart(&cluster.host).expect("the apiserver is back");
    cluster
        .until("ends", "has failed", |pod| match phase(pod) {
            "Failed" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await;
    let ended = cluster.pod("ends").await.status.unwrap().container_statuses.unwrap();
    assert_eq!(ended[0].state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 3);
    cluster
        .until("restarts", "was restarted once", |pod| {
            match (run_of(pod).0, condition(pod, "Ready").as_str()) {
                (1, "True") => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    let restarted = cluster.pod("restarts").await.status.unwrap().container_statuses.unwrap();
    let last = restarted[0].last_state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(last.exit_code, 4);
    cluster.until_gone("leaves").await;
    cluster.until_removed(&uid(&leaving)).await;
    let after = cluster.pod("stays").await;
    assert_eq!(after.status, stays.status, "nothing happened to it, so nothing is written");
    cluster.host.assert_clean();
}
