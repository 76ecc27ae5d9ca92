//! Carries out a pod's plan through CRI: sandbox, images, containers. Each step reports what it
//! did to the observer, so that the next plan sees it at once. Holds no state of pods.

mod announce;
mod container;
mod credentials;
mod dns;
mod env;
mod hosts;
mod images;
pub mod labels;
pub mod resources;
mod sandbox;
mod security;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_cri::Runtime;
use longshore_pod::Timestamp;
use longshore_pod::expand::expand;
use longshore_pod::observed::Sandbox;
use longshore_pod::plan::Start;
use longshore_pod::spec;
use tracing::{debug, warn};

pub use announce::Announcer;

use crate::objects::Objects;
use crate::observe::Observer;
use crate::resources::cgroups::Cgroups;
use crate::volumes::{Mounted, PodMounts, SubPath, Volumes};

/// What of the node's config shapes its pods.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where the pods' directories are.
    pub root_dir: PathBuf,
    /// Where the pods' logs are.
    pub pod_logs_dir: PathBuf,
    /// Servers of the cluster's DNS.
    pub cluster_dns: Vec<String>,
    /// The cluster's domain.
    pub cluster_domain: String,
    /// The resolver config that pods inherit; `None` for an empty one.
    pub resolv_conf: Option<PathBuf>,
    /// The node's addresses, primary first.
    pub host_ips: Vec<String>,
    /// Whether containers without a profile get the runtime's own.
    pub seccomp_default: bool,
    /// Period of the CPU quota; `None` to enforce none.
    pub cpu_cfs_quota_period: Option<Duration>,
    /// The node's memory in bytes.
    pub memory_capacity: i64,
    /// What pods may ask for in all.
    pub allocatable: BTreeMap<String, Quantity>,
    /// How many images may be pulled at once.
    pub parallel_pulls: usize,
    /// The cgroups of pods.
    pub cgroups: Cgroups,
}

impl Settings {
    /// The pod's own directory.
    pub fn pod_dir(&self, pod: &Pod) -> PathBuf {
        self.root_dir.join("pods").join(spec::uid(pod))
    }

    /// Where the logs of the pod's containers are.
    pub fn pod_log_dir(&self, pod: &Pod) -> PathBuf {
        self.log_dir(spec::namespace(pod), spec::name(pod), spec::uid(pod))
    }

    /// Where the logs of a pod are, by its identity.
    pub fn log_dir(&self, namespace: &str, name: &str, uid: &str) -> PathBuf {
        self.pod_logs_dir.join(format!("{namespace}_{name}_{uid}"))
    }
}

