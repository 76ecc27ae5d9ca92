//! Where desired pods come from: the apiserver, a directory of manifests, and a URL. Each source tells
//! what it sees in one stream; none knows of the others.

mod api;
mod defaults;
mod dump;
mod file;
mod http;
mod manifest;
mod validate;

use std::collections::HashSet;

use k8s_openapi::api::core::v1::Pod;

pub use api::watch_pods;
pub use file::watch_manifests;
pub use http::poll_url;

/// Tells of a manifest that gives no pod: where it is, and field and reason.
pub type Complain = std::sync::Arc<dyn Fn(&str, &str) + Send + Sync>;

/// A source of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The apiserver.
    Api,
    /// The directory of manifests.
    File,
    /// The URL of a manifest.
    Http,
}

/// What a source tells.
#[derive(Debug)]
pub enum Update {
    /// All that the source has; what it told before and is not here is gone. Sources of static pods
    /// tell nothing else.
    Snapshot(Vec<Pod>),
    /// One pod is new or has changed.
    Set(Box<Pod>),
    /// One pod is gone.
    Remove(Box<Pod>),
    /// The UIDs of all pods that the source has and that cannot be decoded: what is known of them
    /// stays.
    Unreadable(HashSet<String>),
}

/// Why a pod is not taken that another one of the same source stands for already.
const TWIN: &str = "metadata.name: another manifest has the same name, namespace or UID";

/// Whether two pods cannot both run.
fn is_twin(a: &Pod, b: &Pod) -> bool {
    a.metadata.uid == b.metadata.uid
        || (&a.metadata.name, &a.metadata.namespace) == (&b.metadata.name, &b.metadata.namespace)
}
