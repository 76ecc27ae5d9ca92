//! CSI drivers: registered as plugins of the node, and published in the CSINode and Node objects, and in
//! [`Drivers`] for the volumes.

mod allocatable;
mod csi_node;
mod drivers;
mod error;
mod metrics;
mod registration;
mod version;

pub use self::csi_node::CsiNode;
pub use self::drivers::Drivers;
pub use self::error::Error;
pub use self::registration::CsiPlugins;

#[cfg(test)]
pub(crate) mod fake;
#[cfg(test)]
mod tests;
