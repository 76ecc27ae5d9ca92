//! An apiserver with nodes, pods and services that are nothing but objects.
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt};
use hyper::Request;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use longshore_testkit::{Apiserver, Host};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::process::{self, Use};

/// Requests at once.
const CONCURRENCY: usize = 16;
/// How often a node renews its lease.
const RENEW: Duration = Duration::from_secs(10);
const PODS: &str = "/api/v1/namespaces/default/pods";
const SERVICES: &str = "/api/v1/namespaces/default/services";

pub(super) struct Fleet<'a> {
    host: &'a Host,
    apiserver: Apiserver,
    client: Client,
    nodes: usize,
    pid: u32,
}

async fn send(client: &Client, method: &str, path: &str, body: &Value) -> Result<String> {
    let type_ = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(hyper::header::CONTENT_TYPE, type_)
        .body(body.to_string().into_bytes())?;
    client.request_text(request).await.with_context(|| format!("{method} {path}"))
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

fn now() -> String {
    // microseconds, as leases have them
    let now = k8s_openapi::jiff::Timestamp::now();
    now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// What a node's lease says.
fn lease(name: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now()},
    })
}

async fn create_node(client: &Client, number: usize) -> Result<()> {
    let name = node_name(number);
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "topology.kubernetes.io/zone": format!("zone-{}", number % 3),
        }},
        "spec": {"podCIDR": format!("10.{}.{}.0/24", number / 250, number % 250)},
    });
    send(client, "POST", "/api/v1/nodes", &node).await?;
    let capacity = json!({"cpu": "32", "memory": "256Gi", "pods": "110"});
    let status = json!({"status": {
        "capacity": capacity, "allocatable": capacity,
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady",
            "message": "kubelet is posting ready status",
            "lastHeartbeatTime": null, "lastTransitionTime": null,
        }],
    }});
    send(client, "PATCH", &format!("/api/v1/nodes/{name}/status"), &status).await?;
    // A node begins with a taint that controllers take away, which do not run yet.
    let path = format!("/api/v1/nodes/{name}");
    send(client, "PATCH", &path, &json!({"spec": {"taints": null}})).await?;
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    send(client, "POST", leases, &lease(&name)).await?;
    Ok(())
}

fn pod(number: usize) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("pod-{number}"),
            "labels": {"app": format!("app-{}", number % 10)},
        },
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "pause", "resources": {
                "requests": {"cpu": "100m", "memory": "100Mi"}}}],
        },
    })
}

fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80}], "clusterIP": "None"},
    })
}

impl<'a> Fleet<'a> {
    /// Starts an apiserver and makes nodes.
    pub(super) async fn start(host: &'a Host, nodes: usize) -> Result<Self> {
        let mut apiserver = Apiserver::start_alone(host, &[])?;
        let kubeconfig = Kubeconfig::read_from(apiserver.admin_kubeconfig())?;
        let defaults = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &defaults).await?;
        config.proxy_url = None;
        let client = Client::try_from(config)?;
        let pid = apiserver.daemon().pid();
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        send(&client, "POST", "/api/v1/namespaces/default/serviceaccounts", &account).await?;
        let own = Self { host, apiserver, client, nodes, pid };
        own.for_each(nodes, |client, number| async move { create_node(&client, number).await })
            .await?;
        Ok(own)
    }

    async fn for_each<F: Future<Output = Result<()>>>(
        &self,
        count: usize,
        request: impl Fn(Client, usize) -> F,
    ) -> Result<()> {
        futures::stream::iter((0..count).map(|number| request(self.client.clone(), number)))
            .buffer_unordered(CONCURRENCY)
            .try_collect::<()>()
            .await
    }

    pub(super) fn host(&self) -> &'a Host {
        self.host
    }

    pub(super) fn apiserver(&self) -> &Apiserver {
        &self.apiserver
    }

    pub(super) async fn create_pods(&self, count: usize) -> Result<()> {
        self.for_each(count, |client, number| async move {
            send(&client, "POST", PODS, &pod(number)).await.map(drop)
        })
        .await
    }

    /// Services, each of which selects a tenth of the pods.
    pub(super) async fn create_services(&self, count: usize) -> Result<()> {
        self.for_each(count, |client, number| async move {
            let own = service(&format!("service-{number}"), &format!("app-{number}"));
            send(&client, "POST", SERVICES, &own).await.map(drop)
        })
        .await
    }

    /// Services that select no pod.
    pub(super) async fn create_others(&self, count: usize) -> Result<()> {
        self.for_each(count, |client, number| async move {
            let own = service(&format!("other-{number}"), &format!("other-{number}"));
            send(&client, "POST", SERVICES, &own).await.map(drop)
        })
        .await
    }

    /// How many bindings the apiserver took.
    pub(super) async fn bound(&self) -> Result<usize> {
        let request = Request::get("/metrics").body(Vec::new())?;
        let counts = crate::cluster::request_counts(&self.client.request_text(request).await?);
        let bindings = counts.iter().filter(|(what, _)| what.contains(" pods/binding 2"));
        Ok(usize::try_from(bindings.map(|(_, count)| count).sum::<u64>())?)
    }

    /// Reports a pod ready, or not.
    pub(super) async fn set_ready(&self, number: usize, is_ready: bool) -> Result<()> {
        let status = if is_ready { "True" } else { "False" };
        let body = json!({"status": {
            "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": status}],
        }});
        send(&self.client, "PATCH", &format!("{PODS}/pod-{number}/status"), &body).await.map(drop)
    }

    /// Renews the leases of all nodes, as their daemons would.
    pub(super) fn keep_leases(&self) -> JoinHandle<()> {
        let (client, nodes) = (self.client.clone(), self.nodes);
        tokio::spawn(async move {
            loop {
                for number in 0..nodes {
                    let name = node_name(number);
                    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
                    let body = json!({"spec": {"renewTime": now()}});
                    // The next one comes soon.
                    let _ = send(&client, "PATCH", &format!("{leases}/{name}"), &body).await;
                }
                tokio::time::sleep(RENEW).await;
            }
        })
    }

    /// What the apiserver uses.
    pub(super) fn used(&mut self) -> Result<Use> {
        self.apiserver.daemon().check_running()?;
        process::look(self.pid).context("apiserver")
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.apiserver.daemon().terminate(Duration::from_secs(10))?;
        Ok(())
    }
}
