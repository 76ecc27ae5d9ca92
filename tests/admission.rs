//! Pod admission: rejection, preemption, and pods that were admitted before a restart.

use crate::common;

use std::collections::BTreeMap;
use std::fs;

use common::{Cluster, FOREVER, TIMEOUT, container, phase, run_of, script};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, Patch, PatchParams};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

/// Of the node's CPUs, what pods may have, in thousandths.
async fn allocatable(cluster: &Cluster) -> i64 {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    wait_until(TIMEOUT, "the node reports its capacity", async || {
        let node = nodes.get(&cluster.host.name()).await.map_err(|error| error.to_string())?;
        let list = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        let milli = longshore_pod::qos::milli_of(Some(&list), "cpu");
        if milli > 0 { Ok(i64::try_from(milli).unwrap()) } else { Err(format!("{list:?}")) }
    })
    .await
    .unwrap()
}

fn requesting(milli: i64) -> Value {
    let mut spec = script(FOREVER);
    spec["containers"][0]["resources"] = json!({"requests": {"cpu": format!("{milli}m")}});
    spec
}

fn message(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.message.clone()).unwrap_or_default()
}

fn reason(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.reason.clone()).unwrap_or_default()
}

impl Cluster {
    /// Until the pod was refused for that reason, with an event that says the same.
    async fn until_refused(&self, name: &str, why: &str, text: &str) {
        let pod = self
            .until(name, "Failed", |pod| match phase(pod) {
                "Failed" => Ok(()),
                other => Err(other.to_owned()),
            })
            .await;
        assert_eq!(
            (reason(&pod), message(&pod)),
            (why.to_owned(), format!("Pod was rejected: {text}"))
        );
        let status = pod.status.unwrap();
        assert_eq!(status.container_statuses.unwrap_or_default().len(), 0, "nothing was started");
        let event = self.until_event(why, text).await;
        assert_eq!(
            (event.message.as_deref(), event.type_.as_deref()),
            (Some(text), Some("Warning"))
        );
    }

    async fn patch_node(&self, patch: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(patch);
        nodes.patch(&self.host.name(), &PatchParams::default(), &patch).await.expect("patched");
    }
}

