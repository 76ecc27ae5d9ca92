//! The status of validating policies: warnings of expressions that do not fit the types of the objects that
//! they are about. Each copy of the apiserver follows the store, and what they write is the same.

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::keep;
use crate::admission::policies::type_warnings;
use crate::api_types::Resource;
use crate::kinds::known;
use crate::object;
use crate::offload::{self, LARGE};
use crate::operations::Api;
use crate::registry::Stored;
use crate::status::StatusError;

/// Follows the store until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    keep(stop, "cannot check the types of policies", || follow(api)).await;
}

async fn follow(api: &Api) -> Result<(), StatusError> {
    let policies = known("admissionregistration.k8s.io", "validatingadmissionpolicies")?;
    // Subscribed before the list, so that no change in between is missed.
    let after = api.registry.store().revision().await.map_err(crate::registry::refusal)?;
    let mut changes = api.registry.feeds().subscribe(policies, after).await?;
    for policy in api.list_all(policies, "").await? {
        check(api, policies, &policy).await?;
    }
    while let Some(change) = changes.next().await? {
        if let Some(policy) = change.current.as_ref().and_then(Stored::value) {
            check(api, policies, policy).await?;
        }
    }
    Ok(())
}

/// Whether the status is of an earlier generation.
fn is_due(policy: &Value) -> bool {
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    number(&policy["metadata"]["generation"]) > number(&policy["status"]["observedGeneration"])
}

async fn check(api: &Api, policies: &Resource, policy: &Value) -> Result<(), StatusError> {
    if !is_due(policy) {
        return Ok(());
    }
    let warnings: Vec<Value> = offload::run(LARGE, || {
        let warnings = type_warnings(policy, &api.definitions.snapshot());
        let shown = |field, text| json!({"fieldRef": field, "warning": text});
        warnings.into_iter().map(|warning| shown(warning.field, warning.text)).collect()
    });
    let generation = &policy["metadata"]["generation"];
    let written = api
        .amend(policies, "", object::name(policy), |current| {
            if current["metadata"]["generation"] == *generation && is_due(current) {
                let status = object::child_mut(current, "status");
                status.insert("observedGeneration".into(), generation.clone());
                let checked = match warnings.is_empty() {
                    true => json!({}),
                    false => json!({"expressionWarnings": warnings}),
                };
                status.insert("typeChecking".into(), checked);
            }
            Ok(())
        })
        .await;
    match written {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}
