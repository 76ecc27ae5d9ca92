//! The pure half of the node: from a pod's spec and the runtime's state to the actions to take
//! ([`plan`]) and the status to report ([`status`]). No I/O, no client, and no clock but the one
//! passed in.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

pub mod admission;
pub mod apparmor;
pub mod backoff;
pub mod deadline;
pub mod downward;
pub mod eviction;
pub mod expand;
pub mod features;
pub mod hash;
pub mod labels;
pub mod observed;
pub mod plan;
pub mod probes;
pub mod qos;
pub mod quantity;
pub mod resize;
pub mod resources;
pub mod spec;
pub mod status;
pub mod termination;
pub mod usage;

pub use k8s_openapi::jiff::Timestamp;

#[cfg(test)]
mod extremes;
