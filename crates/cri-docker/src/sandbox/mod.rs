//! Sandboxes: run, stop, remove, status, list.

pub(crate) mod config;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::Write;

use bollard::models::{
    ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum, HostConfig,
};
use bollard::query_parameters::{CreateImageOptionsBuilder, ListContainersOptionsBuilder};
use futures::TryStreamExt;
use longshore_base::panics;
use longshore_cri::v1::{
    LinuxPodSandboxStatus, Namespace, NamespaceMode, NamespaceOption, PodIp, PodSandbox,
    PodSandboxConfig, PodSandboxFilter, PodSandboxNetworkStatus, PodSandboxState, PodSandboxStatus,
};

use crate::checkpoint::Checkpoint;
use crate::image_names::ImageNames;
use crate::labels::{self, Kind};
use crate::runtime::DockerRuntime;
use crate::{Error, Result, names, network, timestamp};
use config::{HOST, OOM_SCORE, Surroundings};

/// How long the pause process has to end by itself, in seconds.
const GRACE: i32 = 10;

impl DockerRuntime {
    /// Runs a sandbox. What a failed set-up has done is undone.
    ///
    /// # Errors
    /// Of the engine, of its network, and for what it cannot do.
    pub(crate) async fn run_sandbox(
        &self,
        config: &PodSandboxConfig,
        handler: &str,
    ) -> Result<String> {
        let metadata = config.metadata.as_ref();
        let metadata =
            metadata.ok_or_else(|| Error::Invalid("the sandbox has no metadata".into()))?;
        let name = names::of_sandbox(metadata)?;
        let info = self.info().await?;
        let runtime = info.runtime(handler)?;
        let image = self.settings.sandbox_image.as_str();
        self.ensure_image(image).await?;
        let surroundings = Surroundings {
            image,
            runtime,
            oom_score: self.engine.oom_score(OOM_SCORE),
            driver: info.driver,
        };
        let body = config::body(config, surroundings)?;
        let created = self.create(Kind::Sandbox, &name, body).await;
        if created.as_ref().is_err_and(Error::is_not_found) {
            // The image is gone, and the event about it has not arrived yet.
            self.image_names.changed();
        }
        let id = created?;
        match self.set_up_sandbox(&id, config).await {
            Ok(()) => Ok(id),
            Err(error) => {
                self.undo_sandbox(&id).await;
                Err(error)
            }
        }
    }

    /// What is to be done with a sandbox that was created.
    async fn set_up_sandbox(&self, id: &str, config: &PodSandboxConfig) -> Result<()> {
        let checkpoint = Checkpoint::new(config);
        self.checkpoints.write(id, &checkpoint).await?;
        let started = self.engine.start_container(id, None).await;
        self.containers_changed();
        started.map_err(|error| {
            Error::docker(format!("failed to start sandbox container {id}"), error)
        })?;
        let resolv_conf = config::resolv_conf(config);
        if resolv_conf.is_none() && checkpoint.is_host_network() {
            return Ok(());
        }
        let container = self.inspect(id, Kind::Sandbox).await?;
        if let Some(text) = resolv_conf {
            write_in_place(container.resolv_conf_path.as_deref(), text).await?;
        }
        if checkpoint.is_host_network() {
            return Ok(());
        }
        let netns = network::namespace(&container);
        let netns = netns.ok_or_else(|| {
            Error::Precondition(format!("sandbox {id} ended before its network was set up"))
        })?;
        self.network.attach(id, netns, config).await
    }

    /// Takes down what a failed set-up left. One that cannot be detached keeps its checkpoint, by which it is
    /// listed: the kubelet stops it, and that detaches it.
    async fn undo_sandbox(&self, id: &str) {
        let container = self.inspect(id, Kind::Sandbox).await.ok();
        let detached = self.detach(id, container.as_ref()).await;
        let removed = self.remove(id).await;
        let forgotten = match detached {
            Ok(()) => self.checkpoints.remove(id).await,
            Err(error) => Err(error),
        };
        for error in [removed, forgotten].into_iter().filter_map(Result::err) {
            tracing::warn!("sandbox {id} was not set up, and not all of it is undone: {error}");
        }
        self.network.forget(id);
    }

    /// Pulls the image of sandboxes unless it is there, without credentials.
    async fn ensure_image(&self, image: &str) -> Result<()> {
        let ask = async { self.engine.inspect_image(image).await.map(ImageNames::from) };
        match self.image_names.get(image.to_owned(), ask).await {
            Ok(_) => return Ok(()),
            Err(error) if crate::error::docker_status(&error) == Some(404) => {}
            Err(error) => {
                return Err(Error::docker(format!("inspect sandbox image {image:?}"), error));
            }
        }
        let options = CreateImageOptionsBuilder::default().from_image(image).build();
        let pull = self.engine.create_image(Some(options), None, None);
        let pull = pull.try_for_each(|_| async { Ok(()) });
        pull.await.map_err(|error| Error::docker(format!("pull sandbox image {image:?}"), error))
    }

