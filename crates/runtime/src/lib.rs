//! Carries out a pod's plan through CRI: sandbox, images, containers. Each step reports what it
//! did to the observer, so that the next plan sees it at once. Holds no state of pods.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod arguments;
mod container;
mod dns;
mod env;
mod env_file;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod fixture;
pub mod handlers;
mod hooks;
mod hosts;
mod images;
mod isolation;
mod metrics;
mod mounts;
pub mod probes;
mod resize;
pub mod resources;
mod restore;
mod sandbox;
mod security;
pub mod services;
mod settings;
mod start;
mod stop;
mod userns;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::arguments::TooLong;
use crate::handlers::Handlers;
use crate::services::Services;
use k8s_openapi::api::core::v1::Pod;
use longshore_client::events::PodEventRecorder;
use longshore_client::objects::Objects;
use longshore_config::GoDuration;
use longshore_cri::Runtime;
use longshore_pod::Timestamp;
use longshore_pod::spec::{self, describe};
use longshore_podstate::observe::Observer;
use longshore_resources::managers;
use longshore_resources::managers::Managers;
use longshore_volumes::Volumes;
use tracing::debug;

pub use images::{Present, Pulls, Verification};
pub use metrics::{Calls, Metrics};
pub use settings::Settings;
pub use start::Prepared;
pub use stop::{discard_sandbox, remove_run, stop_run};
pub use userns::{Error as UserNamespaceError, Ids};

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
    /// A variable is to come from a file in a volume that is not there.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoEnvVolume(String),
    /// A file of variables could not be read. Why is logged, and not for the pod to learn.
    #[error("couldn't parse env file")]
    EnvFile,
    /// A key that the container needs is not in a file of variables.
    #[error("environment variable key {key:?} not found in file {path:?}")]
    MissingFileKey {
        /// The key.
        key: String,
        /// The file on the host.
        path: PathBuf,
    },
    /// An ephemeral container is to look into one that never ran.
    #[error("unable to find target container {0}")]
    NoTarget(String),
    /// The pod is to have devices that nothing here prepares.
    #[error("dynamic resource allocation is not implemented by this node")]
    DynamicResources,
    /// The pod is to have users of its own, and the runtime cannot give it any.
    #[error(
        "can't set `spec.hostUsers: false`, {} user namespaces{}",
        if .handler.is_empty() { "runtime does not support".to_owned() }
        else { format!("RuntimeClass handler {:?} does not support", .handler) },
        if *.unknown { format!(": the handler {:?} is not known", .handler) } else { String::new() },
    )]
    NoUserNamespaces {
        /// The runtime's handler; empty for its default.
        handler: String,
        /// Whether the runtime does not know that handler at all.
        unknown: bool,
    },
    /// A mount cannot be read-only all the way down.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but {why}"
    )]
    ReadOnly {
        /// The volume's name in the pod.
        volume: String,
        /// What stands against it.
        why: String,
    },
    /// A mount names a volume that the pod does not have.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume {
        /// The volume's name.
        volume: String,
        /// The container.
        container: String,
    },
    /// A device names a volume that the pod does not have, or that is none.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoDevice {
        /// The volume's name.
        volume: String,
        /// The container.
        container: String,
    },
    /// A sub-path refers to variables that are not set.
    #[error("missing value for {}", .0.join(", "))]
    MissingVariables(Vec<String>),
    /// The kernel starts no program with words or variables as long as these.
    #[error(transparent)]
    LongArguments(#[from] TooLong),
    /// The pod has no ids for users of its own.
    #[error(transparent)]
    UserNamespace(#[from] userns::Error),
    /// A seccomp profile of the node is asked for and not named.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoSeccompProfile,
    /// An AppArmor profile of the node is asked for and not named.
    #[error("missing localhost apparmor profile name")]
    NoAppArmorProfile,
    /// The pod's name in its domain is more than the kernel takes.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {0} is too long \
         (64 characters is the max, {len} characters requested)",
        len = .0.len()
    )]
    LongFqdn(String),
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
    #[error("{}", .0.go_text())]
    Cri(#[from] longshore_cri::Error),
    /// The runtime's answer could not be read back.
    #[error(transparent)]
    Observe(#[from] longshore_podstate::observe::Error),
    /// A secret or config map is not to be had.
    #[error(transparent)]
    Object(#[from] longshore_client::objects::Error),
    /// The variables of services are not to be had.
    #[error(transparent)]
    Services(#[from] crate::services::Error),
    /// A field of the downward API has no value.
    #[error(transparent)]
    Downward(#[from] longshore_pod::downward::Error),
    /// A volume cannot be mounted into a container.
    #[error(transparent)]
    Volume(#[from] longshore_volumes::Error),
    /// The pod's cgroup cannot be made.
    #[error(transparent)]
    Cgroup(#[from] longshore_resources::cgroups::Error),
    /// What its containers have for themselves is not on disk.
    #[error(transparent)]
    Managers(#[from] managers::Error),
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

/// A wait because of a container that failed, as its event and its status tell it.
pub fn backoff_message(pod: &Pod, container: &str, delay: Duration) -> String {
    let delay = GoDuration::secs(i64::try_from(delay.as_secs()).unwrap_or(i64::MAX >> 30));
    format!("back-off {delay} restarting failed container={container} pod={}", describe(pod))
}

/// What the hands work with.
pub struct Parts {
    /// The runtime.
    pub cri: Runtime,
    /// Who is told of what was done.
    pub observer: Observer,
    /// Objects that pods refer to.
    pub objects: Objects,
    /// Services that containers are told of.
    pub services: Services,
    /// Volumes of pods.
    pub volumes: Volumes,
    /// Events about pods.
    pub pod_events: PodEventRecorder,
    /// The ways into containers, for hooks.
    pub handlers: Handlers,
    /// What containers have for themselves.
    pub managers: Managers,
    /// What of the node's config shapes its pods.
    pub settings: Arc<Settings>,
    /// What is counted.
    pub metrics: Metrics,
}

/// The hands of the workers. Cheap to clone.
#[derive(Clone)]
pub struct PodRuntime {
    cri: Runtime,
    observer: Observer,
    objects: Objects,
    services: Services,
    volumes: Volumes,
    pod_events: PodEventRecorder,
    handlers: Handlers,
    images: Arc<images::Images>,
    user_namespaces: Arc<userns::UserNamespaces>,
    managers: Managers,
    settings: Arc<Settings>,
    metrics: Metrics,
}

impl PodRuntime {
    /// Hands that work with these parts.
    pub fn new(parts: Parts) -> Self {
        let Parts { cri, observer, objects, services, volumes, pod_events, handlers, .. } = parts;
        let (managers, settings, metrics) = (parts.managers, parts.settings, parts.metrics);
        let objects = objects.fresh();
        let images = images::Images::new(
            cri.clone(),
            objects.clone(),
            pod_events.clone(),
            settings.root_dir.clone(),
            &settings.pulls,
            metrics.clone(),
        );
        let pods_dir = settings.root_dir.join("pods");
        Self {
            images: Arc::new(images),
            user_namespaces: Arc::new(userns::UserNamespaces::new(settings.user_ids, pods_dir)),
            cri,
            observer,
            objects,
            services,
            volumes,
            pod_events,
            handlers,
            managers,
            settings,
            metrics,
        }
    }

    /// For how long images were pulled for the pod with that UID.
    pub fn time_of_pulls(&self, uid: &str) -> Duration {
        self.metrics.time_of_pulls(uid)
    }

    /// Make the pod's directories.
    pub async fn create_dirs(&self, pod: &Pod) -> Result<(), Error> {
        create_dir(&self.settings.pod_dir(pod), 0o750).await?;
        create_dir(&self.settings.pod_log_dir(pod), 0o755).await
    }

    /// Take over a pod whose sandbox an earlier daemon made.
    pub async fn adopt(&self, pod: &Pod) {
        self.settings.cgroups.adopt(pod).await;
    }

    /// Make the pod's cgroup, and run its sandbox in it.
    pub async fn create_sandbox(&self, pod: &Pod, attempt: u32) -> Result<(), Error> {
        self.managers.settled().await?;
        self.settings.cgroups.create(&self.managers.without_quota(pod)).await?;
        let isolation = self.isolation(pod).await?;
        let (config, complaints) =
            sandbox::config(&self.settings, pod, attempt, isolation.namespaces)?;
        for dns::Complaint { reason, message } in complaints {
            self.pod_events.pod(pod, true, reason, &message);
        }
        let began = Instant::now();
        let ran = self.cri.run_pod_sandbox(config, &isolation.handler).await;
        self.metrics.ran_sandbox(&isolation.handler, began, ran.is_err());
        let id = ran?;
        debug!(pod = describe(pod), %id, "sandbox runs");
        Ok(self.observer.look_at_sandbox(spec::uid(pod), &id).await?)
    }
}

async fn create_dir(path: &Path, mode: u32) -> Result<(), Error> {
    tokio::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .await
        .map_err(|source| Error::Io { path: path.to_owned(), source })
}
