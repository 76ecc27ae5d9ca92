//! What a node finds outside of itself: the container runtime, the apiserver and the machine's addresses.
//! Its tests have these in memory.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use longshore_client::certificates::ClientCertificate;
use longshore_client::{self as client, ClientError, Limits};
use longshore_cni::Leftovers;
use longshore_config::{Config, DOCKER_SCHEME};
use longshore_cri::{InProcess, Options, Runtime};
use longshore_cri_docker::Backend;
use longshore_machine::addresses;
use longshore_machine::process::is_in_user_namespace;
use longshore_machine::tunables::{self, Behaviour};
use longshore_metrics::Registry;
use longshore_runtime as runtime;
use longshore_server::NodeMetrics;
use longshore_telemetry::Tracer;
use longshore_volumes::share_root;
use tracing::warn;

use super::{Error, TaskSet};
use crate::docker::node_settings;

/// How long the apiserver may take to begin an answer.
const API_TIMEOUT: Duration = Duration::from_secs(15);

/// Makes a client of the apiserver with a rate limit: requests per second, and its burst; 0: no limit.
pub(super) type Connect =
    Box<dyn Fn(i32, i32) -> BoxFuture<'static, Result<Client, ClientError>> + Send + Sync>;

/// What a node finds outside of itself.
pub(super) trait Environment: Sync {
    /// The container runtime, which need not be reachable yet. Starts what of it is part of the node.
    fn runtime<'a>(
        &'a self,
        config: &'a Config,
        registry: &'a Registry,
        tracer: Tracer,
        tasks: &'a mut TaskSet,
    ) -> BoxFuture<'a, Result<Runtime, Error>>;

    /// Access to the apiserver; `None`: the node has none. Starts what keeps the credentials valid.
    fn api(
        &self,
        config: &Config,
        metrics: &NodeMetrics,
        tasks: &mut TaskSet,
    ) -> Result<Option<Connect>, Error>;

    /// Sets up what the node needs of its machine: the root directory, a shared mount, and kernel settings.
    fn prepare_machine(&self, config: &Config) -> Result<(), Error>;

    /// Where files of CNI may be that a loss of power has left.
    fn network_leftovers(&self) -> Leftovers;

    /// The addresses of the node. Empty: it has none yet.
    fn addresses<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Vec<IpAddr>>;
}

/// As the configuration has it.
pub(super) struct Real;