    /// Stops a sandbox, and first all containers that still run in it. May be repeated; one that is gone
    /// is no error.
    ///
    /// # Errors
    /// Of the engine or of a plugin; the kubelet repeats it then.
    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<()> {
        // What cannot be an identifier is none that exists.
        if !id.is_empty() && !crate::is_id(id) {
            return Ok(());
        }
        let container = match self.inspect(id, Kind::Sandbox).await {
            Ok(container) => Some(container),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        // The full identifier, where a part of it was given.
        let id = container.as_ref().and_then(|container| container.id.as_deref()).unwrap_or(id);
        for container in self.containers_of(id).await? {
            if container.state == Some(ContainerSummaryStateEnum::RUNNING)
                && let Some(id) = &container.id
            {
                self.stop_container(id, 0).await?;
            }
        }
        let detached = self.detach(id, container.as_ref()).await;
        if container.is_some() {
            let stopped = self.stop(id, GRACE).await;
            return detached.and(stopped);
        }
        // Until it is detached the checkpoint is all that says that there is something to detach.
        detached?;
        self.checkpoints.remove(id).await
    }

    /// Takes a sandbox off its network. One of which nothing is known has none.
    async fn detach(&self, id: &str, container: Option<&ContainerInspectResponse>) -> Result<()> {
        let kept = self.checkpoints.read(id).await?;
        let metadata = match (container, &kept) {
            (Some(container), _) => {
                if network_mode(container.host_config.as_ref()) == NamespaceMode::Node {
                    return Ok(());
                }
                names::parse_sandbox(container.name.as_deref().unwrap_or_default())
            }
            (None, Some(kept)) if kept.is_host_network() => return Ok(()),
            (None, Some(kept)) => Some(kept.metadata()),
            (None, None) => None,
        };
        let netns = container.and_then(network::namespace);
        if metadata.is_none() && self.network.addresses(id).await.is_empty() {
            return Ok(());
        }
        self.network.detach(id, netns, metadata.as_ref()).await
    }

    /// Removes a sandbox with all its containers. May be repeated; one that is gone is no error.
    ///
    /// # Errors
    /// Of the engine or of a plugin.
    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<()> {
        // What cannot be an identifier is none that exists.
        if !id.is_empty() && !crate::is_id(id) {
            return Ok(());
        }
        let container = match self.inspect(id, Kind::Sandbox).await {
            Ok(container) => Some(container),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        let id = container.as_ref().and_then(|container| container.id.as_deref()).unwrap_or(id);
        for container in self.containers_of(id).await? {
            if let Some(id) = &container.id {
                self.remove_container(id).await?;
            }
        }
        self.detach(id, container.as_ref()).await?;
        if container.is_some() {
            self.remove(id).await?;
        }
        self.network.forget(id);
        self.checkpoints.remove(id).await
    }

    /// The containers of a sandbox.
    pub(crate) async fn containers_of(&self, id: &str) -> Result<Vec<ContainerSummary>> {
        self.list(Kind::Container, &[format!("{}={id}", labels::SANDBOX)]).await
    }

    /// All sandboxes or containers of Kubernetes that have these labels (`key=value`).
    pub(crate) async fn list(
        &self,
        kind: Kind,
        labels: &[String],
    ) -> Result<Vec<ContainerSummary>> {
        let mut all = vec![kind.filter()];
        all.extend_from_slice(labels);
        let filters: HashMap<&str, Vec<String>> = [("label", all)].into();
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        self.engine
            .list_containers(Some(options))
            .await
            .map_err(|error| Error::docker(format!("list {}s", kind.noun()), error))
    }

    /// The status of a sandbox.
    ///
    /// # Errors
    /// NotFound, and of the engine.
    pub(crate) async fn sandbox_status(
        &self,
        id: &str,
    ) -> Result<(PodSandboxStatus, ContainerInspectResponse)> {
        let container = self.inspect(id, Kind::Sandbox).await?;
        let id = container.id.clone().unwrap_or_default();
        let node_network = network_mode(container.host_config.as_ref()) == NamespaceMode::Node;
        let running = container.state.as_ref().and_then(|state| state.running) == Some(true);
        let addresses = if node_network { Vec::new() } else { self.network.addresses(&id).await };
        let status = status(&container, running, &addresses)
            .ok_or_else(|| Error::NotFound { kind: "sandbox", id })?;
        Ok((status, container))
    }

    /// The sandboxes that match a filter. Without one also those of which nothing but the checkpoint is
    /// left, so that they are taken down.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn list_sandboxes(
        &self,
        filter: Option<&PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>> {
        let filter = filter.filter(|filter| **filter != PodSandboxFilter::default());
        let Some(filter) = filter else { return self.all_sandboxes().await };
        let selector = &filter.label_selector;
        let labels: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let listed = self.list(Kind::Sandbox, &labels).await?;
        let all = listed.into_iter().filter_map(item).filter(|sandbox| {
            sandbox.id.starts_with(&filter.id)
                && filter.state.is_none_or(|wanted| wanted.state == sandbox.state)
        });
        Ok(all.collect())
    }

    async fn all_sandboxes(&self) -> Result<Vec<PodSandbox>> {
        // Before the list: a sandbox has its container first.
        let kept = self.checkpoints.list().await?;
        let list = async {
            let listed = self.list(Kind::Sandbox, &[]).await?;
            Ok::<_, Error>(listed.into_iter().filter_map(item).collect())
        };
        let mut all: Vec<_> = self.sandboxes.get((), list).await?;
        let ids: HashSet<_> = all.iter().map(|sandbox| sandbox.id.clone()).collect();
        for id in kept.into_iter().filter(|id| !ids.contains(id)) {
            if let Some(kept) = self.checkpoints.read(&id).await? {
                all.push(PodSandbox {
                    id,
                    metadata: Some(kept.metadata()),
                    state: PodSandboxState::SandboxNotready.into(),
                    ..PodSandbox::default()
                });
            }
        }
        Ok(all)
    }
}

/// Overwrites a file that is mounted somewhere: it must stay the same file.
async fn write_in_place(path: Option<&str>, text: String) -> Result<()> {
    let Some(path) = path.filter(|path| !path.is_empty()) else {
        return Err(Error::Internal("the engine has no resolv.conf for the sandbox".into()));
    };
    let file = path.to_owned();
    let write = move || {
        let mut file = File::options().write(true).truncate(true).open(file)?;
        file.write_all(text.as_bytes())
    };
    panics::try_blocking(write).await.map_err(|error| Error::file("write", path, error))
}

/// Whose network a container has.
fn network_mode(host: Option<&HostConfig>) -> NamespaceMode {
    mode(host.and_then(|host| host.network_mode.as_deref()), NamespaceMode::Pod)
}

fn mode(mode: Option<&str>, otherwise: NamespaceMode) -> NamespaceMode {
    if mode == Some(HOST) { NamespaceMode::Node } else { otherwise }
}

/// A line of a list; `None` for what has no name of ours.
fn item(container: ContainerSummary) -> Option<PodSandbox> {
    let name = container.names.as_ref()?.first()?;
    let (labels, annotations) = labels::split(&container.labels.unwrap_or_default());
    let ready = matches!(
        container.state,
        Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED)
    );
    Some(PodSandbox {
        metadata: Some(names::parse_sandbox(name)?),
        id: container.id?,
        state: state(ready).into(),
        created_at: timestamp::from_seconds(container.created.unwrap_or(0)),
        labels,
        annotations,
        runtime_handler: String::new(),
    })
}

fn state(ready: bool) -> PodSandboxState {
    if ready { PodSandboxState::SandboxReady } else { PodSandboxState::SandboxNotready }
}

/// `None` for what has no name of ours.
fn status(
    container: &ContainerInspectResponse,
    running: bool,
    addresses: &[std::net::IpAddr],
) -> Option<PodSandboxStatus> {
    let host = container.host_config.clone().unwrap_or_default();
    let labels = container.config.as_ref().and_then(|config| config.labels.clone());
    let (labels, annotations) = labels::split(&labels.unwrap_or_default());
    let mut addresses = addresses.iter().map(ToString::to_string);
    let network = PodSandboxNetworkStatus {
        ip: addresses.next().unwrap_or_default(),
        additional_ips: addresses.map(|ip| PodIp { ip }).collect(),
    };
    let options = NamespaceOption {
        network: network_mode(Some(&host)).into(),
        pid: mode(host.pid_mode.as_deref(), NamespaceMode::Container).into(),
        ipc: mode(host.ipc_mode.as_deref(), NamespaceMode::Pod).into(),
        ..NamespaceOption::default()
    };
    Some(PodSandboxStatus {
        id: container.id.clone()?,
        metadata: Some(names::parse_sandbox(container.name.as_deref()?)?),
        state: state(running).into(),
        created_at: timestamp::from_text(container.created.as_deref()),
        network: Some(network),
        linux: Some(LinuxPodSandboxStatus {
            namespaces: Some(Namespace { options: Some(options) }),
        }),
        labels,
        annotations,
        runtime_handler: host.runtime.unwrap_or_default(),
    })
}
