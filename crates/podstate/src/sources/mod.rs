//! Sources of desired pods: the apiserver, a directory of manifests, and a URL. Each source sends
//! its updates to one channel; they are independent of each other.

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

/// Reports what is wrong with the manifests.
pub type ReportInvalid = std::sync::Arc<dyn Fn(&Invalid<'_>) + Send + Sync>;

/// What is wrong with a manifest.
#[derive(Debug)]
pub struct Invalid<'a> {
    /// Its path or URL.
    pub location: &'a str,
    /// The field and the reason.
    pub reason: &'a str,
    /// The pod, if it is valid by itself and the source has another one of the same name or UID.
    pub duplicate: Option<(&'a Pod, Source)>,
}

impl<'a> Invalid<'a> {
    fn at(location: &'a str, reason: &'a str) -> Self {
        Self { location, reason, duplicate: None }
    }
}

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

impl Source {
    /// Its name in annotations and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::File => "file",
            Self::Http => "http",
        }
    }
}

/// An update of a source.
#[derive(Debug)]
pub enum Update {
    /// All pods of the source; others it had before are gone. Sources of static pods send nothing
    /// else.
    Snapshot(Vec<Pod>),
    /// One pod is new or has changed.
    Set(Box<Pod>),
    /// One pod is gone.
    Remove(Box<Pod>),
    /// The UIDs of all pods of the source that cannot be decoded: their last known state is kept.
    Unreadable(HashSet<String>),
}

/// Why a pod is ignored if the source has another one of the same name or UID.
const DUPLICATE: &str = "metadata.name: another manifest has the same name, namespace or UID";

/// Whether two pods cannot both run.
fn is_duplicate(a: &Pod, b: &Pod) -> bool {
    a.metadata.uid == b.metadata.uid
        || (&a.metadata.name, &a.metadata.namespace) == (&b.metadata.name, &b.metadata.namespace)
}
