//! Deletes requests of pods for certificates that have been there for too long, answered or not.

use std::time::Duration;

use k8s_openapi::api::certificates::v1beta1::PodCertificateRequest;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Preconditions};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use crate::Context;
use crate::workload::{name_of, namespace_of, uid_of};
use crate::writes::{unless_replaced, unless_stopped};

const PERIOD: Duration = Duration::from_secs(300);
/// How long requests stay, in seconds.
const LIFETIME: i64 = 15 * 60;

/// PURE: whether the request may go.
fn is_old(request: &PodCertificateRequest, now: Timestamp) -> bool {
    let created = request.metadata.creation_timestamp.as_ref().map(|time| time.0);
    created.is_some_and(|at| now.as_second().saturating_sub(at.as_second()) >= LIFETIME)
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    unless_stopped(&context, async {
        let mut tick = interval(PERIOD);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = clean(&context).await {
                warn!("cannot clean PodCertificateRequests: {error}");
            }
        }
    })
    .await;
}

async fn clean(context: &Context) -> Result<(), kube::Error> {
    let all: Api<PodCertificateRequest> = Api::all(context.client.clone());
    let now = Timestamp::now();
    for request in all.list(&ListParams::default()).await?.items {
        if !is_old(&request, now) {
            continue;
        }
        let (namespace, name) = (namespace_of(&request), name_of(&request));
        let api: Api<PodCertificateRequest> = Api::namespaced(context.client.clone(), namespace);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(uid_of(&request).to_owned()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        if let Err(error) = unless_replaced(api.delete(name, &params).await) {
            warn!(namespace, name, "cannot delete the PodCertificateRequest: {error}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn pod_certificate_requests_go_after_a_quarter_of_an_hour() {
        let request = serde_json::from_value(json!({
            "metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"maxExpirationSeconds": 3600, "nodeName": "n", "nodeUID": "u", "podName": "p",
                "podUID": "u", "serviceAccountName": "s", "serviceAccountUID": "u",
                "signerName": "example.com/s", "proofOfPossession": "", "pkixPublicKey": ""},
        }))
        .unwrap();
        for (now, expected) in [("2026-01-01T00:14:59Z", false), ("2026-01-01T00:15:00Z", true)] {
            assert_eq!(super::is_old(&request, now.parse().unwrap()), expected, "{now}");
        }
    }
}
