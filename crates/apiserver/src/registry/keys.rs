//! Where objects lie in the store: `/registry/<storage>[/<namespace>]/<name>`, as etcd holds them
//! for every Kubernetes apiserver.

use crate::api_types::Resource;
use crate::status::StatusError;

/// The prefix of all objects of a resource, or of those in one namespace.
pub(super) fn prefix(resource: &Resource, namespace: &str) -> Result<String, StatusError> {
    match namespace {
        "" => Ok(format!("/registry/{}/", resource.storage)),
        namespace => {
            check("namespace", namespace)?;
            Ok(format!("/registry/{}/{namespace}/", resource.storage))
        }
    }
}

/// The key of one object.
pub(super) fn object(
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<String, StatusError> {
    check("name", name)?;
    match (resource.namespaced, namespace) {
        (false, _) => Ok(format!("/registry/{}/{name}", resource.storage)),
        (true, "") => Err(StatusError::bad_request(
            "an empty namespace may not be set when a resource name is provided",
        )),
        (true, _) => Ok(prefix(resource, namespace)? + name),
    }
}

/// Whether a name can be one segment of a path and of a key.
pub(crate) fn is_path_segment(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '%', '\0'])
}

fn check(what: &str, name: &str) -> Result<(), StatusError> {
    if is_path_segment(name) {
        return Ok(());
    }
    Err(StatusError::bad_request(format!(
        "{what} parameter invalid: {name:?}: must not be empty, '.' or '..', nor contain '/', '%' or NUL"
    )))
}
