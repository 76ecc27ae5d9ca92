//! Writes one status to the apiserver, and deletes the object of a terminated pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use longshore_client::Item;
use longshore_pod::spec;
use serde_json::Value;
use tracing::{debug, warn};

use super::{Job, Outcome, patch, version};

/// Timeout of a write.
const WRITE_DEADLINE: Duration = Duration::from_secs(30);

pub(super) async fn write(client: kube::Client, job: &Job) -> Outcome {
    match tokio::time::timeout(WRITE_DEADLINE, write_once(client, job)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(error)) => {
            warn!(pod = spec::name(&job.pod), uid = job.uid, %error, "status not written, trying again");
            Outcome::Failed
        }
        Err(_) => {
            warn!(
                pod = spec::name(&job.pod),
                uid = job.uid,
                "status not written in time, trying again"
            );
            Outcome::Failed
        }
    }
}

async fn write_once(client: kube::Client, job: &Job) -> Result<Outcome, kube::Error> {
    let pods: Api<Item<Pod>> = Api::namespaced(client, spec::namespace(&job.pod));
    let name = spec::name(&job.pod);
    let mut taken = 0;
    if let Some(body) = patch::between(&job.object_uid, &job.written, &job.wanted) {
        let written = match patch_status(&pods, job, body.clone()).await {
            // One invalid field must not block the others, nor the deletion.
            Err(error) if is_invalid(&error) && is_there(&pods, job).await? => {
                write_in_parts(&pods, job, body).await
            }
            written => written,
        };
        match written {
            Ok(version) => taken = version,
            Err(error) => return gone_or_error(&pods, job, error).await,
        }
    }
    if job.finish && !spec::is_static(&job.pod) {
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: Some(job.object_uid.clone()),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match pods.delete(name, &params).await {
            Ok(_) => debug!(pod = name, uid = job.uid, "pod deleted"),
            Err(error) => return gone_or_error(&pods, job, error).await,
        }
    }
    Ok(Outcome::Taken { version: taken })
}

/// Returns the version of the object.
async fn patch_status(pods: &Api<Item<Pod>>, job: &Job, body: Value) -> Result<u64, kube::Error> {
    let name = spec::name(&job.pod);
    debug!(pod = name, uid = job.uid, patch = %body, "status changed");
    let pod = pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(body)).await?;
    debug!(pod = name, uid = job.uid, phase = job.wanted.phase, "status written");
    Ok(version(&pod.known()))
}

/// Writes the fields one by one after the whole status was rejected. Invalid ones are not
/// retried before the status or the object changes.
async fn write_in_parts(pods: &Api<Item<Pod>>, job: &Job, body: Value) -> Result<u64, kube::Error> {
    let mut taken = 0;
    for (field, part) in patch::parts(&body) {
        match patch_status(pods, job, part).await {
            Ok(version) => taken = version,
            Err(error) if is_invalid(&error) => {
                let (pod, uid) = (spec::name(&job.pod), &job.uid);
                warn!(pod, uid, field, %error, "the apiserver refuses a part of the status");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(taken)
}

/// Whether a retry would be rejected again.
fn is_invalid(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [400, 422].contains(&status.code))
}

/// Whether the object still exists.
async fn is_there(pods: &Api<Item<Pod>>, job: &Job) -> Result<bool, kube::Error> {
    let there = pods.get_opt(spec::name(&job.pod)).await?;
    Ok(there.is_some_and(|pod| pod.meta().uid.as_deref() == Some(&*job.object_uid)))
}

/// Errors because the object was deleted or replaced are not failures.
async fn gone_or_error(
    pods: &Api<Item<Pod>>,
    job: &Job,
    error: kube::Error,
) -> Result<Outcome, kube::Error> {
    let refused =
        matches!(&error, kube::Error::Api(status) if [404, 409, 422].contains(&status.code));
    if !refused {
        return Err(error);
    }
    match is_there(pods, job).await? {
        true => Err(error),
        false => Ok(Outcome::Gone),
    }
}
