//! A cluster on virtual machines as its users see it: by the API, and from the machines.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{Api, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use longshore_testkit::{BUSYBOX, Guest, wait_until};
use serde::Serialize;
use serde_json::json;

use crate::machine::TIMEOUT;

/// An administrator's client of the cluster whose apiserver is on a guest.
pub(crate) async fn client(guest: &mut Guest) -> Client {
    let text = guest.run("cat /etc/kubernetes/admin.conf").await.unwrap();
    let mut kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
    for cluster in &mut kubeconfig.clusters {
        let cluster = cluster.cluster.as_mut().unwrap();
        cluster.server = Some(format!("https://127.0.0.1:{}", guest.apiserver_port()));
        cluster.tls_server_name = Some("kubernetes".to_owned());
    }
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

/// Waits until all of `check` is so.
pub(crate) async fn until<T>(what: &str, check: impl AsyncFnMut() -> Result<T, String>) -> T {
    wait_until(TIMEOUT, what, check).await.unwrap_or_else(|error| panic!("{error}"))
}

fn said(error: impl Debug) -> String {
    format!("{error:?}")
}

/// Whether the conditions of a node or a pod say that it is Ready.
pub(crate) fn is_ready(conditions: &impl Serialize) -> bool {
    let conditions = json!(conditions);
    let mut all = conditions.as_array().into_iter().flatten();
    all.any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// Waits until a node is Ready, or is not.
pub(crate) async fn until_node(client: &Client, name: &str, ready: bool) {
    let nodes: Api<Node> = Api::all(client.clone());
    until(&format!("node {name} to be Ready: {ready}"), async || {
        let node = nodes.get(name).await.map_err(said)?;
        let conditions = node.status.and_then(|status| status.conditions);
        if is_ready(&conditions) == ready { Ok(()) } else { Err(said(conditions)) }
    })
    .await;
}

/// A server of the word `served`, in several pods behind a service, whose address is the result.
pub(crate) async fn serve(client: &Client, name: &str, replicas: u32) -> String {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let deployment = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    // Soon elsewhere, when the node of a pod is gone.
                    "tolerations": [
                        {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
                        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
                    ],
                    "topologySpreadConstraints": [{
                        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
                        "labelSelector": {"matchLabels": {"app": name}},
                    }],
                    "containers": [{
                        "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never",
                        "command": ["sh", "-c", "mkdir /www && echo served >/www/index.html && exec httpd -f -p 8080 -h /www"],
                        "readinessProbe": {"httpGet": {"port": 8080}, "periodSeconds": 2, "timeoutSeconds": 5},
                        "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
                    }],
                    "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory"}}],
                },
            },
        },
    }))
    .unwrap();
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let service = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }))
    .unwrap();
    let service = services.create(&PostParams::default(), &service).await.unwrap();
    service.spec.unwrap().cluster_ip.unwrap()
}

/// Waits until a deployment has all of its pods available, and no other.
pub(crate) async fn until_served(client: &Client, name: &str, replicas: i32) {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    until(&format!("{replicas} pods of {name}"), async || {
        let status = deployments.get(name).await.map_err(said)?.status.unwrap_or_default();
        match (status.available_replicas, status.replicas) {
            (Some(available), Some(all)) if available == replicas && all == replicas => Ok(()),
            _ => Err(format!("{status:?}")),
        }
    })
    .await;
}

/// What must not change for a pod while the programs under it do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PodState {
    /// Ids and restarts of its containers.
    containers: Vec<(String, i32)>,
    /// Its address.
    address: Option<String>,
    /// Since when it is Ready.
    ready: Option<String>,
}

impl PodState {
    /// Without the time since when it is Ready.
    pub(crate) fn forget_ready(&mut self) {
        self.ready = None;
    }
}

