//! A node for people: `longshore status`, `longshore top`, the live view of `make run`, and the page of `--dashboard`.
//!
//! Flow: [`cluster`] (node, pods and events from an apiserver), [`runtime`] (containers and their use of CPU and
//! memory from a container runtime), [`health`] (the node's own answer) and [`processes`] (from /proc) →
//! [`inspector`], which makes a [`snapshot`] of them → [`panel`] makes lines of it, with the choices of a person in
//! [`state`] → [`terminal`] shows them, and gives the terminal to a [`shell`] in a container for a while. [`dashboard`] serves the snapshots to a browser.
//! Each source may be missing: the rest is shown, and why it is missing.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

mod cluster;
mod dashboard;
mod health;
mod inspector;
mod panel;
mod processes;
mod runtime;
mod shell;
mod snapshot;
mod state;
mod terminal;

pub use self::dashboard::dashboard;
pub use self::inspector::Inspector;
pub use self::panel::{Foot, changes, text};
pub use self::processes::{Process, processes_of_node};
pub use self::snapshot::{
    ContainerSample, EventSample, NodeSample, PodSample, ProcessSample, Snapshot,
};
pub use self::terminal::show;
