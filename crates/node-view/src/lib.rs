//! A node for people: `longshore status`, `longshore top` and the live view of `make run`.
//!
//! Flow: [`cluster`] (node, pods and events from an apiserver), [`runtime`] (containers and their use of CPU and
//! memory from a container runtime), [`health`] (the node's own answer) and [`processes`] (from /proc) →
//! [`inspector`], which makes a [`snapshot`] of them → [`panel`] makes lines of it, with the choices of a person in
//! [`state`] → [`terminal`] shows them. Each source may be missing: the rest is shown, and why it is missing.
//!
//! Current limitations: no commands in containers.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod cluster;
mod health;
mod inspector;
mod panel;
mod processes;
mod runtime;
mod snapshot;
mod state;
mod terminal;

pub use self::inspector::Inspector;
pub use self::panel::{Foot, changes, text};
pub use self::processes::{Process, processes_named};
pub use self::snapshot::{
    ContainerSample, EventSample, NodeSample, PodSample, ProcessSample, Snapshot,
};
pub use self::terminal::show;
