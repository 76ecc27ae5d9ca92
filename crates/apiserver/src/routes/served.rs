//! The served set of paths: which resources are found in which scope, which subresources they have,
//! and which methods each path takes. Every request for a resource passes here before it is
//! authorized, so a path that leads nowhere grants nothing (CVE-2019-11247: a resource of the
//! cluster under `namespaces/NAME/` would be judged by what is granted in that namespace).
//!
//! The rules are those by which upstream installs its handlers
//! (`apiserver/pkg/endpoints/installer.go`); the table of resources is the only data.

use hyper::Method;

use super::request::{ResourcePath, Scope};
use crate::api_types::{Resource, Subresource};
use crate::definitions::Snapshot;
use crate::kinds;
use crate::status::StatusError;

/// What a path leads to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) resource: &'static Resource,
    pub(super) subresource: Option<&'static Subresource>,
}

/// The verbs of the collection in one namespace, or of a resource of the cluster.
const COLLECTION: &[&str] = &["create", "deletecollection", "list"];
/// The verbs of the collection across all namespaces.
const EVERYWHERE: &[&str] = &["list"];
/// The verbs of one object.
const ITEM: &[&str] = &["delete", "get", "patch", "update"];

/// What is behind a path: 404 if nothing is, 405 if something is that does not take this method.
pub(super) fn route(
    snapshot: &Snapshot,
    path: &ResourcePath,
    method: &Method,
) -> Result<Route, StatusError> {
    let no_such_path = || match is_built_in(&path.group) {
        true => StatusError::no_such_path(),
        false => StatusError::no_such_page(),
    };
    let resource =
        snapshot.lookup(&path.group, &path.version, &path.resource).ok_or_else(no_such_path)?;
    let subresource = match path.subresource.as_str() {
        "" => None,
        name => Some(resource.subresource(name).ok_or_else(|| match resource.custom {
            None => StatusError::no_such_path(),
            Some(_) => StatusError::not_found(resource, &path.name),
        })?),
    };
    let route = Route { resource, subresource };
    let verbs = route.verbs(path);
    if verbs.is_empty() {
        return Err(no_such_path());
    }
    let is_proxy = subresource.is_some_and(|subresource| subresource.name == "proxy");
    match wanted(method, path) {
        Some(verb) if verbs.contains(&verb) => Ok(route),
        // Any method is handed on to what is behind a proxy.
        None if is_proxy && matches!(*method, Method::HEAD | Method::OPTIONS) => Ok(route),
        // Nothing but lists is there across namespaces.
        _ if resource.custom.is_some() && resource.namespaced && path.scope == Scope::Cluster => {
            Err(no_such_path())
        }
        Some(verb) if resource.custom.is_some() => {
            Err(StatusError::verb_not_allowed(resource, verb))
        }
        _ => Err(StatusError::method_not_allowed()),
    }
}

/// Whether all versions of a group are of this server's own: what it lacks is named otherwise then.
pub(super) fn is_built_in(group: &str) -> bool {
    kinds::resources().any(|resource| resource.group == group)
}

impl Route {
    /// The verbs that this path takes, with `list` for lists and watches alike; none if there is no such path.
    fn verbs(&self, path: &ResourcePath) -> Vec<&'static str> {
        let is_scoped = self.resource.namespaced == (path.scope == Scope::Namespace);
        let of_resource = |verbs: &[&'static str]| {
            verbs.iter().copied().filter(|verb| self.resource.allows(verb)).collect()
        };
        match (self.subresource, path.name.is_empty()) {
            (Some(_), _) if path.is_watch => Vec::new(),
            (Some(subresource), false) if is_scoped => subresource.verbs.to_vec(),
            (Some(_), _) => Vec::new(),
            (None, _) if path.is_watch => {
                match is_scoped || path.scope == Scope::Cluster && path.name.is_empty() {
                    true => of_resource(&["watch"]),
                    false => Vec::new(),
                }
            }
            (None, false) if is_scoped => of_resource(ITEM),
            (None, true) if is_scoped => of_resource(COLLECTION),
            (None, true) if path.scope == Scope::Cluster => of_resource(EVERYWHERE),
            (None, _) => Vec::new(),
        }
    }
}

/// The verb of a method on such a path; `None` for methods without one.
fn wanted(method: &Method, path: &ResourcePath) -> Option<&'static str> {
    match (method, path.name.is_empty()) {
        (&Method::GET, _) if path.is_watch => Some("watch"),
        _ if path.is_watch => None,
        (&Method::GET, true) => Some("list"),
        (&Method::GET, false) => Some("get"),
        (&Method::POST, _) => Some("create"),
        (&Method::PUT, _) => Some("update"),
        (&Method::PATCH, _) => Some("patch"),
        (&Method::DELETE, true) => Some("deletecollection"),
        (&Method::DELETE, false) => Some("delete"),
        _ => None,
    }
}