/// A step could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod has no spec.
    #[error("the pod has no spec")]
    NoSpec,
    /// A field has a value that cannot be carried out.
    #[error("unsupported {field}: {value:?}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// A key that the pod needs is not in its object.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey {
        /// `Secret` or `ConfigMap`.
        kind: &'static str,
        /// The object's namespace.
        namespace: String,
        /// The object's name.
        name: String,
        /// The key.
        key: String,
    },
    /// The pod forbids root and the container would run as root.
    #[error("{why} (pod: {pod:?}, container: {container})")]
    NonRoot {
        /// What would break the policy.
        why: String,
        /// The pod.
        pod: String,
        /// The container.
        container: String,
    },
    /// A file of the pod could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// A call failed.
    #[error(transparent)]
    Cri(#[from] longshore_cri::Error),
    /// The runtime's answer could not be read back.
    #[error(transparent)]
    Observe(#[from] crate::observe::Error),
    /// A secret or config map is not to be had.
    #[error(transparent)]
    Object(#[from] crate::objects::Error),
    /// A field of the downward API has no value.
    #[error(transparent)]
    Downward(#[from] longshore_pod::downward::Error),
    /// A volume cannot be mounted into a container.
    #[error(transparent)]
    Volume(#[from] crate::volumes::Error),
    /// The pod's cgroup cannot be made.
    #[error(transparent)]
    Cgroup(#[from] crate::resources::cgroups::Error),
}

/// Why a container does not run: its waiting state's reason and message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// One word, such as `ErrImagePull`.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
    /// When to try again, if that is known.
    pub retry_at: Option<Timestamp>,
}

impl StartError {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_at: None }
    }
}

/// The pod as messages name it: `name_namespace(uid)`.
pub fn describe(pod: &Pod) -> String {
    format!("{}_{}({})", spec::name(pod), spec::namespace(pod), spec::uid(pod))
}

/// A wait because of a container that failed, as its event and its status tell it.
pub fn backoff_message(pod: &Pod, container: &str, delay: Duration) -> String {
    images::backoff_message(pod, container, delay)
}

/// The hands of the workers. Cheap to clone.
#[derive(Clone)]
pub struct PodRuntime {
    cri: Runtime,
    observer: Observer,
    objects: Objects,
    volumes: Volumes,
    announcer: Announcer,
    images: Arc<images::Images>,
    settings: Arc<Settings>,
}

impl PodRuntime {
    /// Hands that work through `cri` and report to `observer`.
    pub fn new(
        cri: Runtime,
        observer: Observer,
        objects: Objects,
        volumes: Volumes,
        announcer: Announcer,
        settings: Arc<Settings>,
    ) -> Self {
        let images = images::Images::new(
            cri.clone(),
            objects.clone(),
            announcer.clone(),
            settings.parallel_pulls,
        );
        Self { cri, observer, objects, volumes, announcer, images: Arc::new(images), settings }
    }

    /// Make what must stand before the pod's sandbox: directories and cgroup.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), Error> {
        self.settings.cgroups.create(pod)?;
        for dir in [self.settings.pod_dir(pod), self.settings.pod_log_dir(pod)] {
            create_dir(&dir).await?;
        }
        Ok(())
    }

    /// Run the pod's sandbox.
    pub async fn create_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), Error> {
        let config = sandbox::config(&self.settings, pod, attempt)?;
        let id = self.cri.run_pod_sandbox(config, "").await?;
        debug!(pod = describe(pod), %id, "sandbox runs");
        Ok(self.observer.look_at_sandbox(spec::uid(pod), &id).await?)
    }

    /// Pull if need be, create, start.
    pub async fn start_container(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        start: &Start,
        container: &Container,
        mounts: &PodMounts,
    ) -> Result<(), StartError> {
        let say = |warning, reason: &str, message: &str| {
            self.announcer.container(pod, start.kind, &container.name, warning, reason, message);
        };
        let failed = |reason: &'static str, event: &str, message: String| {
            say(true, event, &format!("Error: {message}"));
            StartError::new(reason, message)
        };
        let config_error =
            |error: Error| failed("CreateContainerConfigError", "Failed", error.to_string());
        let sandbox_config =
            sandbox::config(&self.settings, pod, sandbox.attempt).map_err(config_error)?;
        let image = self.images.ensure(pod, start.kind, container, &sandbox_config).await;
        let image = image.inspect_err(|error| {
            say(true, "Failed", &format!("Error: {}", error.reason));
        })?;

        let log_dir = self.settings.pod_log_dir(pod).join(&container.name);
        create_dir(&log_dir).await.map_err(config_error)?;
        let restart_count = match start.restart_count {
            Some(count) => count,
            None => container::restart_count_from_logs(&log_dir),
        };
        let config = self
            .container_config(pod, sandbox, container, restart_count, image, mounts)
            .await
            .map_err(config_error)?;

        let message = |error: longshore_cri::Error| cri_message(&error);
        let id = self
            .cri
            .create_container(&sandbox.id, config, sandbox_config)
            .await
            .map_err(|error| failed("CreateContainerError", "Failed", message(error)))?;
        say(false, "Created", "Container created");
        let started = self.cri.start_container(&id).await;
        // Looked at in either case: a container that failed to start has an exit to show.
        if let Err(error) = self.observer.look_at_container(spec::uid(pod), &id, &sandbox.id).await
        {
            debug!(pod = describe(pod), %id, %error, "look at a started container failed");
        }
        started.map_err(|error| failed("RunContainerError", "Failed", message(error)))?;
        say(false, "Started", "Container started");
        let link = container::legacy_log_link(pod, &container.name, &id);
        let log = log_dir.join(format!("{restart_count}.log"));
        if let Err(error) = link_log(&log, &link).await {
            debug!(link = %link.display(), %error, "no link to the log");
        }
        Ok(())
    }

    async fn container_config(
        &self,
        pod: &Pod,
        sandbox: &Sandbox,
        container: &Container,
        restart_count: u32,
        image: images::Present,
        mounts: &PodMounts,
    ) -> Result<longshore_cri::v1::ContainerConfig, Error> {
        let ips = match sandbox.host_network {
            true => &self.settings.host_ips,
            false => &sandbox.ips,
        };
        let environment =
            env::environment(&self.settings, &self.objects, pod, container, ips).await?;
        let mut volumes = Vec::new();
        for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
            // The apiserver sees to it that a mount names a volume; a manifest may not.
            let volume = mounts.get(&mount.name).cloned().ok_or_else(|| Error::Field {
                field: "volumeMounts.name",
                value: mount.name.clone(),
            })?;
            let path = match (&mount.sub_path, &mount.sub_path_expr) {
                (Some(path), _) if !path.is_empty() => path.clone(),
                (_, Some(path)) => expand(path, |name| environment.get(name)),
                _ => String::new(),
            };
            volumes.push(match path.is_empty() {
                true => volume,
                false => {
                    let sub_path = SubPath {
                        volume: &mount.name,
                        volume_path: &volume.path,
                        container: &container.name,
                        index,
                        path: &path,
                    };
                    let path = self.volumes.sub_path(spec::uid(pod), sub_path).await?;
                    Mounted { path, ..volume }
                }
            });
        }
        let hosts_file = hosts::write(&self.settings, pod, ips).await?;
        container::config(container::Inputs {
            settings: &self.settings,
            pod,
            container,
            restart_count,
            image_ref: image.reference,
            image_user: image.user,
            environment,
            volumes,
            hosts_file,
        })
    }

    /// Stop a container, within `grace` if it is willing. One that is gone counts as stopped.
    pub async fn stop_container(
        &self,
        uid: &str,
        id: &str,
        sandbox_id: &str,
        grace: Duration,
    ) -> Result<(), Error> {
        forgive_gone(self.cri.stop_container(id, grace).await)?;
        Ok(self.observer.look_at_container(uid, id, sandbox_id).await?)
    }

    /// Stop a sandbox and give its network back. One that is gone counts as stopped.
    pub async fn stop_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        forgive_gone(self.cri.stop_pod_sandbox(id).await)?;
        Ok(self.observer.look_at_sandbox(uid, id).await?)
    }

    /// Remove a container that has ended, and the link to its log.
    pub async fn remove_container(&self, pod: &Pod, name: &str, id: &str) -> Result<(), Error> {
        forgive_gone(self.cri.remove_container(id).await)?;
        let link = container::legacy_log_link(pod, name, id);
        match tokio::fs::remove_file(&link).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                warn!(link = %link.display(), %error, "link to a log stays");
            }
            _ => {}
        }
        self.observer.removed(spec::uid(pod), id);
        Ok(())
    }

    /// Remove a stopped sandbox.
    pub async fn remove_sandbox(&self, uid: &str, id: &str) -> Result<(), Error> {
        forgive_gone(self.cri.remove_pod_sandbox(id).await)?;
        self.observer.removed(uid, id);
        Ok(())
    }

    /// Give back what [`prepare`](Self::prepare) made, but for the logs.
    pub async fn release(&self, pod: &Pod) -> Result<(), Error> {
        self.images.forget(spec::uid(pod));
        self.objects.unregister(spec::uid(pod));
        self.volumes.unmount(spec::uid(pod)).await?;
        Ok(self.settings.cgroups.remove(pod)?)
    }

    /// Write the data of the pod's volumes anew where it has changed.
    pub async fn refresh_volumes(&self, pod: &Pod) -> Result<(), Error> {
        Ok(self.volumes.refresh(pod).await?)
    }

    /// Remove the pod's directory, with the volumes in it, and its logs.
    pub async fn remove_files(&self, pod: &Pod) -> Result<(), Error> {
        self.volumes.remove_pod(spec::uid(pod)).await?;
        // By its end, for of some orphans the UID is all that is known.
        let suffix = format!("_{}", spec::uid(pod));
        let logs = &self.settings.pod_logs_dir;
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Io { path, source }
        };
        let mut entries = match tokio::fs::read_dir(logs).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(at(logs))?,
        };
        while let Some(entry) = entries.next_entry().await.map_err(at(logs))? {
            if entry.file_name().to_string_lossy().ends_with(&suffix) {
                let dir = entry.path();
                tokio::fs::remove_dir_all(&dir).await.map_err(at(&dir))?;
            }
        }
        Ok(())
    }
}

/// The runtime's own words, without the name of the call, as users know them.
fn cri_message(error: &longshore_cri::Error) -> String {
    match error {
        longshore_cri::Error::Status { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

fn forgive_gone(result: longshore_cri::Result<()>) -> longshore_cri::Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

async fn create_dir(path: &Path) -> Result<(), Error> {
    tokio::fs::create_dir_all(path)
        .await
        .map_err(|source| Error::Io { path: path.to_owned(), source })
}

async fn link_log(log: &Path, link: &Path) -> std::io::Result<()> {
    if let Some(dir) = link.parent() {
        tokio::fs::create_dir_all(dir).await?;
    }
    tokio::fs::symlink(log, link).await
}
