//! Apiserver and node daemon on the host, and what they use of the machine.
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use longshore_testkit::{
    Apiserver, Controllers, Daemon, Docker, Host, Kubectl, Node, NodeOptions, wait_until,
};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::json;

use crate::process::{self, Use};

/// For documentation only, by RFC 5737: nobody answers there.
const CLUSTER_DNS: &str = "192.0.2.10";
const NODE_READY: Duration = Duration::from_secs(60);
/// How long a daemon may take to leave after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// What runs on the host besides pods.
pub(crate) struct Cluster<'a> {
    pub(crate) host: &'a mut Host,
    /// The engine in place of containerd, if the node is on one.
    docker: Option<&'a mut Docker>,
    pub(crate) node: Node,
    apiserver: Apiserver,
    client: Client,
}

/// What the daemons use, or used between two looks.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Uses<T> {
    pub(crate) node: T,
    pub(crate) apiserver: T,
    /// containerd, or dockerd and its containerd; without shims.
    pub(crate) runtime: T,
}

/// Where it was measured, by the node's own words.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Machine {
    pub(crate) cpu: String,
    pub(crate) memory: String,
    pub(crate) kernel: String,
    pub(crate) runtime: String,
    pub(crate) kubelet: String,
}

impl<'a> Cluster<'a> {
    /// Starts both and waits until the node is Ready.
    pub(crate) async fn start(host: &'a mut Host) -> Result<Self> {
        Self::start_with(host, NodeOptions::default()).await
    }

    /// The same with a node of other settings.
    pub(crate) async fn start_with(host: &'a mut Host, options: NodeOptions) -> Result<Self> {
        Self::start_over(host, None, options).await
    }

    /// The same, with the engine that the settings name.
    pub(crate) async fn start_over(
        host: &'a mut Host,
        docker: Option<&'a mut Docker>,
        options: NodeOptions,
    ) -> Result<Self> {
        let apiserver = Apiserver::start(host)?;
        Self::start_under(apiserver, host, docker, options).await
    }

    /// Starts both for a cluster that is to have all controllers: [`Cluster::start_controllers`].
    pub(crate) async fn start_whole(host: &'a mut Host) -> Result<Self> {
        let apiserver = Apiserver::start_alone(host, &[])?;
        Self::start_under(apiserver, host, None, NodeOptions::default()).await
    }

    async fn start_under(
        apiserver: Apiserver,
        host: &'a mut Host,
        docker: Option<&'a mut Docker>,
        mut options: NodeOptions,
    ) -> Result<Self> {
        // As in every cluster: without it each pod has an event more, `MissingClusterDNS`. None of the pods asks it.
        options.config.entry("clusterDNS".to_owned()).or_insert_with(|| json!([CLUSTER_DNS]));
        let kubeconfig = Kubeconfig::read_from(apiserver.admin_kubeconfig())?;
        let defaults = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &defaults).await?;
        let client = Client::try_from(config)?;
        let (kubeconfig, ca) = (apiserver.node_kubeconfig(), apiserver.client_ca());
        let node = Node::start(host, &kubeconfig, &ca, options)?;
        let mut cluster = Self { host, docker, node, apiserver, client };
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    /// Starts scheduler and controllers beside them, in one process.
    pub(crate) fn start_controllers(&self) -> Result<Controllers> {
        let signing = self.apiserver.signing_flags();
        let signing: Vec<&str> = signing.iter().map(String::as_str).collect();
        Ok(Controllers::start(self.host, &self.apiserver.admin_kubeconfig(), &signing)?)
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let (nodes, name) = (self.nodes(), self.host.name());
        let ready = wait_until(NODE_READY, "the node to be Ready", async || {
            let status = nodes.get(&name).await?.status.unwrap_or_default();
            match status.conditions.into_iter().flatten().find(|c| c.type_ == "Ready") {
                Some(ready) if ready.status == "True" => Ok(()),
                Some(ready) => bail!("{}", ready.message.unwrap_or(ready.status)),
                None => bail!("it has no Ready condition"),
            }
        });
        let ready = ready.await;
        // A daemon's own end says more than a node that does not come.
        self.node.daemon().check_running()?;
        Ok(ready?)
    }

