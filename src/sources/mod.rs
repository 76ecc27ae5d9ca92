//! Where desired pods come from: the apiserver and a directory of manifests. Each source tells what
//! it sees in one stream; none knows of the others.

mod api;
mod defaults;
mod dump;
mod file;
mod manifest;
mod validate;

use k8s_openapi::api::core::v1::Pod;

pub use api::watch_pods;
pub use file::{Complain, watch_manifests};

/// A source of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// The apiserver.
    Api,
    /// The directory of manifests.
    File,
}

/// What a source tells.
#[derive(Debug)]
pub enum Update {
    /// All that the source has; what it told before and is not here is gone.
    Snapshot(Vec<Pod>),
    /// One pod is new or has changed.
    Set(Box<Pod>),
    /// One pod is gone.
    Remove(Box<Pod>),
}