impl Environment for Real {
    fn runtime<'a>(
        &'a self,
        config: &'a Config,
        registry: &'a Registry,
        tracer: Tracer,
        tasks: &'a mut TaskSet,
    ) -> BoxFuture<'a, Result<Runtime, Error>> {
        async move {
            let settings = &config.kubelet;
            let endpoints =
                [&settings.container_runtime_endpoint, &settings.image_service_endpoint];
            let image_endpoint =
                Some(settings.image_service_endpoint.clone()).filter(|path| !path.is_empty());
            Ok(Runtime::new(Options {
                image_endpoint,
                in_process: docker_runtimes(config, endpoints, tasks).await?,
                request_timeout: settings.runtime_request_timeout.get(),
                observer: Some(Arc::new(runtime::Calls::new(registry))),
                tracer,
                stream_lists: config.gates.enabled("CRIListStreaming"),
                ..Options::new(settings.container_runtime_endpoint.as_str())
            })?)
        }
        .boxed()
    }

    fn api(
        &self,
        config: &Config,
        metrics: &NodeMetrics,
        tasks: &mut TaskSet,
    ) -> Result<Option<Connect>, Error> {
        let limits = |qps, burst| Limits { component: "kubelet", qps, burst, timeout: API_TIMEOUT };
        let certificate = ClientCertificate::prepare(
            config,
            limits(0, 0),
            &metrics.rest_client,
            &metrics.certificates,
        )?;
        let Some(ClientCertificate { credentials, manager }) = certificate else { return Ok(None) };
        if let Some(manager) = manager {
            tasks.spawn("rotation of the client certificate", manager.run());
        }
        let rest_client = metrics.rest_client.clone();
        Ok(Some(Box::new(move |qps, burst| {
            let (credentials, metrics) = (credentials.clone(), rest_client.clone());
            async move { client::connect(&credentials, limits(qps, burst), metrics).await }.boxed()
        })))
    }

    fn prepare_machine(&self, config: &Config) -> Result<(), Error> {
        let in_user_namespace = is_in_user_namespace();
        if let Some(behaviour) = kernel_settings(config, in_user_namespace) {
            let applied = tunables::apply(Path::new(tunables::SYSCTLS), behaviour);
            if applied.is_err() && in_user_namespace && behaviour == Behaviour::Modify {
                warn!("the node runs in a user namespace: the gate {ROOTLESS} ignores this error");
            }
            applied?;
        }
        share_root(&config.root_dir).map_err(Error::RootDirectory)
    }

    fn network_leftovers(&self) -> Leftovers {
        Leftovers::usual()
    }

    fn addresses<'a>(&'a self, config: &'a Config) -> BoxFuture<'a, Vec<IpAddr>> {
        let resolve = addresses::resolve(&config.node_ips, &config.node_name);
        async {
            resolve.await.unwrap_or_else(|error| {
                // The network may come up later, and with it the status of the node.
                warn!(%error, "the node has no address yet");
                Vec::new()
            })
        }
        .boxed()
    }
}

/// Serves CRI over the Docker Engines that are among these endpoints, each once.
async fn docker_runtimes(
    config: &Config,
    endpoints: [&String; 2],
    tasks: &mut TaskSet,
) -> Result<Vec<InProcess>, Error> {
    let Some(docker) = &config.docker else { return Ok(Vec::new()) };
    let engines: BTreeSet<&String> =
        endpoints.into_iter().filter(|endpoint| endpoint.starts_with(DOCKER_SCHEME)).collect();
    let mut runtimes = Vec::new();
    for endpoint in engines {
        let backend = Backend::new(node_settings(config, docker, endpoint)).await?;
        let (service, images) = backend.services();
        runtimes.push(InProcess::new(endpoint, service, images));
        tasks.spawn("CRI over Docker", backend.run(tasks.stop.clone()));
    }
    Ok(runtimes)
}

/// The gate of nodes that run in a user namespace.
const ROOTLESS: &str = "KubeletInUserNamespace";

/// What happens to kernel settings with other values than the node needs, if anything.
fn kernel_settings(config: &Config, in_user_namespace: bool) -> Option<Behaviour> {
    match config.kubelet.protect_kernel_defaults {
        true => Some(Behaviour::Require),
        false if config.keep_kernel_tunables => None,
        false if in_user_namespace && config.gates.enabled(ROOTLESS) => {
            Some(Behaviour::ModifyIfAllowed)
        }
        false => Some(Behaviour::Modify),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_settings_may_be_refused_in_a_user_namespace_with_the_gate() {
        for (gate, in_user_namespace, protect, keep, expected) in [
            (false, false, false, false, Some(Behaviour::Modify)),
            (true, false, false, false, Some(Behaviour::Modify)),
            (false, true, false, false, Some(Behaviour::Modify)),
            (true, true, false, false, Some(Behaviour::ModifyIfAllowed)),
            (true, true, false, true, None),
            (true, true, true, false, Some(Behaviour::Require)),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let mut config = crate::testing::config(directory.path());
            config.gates = format!("{ROOTLESS}={gate}").parse().unwrap();
            config.kubelet.protect_kernel_defaults = protect;
            config.keep_kernel_tunables = keep;
            let found = kernel_settings(&config, in_user_namespace);
            assert_eq!(found, expected, "{gate} {in_user_namespace} {protect} {keep}");
        }
    }
}
