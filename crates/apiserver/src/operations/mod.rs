//! The verbs, apart from HTTP: what a create, an update or a delete means for each kind of object.
//! `routes` calls them for clients, `tasks` for the cluster itself.

mod binding;
mod create;
mod delete;
pub(crate) mod scale;
mod update;

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

pub(crate) use delete::DeleteOptions;
pub(crate) use update::{Change, UpdateRequest};

use crate::admission::services::ServiceAllocator;
use crate::api_types::Resource;
use crate::auth::{self, User};
use crate::authz::{Access, Authorizer, Decision};
use crate::object;
use crate::registry::{ListRequest, Registry, VersionMatch};
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::StatusError;
use crate::tokens::Tokens;

/// What the apiserver knows and does: the objects, and what goes beyond one object.
pub(crate) struct Api {
    pub(crate) registry: Registry,
    pub(crate) authorizer: Authorizer,
    pub(crate) services: ServiceAllocator,
    /// How long an event is kept.
    pub(crate) event_ttl: Duration,
    /// Where clients in the cluster reach this server.
    pub(crate) advertised: SocketAddr,
    /// Issues and verifies tokens of service accounts.
    pub(crate) tokens: Tokens,
    /// What verifies this server's certificate, in PEM.
    pub(crate) root_ca: String,
}

impl Api {
    /// Whether a caller may do something, and if not, why.
    pub(crate) async fn is_allowed(
        &self,
        access: &Access<'_>,
    ) -> Result<Result<(), String>, StatusError> {
        Ok(match self.authorizer.authorize(&self.registry, access).await {
            Decision::Allow(_) => Ok(()),
            Decision::Deny(reason) => Err(reason),
        })
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
        let request = ListRequest {
            resource,
            namespace,
            labels: LabelSelector::default(),
            fields: FieldSelector::default(),
            limit: 0,
            continue_token: "",
            version: VersionMatch::Newest,
        };
        let mut items = Vec::new();
        self.registry
            .list(&request, |object| {
                items.push(object);
                Ok(())
            })
            .await?;
        Ok(items)
    }

    /// How long the store keeps an object of this kind.
    fn ttl(&self, resource: &Resource) -> Option<Duration> {
        (resource.kind == "Event").then_some(self.event_ttl)
    }
}

/// The node that calls, if it is one: its writes are restricted.
fn calling_node(user: &User) -> Option<&str> {
    auth::node_name(user)
}

/// A body's namespace must be the path's; an absent one is filled in.
fn settle_namespace(
    resource: &Resource,
    object: &mut Value,
    namespace: &str,
) -> Result<(), StatusError> {
    match object::namespace(object) {
        "" if resource.namespaced => {
            object::metadata_mut(object).insert("namespace".into(), namespace.into());
            Ok(())
        }
        given if given == namespace => Ok(()),
        _ => Err(StatusError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        )),
    }
}
