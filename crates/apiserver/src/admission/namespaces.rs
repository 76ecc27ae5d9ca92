//! Objects are made in namespaces that exist and stay.

use serde_json::Value;

use crate::api_types::Resource;
use crate::kinds::core;
use crate::registry::Registry;
use crate::status::{Cause, StatusError};

/// The namespaces that always exist.
pub(crate) const SYSTEM: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];
/// Those of them that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Whether a namespace is being deleted.
pub(crate) fn is_terminating(namespace: &Value) -> bool {
    namespace["status"]["phase"] == "Terminating"
}

pub(crate) async fn admit_create(
    registry: &Registry,
    resource: &Resource,
    namespace: &str,
    name: &str,
) -> Result<(), StatusError> {
    if !resource.namespaced {
        return Ok(());
    }
    if !is_terminating(&registry.get(core("namespaces")?, "", namespace).await?) {
        return Ok(());
    }
    let why = format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    );
    let mut error = StatusError::forbidden(resource, name, &why);
    error.details.get_or_insert_default().causes.push(Cause {
        reason: "NamespaceTerminating",
        message: format!("namespace {namespace} is being terminated"),
        field: "metadata.namespace".into(),
    });
    Err(error)
}

pub(crate) fn admit_delete(resource: &Resource, name: &str) -> Result<(), StatusError> {
    if resource.kind == "Namespace" && IMMORTAL.contains(&name) {
        return Err(StatusError::forbidden(resource, name, "this namespace may not be deleted"));
    }
    Ok(())
}
