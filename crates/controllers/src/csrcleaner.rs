//! Deletes certificate signing requests that nobody needs any more.

use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;
use x509_parser::pem::Pem;

use crate::Context;
use crate::writes::{unless_replaced, unless_stopped};

const PERIOD: Duration = Duration::from_secs(3600);
/// How long requests stay, in seconds.
const APPROVED: i64 = 3600;
const DENIED: i64 = 3600;
const PENDING: i64 = 24 * 3600;

/// When a certificate ends, in Unix seconds; `None`: it cannot be read.
fn expires(pem: &[u8]) -> Option<i64> {
    let pem = Pem::iter_from_buffer(pem).next()?.ok()?;
    Some(pem.parse_x509().ok()?.validity().not_after.timestamp())
}

/// PURE: whether the request may go.
fn is_old(request: &CertificateSigningRequest, now: Timestamp) -> bool {
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let created = request.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let is_older = |since: Option<Timestamp>, seconds: i64| {
        since.is_some_and(|since| now.as_second().saturating_sub(since.as_second()) > seconds)
    };
    let certificate = status.and_then(|status| status.certificate.as_ref());
    let has_expired = certificate
        .and_then(|certificate| expires(&certificate.0))
        .is_some_and(|expires| expires < now.as_second());
    if has_expired {
        return true;
    }
    if conditions.is_empty() && certificate.is_none() {
        return is_older(created, PENDING);
    }
    conditions.iter().any(|condition| {
        let since = condition.last_update_time.as_ref().map(|time| time.0).or(created);
        match condition.type_.as_str() {
            "Approved" => is_older(since, APPROVED),
            "Denied" | "Failed" => is_older(since, DENIED),
            _ => false,
        }
    })
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let api: Api<CertificateSigningRequest> = Api::all(context.client.clone());
    let requests = context.informers.get::<CertificateSigningRequest>();
    if !unless_stopped(&context, requests.synced()).await {
        return;
    }
    unless_stopped(&context, async {
        let mut tick = interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            for request in requests.store().list() {
                if !is_old(&request, Timestamp::now()) {
                    continue;
                }
                let name = request.metadata.name.as_deref().unwrap_or_default();
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: request.metadata.uid.clone(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                if let Err(error) = unless_replaced(api.delete(name, &params).await) {
                    warn!(name, "cannot delete the certificate signing request: {error}");
                }
            }
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::is_old;

    #[test]
    fn csr_cleaner_takes_old_requests() {
        let old = |conditions: Value, created: &str| {
            let request = serde_json::from_value(json!({
                "metadata": {"name": "r", "creationTimestamp": created},
                "spec": {"request": "", "signerName": "s"},
                "status": {"conditions": conditions},
            }))
            .unwrap();
            is_old(&request, "2026-01-02T12:00:00Z".parse().unwrap())
        };
        let condition = |type_: &str, updated: &str| json!([{"type": type_, "status": "True", "lastUpdateTime": updated}]);
        let start = "2026-01-01T00:00:00Z";
        assert!(old(json!([]), start));
        assert!(!old(json!([]), "2026-01-02T00:00:00Z"));
        for type_ in ["Approved", "Denied", "Failed"] {
            assert!(old(condition(type_, "2026-01-02T10:00:00Z"), start), "{type_}");
            assert!(!old(condition(type_, "2026-01-02T11:30:00Z"), start), "{type_}");
        }
        assert!(!old(condition("Odd", start), start));
    }
}
