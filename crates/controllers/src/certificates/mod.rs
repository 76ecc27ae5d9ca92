//! Certificate signing requests: those of nodes are approved, approved ones are signed with the CA of
//! their signer.

pub(crate) mod approving;
mod node_names;
pub(crate) mod signing;

use std::time::Duration;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::PostParams;
use longshore_csr::{Request, Signer};
use longshore_informer::{Event, Informer, Retries, SyncError, WorkQueue, key_of};
use serde_json::{Value, json};

use crate::Context;
use crate::signer_files::SignerError;
use crate::writes::{is_conflict, unless_gone};

const APPROVED: &str = "Approved";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";
/// The pauses before a request is tried again.
const RETRIES: Retries = Retries {
    first: Duration::from_millis(200),
    longest: Duration::from_secs(1000),
    limits_rate: true,
};
/// Workers of each controller, as upstream has them.
const WORKERS: usize = 5;

/// Why a request was not handled; it is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The apiserver did not do it.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The files of the signer.
    #[error(transparent)]
    Signer(#[from] SignerError),
}

impl SyncError for Error {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(error) if error.is_conflict())
    }
}

/// The informer of requests, whose names go to the queue when they change.
fn requests(context: &Context, queue: &WorkQueue<String>) -> Informer<CertificateSigningRequest> {
    let requests = context.informers.get::<CertificateSigningRequest>();
    requests.subscribe({
        let queue = queue.clone();
        move |event: &Event<CertificateSigningRequest>| {
            if !matches!(event, Event::Deleted(_)) {
                queue.add(key_of(&**event.latest()));
            }
        }
    });
    requests
}

fn has_condition(request: &CertificateSigningRequest, kind: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_deref());
    conditions.unwrap_or_default().iter().any(|condition| condition.type_ == kind)
}

fn has_certificate(request: &CertificateSigningRequest) -> bool {
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    certificate.is_some_and(|certificate| !certificate.0.is_empty())
}

/// What the request asks for, of a signer of the cluster's own. Others are not ours.
fn wanted(request: &CertificateSigningRequest) -> Option<(Signer, Request)> {
    let signer = Signer::of(&request.spec.signer_name)?;
    Some((signer, Request::from_pem(&request.spec.request.0).ok()?))
}

fn usages(request: &CertificateSigningRequest) -> Vec<&str> {
    request.spec.usages.iter().flatten().map(String::as_str).collect()
}

/// The conditions of the request with one more.
fn with_condition(
    request: &CertificateSigningRequest,
    kind: &str,
    reason: &str,
    message: &str,
) -> Value {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.clone());
    let mut conditions = conditions.unwrap_or_default();
    let now = Time(Timestamp::now());
    conditions.push(CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(now.clone()),
        last_transition_time: Some(now),
    });
    json!({"conditions": conditions})
}

/// Changes a part of the request's status, unless the request was changed meanwhile: then the informer
/// shows it again.
async fn amend(
    api: &Api<CertificateSigningRequest>,
    request: &CertificateSigningRequest,
    subresource: &str,
    status: Value,
) -> Result<(), Error> {
    let mut new = json!(request);
    for (field, value) in status.as_object().into_iter().flatten() {
        new["status"][field] = value.clone();
    }
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let params = PostParams::default();
    // replaced, not patched: that is what the controller's role lets it
    match api.replace_subresource(subresource, name, &params, &new).await {
        Err(error) if is_conflict(&error) => Ok(()),
        written => Ok(unless_gone(written).map(drop)?),
    }
}
