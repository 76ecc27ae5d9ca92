//! Containers: create, start, stop, remove, list, status, limits.

pub(crate) mod config;
pub(crate) mod status;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use bollard::models::{ContainerCreateBody, ContainerInspectResponse};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use longshore_base::panics;
use longshore_cri::v1::{
    Container, ContainerConfig, ContainerFilter, ContainerState, ContainerStatus,
    LinuxContainerResources, Mount, PodSandboxConfig,
};

use crate::error::{docker_status, docker_text};
use crate::image_names::ImageNames;
use crate::labels::Kind;
use crate::runtime::DockerRuntime;
use crate::{Error, Result, logs, names, resources, security};

/// How often a removal that is under way already is looked at again.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

impl DockerRuntime {
    /// Creates a container in a sandbox.
    ///
    /// # Errors
    /// Of the engine, and for what it cannot do.
    pub(crate) async fn create_container(
        &self,
        sandbox: &str,
        config: &ContainerConfig,
        sandbox_config: &PodSandboxConfig,
    ) -> Result<String> {
        let missing = |what| Error::Invalid(format!("the {what} has no metadata"));
        let metadata = config.metadata.as_ref().ok_or_else(|| missing("container"))?;
        let pod = sandbox_config.metadata.as_ref().ok_or_else(|| missing("sandbox"))?;
        let name = names::of_container(pod, metadata)?;
        let (sandbox, runtime) = match self.created.runtime(sandbox) {
            Some(runtime) => (sandbox.to_owned(), runtime),
            None => {
                let found = self.inspect(sandbox, Kind::Sandbox).await?;
                let runtime = found.host_config.and_then(|host| host.runtime);
                (found.id.unwrap_or_default(), runtime)
            }
        };
        let linux = config.linux.as_ref();
        let context = linux.and_then(|linux| linux.security_context.as_ref());
        let wanted =
            linux.and_then(|linux| linux.resources.as_ref()).map_or(0, |r| r.oom_score_adj);
        let surroundings = config::Surroundings {
            sandbox,
            runtime,
            driver: self.info().await?.driver,
            seccomp: match context {
                Some(context) => security::seccomp(context).await?,
                None => None,
            },
            api: self.engine.api(),
            oom_score: self.engine.oom_score(wanted),
        };
        let body = config::body(config, sandbox_config, surroundings)?;
        make_sources(&config.mounts).await?;
        self.create(Kind::Container, &name, body).await
    }

    /// Creates what the engine calls a container. A name that a crash between creation and answer has left
    /// taken is made free; one that is somebody else's is evaded.
    pub(crate) async fn create(
        &self,
        kind: Kind,
        name: &str,
        body: ContainerCreateBody,
    ) -> Result<String> {
        let _place = self.creations.enter(name)?;
        let failed =
            |error| Error::docker(format!("failed to create {} {name}", kind.noun()), error);
        let conflict = match self.create_named(name, &body).await {
            Ok(id) => {
                self.created.insert(&id, kind, &body);
                return Ok(id);
            }
            Err(error) if is_name_conflict(&error) => error,
            Err(error) => return Err(failed(error)),
        };
        let name = match self.engine.inspect_container(name, None).await {
            Ok(other) => match self.make_way(kind, name, &other).await? {
                Way::Free => name.to_owned(),
                Way::Foreign => format!("{name}_{:08x}", fastrand::u32(..)),
            },
            Err(error) if docker_status(&error) == Some(404) => name.to_owned(),
            Err(_) => return Err(failed(conflict)),
        };
        self.create_named(&name, &body).await.map_err(failed)
    }

    async fn create_named(
        &self,
        name: &str,
        body: &ContainerCreateBody,
    ) -> std::result::Result<String, bollard::errors::Error> {
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        let created = self.engine.create_container(Some(options), body.clone()).await;
        self.containers_changed();
        let created = created?;
        for warning in created.warnings {
            tracing::debug!("container {name}: {warning}");
        }
        Ok(created.id)
    }

    /// Removes a container that has the name of a new one and never ran. One that runs, or has run, is
    /// known to the kubelet and stays.
    async fn make_way(
        &self,
        kind: Kind,
        name: &str,
        other: &ContainerInspectResponse,
    ) -> Result<Way> {
        let labels = other.config.as_ref().and_then(|config| config.labels.clone());
        if Kind::of(&labels.unwrap_or_default()) != Some(kind) {
            return Ok(Way::Foreign);
        }
        let id = other.id.as_deref().unwrap_or_default();
        let state = status::state(other);
        let removable = match kind {
            Kind::Sandbox => state != ContainerState::ContainerRunning,
            Kind::Container => state == ContainerState::ContainerCreated,
        };
        if !removable {
            let noun = kind.noun();
            return Err(Error::Exists(format!("{noun} {name} exists already, with ID {id}")));
        }
        tracing::info!("{} {id} was left with the name {name}, and is removed", kind.noun());
        match kind {
            Kind::Sandbox => self.remove_sandbox(id).await?,
            Kind::Container => self.remove_container(id).await?,
        }
        Ok(Way::Free)
    }