/// The states of all pods that run, by name and uid.
pub(crate) async fn pod_states(client: &Client) -> BTreeMap<String, PodState> {
    let pods: Api<Pod> = Api::all(client.clone());
    let all =
        until("the list of pods", async || pods.list(&ListParams::default()).await.map_err(said))
            .await;
    let pod_states =
        all.items.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).map(|pod| {
            let name = format!("{} {}", pod.name_any(), pod.uid().unwrap_or_default());
            let status = pod.status.unwrap_or_default();
            let ready = status
                .conditions
                .into_iter()
                .flatten()
                .find(|c| c.type_ == "Ready" && c.status == "True");
            let state = PodState {
                containers: status
                    .container_statuses
                    .into_iter()
                    .flatten()
                    .map(|c| (c.container_id.unwrap_or_default(), c.restart_count))
                    .collect(),
                address: status.pod_ip,
                ready: ready.and_then(|c| c.last_transition_time).map(|time| time.0.to_string()),
            };
            (name, state)
        });
    pod_states.collect()
}

/// Starts to ask a service ten times a second, on a guest.
pub(crate) async fn start_load(guest: &mut Guest, address: &str) {
    guest
        .run(&format!(
            "cat >/usr/local/bin/load <<'SCRIPT'
             while [ -e /run/load ]; do
                 answer=$(busybox wget -q -T 10 -O - http://{address}/ 2>&1)
                 case $answer in served) echo ok ;; *) echo \"$(date +%T.%N) $answer\" ;; esac >>/run/load.log
                 sleep 0.1
             done
SCRIPT
             touch /run/load
             rm -f /run/load.log
             systemd-run --quiet --unit=load bash /usr/local/bin/load"
        ))
        .await
        .unwrap();
}

/// Stops it. Every request must have been answered.
pub(crate) async fn assert_load_was_served(guest: &mut Guest) {
    let log = guest
        .run("rm /run/load; while systemctl --quiet is-active load; do sleep 0.2; done; sort /run/load.log | uniq -c")
        .await
        .unwrap();
    eprintln!("vm: requests: {}", log.trim());
    let answers: Vec<_> = log.lines().map(str::trim).collect();
    assert!(answers.len() == 1 && answers[0].ends_with(" ok"), "requests that failed: {log}");
}

/// The uid by which a node knows a pod: of a static pod that of its manifest, not that of its mirror pod.
fn uid_on_node(pod: &Pod) -> Option<String> {
    pod.annotations().get("kubernetes.io/config.hash").cloned().or_else(|| pod.uid())
}

/// Waits until a machine has sandboxes, addresses and mounts of the pods that are, and no other. Those that have ended
/// keep their sandbox, and no address; a dead container that is kept for its log keeps an earlier sandbox.
pub(crate) async fn until_nothing_is_stale(
    guest: &mut Guest,
    client: &Client,
    node: &str,
    list_sandboxes: &str,
) {
    let pods: Api<Pod> = Api::all(client.clone());
    until("what is left of pods that are gone", async || {
        let of_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = pods.list(&of_node).await.map_err(said)?.items;
        let mut uids: Vec<String> = pods.iter().filter_map(uid_on_node).collect();
        uids.sort();
        let found = guest
            .run(
                &format!("{list_sandboxes}
                 find /var/lib/cni/networks -name '10.*' | wc -l
                 find /var/lib/kubelet/pods -mindepth 1 -maxdepth 1 -printf '%f\\n' | sort | xargs
                 sed -n 's|.* /var/lib/kubelet/pods/\\([^/]*\\)/.*|\\1|p' /proc/mounts | sort -u | xargs"),
            )
            .await
            .map_err(said)?;
        let lines: Vec<_> = found.lines().map(str::to_owned).collect();
        let words = |line: usize| lines.get(line).map(|l| l.split_whitespace().collect::<Vec<_>>()).unwrap_or_default();
        let has_ended = |pod: &&Pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            matches!(phase, Some("Failed" | "Succeeded"))
        };
        let ended = pods.iter().filter(has_ended).count();
        let right = words(0) == uids.iter().map(String::as_str).collect::<Vec<_>>()
            && lines[1] == (pods.len() - ended).to_string()
            && words(2) == uids.iter().map(String::as_str).collect::<Vec<_>>()
            && words(3).iter().all(|uid| uids.iter().any(|known| known == uid));
        if right { Ok(()) } else { Err(format!("{uids:?}: {found}")) }
    })
    .await;
}