    /// Stops both; pods are to be deleted before.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.node.daemon().terminate(GRACE)?;
        self.apiserver.daemon().terminate(GRACE)?;
        Ok(())
    }

    /// The pods, as the administrator sees them.
    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    pub(crate) fn nodes(&self) -> Api<NodeObject> {
        Api::all(self.client.clone())
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// kubectl as the administrator.
    pub(crate) fn kubectl(&self) -> Kubectl {
        self.apiserver.kubectl()
    }

    /// CPU-seconds of everything on the host, as far as they are known.
    pub(crate) fn host_cpu_seconds(&self) -> Option<f64> {
        process::host_cpu_seconds(self.host)
    }

    /// The kubeconfig of the administrator.
    pub(crate) fn admin_kubeconfig(&self) -> PathBuf {
        self.apiserver.admin_kubeconfig()
    }

    /// The processes of apiserver and node.
    pub(crate) fn daemons(&mut self) -> [&mut Daemon; 2] {
        [self.apiserver.daemon(), self.node.daemon()]
    }

    /// What the daemons use now; errs when one of them has ended.
    pub(crate) fn uses(&mut self) -> Result<Uses<Use>> {
        Ok(Uses {
            node: process::look_at_daemon(self.node.daemon())?,
            apiserver: process::look_at_daemon(self.apiserver.daemon())?,
            runtime: process::look_at_all(&self.runtime()?)?,
        })
    }

    /// The processes of the runtime, which run.
    fn runtime(&mut self) -> Result<Vec<u32>> {
        if let Some(docker) = &mut self.docker {
            return Ok(docker.processes()?);
        }
        let containerd = self.host.containerd()?;
        containerd.check_running()?;
        Ok(vec![containerd.pid()])
    }

    /// The first process of every container, by the container's ID.
    pub(crate) fn container_processes(&self) -> Result<HashMap<String, Pid>> {
        match &self.docker {
            Some(docker) => {
                let pids = docker.container_pids()?.into_iter();
                Ok(pids.map(|(id, pid)| (id, Pid::from_raw(pid))).collect())
            }
            None => process::of_containers(self.host),
        }
    }

    /// How many descriptors the daemons have open.
    pub(crate) fn descriptors(&mut self) -> Result<Uses<usize>> {
        let runtime = self.runtime()?.into_iter().map(process::descriptors);
        Ok(Uses {
            node: process::descriptors(self.node.daemon().pid())?,
            apiserver: process::descriptors(self.apiserver.daemon().pid())?,
            runtime: runtime.sum::<Result<usize>>()?,
        })
    }

    /// How many requests the apiserver has answered, by verb and resource.
    pub(crate) async fn requests(&self) -> Result<BTreeMap<String, u64>> {
        let request = hyper::Request::get("/metrics").body(Vec::new())?;
        Ok(request_counts(&self.client.request_text(request).await?))
    }

    /// Those that it has answered since it had answered `before`.
    pub(crate) async fn requests_since(
        &self,
        before: &BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, u64>> {
        let mut requests = self.requests().await?;
        for (what, count) in &mut requests {
            *count -= before.get(what).copied().unwrap_or(0);
        }
        requests.retain(|_, count| *count > 0);
        Ok(requests)
    }

    pub(crate) async fn machine(&self) -> Result<Machine> {
        let status = self.nodes().get(&self.host.name()).await?.status.unwrap_or_default();
        let info = status.node_info.unwrap_or_default();
        let capacity = status.capacity.unwrap_or_default();
        let amount = |name| capacity.get(name).map_or_else(String::new, |amount| amount.0.clone());
        Ok(Machine {
            cpu: amount("cpu"),
            memory: amount("memory"),
            kernel: info.kernel_version,
            runtime: info.container_runtime_version,
            kubelet: info.kubelet_version,
        })
    }
}

/// From the counters `apiserver_request_total`, in Prometheus' text format.
pub(crate) fn request_counts(metrics: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for line in metrics.lines().filter_map(|line| line.strip_prefix("apiserver_request_total{")) {
        let Some((labels, count)) = line.rsplit_once("} ") else { continue };
        let label = |name: &str| {
            let value = labels.split(',').find_map(|label| label.trim().strip_prefix(name));
            value.map_or("", |value| value.trim_start_matches('=').trim_matches('"'))
        };
        let (resource, sub) = (label("resource"), label("subresource"));
        let slash = if sub.is_empty() { "" } else { "/" };
        let what = format!("{} {resource}{slash}{sub} {}", label("verb"), label("code"));
        *counts.entry(what).or_default() += count.parse().unwrap_or(0);
    }
    counts
}

impl Uses<Use> {
    /// CPU-seconds since an earlier look.
    pub(crate) fn cpu_since(&self, before: &Self) -> Uses<f64> {
        Uses {
            node: self.node.cpu_seconds - before.node.cpu_seconds,
            apiserver: self.apiserver.cpu_seconds - before.apiserver.cpu_seconds,
            runtime: self.runtime.cpu_seconds - before.runtime.cpu_seconds,
        }
    }

    /// Their memory.
    pub(crate) fn memory(&self) -> Uses<process::Memory> {
        Uses {
            node: self.node.memory,
            apiserver: self.apiserver.memory,
            runtime: self.runtime.memory,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_verb_and_resource() {
        let metrics = r#"# TYPE apiserver_request_total counter
apiserver_request_total{code="200",dry_run="",group="",resource="pods",scope="resource",subresource="status",verb="PATCH",version="v1"} 7
apiserver_request_total{code="200",dry_run="",group="x",resource="pods",scope="resource",subresource="status",verb="PATCH",version="v1"} 2
apiserver_request_total{code="201",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 5
other{verb="POST"} 3
"#;
        let expected = [("PATCH pods/status 200", 9), ("POST pods 201", 5)];
        let expected = expected.map(|(what, count)| (what.to_owned(), count));
        assert_eq!(request_counts(metrics), BTreeMap::from(expected));
    }
}
