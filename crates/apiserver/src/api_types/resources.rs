//! What a row of the table of served resources holds. The rows are in `kinds`.

use std::sync::Arc;

use super::Gvk;
use super::custom::{Definition, Live};

/// Selectable fields: the name that clients use, and the name that the object has as it is shown.
pub type Fields = &'static [(&'static str, &'static str)];

/// One served resource.
#[derive(Debug)]
pub struct Resource {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// Version within the group.
    pub version: &'static str,
    /// Plural name, as in paths.
    pub plural: &'static str,
    /// Singular name.
    pub singular: &'static str,
    /// Kind of its objects.
    pub kind: &'static str,
    /// Short names that kubectl accepts.
    pub short_names: &'static [&'static str],
    /// Categories such as `all`.
    pub categories: &'static [&'static str],
    /// Whether objects live in a namespace.
    pub namespaced: bool,
    /// Verbs served on it, sorted.
    pub verbs: &'static [&'static str],
    /// What is served below one object.
    pub subresources: &'static [Subresource],
    /// Path below `/registry/` where its objects are stored; empty when they never are.
    pub storage: &'static str,
    /// Whether `metadata.generation` counts changes of its spec.
    pub counts_generation: bool,
    /// Fields that can be selected by, beside name and namespace.
    pub fields: Option<Fields>,
    /// The definition of a custom kind.
    pub custom: Option<&'static Live>,
    /// The feature gate with which a resource is served that is off by default; none: it always is.
    pub gate: Option<&'static str>,
}

/// One subresource.
#[derive(Debug)]
pub struct Subresource {
    /// Its name in the path.
    pub name: &'static str,
    /// What its bodies are.
    pub gvk: Gvk,
    /// Verbs served on it, sorted.
    pub verbs: &'static [&'static str],
}

impl Resource {
    /// Group, version and kind of its objects.
    #[must_use]
    pub const fn gvk(&self) -> Gvk {
        Gvk { group: self.group, version: self.version, kind: self.kind }
    }

    /// The name used in messages: `pods`, or `leases.coordination.k8s.io`.
    #[must_use]
    pub fn qualified(&self) -> String {
        match self.group {
            "" => self.plural.to_owned(),
            group => format!("{}.{group}", self.plural),
        }
    }

    /// Whether this verb is served.
    #[must_use]
    pub fn allows(&self, verb: &str) -> bool {
        self.verbs.contains(&verb)
    }

    /// The subresource of that name.
    #[must_use]
    pub fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// Whether `status` is written apart from the rest of the object.
    #[must_use]
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }

    /// The definition of a custom kind, as it is now.
    pub(crate) fn definition(&self) -> Option<Arc<Definition>> {
        self.custom.map(Live::get)
    }

    /// Whether a webhook converts its objects between versions.
    pub(crate) fn has_webhook(&self) -> bool {
        self.definition().is_some_and(|definition| definition.webhook().is_some())
    }

    /// The kind of lists of its objects.
    pub(crate) fn list_kind(&self) -> String {
        let custom = self.definition().map(|definition| definition.list_kind.clone());
        custom.unwrap_or_else(|| format!("{}List", self.kind))
    }

    /// Whether both name the same stored objects (events live in two groups).
    #[must_use]
    pub fn same_storage(&self, other: &Resource) -> bool {
        !self.storage.is_empty() && self.storage == other.storage
    }
}

pub(crate) const ALL: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
pub(crate) const NO_COLLECTION_DELETE: &[&str] =
    &["create", "delete", "get", "list", "patch", "update", "watch"];
pub(crate) const CREATE: &[&str] = &["create"];
/// A GET too opens a connection.
pub(crate) const CONNECT: &[&str] = &["create", "get"];
/// Any verb.
pub(crate) const PROXY: &[&str] = &["create", "delete", "get", "patch", "update"];
pub(crate) const READ_WRITE: &[&str] = &["get", "patch", "update"];

pub(crate) const fn status(kind: &'static str) -> Subresource {
    status_of("", kind)
}

pub(crate) const fn status_of(group: &'static str, kind: &'static str) -> Subresource {
    status_in(Gvk::v1(group, kind))
}

/// The status of objects of this kind.
pub(crate) const fn status_in(gvk: Gvk) -> Subresource {
    Subresource { name: "status", gvk, verbs: READ_WRITE }
}

/// The number of replicas of a workload, read and written without the rest.
pub(crate) const SCALE: Subresource =
    Subresource { name: "scale", gvk: Gvk::v1("autoscaling", "Scale"), verbs: READ_WRITE };

pub(crate) const fn core(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    storage: &'static str,
) -> Resource {
    Resource {
        group: "",
        version: "v1",
        plural,
        singular,
        kind,
        short_names: &[],
        categories: &[],
        namespaced: true,
        verbs: ALL,
        subresources: &[],
        storage,
        counts_generation: false,
        fields: None,
        custom: None,
        gate: None,
    }
}

pub(crate) const fn review(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
) -> Resource {
    Resource { group, namespaced: false, verbs: CREATE, ..core(plural, singular, kind, "") }
}

/// A namespaced resource of another group than the core one.
pub(crate) const fn grouped(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
) -> Resource {
    Resource { group, ..core(plural, singular, kind, plural) }
}
