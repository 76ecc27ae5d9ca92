//! What the node's status is told from: channels that other parts of the daemon feed.

use k8s_openapi::api::core::v1::{
    ContainerImage, NodeFeatures, NodeRuntimeHandler, NodeRuntimeHandlerFeatures,
};
use longshore_cri::v1::{RuntimeCondition, StatusResponse, VersionResponse};
pub(super) use longshore_pod::eviction::NodePressure as Pressure;
use longshore_volumes::InUse;
use tokio::sync::watch;

/// How the container runtime is.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeHealth {
    /// Name and version in the form of the API, such as `containerd://1.6.20`; empty: not known.
    pub version: String,
    /// Why it cannot run containers; `None`: it can.
    pub runtime_error: Option<String>,
    /// Why it cannot connect pods; `None`: it can.
    pub network_error: Option<String>,
    /// What each of its handlers can do.
    pub handlers: Vec<NodeRuntimeHandler>,
    /// What it can do as a whole; `None`: it does not say.
    pub features: Option<NodeFeatures>,
}

impl Default for RuntimeHealth {
    fn default() -> Self {
        Self {
            version: String::new(),
            runtime_error: Some(
                "container runtime status check may not have completed yet".to_owned(),
            ),
            network_error: None,
            handlers: Vec::new(),
            features: None,
        }
    }
}

impl RuntimeHealth {
    /// The health that the runtime tells of itself.
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
            runtime_error: fault("container runtime not ready", "RuntimeReady", conditions),
            network_error: fault("container runtime network not ready", "NetworkReady", conditions),
            handlers,
            features: status.features.as_ref().map(|features| NodeFeatures {
                supplemental_groups_policy: Some(features.supplemental_groups_policy),
            }),
        }
    }

    /// The same runtime, out of reach for that reason.
    pub fn down(self, reason: &str) -> Self {
        Self { runtime_error: Some(format!("container runtime is down: {reason}")), ..self }
    }
}

fn fault(prefix: &str, name: &str, conditions: &[RuntimeCondition]) -> Option<String> {
    match conditions.iter().find(|condition| condition.r#type == name) {
        Some(condition) if condition.status => None,
        Some(RuntimeCondition { reason, message, .. }) => {
            Some(format!("{prefix}: {name}=false reason:{reason} message:{message}"))
        }
        None => Some(format!("{prefix}: the runtime tells no condition {name}")),
    }
}

/// The receiving ends, for [`super::Registration`].
#[derive(Debug, Clone)]
pub struct Inputs {
    pub(super) runtime: watch::Receiver<RuntimeHealth>,
    pub(super) pleg: watch::Receiver<Option<String>>,
    pub(super) storage: watch::Receiver<Option<String>>,
    pub(super) pressure: watch::Receiver<Pressure>,
    pub(super) images: watch::Receiver<Vec<ContainerImage>>,
    pub(super) devices: watch::Receiver<InUse>,
}

/// The sending ends, for the parts that know. Sending what is already there tells nothing new.
#[derive(Debug)]
pub struct Feeds {
    /// How the runtime is; not ready until the first word.
    pub runtime: watch::Sender<RuntimeHealth>,
    /// Why the observation of containers is not healthy, such as `pleg was last seen active
    /// 3m0s ago; threshold is 3m0s`; `None`: it is.
    pub pleg: watch::Sender<Option<String>>,
    /// Why drivers of volumes cannot be told to the cluster, such as `CSINode is not yet
    /// initialized`; `None`: they can.
    pub storage: watch::Sender<Option<String>>,
    /// What the node is short of.
    pub pressure: watch::Sender<Pressure>,
    /// All images on the node, in any order and of any number.
    pub images: watch::Sender<Vec<ContainerImage>>,
}

/// A new set of channels, but for that which tells who uses which devices.
pub fn channels(devices: watch::Receiver<InUse>) -> (Feeds, Inputs) {
    let (runtime, runtime_in) = watch::channel(RuntimeHealth::default());
    let (pleg, pleg_in) = watch::channel(None);
    let (storage, storage_in) = watch::channel(None);
    let (pressure, pressure_in) = watch::channel(Pressure::default());
    let (images, images_in) = watch::channel(Vec::new());
    (
        Feeds { runtime, pleg, storage, pressure, images },
        Inputs {
            runtime: runtime_in,
            pleg: pleg_in,
            storage: storage_in,
            pressure: pressure_in,
            images: images_in,
            devices,
        },
    )
}

impl Inputs {
    /// What the node is short of, for others that go by it.
    pub fn pressure(&self) -> watch::Receiver<Pressure> {
        self.pressure.clone()
    }

    /// The names of devices that pods use and that the control plane may attach and detach.
    pub(super) fn volumes_in_use(&self) -> Vec<String> {
        self.devices.borrow().attached()
    }

    /// Waits until something has changed that somebody waits for: what decides readiness, and which
    /// devices are in use. Images can wait for the next look.
    pub(super) async fn changed(&mut self) {
        // a feed that is gone says nothing more: its arm must not turn the loop
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
        }
    }
}
