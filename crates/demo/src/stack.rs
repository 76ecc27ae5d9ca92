//! What `make run` starts, in order, and takes down again: a host of the testkit with containerd or Docker,
//! the apiserver, controllers and scheduler, the DNS server, the node daemon with kube-proxy. Blocks the
//! main thread, on which nothing else runs.
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node as NodeObject, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use longshore_node_view::Process;
use longshore_testkit::{
    Apiserver, Controllers, Dns, Docker, DockerOptions, Host, Image, Node,
    kube_proxy_configuration, log_tails, sweep_abandoned, wait_until,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::progress::Progress;

/// How long a daemon may take to leave after SIGTERM before it is killed.
const GRACE: Duration = Duration::from_secs(10);
const APISERVER_READY: Duration = Duration::from_secs(30);
const NODE_READY: Duration = Duration::from_secs(60);
const IMAGES: &str = "sandbox and demo images";
/// The address of the Service kube-dns, in the apiserver's default range.
const DNS_ADDRESS: &str = "10.96.0.10";

/// What runs containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Runtime {
    /// containerd.
    #[default]
    Containerd,
    /// A Docker Engine, over which the node serves CRI itself.
    Docker,
}

/// Everything that runs, as far as it has come up.
#[derive(Debug, Default)]
pub(crate) struct Stack {
    node: Option<Node>,
    dns: Option<Dns>,
    controllers: Option<Controllers>,
    apiserver: Option<Apiserver>,
    docker: Option<Docker>,
    host: Option<Host>,
    runtime: Runtime,
}

impl Stack {
    /// Nothing yet.
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime, ..Self::default() }
    }

    /// Brings everything up and gives a client of the apiserver. What is up when it fails or
    /// `stop` fires is still to be [taken down](Self::take_down).
    pub(crate) async fn bring_up(
        &mut self,
        progress: Progress,
        stop: &CancellationToken,
    ) -> Result<Client> {
        for gone in sweep_abandoned()? {
            progress.line(&format!("cleared up after {gone}, whose run was killed"));
        }
        let bare = progress.step("network namespace and cgroups", async { Ok(Host::bare()?) });
        let host = self.host.insert(bare.await?);
        progress.line(&format!("  all state of this run is in {}", host.dir().display()));
        for lack in host.open_egress() {
            progress.line(&format!("  {lack}"));
        }

        let images = [Image::pause()?, Image::busybox()?];
        match self.runtime {
            Runtime::Containerd => {
                progress.step("containerd", async { Ok(host.start_containerd()?) }).await?;
                go_on(stop)?;
                let imported = progress.step(IMAGES, async {
                    Ok(images.iter().try_for_each(|image| host.import(image))?)
                });
                imported.await?;
            }
            Runtime::Docker => {
                let started = progress.step("Docker Engine", async {
                    Ok(Docker::start(host, DockerOptions::default())?)
                });
                let docker = self.docker.insert(started.await?);
                go_on(stop)?;
                let loaded = progress.step(IMAGES, async {
                    Ok(images.iter().try_for_each(|image| docker.load(image))?)
                });
                loaded.await?;
            }
        }
        go_on(stop)?;

        let started = progress.step("apiserver", async {
            let apiserver = self.apiserver.insert(Apiserver::start_alone(host, &[])?);
            let client = connect(apiserver.admin_kubeconfig()).await?;
            let ready = wait_until(APISERVER_READY, "the apiserver to be ready", async || {
                client.apiserver_version().await
            });
            ready.await?;
            Ok((client, apiserver))
        });
        let (client, apiserver) = started.await?;
        go_on(stop)?;

        let admin = apiserver.admin_kubeconfig();
        let started = progress.step("controllers, scheduler and DNS", async {
            let signing = apiserver.signing_flags();
            let mut flags: Vec<&str> = signing.iter().map(String::as_str).collect();
            flags.push("--enable-hostpath-provisioner");
            self.controllers = Some(Controllers::start(host, &admin, &flags)?);
            self.dns = Some(Dns::start(host, &admin)?);
            create_cluster_objects(&client, host).await
        });
        started.await?;
        go_on(stop)?;

        let (kubeconfig, ca) = (apiserver.node_kubeconfig(), apiserver.client_ca());
        let options = self.docker.as_ref().map(|docker| docker.node_options(host)).transpose()?;
        let mut options = options.unwrap_or_default();
        options.proxy = Some(kube_proxy_configuration(host));
        options.config.insert("clusterDNS".to_owned(), json!([DNS_ADDRESS]));
        options.config.insert("clusterDomain".to_owned(), json!("cluster.local"));
        let started = Node::start(host, &kubeconfig, &ca, options)?;
        let (node, name) = (self.node.insert(started), host.name());
        let ready = progress.step("node daemon, until its node is Ready", async {
            let ready = wait_node_ready(client.clone(), &name);
            let waited = stop.run_until_cancelled(ready).await.ok_or(Interrupted)?;
            // A daemon's own end says more than a node that does not come.
            if waited.is_err() {
                node.daemon().check_running()?;
            }
            waited
        });
        ready.await?;
        Ok(client)
    }

    /// The host.
    pub(crate) fn host(&self) -> Result<&Host> {
        self.host.as_ref().context("the host is not up")
    }

    /// What is left of a pod.
    pub(crate) fn pod_leftovers(&self, uid: &str) -> Result<Vec<String>> {
        let host = self.host()?;
        Ok(match &self.docker {
            Some(docker) => docker.pod_leftovers(host, uid)?,
            None => host.pod_leftovers(uid)?,
        })
    }

    /// The kubeconfig to use.
    pub(crate) fn kubeconfig(&self) -> Result<PathBuf> {
        let apiserver = self.apiserver.as_ref().context("the apiserver is not up")?;
        Ok(apiserver.admin_kubeconfig())
    }

    /// The daemons; errs as soon as one of them has ended.
    pub(crate) fn daemons(&mut self) -> Result<Vec<Process>> {
        let node = self.node.as_mut().map(|node| ("longshore", node.daemon()));
        let apiserver = self.apiserver.as_mut().map(|server| ("apiserver", server.daemon()));
        let runtime = match self.runtime {
            Runtime::Containerd => {
                let containerd = self.host.as_mut().map(Host::containerd).transpose()?;
                containerd.map(|daemon| ("containerd", daemon))
            }
            Runtime::Docker => {
                let docker = self.docker.as_mut().map(Docker::daemon).transpose()?;
                docker.map(|daemon| ("dockerd", daemon))
            }
        };
        let controllers = self.controllers.as_mut().map(|one| ("controllers", one.daemon()));
        let dns = self.dns.as_mut().map(|dns| ("dns", dns.daemon()));
        let all = [node, apiserver, controllers, dns, runtime];
        let running = all.into_iter().flatten().map(|(name, daemon)| {
            daemon.check_running()?;
            Ok(Process { name: name.to_owned(), pid: daemon.pid() })
        });
        running.collect()
    }

    /// The ends of all logs.
    pub(crate) fn log_tails(&self, lines: usize) -> Vec<(String, String)> {
        self.host.as_ref().map(|host| log_tails(&host.log_dir(), lines)).unwrap_or_default()
    }

    /// Takes everything down, in the reverse order, and checks that nothing is left.
    pub(crate) async fn take_down(self, progress: Progress) -> Result<()> {
        let Some(host) = self.host else { return Ok(()) };
        let down = progress.step("taking everything down", async {
            // One that does not leave in time goes with the host.
            if let Some(mut node) = self.node {
                let _ = node.daemon().terminate(GRACE);
            }
            if let Some(mut dns) = self.dns {
                let _ = dns.daemon().terminate(GRACE);
            }
            if let Some(mut controllers) = self.controllers {
                let _ = controllers.daemon().terminate(GRACE);
            }
            if let Some(mut apiserver) = self.apiserver {
                let _ = apiserver.daemon().terminate(GRACE);
            }
            if let Some(mut docker) = self.docker {
                let _ = docker.stop();
            }
            Ok(host.teardown()?)
        });
        down.await?;
        progress.line(
            "nothing is left: no process, container, mount, cgroup, network namespace, link, \
             iptables rule, file",
        );
        Ok(())
    }
}

