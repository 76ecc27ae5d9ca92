//! What several controllers know of and write to pods.

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client, Error};
use longshore_informer::Store;
use serde_json::json;

use crate::writes::unless_replaced;

/// The index of pods by the name of their node.
pub(crate) const BY_NODE: &str = "node";

/// Adds the index of pods by their node.
pub(crate) fn index_by_node(pods: &Store<Pod>) {
    pods.add_index(BY_NODE, |pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        node.into_iter().filter(|name| !name.is_empty()).collect()
    });
}

/// The name of the pod's node; empty before it has one.
pub(crate) fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// The API of the pod's namespace.
pub(crate) fn api_of(client: &Client, pod: &Pod) -> Api<Pod> {
    Api::namespaced(client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default())
}

/// The condition as it is to be written: its transition time changes with its status alone; `None`:
/// it is there as it should be.
pub(crate) fn condition(
    pod: &Pod,
    type_: &str,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<PodCondition> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let old = conditions.into_iter().flatten().find(|condition| condition.type_ == type_);
    let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let observed = pod.status.as_ref().and_then(|status| status.observed_generation);
    let new = PodCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: text(reason),
        message: text(message),
        observed_generation: observed.and(pod.metadata.generation),
        last_transition_time: match old {
            Some(old) if old.status == status => old.last_transition_time.clone(),
            _ => Some(Time(now)),
        },
        last_probe_time: old.and_then(|old| old.last_probe_time.clone()),
    };
    (old != Some(&new)).then_some(new)
}

/// Deletes this pod, and no other of its name; `grace`: the period instead of the pod's own, in seconds.
pub(crate) async fn delete(client: &Client, pod: &Pod, grace: Option<u32>) -> Result<(), Error> {
    let params = DeleteParams {
        grace_period_seconds: grace,
        preconditions: Some(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    unless_replaced(api_of(client, pod).delete(name, &params).await).map(drop)
}

/// Writes a condition and, if it is given, a phase.
pub(crate) async fn patch_status(
    client: &Client,
    pod: &Pod,
    condition: Option<PodCondition>,
    phase: Option<&str>,
) -> Result<(), Error> {
    let mut status = json!({});
    if let Some(condition) = condition {
        status["conditions"] = json!([condition]);
    }
    if let Some(phase) = phase {
        status["phase"] = phase.into();
    }
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let patch = Patch::Strategic(patch);
    api_of(client, pod).patch_status(name, &PatchParams::default(), &patch).await.map(drop)
}
