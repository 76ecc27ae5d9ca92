//! The verbs, apart from HTTP: what a create, an update or a delete means for each kind of object.
//! `routes` calls them for clients, `tasks` for the cluster itself.

mod binding;
mod create;
mod delete;
mod eviction;
mod review;
pub(crate) mod scale;
mod update;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use longshore_gates::FeatureGates;
use serde_json::Value;

pub(crate) use delete::DeleteOptions;
pub(crate) use update::{Change, UpdateRequest, check_name};

use crate::admission::attributes::{Attributes, Operation};
use crate::admission::chain::Chain;
use crate::admission::event_rate_limit::EventLimits;
use crate::admission::pod_security::PodSecurity;
use crate::admission::quota::LimitedResource;
use crate::admission::services::{Reservation, ServiceAllocator};
use crate::aggregator::Aggregator;
use crate::api_types::{Gvk, Resource};
use crate::authz::{Access, Authorizer};
use crate::conversion::WebhookConverter;
use crate::definitions::Definitions;
use crate::kinds;
use crate::managed::Conversions;
use crate::object;
use crate::registry::{Registry, Written};
use crate::status::StatusError;
use crate::tokens::Tokens;
use crate::user::{self, User};

/// What the apiserver knows and does: the objects, and what goes beyond one object.
pub(crate) struct Api {
    pub(crate) registry: Arc<Registry>,
    /// Converts custom objects for the registry.
    pub(crate) converter: Arc<WebhookConverter>,
    /// The custom kinds that are served.
    pub(crate) definitions: Arc<Definitions>,
    pub(crate) authorizer: Arc<Authorizer>,
    pub(crate) services: ServiceAllocator,
    /// Webhooks and policies.
    pub(crate) chain: Chain,
    /// Other servers.
    pub(crate) aggregator: Aggregator,
    /// How long an event is kept.
    pub(crate) event_ttl: Duration,
    /// Where clients in the cluster reach this server.
    pub(crate) advertised: SocketAddr,
    /// Feature gates.
    pub(crate) gates: FeatureGates,
    /// What pods may be, where their namespace does not say.
    pub(crate) pod_security: PodSecurity,
    /// How many events may be written.
    pub(crate) event_limits: EventLimits,
    /// What needs a quota to be used.
    pub(crate) limited_resources: Vec<LimitedResource>,
    /// Issues and verifies tokens of service accounts.
    pub(crate) tokens: Tokens,
    /// Data of the config map with which other servers verify clients as this one does.
    pub(crate) authentication_data: serde_json::Map<String, Value>,
}

impl Api {
    /// Whether a caller may do something, and if not, why.
    pub(crate) async fn is_allowed(
        &self,
        access: &Access<'_>,
    ) -> Result<Result<(), String>, StatusError> {
        self.authorizer.check(&self.registry, access).await.map(|answer| answer.map(drop))
    }

    /// Waits until the authorizer has the newest rules, where a write requires more than its own verb.
    async fn settle_rights(&self, user: &User, resource: &Resource) {
        if matches!(resource.group, "rbac.authorization.k8s.io" | "certificates.k8s.io") {
            self.authorizer.catch_up(&self.registry, user).await;
        }
    }

    /// All objects of a resource, in one namespace or (empty) in all.
    pub(crate) async fn list_all(
        &self,
        resource: &Resource,
        namespace: &str,
    ) -> Result<Vec<Value>, StatusError> {
        self.registry.list_all(resource, namespace).await
    }

    /// Has webhooks and policies look at a body that is not stored, such as a Binding. Returns it as they left
    /// it, and warnings for the client.
    #[allow(clippy::too_many_arguments)]
    pub(crate) async fn admit_body(
        &self,
        operation: Operation,
        user: &User,
        resource: &Resource,
        (subresource, kind): (&str, Gvk),
        key: (&str, &str),
        mut body: Value,
        dry_run: bool,
    ) -> Result<(Value, Vec<String>), StatusError> {
        let attributes = Attributes::new(operation, user, resource, key, dry_run);
        let attributes = attributes.of_subresource(subresource, kind);
        let warnings = self.chain.admit(&self.registry, &attributes, &mut body, None).await?;
        Ok((body, warnings))
    }

    /// Makes the conversions that an attempt to write lacked. `false`: it lacked none.
    async fn resolve(
        &self,
        resource: &Resource,
        conversions: &Conversions,
    ) -> Result<bool, StatusError> {
        let all = conversions.take_missing()?;
        let lacked_some = !all.is_empty();
        for missing in all {
            let version = missing.api_version.rsplit_once('/').map_or("", |(_, version)| version);
            let objects = missing.objects.clone();
            let converted = self.registry.all_in_version(resource, objects, version).await;
            conversions.put(missing, converted);
        }
        Ok(lacked_some)
    }

    /// The end of a write for which addresses and ports were taken.
    async fn end(&self, reservation: Reservation<'_>, written: &Result<Written, StatusError>) {
        match written {
            // Who finished a deletion releases what there was.
            Ok(written) if written.by_other => reservation.cancel(&self.registry).await,
            _ => reservation.end(&self.registry, written.as_ref().map(Written::stored)).await,
        }
    }

    /// How long the store keeps an object of this kind.
    fn ttl(&self, resource: &Resource) -> Option<Duration> {
        kinds::strategy(resource).expires.then_some(self.event_ttl)
    }
}

/// The node that calls, if it is one: its writes are restricted.
fn calling_node(user: &User) -> Option<&str> {
    user::node_name(user)
}

/// A body's namespace must be the path's; an absent one is filled in, and one of an object of the cluster is
/// taken away.
pub(crate) fn settle_namespace(
    resource: &Resource,
    object: &mut Value,
    namespace: &str,
) -> Result<(), StatusError> {
    if !resource.namespaced {
        object::metadata_mut(object).remove("namespace");
        return Ok(());
    }
    check_namespace(object, namespace)?;
    object::metadata_mut(object).insert("namespace".into(), namespace.into());
    Ok(())
}

/// A body's namespace must be the path's, or absent.
pub(crate) fn check_namespace(object: &Value, namespace: &str) -> Result<(), StatusError> {
    match object::namespace(object) {
        "" => Ok(()),
        given if given == namespace => Ok(()),
        _ => Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}
