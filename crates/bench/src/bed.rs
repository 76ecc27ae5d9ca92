//! The host that is measured on, with its container runtime: containerd, or a Docker Engine over which the node serves
//! CRI itself.
use anyhow::Result;
use clap::ValueEnum;
use longshore_testkit::{Docker, DockerOptions, Host};
use serde_json::{Map, Value};

use crate::cluster::Cluster;
use crate::floor::Runs;

/// A container runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Runtime {
    Containerd,
    Docker,
}

/// The host; a Docker Engine is in place of its containerd.
pub(crate) struct Bed {
    pub(crate) host: Host,
    docker: Option<Docker>,
}

impl Bed {
    /// Starts host and runtime, and loads the images.
    pub(crate) fn start(runtime: Runtime) -> Result<Self> {
        if runtime == Runtime::Containerd {
            return Ok(Self { host: Host::start()?, docker: None });
        }
        let (host, docker) = Docker::with_host(DockerOptions::default())?;
        Ok(Self { host, docker: Some(docker) })
    }

    /// What the runtime does without a node.
    pub(crate) async fn floor(&mut self) -> Result<Runs> {
        match &mut self.docker {
            Some(docker) => Runs::of_docker(&self.host, docker).await,
            None => Runs::new(&mut self.host),
        }
    }

    /// Starts a cluster whose node has these fields of configuration, too.
    pub(crate) async fn cluster(&mut self, config: Map<String, Value>) -> Result<Cluster<'_>> {
        let docker = self.docker.as_ref().map(|docker| docker.node_options(&self.host));
        let mut options = docker.transpose()?.unwrap_or_default();
        options.config.extend(config);
        Cluster::start_over(&mut self.host, self.docker.as_mut(), options).await
    }

    /// Removes everything.
    pub(crate) fn teardown(self) -> Result<()> {
        if let Some(mut docker) = self.docker {
            docker.stop()?;
        }
        Ok(self.host.teardown()?)
    }
}
