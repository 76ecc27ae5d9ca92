//! Pods with extreme numbers and strings on a real node: it keeps running, also after a restart, and
//! starts other pods.

use crate::common;

use std::fs;

use common::{Cluster, FOREVER, TIMEOUT, container, script};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

/// Fields of a pod's spec, or of its only container, that no pod should have.
fn hostile() -> Vec<Value> {
    let probe = json!({"exec": {"command": ["true"]}, "initialDelaySeconds": i32::MAX, "periodSeconds": i32::MAX,
        "timeoutSeconds": i32::MAX, "failureThreshold": i32::MAX, "successThreshold": 1});
    let large = "9223372036854775807";
    let mut specs = vec![
        json!({"activeDeadlineSeconds": i64::from(i32::MAX)}),
        json!({"activeDeadlineSeconds": 1}),
        json!({"containers": [{"livenessProbe": probe, "startupProbe": probe, "readinessProbe": probe}]}),
        json!({"containers": [{"livenessProbe": {"exec": {"command": ["true"]}, "terminationGracePeriodSeconds": i64::MAX}}]}),
        json!({"containers": [{"lifecycle": {"preStop": {"sleep": {"seconds": i64::MAX}}}}]}),
        json!({"containers": [{"lifecycle": {"preStop": {"sleep": {"seconds": 0}}}}]}),
        json!({"containers": [{"env": [{"name": "A", "value": "é".repeat(30_000)}]}]}),
        json!({"containers": [{"workingDir": "/".repeat(5000)}]}),
        json!({"containers": [{"terminationMessagePath": "日".repeat(2000)}]}),
        json!({"securityContext": {"runAsUser": i64::from(i32::MAX), "fsGroup": i64::from(i32::MAX)}}),
        json!({"hostname": "a".repeat(63)}),
        json!({"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": i64::MAX}]}),
        json!({"tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": i64::MIN}]}),
        json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": large}}]}),
        json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "0.0000000001n"}}]}),
        json!({"containers": [{"resources": {"limits": {"memory": large}}}]}),
        json!({"containers": [{"resources": {"limits": {"cpu": large}}}]}),
        json!({"containers": [{"resources": {"requests": {"cpu": "0.0000000001n"}}}]}),
        json!({"containers": [{"resources": {"limits": {"memory": "1"}}}]}),
        json!({"overhead": {"cpu": large}}),
    ];
    for grace in [i64::MAX, i64::MAX / 1_000_000_000, i64::from(i32::MAX), 0, -1] {
        for policy in ["Never", "Always"] {
            specs.push(json!({"terminationGracePeriodSeconds": grace, "restartPolicy": policy}));
        }
    }
    specs
}

/// A whole spec with those fields: what it runs ends at once if it does not restart.
fn spec(fields: &Value) -> Value {
    let ends = fields["restartPolicy"] == "Never";
    let mut spec = json!({"containers": [container("c", if ends { "exit 0" } else { FOREVER })]});
    for (name, value) in fields.as_object().unwrap() {
        if name != "containers" {
            spec[name] = value.clone();
        }
    }
    for (name, value) in fields["containers"][0].as_object().into_iter().flatten() {
        spec["containers"][0][name] = value.clone();
    }
    spec
}

/// Finding 13: the words of a daemon with a full disk, or a closed descriptor, behind them are lost.
#[test]
fn extremes_of_termination_messages_are_no_failure() {
    use std::os::unix::process::ExitStatusExt;
    let run = |arguments: &str| {
        let command = format!("exec {} {arguments}", env!("CARGO_BIN_EXE_longshore"));
        std::process::Command::new("sh").args(["-c", &command]).status().unwrap()
    };
    for arguments in [
        "--version > /dev/full 2> /dev/full",
        "--version >&- 2>&-",
        "kubelet --no-such-flag 2> /dev/full",
        "kubelet --no-such-flag 2>&-",
        "kubelet --config=/no/such/file > /dev/full 2> /dev/full",
    ] {
        let status = run(arguments);
        assert!(status.signal().is_none() && status.code() != Some(101), "{arguments}: {status}");
    }
}

/// Finding 1: a pod whose grace is the largest number ended the daemon, and again after each restart.
#[tokio::test]
async fn extremes_of_pods_do_not_stop_the_node() {
    let mut cluster = Cluster::start().await;
    let mut taken = Vec::new();
    for (index, fields) in hostile().iter().enumerate() {
        let name = format!("odd-{index}");
        let metadata = json!({"name": format!("static-{index}"), "namespace": "default"});
        let manifest =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec(fields)});
        fs::write(cluster.node.manifests().join(format!("{index}.yaml")), manifest.to_string())
            .unwrap();
        let mut spec = spec(fields);
        spec["nodeName"] = cluster.host.name().into();
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        // That the apiserver refuses one is well, too.
        if cluster.pods().create(&PostParams::default(), &pod).await.is_ok() {
            taken.push(name);
        }
    }
    assert!(taken.len() > 15, "most are valid: {taken:?}");
    let worst = taken.iter().find(|name| *name == "odd-20").expect("the finding's pod");
    let has_ended = |pod: &Pod| match common::phase(pod) {
        "Succeeded" => Ok(()),
        other => Err(other.to_owned()),
    };
    cluster.until(worst, "it has ended", has_ended).await;
    cluster.create("ordinary", script(FOREVER)).await;
    cluster.until_ready("ordinary").await;
    cluster.node.daemon().check_running().unwrap();

    cluster.node.daemon().kill().unwrap();
    cluster.node.restart(&cluster.host).unwrap();
    cluster.create("after", script(FOREVER)).await;
    cluster.until_ready("after").await;
    // The grace of a deletion goes before the pod's own.
    let now = DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() };
    for name in &taken {
        cluster.pods().delete(name, &now).await.unwrap();
    }
    for index in 0..hostile().len() {
        fs::remove_file(cluster.node.manifests().join(format!("{index}.yaml"))).unwrap();
    }
    wait_until(TIMEOUT * 2, "the pods are gone", async || {
        let left = cluster.pods().list(&Default::default()).await.unwrap();
        let left: Vec<_> = left.items.into_iter().filter_map(|pod| pod.metadata.name).collect();
        let odd = left.iter().filter(|name| name.starts_with("odd-")).count();
        if odd == 0 { Ok(()) } else { Err(left.join(" ")) }
    })
    .await
    .unwrap();
    cluster.until_ready("ordinary").await;
    cluster.node.daemon().check_running().unwrap();
    let log = cluster.node.daemon().log();
    assert!(!log.contains("panic"), "{log}");
}