    /// Starts a container that was created. One that runs already is no error.
    ///
    /// # Errors
    /// NotFound, FailedPrecondition when it has ended, and of the engine.
    pub(crate) async fn start_container(&self, id: &str) -> Result<()> {
        let (id, log) = match self.created.start(id) {
            Some(log) => (id.to_owned(), log),
            None => {
                let container = self.inspect(id, Kind::Container).await?;
                match status::state(&container) {
                    ContainerState::ContainerCreated => {}
                    ContainerState::ContainerRunning => return Ok(()),
                    state => {
                        let reason = format!("container {id} is in {} state", state.as_str_name());
                        return Err(Error::Precondition(reason));
                    }
                }
                let log = logs::target_of(&container).map(str::to_owned);
                (container.id.unwrap_or_default(), log)
            }
        };
        // A container whose log cannot be made is not started.
        let log = self.logs.open(&id, log.as_deref(), &self.info().await?.root_dir).await?;
        let started = self.engine.start_container(&id, None).await;
        self.containers_changed();
        // Also of one that failed: it may have written something.
        if let Some(log) = log {
            self.logs.follow(&id, log);
        }
        started.map_err(|error| start_error(&id, error))
    }

    /// Stops a container: its stop signal, and SIGKILL after `timeout` seconds. May be repeated; one that
    /// has ended or is gone is no error.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn stop_container(&self, id: &str, timeout: i64) -> Result<()> {
        match self.inspect(id, Kind::Container).await {
            Ok(container) => {
                let id = container.id.as_deref().unwrap_or(id);
                let grace = i32::try_from(timeout.max(0)).unwrap_or(i32::MAX);
                self.stop(id, grace).await
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Stops what is known to be ours.
    pub(crate) async fn stop(&self, id: &str, grace: i32) -> Result<()> {
        let options = StopContainerOptionsBuilder::default().t(grace).build();
        let patient = self.engine.patient(Duration::from_secs(u64::try_from(grace).unwrap_or(0)));
        let stopped = patient.stop_container(id, Some(options)).await;
        self.containers_changed();
        match stopped {
            Err(error) if !is_gone(&error) => {
                Err(Error::docker(format!("failed to stop container {id}"), error))
            }
            _ => Ok(()),
        }
    }

    /// Removes a container, which is killed if it runs. May be repeated; one that is gone is no error.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn remove_container(&self, id: &str) -> Result<()> {
        let container = match self.inspect(id, Kind::Container).await {
            Ok(container) => container,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error),
        };
        self.logs.complete(&container).await;
        self.remove(container.id.as_deref().unwrap_or(id)).await?;
        self.logs.end(&container).await
    }

    /// Removes what is known to be ours, with its volumes, and waits for a removal that is under way.
    pub(crate) async fn remove(&self, id: &str) -> Result<()> {
        let failed = |error| Error::docker(format!("failed to remove container {id}"), error);
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        let removed = self.engine.remove_container(id, Some(options)).await;
        self.containers_changed();
        self.created.remove(id);
        match removed {
            Err(error) if is_under_way(&error) => {}
            Err(error) if !is_gone(&error) => return Err(failed(error)),
            _ => return Ok(()),
        }
        let gone = async {
            loop {
                match self.engine.inspect_container(id, None).await {
                    Err(error) if is_gone(&error) => {
                        self.containers_changed();
                        return Ok(());
                    }
                    Err(error) => return Err(failed(error)),
                    Ok(_) => tokio::time::sleep(REMOVAL_POLL).await,
                }
            }
        };
        let limit = self.settings.request_timeout;
        tokio::time::timeout(limit, gone).await.unwrap_or_else(|_| {
            let action = format!("removal of container {id}");
            Err(Error::Deadline { action, seconds: limit.as_secs() })
        })
    }

