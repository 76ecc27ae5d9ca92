//! Dynamic resource allocation on the node: the claims of a pod are prepared by their drivers before its
//! sandbox is created, and unprepared when nothing of it runs any more. Drivers are plugins beside the
//! node.
//!
//! `names`, `claims`, `answers` and `health` decide, and do nothing else; `drivers` has the connections,
//! [`Manager`] acts.
//!
//! Current limitations: claims of pod groups (the gate `DRAWorkloadResourceClaims`, alpha).

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod answers;
pub mod api;
mod checkpoint;
mod claims;
mod drivers;
mod error;
mod file;
mod health;
mod locks;
mod manager;
mod metrics;
mod names;
mod plugin;
mod slices;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use error::Error;
pub use manager::{ClaimDevice, DynamicResource, Gates, Manager, Parts};
