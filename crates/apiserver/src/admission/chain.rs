//! What clusters configure themselves to admit requests: the parts of the chain that are data. The
//! order is upstream's (`pkg/kubeapiserver/options/plugins.go`): the plugins of this server that mutate,
//! mutating policies, mutating webhooks; then the plugins that validate, validating policies,
//! validating webhooks, and quotas last.

use std::mem;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::attributes::Attributes;
use super::policies::{self, Policies};
use super::webhooks::{Reinvocation, Webhooks};
use crate::registry::Registry;
use crate::status::StatusError;

/// The configured admission.
pub(crate) struct Chain {
    policies: Policies,
    webhooks: Webhooks,
}

/// How far the mutating part has come for one request. It runs at most twice: the second time when a
/// policy or webhook changed the object, after the plugins of this server, which see the changed object again.
#[derive(Default)]
pub(crate) struct Rounds {
    began: bool,
    policies: policies::Reinvocation,
    reinvocation: Reinvocation,
}

impl Chain {
    pub(crate) fn new(policies: Policies, webhooks: Webhooks) -> Chain {
        Chain { policies, webhooks }
    }

    /// Reads the configurations.
    pub(crate) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        self.policies.load(registry).await?;
        self.webhooks.load(registry).await
    }

    /// Follows them until `stop`.
    pub(crate) async fn run(&self, registry: &Registry, stop: CancellationToken) {
        tokio::join!(self.policies.run(registry, &stop), self.webhooks.run(registry, &stop));
    }

    /// Waits a moment until configurations that this server has written are in effect.
    pub(crate) async fn catch_up(&self, registry: &Registry) {
        self.policies.catch_up(registry).await;
        self.webhooks.catch_up(registry).await;
    }

    /// Whether anything may change such an object.
    pub(crate) fn mutates(&self, attributes: &Attributes<'_>) -> bool {
        !attributes.is_exempt()
            && (self.policies.mutates(attributes) || self.webhooks.mutates(attributes))
    }

    /// Whether anything may refuse such a request once its object is complete.
    pub(crate) fn validates(&self, attributes: &Attributes<'_>) -> bool {
        !attributes.is_exempt()
            && (self.policies.validates(attributes) || self.webhooks.validates(attributes))
    }

    /// Has the object changed (null: there is none). Returns whether it has been, and whether the plugins of this
    /// server and then this function are to be called again.
    pub(crate) async fn mutate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: &mut Value,
        old: Option<&Value>,
        rounds: &mut Rounds,
        warnings: &mut Vec<String>,
    ) -> Result<Mutated, StatusError> {
        if !self.mutates(attributes) {
            return Ok(Mutated { changed: false, again: false });
        }
        let is_second = mem::replace(&mut rounds.began, true);
        let changed = self
            .policies
            .mutate(registry, attributes, object, old, &mut rounds.policies, is_second)
            .await?;
        let reinvocation = &mut rounds.reinvocation;
        let changed = self
            .webhooks
            .mutate(
                registry,
                &self.policies,
                attributes,
                object,
                old,
                reinvocation,
                is_second,
                warnings,
            )
            .await?
            || changed;
        Ok(Mutated { changed, again: changed && !is_second })
    }

    /// Has the complete object looked at.
    pub(crate) async fn validate(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
        warnings: &mut Vec<String>,
    ) -> Result<(), StatusError> {
        if !self.validates(attributes) {
            return Ok(());
        }
        self.policies.validate(registry, attributes, object, old, warnings).await?;
        let policies = &self.policies;
        self.webhooks.validate(registry, policies, attributes, object, old, warnings).await
    }

    /// Both parts for an object that no plugin of this server looks at. Returns warnings.
    pub(crate) async fn admit(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<Vec<String>, StatusError> {
        self.catch_up(registry).await;
        let (mut rounds, mut warnings) = (Rounds::default(), Vec::new());
        while self
            .mutate(registry, attributes, object, old, &mut rounds, &mut warnings)
            .await?
            .again
        {}
        let object = Some(&*object).filter(|object| !object.is_null());
        self.validate(registry, attributes, object, old, &mut warnings).await?;
        Ok(warnings)
    }

    /// In Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        self.webhooks.metrics()
    }
}

/// What became of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mutated {
    pub(crate) changed: bool,
    pub(crate) again: bool,
}