#[tokio::test]
async fn admission_rejects_pods_that_do_not_fit() {
    let cluster = Cluster::start().await;
    let all = allocatable(&cluster).await;
    let mut big = requesting(all);
    big["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 18080}]);
    cluster.create("big", big.clone()).await;
    cluster.until_ready("big").await;
    cluster.create("late", requesting(100)).await;
    let text = format!(
        "Node didn't have enough resource: cpu, requested: 100, used: {all}, capacity: {all}"
    );
    cluster.until_refused("late", "OutOfcpu", &text).await;

    let mut same_port = big;
    same_port["containers"][0]["resources"] = json!({});
    cluster.create("port", same_port.clone()).await;
    let text =
        "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports";
    cluster.until_refused("port", "NodePorts", text).await;

    let mut choosy = script(FOREVER);
    choosy["nodeSelector"] = json!({"disk": "ssd"});
    cluster.create("choosy", choosy.clone()).await;
    let text = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    cluster.until_refused("choosy", "NodeAffinity", text).await;
    // A label counts from the moment in which it is set.
    cluster.patch_node(json!({"metadata": {"labels": {"disk": "ssd"}}})).await;
    cluster.create("content", choosy).await;
    cluster.until_ready("content").await;

    let taint = json!([{"key": "k", "effect": "NoExecute"}]);
    cluster.patch_node(json!({"spec": {"taints": taint}})).await;
    wait_until(TIMEOUT, "the taint keeps pods out", async || {
        let name = format!("tainted-{}", std::time::UNIX_EPOCH.elapsed().unwrap().as_millis());
        cluster.create(&name, script("true")).await;
        let pod = cluster
            .until(&name, "is decided about", |pod| match phase(pod) {
                "Pending" | "" => Err(phase(pod).to_owned()),
                _ => Ok(()),
            })
            .await;
        if reason(&pod) == "TaintToleration" { Ok(()) } else { Err(reason(&pod)) }
    })
    .await
    .unwrap();
    let text = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    cluster.until_event("TaintToleration", text).await;

    // Who ends gives back what it held; taints are no matter to who tolerates them.
    cluster.delete("big").await;
    cluster.until_gone("big").await;
    same_port["tolerations"] = json!([{"key": "k", "operator": "Exists"}]);
    same_port["containers"][0]["resources"] = requesting(all)["containers"][0]["resources"].clone();
    cluster.create("again", same_port).await;
    cluster.until_ready("again").await;
    cluster.host.assert_clean();
}

#[tokio::test]
async fn admission_preempts_for_a_critical_pod() {
    let cluster = Cluster::start().await;
    let all = allocatable(&cluster).await;
    let half = all / 2;
    cluster.create("small", requesting(half)).await;
    cluster.until_ready("small").await;
    let mut slow = requesting(all - half);
    // It takes a second to end.
    slow["terminationGracePeriodSeconds"] = json!(10);
    slow["containers"] = json!([container(
        "c",
        "trap 'sleep 1; exit 0' TERM; while true; do sleep 1000 & wait $!; done",
    )]);
    slow["containers"][0]["resources"] =
        requesting(all - half)["containers"][0]["resources"].clone();
    cluster.create("slow", slow).await;
    cluster.until_ready("slow").await;

    let mut critical = requesting(half);
    critical["priorityClassName"] = json!("system-node-critical");
    cluster.create("critical", critical.clone()).await;
    let preempted = cluster
        .until("slow", "is preempted", |pod| match phase(pod) {
            "Failed" => Ok(()),
            other => Err(other.to_owned()),
        })
        .await;
    assert_eq!(reason(&preempted), "Preempting");
    assert_eq!(message(&preempted), "Preempted in order to admit critical pod");
    let status = preempted.status.clone().unwrap();
    let disruption =
        status.conditions.iter().flatten().find(|c| c.type_ == "DisruptionTarget").unwrap();
    assert_eq!(disruption.reason.as_deref(), Some("TerminationByKubelet"));
    let message = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(disruption.message.as_deref(), Some(message));
    cluster.until_event("Preempting", "Preempted in order to admit critical pod").await;

    let came = cluster.until_ready("critical").await;
    let state = |pod: &Pod| {
        let status = pod.status.as_ref().unwrap().container_statuses.clone().unwrap();
        status[0].state.clone().unwrap()
    };
    let left = state(&preempted).terminated.unwrap().finished_at.unwrap();
    let started = state(&came).running.unwrap().started_at.unwrap();
    assert!(started.0 >= left.0, "started at {started:?}, while the other left at {left:?}");
    assert_eq!(phase(&cluster.pod("small").await), "Running");

    // No equal makes way, and of the others none is enough.
    critical["containers"][0]["resources"] = requesting(all)["containers"][0]["resources"].clone();
    cluster.create("equal", critical).await;
    let lack = all - (all - 2 * half) - half;
    let text = format!(
        "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: {lack}), ]"
    );
    cluster.until_refused("equal", "UnexpectedAdmissionError", &text).await;

    // A static pod is critical whatever its priority.
    let mut spec = requesting(half);
    spec.as_object_mut().unwrap().remove("automountServiceAccountToken");
    let manifest =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static"}, "spec": spec});
    fs::write(cluster.node.manifests().join("static.yaml"), manifest.to_string()).unwrap();
    cluster.until_ready(&format!("static-{}", cluster.host.name())).await;
    let gone = cluster.pod("small").await;
    assert_eq!((phase(&gone), reason(&gone).as_str()), ("Failed", "Preempting"));
    assert_eq!(phase(&cluster.pod("critical").await), "Running");
    cluster.host.assert_clean();
}

#[tokio::test]
async fn admission_of_concurrent_pods_survives_a_restart() {
    let mut cluster = Cluster::start_with(json!({"maxPods": 3})).await;
    let names: Vec<String> = (0..6).map(|index| format!("pod-{index}")).collect();
    futures::future::join_all(names.iter().map(|name| cluster.create(name, script(FOREVER)))).await;
    let mut running = BTreeMap::new();
    for name in &names {
        let pod = cluster
            .until(name, "is decided about", |pod| match phase(pod) {
                "Running" | "Failed" => Ok(()),
                other => Err(other.to_owned()),
            })
            .await;
        if phase(&pod) == "Failed" {
            assert_eq!(reason(&pod), "OutOfpods");
            let text = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3";
            assert_eq!(message(&pod), format!("Pod was rejected: {text}"));
        } else {
            running.insert(name.clone(), run_of(&cluster.until_ready(name).await));
        }
    }
    assert_eq!(running.len(), 3);

    // It comes back smaller, and finds one more.
    cluster.node.daemon().kill().expect("killed");
    let config = cluster.host.dir().join("node/config.yaml");
    let smaller = fs::read_to_string(&config).unwrap().replace("\"maxPods\":3", "\"maxPods\":1");
    fs::write(&config, smaller).unwrap();
    cluster.create("late", script(FOREVER)).await;
    cluster.node.restart(&cluster.host).expect("started again");
    let text = "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 1";
    cluster.until_refused("late", "OutOfpods", text).await;
    for (name, run) in &running {
        let pod = cluster.pod(name).await;
        assert_eq!((phase(&pod), run_of(&pod)), ("Running", run.clone()), "{name}");
    }
    cluster.host.assert_clean();
}
