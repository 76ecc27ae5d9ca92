//! Inputs of the node's status: channels that other parts of the daemon send to.

use k8s_openapi::api::core::v1::{
    ContainerImage, NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures,
};
use longshore_cri::v1::{RuntimeCondition, StatusResponse, VersionResponse};
use longshore_devices::Capacity;
pub(super) use longshore_pod::eviction::NodePressure as Pressure;
use longshore_volumes::InUse;
use tokio::sync::watch;

/// Status of the container runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeHealth {
    /// Name and version as in the API, such as `containerd://1.6.20`; empty: unknown.
    pub version: String,
    /// Why nothing is known of the runtime's readiness, or nothing any more; `None`: it was ready a short
    /// time ago.
    pub down: Option<&'static str>,
    /// Why the runtime is not ready, by its own account; `None`: it is.
    pub runtime_error: Option<String>,
    /// Why the network is not ready; `None`: it is.
    pub network_error: Option<String>,
    /// Features of its handlers.
    pub handlers: Vec<NodeRuntimeHandler>,
    /// Features of the runtime; `None`: not reported.
    pub features: Option<NodeFeatures>,
    /// Whether it can run a pod in the host's network and in a user namespace.
    pub host_network_in_user_namespace: bool,
}

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self {
            version: String::new(),
            down: Some("container runtime status check may not have completed yet"),
            runtime_error: None,
            network_error: Some("network state unknown".to_owned()),
            handlers: Vec::new(),
            features: None,
            host_network_in_user_namespace: false,
        }
    }
}

impl RuntimeHealth {
    /// From the responses of the runtime.
    pub fn new(version: &VersionResponse, status: &StatusResponse) -> Self {
        let conditions =
            status.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let mut handlers: Vec<_> = status
            .runtime_handlers
            .iter()
            .map(|handler| {
                let features = handler.features.unwrap_or_default();
                NodeRuntimeHandler {
                    name: Some(handler.name.clone()),
                    features: Some(NodeRuntimeHandlerFeatures {
                        recursive_read_only_mounts: Some(features.recursive_read_only_mounts),
                        user_namespaces: Some(features.user_namespaces),
                    }),
                }
            })
            .collect();
        handlers.sort_by(|a, b| a.name.cmp(&b.name));
        Self {
            version: format!("{}://{}", version.runtime_name, version.runtime_version),
            down: None,
            runtime_error: fault("container runtime not ready", "RuntimeReady", conditions),
            network_error: fault("container runtime network not ready", "NetworkReady", conditions),
            handlers,
            features: status.features.as_ref().map(|features| NodeFeatures {
                supplemental_groups_policy: Some(features.supplemental_groups_policy),
            }),
            host_network_in_user_namespace: status
                .features
                .is_some_and(|features| features.user_namespaces_host_network),
        }
    }

    /// The same runtime, which has not been ready for a long time.
    pub fn down(self) -> Self {
        Self { down: Some("container runtime is down"), ..self }
    }

    /// The runtime's name, as in `containerd://ID`; `None`: unknown.
    pub fn runtime_name(&self) -> Option<&str> {
        self.version.split_once("://").map(|(name, _)| name).filter(|name| !name.is_empty())
    }

    /// Whether a handler supports recursive read-only mounts; empty: the default one.
    pub fn mounts_recursively_read_only(&self, handler: &str) -> bool {
        let mut handlers = self.handlers.iter();
        let found = handlers.find(|known| known.name.as_deref().unwrap_or_default() == handler);
        let features = found.and_then(|known| known.features.as_ref());
        features.and_then(|own| own.recursive_read_only_mounts).unwrap_or(false)
    }
}

fn fault(prefix: &str, name: &str, conditions: &[RuntimeCondition]) -> Option<String> {
    match conditions.iter().find(|condition| condition.r#type == name) {
        Some(condition) if condition.status => None,
        Some(RuntimeCondition { reason, message, .. }) => {
            Some(format!("{prefix}: {name}=false reason:{reason} message:{message}"))
        }
        None => Some(format!("{prefix}: <nil>")),
    }
}

/// The receivers, for [`super::Registration`].
#[derive(Debug, Clone)]
pub struct Inputs {
    pub(super) runtime: watch::Receiver<RuntimeHealth>,
    pub(super) pleg: watch::Receiver<Option<String>>,
    pub(super) storage: watch::Receiver<Option<String>>,
    pub(super) pressure: watch::Receiver<Pressure>,
    pub(super) images: watch::Receiver<Vec<ContainerImage>>,
    pub(super) devices: watch::Receiver<InUse>,
    /// Extended resources of device plugins.
    pub(super) extended: watch::Receiver<Capacity>,
    pub(super) shutting_down: watch::Receiver<bool>,
}

/// The senders. Sending an unchanged value has no effect.
#[derive(Debug)]
pub struct Feeds {
    /// Status of the runtime; not ready at first.
    pub runtime: watch::Sender<RuntimeHealth>,
    /// Why PLEG is not healthy, such as `pleg was last seen active 3m0s ago; threshold is 3m0s`;
    /// `None`: it is healthy.
    pub pleg: watch::Sender<Option<String>>,
    /// Why CSI drivers cannot be published, such as `CSINode is not yet initialized`; `None`: they can.
    pub storage: watch::Sender<Option<String>>,
    /// Pressure conditions.
    pub pressure: watch::Sender<Pressure>,
    /// All images on the node.
    pub images: watch::Sender<Vec<ContainerImage>>,
    /// Whether the machine shuts down.
    pub shutting_down: watch::Sender<bool>,
}

/// Creates the channels, except `devices` and `extended`.
pub fn channels(
    devices: watch::Receiver<InUse>,
    extended: watch::Receiver<Capacity>,
) -> (Feeds, Inputs) {
    let (runtime, runtime_in) = watch::channel(RuntimeHealth::default());
    let (pleg, pleg_in) = watch::channel(None);
    let (storage, storage_in) = watch::channel(None);
    let (pressure, pressure_in) = watch::channel(Pressure::default());
    let (images, images_in) = watch::channel(Vec::new());
    let (shutting_down, shutting_down_in) = watch::channel(false);
    (
        Feeds { runtime, pleg, storage, pressure, images, shutting_down },
        Inputs {
            runtime: runtime_in,
            pleg: pleg_in,
            storage: storage_in,
            pressure: pressure_in,
            images: images_in,
            devices,
            extended,
            shutting_down: shutting_down_in,
        },
    )
}

impl Inputs {
    /// Status of the runtime, for other users.
    pub fn runtime(&self) -> watch::Receiver<RuntimeHealth> {
        self.runtime.clone()
    }

    /// Pressure conditions, for other users.
    pub fn pressure(&self) -> watch::Receiver<Pressure> {
        self.pressure.clone()
    }

    /// Names of attachable volumes in use, for `volumesInUse`.
    pub(super) fn volumes_in_use(&self) -> Vec<String> {
        self.devices.borrow().attached()
    }

    /// Waits for a change that is reported at once: readiness, pressure, volumes in use, devices. Images are
    /// reported with the next update.
    pub(super) async fn changed(&mut self) {
        // a closed channel must not wake the loop
        async fn next<T>(feed: &mut watch::Receiver<T>) {
            if feed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
        tokio::select! {
            () = next(&mut self.runtime) => {}
            () = next(&mut self.pleg) => {}
            () = next(&mut self.storage) => {}
            () = next(&mut self.pressure) => {}
            () = next(&mut self.devices) => {}
            () = next(&mut self.extended) => {}
            () = next(&mut self.shutting_down) => {}
        }
    }
}
