//! What is decided about an object beyond its own rules: whether its namespace takes it, what a
//! node may write, and what the cluster fills in (priorities, tolerations, service addresses, classes
//! of storage).
//! Called by `operations` before each write.

pub(crate) mod certificates;
mod ingresses;
pub(crate) mod limits;
pub(crate) mod namespaces;
pub(crate) mod node_restriction;
pub(crate) mod nodes;
pub(crate) mod plugins;
pub(crate) mod pod_security;
pub(crate) mod pods;
pub(crate) mod quota;
mod resources;
pub(crate) mod service_account;
pub(crate) mod services;
pub(crate) mod storage;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::api_types::Resource;
use crate::kinds::{self, core};
use crate::object;
use crate::registry::Registry;
use crate::status::StatusError;
use crate::user::{User, node_name};

/// The plugins that change or refuse a new object before its rules are checked, in upstream's order.
pub(crate) async fn mutate_create(
    registry: &Registry,
    user: &User,
    resource: &'static Resource,
    object: &mut Value,
) -> Result<(), StatusError> {
    if let Some(node) = node_name(user) {
        let own = match resource.kind {
            "Pod" => registry.find(core("nodes")?, "", node).await?,
            _ => None,
        };
        node_restriction::admit_create(node, resource, object, own.as_ref())?;
    }
    let ranges = match limits::applies(resource) {
        true => limits::ranges(registry, object::namespace(object)).await?,
        false => Vec::new(),
    };
    match resource.kind {
        "Pod" => {
            limits::set_defaults(&ranges, object);
            kinds::pod::set_qos(object);
            service_account::admit_create(registry, resource, object).await?;
            pods::admit_create(registry, resource, object).await?;
        }
        "Node" => nodes::taint_not_ready(object),
        "Ingress" => ingresses::admit_create(registry, object).await?,
        "PriorityClass" => {
            let name = object::name(object);
            pods::admit_priority_class(registry, resource, name, Some(object)).await?;
        }
        _ => {}
    }
    limits::check(resource, &ranges, object)?;
    storage::admit_create(registry, resource.kind, object).await
}

/// The plugins that look at a new object once it is complete. Returns warnings for the client.
pub(crate) async fn validate_create(
    registry: &Registry,
    resource: &Resource,
    object: &Value,
) -> Result<Vec<String>, StatusError> {
    let warning = match resource.kind {
        "Namespace" => {
            pod_security::check_namespace(resource, object, None)?;
            None
        }
        "Pod" => pod_security::admit_pod(registry, resource, object).await?,
        _ if resource.group == "admissionregistration.k8s.io" => {
            Some(format!("{}: it is stored, and has no effect on this server", resource.kind))
        }
        _ if resource.namespaced => pod_security::warn_template(registry, object).await?,
        _ => None,
    };
    Ok(warning.into_iter().collect())
}