    /// The containers that match a filter.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn list_containers(
        &self,
        filter: Option<&ContainerFilter>,
    ) -> Result<Vec<Container>> {
        let filter = filter.filter(|filter| **filter != ContainerFilter::default());
        let Some(filter) = filter else { return self.all_containers().await };
        let selector = &filter.label_selector;
        let labels: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let listed = self.list(Kind::Container, &labels).await?;
        let all = listed.into_iter().filter_map(status::item).filter(|container| {
            container.id.starts_with(&filter.id)
                && container.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
                && filter.state.is_none_or(|wanted| wanted.state == container.state)
        });
        Ok(all.collect())
    }

    async fn all_containers(&self) -> Result<Vec<Container>> {
        let list = async {
            let listed = self.list(Kind::Container, &[]).await?;
            Ok(listed.into_iter().filter_map(status::item).collect())
        };
        self.containers.get((), list).await
    }

    /// How a container stands. The log of one that has ended is complete then.
    ///
    /// # Errors
    /// NotFound, and of the engine.
    pub(crate) async fn container_status(
        &self,
        id: &str,
    ) -> Result<(ContainerStatus, ContainerInspectResponse)> {
        let container = self.inspect(id, Kind::Container).await?;
        if status::state(&container) == ContainerState::ContainerExited {
            self.logs.complete(&container).await;
        }
        let image = self.image_names(container.image.clone().unwrap_or_default()).await?;
        let not_found = || Error::NotFound { kind: "container", id: id.to_owned() };
        let status = status::status(&container, image).ok_or_else(not_found)?;
        Ok((status, container))
    }

    /// What an image is called; none that is gone.
    async fn image_names(&self, id: String) -> Result<ImageNames> {
        let ask = async { self.engine.inspect_image(&id).await.map(ImageNames::from) };
        match self.image_names.get(id.clone(), ask).await {
            Ok(names) => Ok(names),
            Err(error) if docker_status(&error) == Some(404) => Ok(ImageNames::default()),
            Err(error) => Err(Error::docker(format!("inspect image {id:?}"), error)),
        }
    }

    /// Changes a container's limits in place.
    ///
    /// # Errors
    /// NotFound, and of the engine.
    pub(crate) async fn update_container(
        &self,
        id: &str,
        wanted: &LinuxContainerResources,
    ) -> Result<()> {
        let container = self.inspect(id, Kind::Container).await?;
        let id = container.id.as_deref().unwrap_or(id);
        let change = resources::update(wanted);
        self.engine
            .update_container(id, change)
            .await
            .map_err(|error| Error::docker(format!("failed to update container {id}"), error))
    }

    /// Makes sure that a sandbox or container runs.
    ///
    /// # Errors
    /// NotFound, FailedPrecondition, and of the engine.
    pub(crate) async fn running(&self, id: &str, kind: Kind) -> Result<()> {
        let container = self.inspect(id, kind).await?;
        if container.state.and_then(|state| state.running) == Some(true) {
            return Ok(());
        }
        Err(Error::Precondition(format!("{} {id} is not running", kind.noun())))
    }

    /// What the engine knows of a sandbox or container of Kubernetes.
    ///
    /// # Errors
    /// NotFound also for what is somebody else's.
    pub(crate) async fn inspect(&self, id: &str, kind: Kind) -> Result<ContainerInspectResponse> {
        crate::check_id(id)?;
        let not_found = || Error::NotFound { kind: kind.noun(), id: id.to_owned() };
        let container = match self.engine.inspect_container(id, None).await {
            Ok(container) => container,
            Err(error) if docker_status(&error) == Some(404) => return Err(not_found()),
            Err(error) => {
                return Err(Error::docker(format!("inspect {} {id}", kind.noun()), error));
            }
        };
        let labels = container.config.as_ref().and_then(|config| config.labels.as_ref());
        // A name that looks like an identifier is none.
        let ours = labels.is_some_and(|labels| Kind::of(labels) == Some(kind))
            && container.id.as_ref().is_some_and(|full| full.starts_with(id));
        if ours { Ok(container) } else { Err(not_found()) }
    }
}

/// What became of a name that was taken.
enum Way {
    Free,
    /// Somebody else has it.
    Foreign,
}

/// Makes the folders that sources of mounts are to be, where nothing is: as other runtimes do.
async fn make_sources(mounts: &[Mount]) -> Result<()> {
    let paths = mounts.iter().filter(|mount| mount.image.is_none());
    let paths: Vec<_> = paths.map(|mount| PathBuf::from(&mount.host_path)).collect();
    let make = move || {
        for path in paths.into_iter().filter(|path| path.is_absolute()) {
            if path.symlink_metadata().is_err() {
                fs::create_dir_all(&path)
                    .map_err(|error| Error::file("create mount source", path, error))?;
            }
        }
        Ok(())
    };
    panics::try_blocking(make).await
}

fn is_name_conflict(error: &bollard::errors::Error) -> bool {
    docker_status(error) == Some(409) && docker_text(error).contains("is already in use")
}

fn is_under_way(error: &bollard::errors::Error) -> bool {
    docker_status(error) == Some(409) && docker_text(error).contains("is already in progress")
}

fn is_gone(error: &bollard::errors::Error) -> bool {
    docker_status(error) == Some(404)
}

/// Why a container could not be started: what the user has to know, without the runtime's layers.
fn start_error(id: &str, error: bollard::errors::Error) -> Error {
    let text = docker_text(&error);
    let not_found = text.contains("executable file not found");
    if not_found || text.contains("no such file or directory: unknown") && text.contains("exec: ") {
        return Error::Start(format!("failed to start container {id:?}: {text}"));
    }
    match docker_status(&error) {
        Some(404) if text.contains(&format!("No such container: {id}")) => {
            Error::NotFound { kind: Kind::Container.noun(), id: id.to_owned() }
        }
        // The engine has 400 and 404 for programs that cannot be executed: the container is there.
        Some(400 | 404) => Error::Start(format!("failed to start container {id:?}: {text}")),
        _ => Error::docker(format!("failed to start container {id:?}"), error),
    }
}
