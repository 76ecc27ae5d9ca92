//! Device plugins (v1beta1): their registration, the devices that they list, and the allocation of
//! devices to containers; and the PodResources API, which shows monitoring agents which container has which.
//!
//! [`Devices`] is the manager. The decisions are in `state`, without I/O; plugins are called outside
//! of its lock, each call with a deadline. A pod passes through it like this:
//!
//! ```text
//! select ─→ (prefer ─→ select)* ─→ commit ─→ allocate ─→ container… ─→ release
//!   which devices, with the        plugin's    config of each start
//!   topology manager               answer
//! ```
//!
//! Allocations are kept in upstream's checkpoint, so that a daemon of either kind takes over.
//!
//! Current limitations: the SELinux label of the plugins' folder is left as it is.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod checkpoint;
mod error;
mod manager;
mod metrics;
mod names;
mod options;
mod plugin;
pub mod pod_resources;
mod registration;
mod select;
mod state;
mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod topology;

pub use error::Error;
pub use longshore_topology::{DeviceProvider, DeviceRefusal};
pub use manager::{Devices, Settings};
pub use metrics::Metrics;
pub use names::is_extended_resource;
pub use options::ContainerDevices;
pub use select::{Preference, Preferences, Query, Selection};
pub use state::{Amount, Capacity, Device};

/// The messages, clients and server traits generated from `proto/deviceplugin`.
#[allow(missing_docs, clippy::all)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");
}

/// The health of a device that can be allocated; any other text is unhealthy.
pub const HEALTHY: &str = "Healthy";
