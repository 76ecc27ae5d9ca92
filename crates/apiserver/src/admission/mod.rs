//! What is decided about an object beyond its own rules: whether its namespace takes it, what a
//! node may write, and what the cluster fills in (priorities, tolerations, service addresses, classes
//! of storage).
//! Called by `operations` before each write.

pub(crate) mod attributes;
pub(crate) mod certificates;
pub(crate) mod chain;
pub(crate) mod config;
pub(crate) mod creation;
pub(crate) mod event_rate_limit;
mod ingresses;
pub(crate) mod limits;
pub(crate) mod namespaces;
pub(crate) mod node_restriction;
pub(crate) mod nodes;
pub(crate) mod plugins;
pub(crate) mod pod_resize;
pub(crate) mod pod_security;
pub(crate) mod pods;
pub(crate) mod policies;
pub(crate) mod quota;
pub(crate) mod service_account;
pub(crate) mod services;
pub(crate) mod storage;
#[cfg(test)]
mod tests;
pub(crate) mod webhooks;

use longshore_gates::FeatureGates;
use serde_json::Value;

use self::pod_resize::PodNode;
use self::pod_security::{PodSecurity, Policies};
use crate::api_types::Resource;
use crate::kinds;
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
        let own = node_restriction::own_node(registry, resource, node).await?;
        node_restriction::admit_create(node, resource, object, own.as_ref())?;
        node_restriction::admit_pod_certificate(registry, resource, object).await?;
    }
    let ranges = limits::ranges(registry, resource, object::namespace(object)).await?;
    limits::set_defaults(resource, &ranges, object);
    (kinds::strategy(resource).derive)(object);
    service_account::admit_create(registry, resource, object).await?;
    pods::admit_create(registry, resource, object).await?;
    nodes::taint_not_ready(resource, object);
    ingresses::admit_create(registry, resource, object).await?;
    let name = object::name(object).to_owned();
    pods::admit_priority_class(registry, resource, "", &name, |_| Some(object)).await?;
    limits::check(resource, &ranges, object)?;
    storage::admit_create(registry, resource, object).await
}

/// The plugins that look at a new object once it is complete. Returns warnings for the client.
pub(crate) async fn validate_create(
    registry: &Registry,
    pod_security: &PodSecurity,
    user: &User,
    resource: &Resource,
    object: &Value,
) -> Result<Vec<String>, StatusError> {
    let warning = pod_security.admit_create(registry, user, resource, object).await?;
    Ok(warning.into_iter().collect())
}

/// What the plugins have to read before an update.
pub(crate) struct UpdateContext {
    /// The service account of the pod.
    account: Option<Value>,
    /// The class of the claim, if it allows expansion.
    expandable_class: Option<String>,
    /// What holds for its pods.
    policies: Option<Policies>,
    /// The LimitRanges of the namespace.
    ranges: Vec<Value>,
    /// The node of a pod that is resized.
    pod_node: Option<PodNode>,
}

impl UpdateContext {
    /// Reads it for an update of an object, or of one of its subresources.
    pub(crate) async fn read(
        registry: &Registry,
        gates: &FeatureGates,
        pod_security: &PodSecurity,
        user: &User,
        resource: &Resource,
        subresource: &str,
        key: (&str, &str),
    ) -> Result<Self, StatusError> {
        let namespace = key.0;
        Ok(Self {
            account: service_account::account_for_update(registry, resource, subresource, key)
                .await?,
            expandable_class: storage::expandable_class(registry, resource, subresource, key)
                .await?,
            policies: pod_security
                .policies_for_update(registry, user, subresource, namespace)
                .await?,
            ranges: limits::ranges_for_update(registry, resource, subresource, namespace).await?,
            pod_node: PodNode::read(registry, gates, resource, subresource, key).await?,
        })
    }

    /// The plugins that look at an updated object before its rules are checked. Takes the stored object.
    /// Returns warnings for the client.
    pub(crate) fn validate(
        &self,
        resource: &Resource,
        subresource: &str,
        new: &Value,
        old: &Value,
    ) -> Result<Option<String>, StatusError> {
        let account = self.account.as_ref();
        service_account::admit_ephemeral_containers(account, resource, subresource, new)?;
        let class = self.expandable_class.as_deref();
        storage::admit_resize(resource, subresource, class, new, old)?;
        if !object::is_deleting(old) {
            limits::check(resource, &self.ranges, new)?;
        }
        pod_security::admit_update(resource, subresource, self.policies.as_ref(), new, old)
    }
    /// The plugins that look at an updated object once its rules are checked. Takes the stored object.
    pub(crate) fn validate_complete(
        &self,
        resource: &Resource,
        new: &Value,
        old: &Value,
    ) -> Result<(), StatusError> {
        self.pod_node.as_ref().map_or(Ok(()), |node| node.admit(resource, new, old))
    }
}