/// What a stop signal in the middle of a step is reported as: no failure.
#[derive(Debug)]
pub(crate) struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

fn go_on(stop: &CancellationToken) -> Result<()> {
    ensure!(!stop.is_cancelled(), Interrupted);
    Ok(())
}

async fn connect(kubeconfig: PathBuf) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // It would be the machine's, which knows no way to the host.
    config.proxy_url = None;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(30));
    Ok(Client::try_from(config)?)
}

/// An object in YAML. It goes by way of JSON, which all kinds are read from anyway: code that reads a kind
/// takes long to compile.
pub(crate) fn object<K: DeserializeOwned>(yaml: &str) -> Result<K> {
    let tree: Value = serde_saphyr::from_str(yaml)?;
    Ok(serde_json::from_str(&tree.to_string())?)
}

/// Creates what a cluster has from its start: the Service of its DNS server, and a default StorageClass.
async fn create_cluster_objects(client: &Client, host: &Host) -> Result<()> {
    let create = PostParams::default();
    let service: Service = object(include_str!("dns.yaml")).context("dns.yaml")?;
    let class: StorageClass = object(include_str!("storage.yaml")).context("storage.yaml")?;
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": {
            "name": "kube-dns",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [host.node_ip()], "conditions": {"ready": true}}],
        "ports": [
            {"name": "dns", "protocol": "UDP", "port": 53},
            {"name": "dns-tcp", "protocol": "TCP", "port": 53},
        ],
    }))?;
    let namespace = "kube-system";
    Api::namespaced(client.clone(), namespace).create(&create, &service).await?;
    Api::namespaced(client.clone(), namespace).create(&create, &slice).await?;
    Api::all(client.clone()).create(&create, &class).await?;
    Ok(())
}

async fn wait_node_ready(client: Client, name: &str) -> Result<()> {
    let nodes: Api<NodeObject> = Api::all(client);
    let waited = wait_until(NODE_READY, "the node to be Ready", async || {
        let node = nodes.get(name).await?;
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        match conditions.into_iter().find(|condition| condition.type_ == "Ready") {
            Some(ready) if ready.status == "True" => Ok(()),
            Some(ready) => bail!("{}", ready.message.unwrap_or(ready.status)),
            None => bail!("it has no Ready condition"),
        }
    });
    Ok(waited.await?)
}
