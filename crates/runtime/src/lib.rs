//! Executes a pod's plan through CRI: sandbox, images, containers. Each step updates the observer,
//! so that the next plan sees the result at once. Keeps no state of pods.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod arguments;
mod container;
mod devices;
mod dns;
mod env;
mod env_file;
#[cfg(test)]
mod fixture;
pub mod handlers;
mod hooks;
pub mod host_ips;
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
use longshore_client::events::{PodEventRecorder, node_reference};
use longshore_client::objects::Objects;
use longshore_config::GoDuration;
use longshore_credential_provider::CredentialProviders;
use longshore_cri::Runtime;
use longshore_devices::Devices;
use longshore_pod::Timestamp;
use longshore_pod::spec::{self, describe};
use longshore_podstate::observe::Observer;
use longshore_resources::managers;
use longshore_resources::managers::Managers;
use longshore_volumes::Volumes;
use tracing::debug;

pub use dns::exceeded_resolv_conf_limit;
pub use host_ips::HostIps;
pub use images::{Present, Pulls, Verification};
pub use metrics::{Calls, Metrics};
pub use settings::Settings;
pub use start::Prepared;
pub use stop::{discard_sandbox, remove_run, stop_run};
pub use userns::{Error as UserNamespaceError, Ids};

/// A step failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod has no spec.
    #[error("the pod has no spec")]
    NoSpec,
    /// The value of a field is not supported.
    #[error("unsupported {field}: {value:?}")]
    Field {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// A required key is not in its object.
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
    /// An environment file is in a volume that the pod does not have.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoEnvVolume(String),
    /// An environment file could not be read. The reason is logged, and not revealed to the pod.
    #[error("couldn't parse env file")]
    EnvFile,
    /// A required key is not in an environment file.
    #[error("environment variable key {key:?} not found in file {path:?}")]
    MissingFileKey {
        /// The key.
        key: String,
        /// The file on the host.
        path: PathBuf,
    },
    /// The target of an ephemeral container never ran.
    #[error("unable to find target container {0}")]
    NoTarget(String),
    /// The pod requests a user namespace, which the runtime does not support.
    #[error(
        "can't set `spec.hostUsers: false`, {} user namespaces{}",
        if .handler.is_empty() { "runtime does not support".to_owned() }
        else { format!("RuntimeClass handler {:?} does not support", .handler) },
        if *.unknown { format!(": the handler {:?} is not known", .handler) } else { String::new() },
    )]
    NoUserNamespaces {
        /// The runtime handler; empty for the default.
        handler: String,
        /// Whether the runtime does not know that handler at all.
        unknown: bool,
    },
    /// A mount cannot be recursively read-only.
    #[error(
        "failed to resolve recursive read-only mode: volume {volume:?} requested recursive read-only mode, but {why}"
    )]
    ReadOnly {
        /// The volume's name in the pod.
        volume: String,
        /// The reason.
        why: String,
    },
    /// A mount refers to a volume that the pod does not have.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume {
        /// The volume's name.
        volume: String,
        /// The container.
        container: String,
    },
    /// A device refers to a volume that the pod does not have, or that is not a block volume.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoDevice {
        /// The volume's name.
        volume: String,
        /// The container.
        container: String,
    },
    /// A sub-path refers to undefined variables.
    #[error("missing value for {}", .0.join(", "))]
    MissingVariables(Vec<String>),
    /// Arguments or variables exceed the limits of the kernel.
    #[error(transparent)]
    LongArguments(#[from] TooLong),
    /// No ids for the pod's user namespace.
    #[error(transparent)]
    UserNamespace(#[from] userns::Error),
    /// A localhost seccomp profile has no name.
    #[error("localhostProfile must be set if seccompProfile type is Localhost.")]
    NoSeccompProfile,
    /// A localhost AppArmor profile has no name.
    #[error("missing localhost apparmor profile name")]
    NoAppArmorProfile,
    /// The pod's fully qualified name exceeds the limit of the kernel.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {0} is too long \
         (64 characters is the max, {len} characters requested)",
        len = .0.len()
    )]
    LongFqdn(String),
    /// The pod must not run as root and the container would.
    #[error("{why} (pod: {pod:?}, container: {container})")]
    NonRoot {
        /// Why the policy is violated.
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
    /// A CRI call failed.
    #[error("{}", .0.go_text())]
    Cri(#[from] longshore_cri::Error),
    /// The observer could not inspect the result.
    #[error(transparent)]
    Observe(#[from] longshore_podstate::observe::Error),
    /// A secret or config map is not available.
    #[error(transparent)]
    Object(#[from] longshore_client::objects::Error),
    /// The variables of services are not available.
    #[error(transparent)]
    Services(#[from] crate::services::Error),
    /// A field of the downward API has no value.
    #[error(transparent)]
    Downward(#[from] longshore_pod::downward::Error),
    /// A volume cannot be mounted.
    #[error(transparent)]
    Volume(#[from] longshore_volumes::Error),
    /// The pod's cgroup cannot be created.
    #[error(transparent)]
    Cgroup(#[from] longshore_resources::cgroups::Error),
    /// The devices of a container are not known.
    #[error(transparent)]
    Claims(#[from] longshore_dra::Error),
    /// The state of the CPU or memory manager cannot be written.
    #[error(transparent)]
    Managers(#[from] managers::Error),
    /// The devices of a container cannot be used.
    #[error(transparent)]
    Devices(#[from] longshore_devices::Error),
}

/// Why a container does not run: reason and message of its waiting state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// Reason, such as `ErrImagePull`.
    pub reason: &'static str,
    /// Message.
    pub message: String,
    /// When to retry, if that is known.
    pub retry_at: Option<Timestamp>,
}

impl StartError {
    fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into(), retry_at: None }
    }
}

/// The message for a container in backoff, in its event and status.
pub fn backoff_message(pod: &Pod, container: &str, delay: Duration) -> String {
    let delay = GoDuration::secs(i64::try_from(delay.as_secs()).unwrap_or(i64::MAX >> 30));
    format!("back-off {delay} restarting failed container={container} pod={}", describe(pod))
}

/// Dependencies of [`PodRuntime`].
pub struct Parts {
    /// The runtime.
    pub cri: Runtime,
    /// Notified of all changes.
    pub observer: Observer,
    /// Secrets and config maps.
    pub objects: Objects,
    /// Services for environment variables.
    pub services: Services,
    /// Volumes of pods.
    pub volumes: Volumes,
    /// Plugins that give credentials for images.
    pub credential_providers: CredentialProviders,
    /// Events about pods.
    pub pod_events: PodEventRecorder,
    /// Handlers of hooks.
    pub handlers: Handlers,
    /// CPU and memory managers.
    pub managers: Managers,
    /// The device manager.
    pub devices: Devices,
    /// The claims of pods for devices.
    pub claims: longshore_dra::Manager,
    /// Settings from the node's config.
    pub settings: Arc<Settings>,
    /// Metrics.
    pub metrics: Metrics,
}

/// Executes the actions of pod workers. Cheap to clone.
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
    devices: Devices,
    claims: longshore_dra::Manager,
    settings: Arc<Settings>,
    metrics: Metrics,
}

impl PodRuntime {
    /// A pod runtime with these dependencies.
    pub fn new(parts: Parts) -> Self {
        let Parts { cri, observer, objects, services, volumes, pod_events, handlers, .. } = parts;
        let (managers, settings, metrics) = (parts.managers, parts.settings, parts.metrics);
        let devices = parts.devices;
        let claims = parts.claims;
        let objects = objects.fresh();
        let images = images::Images::new(
            cri.clone(),
            objects.clone(),
            parts.credential_providers,
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
            devices,
            claims,
            settings,
            metrics,
        }
    }

    /// The time spent on image pulls for the pod with that UID.
    pub fn image_pull_time(&self, uid: &str) -> Duration {
        self.metrics.image_pull_time(uid)
    }

    /// Create the pod's directories.
    pub async fn create_dirs(&self, pod: &Pod) -> Result<(), Error> {
        create_dir(&self.settings.pod_dir(pod), 0o750).await?;
        create_dir(&self.settings.pod_log_dir(pod), 0o755).await
    }

    /// Take over a pod whose sandbox was created by an earlier run of the daemon.
    pub async fn adopt(&self, pod: &Pod) {
        self.settings.cgroups.adopt(pod).await;
    }

    /// Create the pod's cgroup and its sandbox, with the supplemental groups of the pod's volumes.
    pub async fn create_sandbox(
        &self,
        pod: &Pod,
        attempt: u32,
        volume_groups: &[i64],
    ) -> Result<(), Error> {
        self.managers.wait_persisted().await?;
        self.settings.cgroups.create(&self.managers.without_quota(pod)).await?;
        let isolation = self.isolation(pod).await?;
        let (config, warnings) =
            sandbox::config(&self.settings, pod, attempt, isolation.namespaces, volume_groups)?;
        for dns::DnsWarning { reason, message, node_message } in warnings {
            if let Some(message) = node_message {
                let node = node_reference(&self.settings.node_name);
                self.pod_events.about(node, true, reason, &message);
            }
            self.pod_events.pod(pod, true, reason, &message);
        }
        let began = Instant::now();
        let ran = self.cri.run_pod_sandbox(config, &isolation.handler).await;
        self.metrics.ran_sandbox(&isolation.handler, began, ran.is_err());
        let id = ran?;
        debug!(pod = describe(pod), %id, "sandbox started");
        Ok(self.observer.inspect_sandbox(spec::uid(pod), &id).await?)
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
