//! What the controllers of workloads share: pods and their states, ownership, writes with events.

mod claim;
mod error;
mod hash;
mod owner;
mod pod_control;
mod pods;
mod rank;
mod revision;
mod scale;

pub(crate) use self::claim::{claim, controller_of, controller_reference, is_controlled_by};
pub(crate) use self::error::Error;
pub(crate) use self::hash::{data_hash, revision_data, template_hash};
pub(crate) use self::owner::{
    CONTROLLER_INDEX, Owners, index_by_controller, owned, owned_or_orphans,
};
pub(crate) use self::pod_control::{PodControl, new_pod};
pub(crate) use self::pods::{
    is_active, is_available, is_finished, is_ready, is_terminating, next_availability, phase,
    pod_condition, ready_since,
};
pub(crate) use self::rank::{age_ratios, first_to_delete, newest_first};
pub(crate) use self::revision::{
    Counts, Current, HASH_LABEL, HashOf, Revisions, revision_hash, template_of,
};
pub(crate) use self::scale::{Rounding, scaled};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::{NamespaceResourceScope, Selector};
use kube::{Api, Client};
use longshore_client::{Item, object};
use longshore_informer::Object;
use serde_json::Value;

/// A kind of objects in namespaces.
pub(crate) trait Namespaced:
    Object + k8s_openapi::Resource + kube::Resource<Scope = NamespaceResourceScope>
{
}

impl<K> Namespaced for K where
    K: Object + k8s_openapi::Resource + kube::Resource<Scope = NamespaceResourceScope>
{
}

/// The API of a kind in a namespace.
pub(crate) fn api<K: Namespaced>(client: &Client, namespace: &str) -> Api<Item<K>> {
    Api::namespaced(client.clone(), namespace)
}

/// The namespace of an object.
pub(crate) fn namespace_of<K: Object>(object: &K) -> &str {
    k8s_openapi::Metadata::metadata(object).namespace.as_deref().unwrap_or_default()
}

/// The name of an object.
pub(crate) fn name_of<K: Object>(object: &K) -> &str {
    k8s_openapi::Metadata::metadata(object).name.as_deref().unwrap_or_default()
}

/// The UID of an object.
pub(crate) fn uid_of<K: Object>(object: &K) -> &str {
    k8s_openapi::Metadata::metadata(object).uid.as_deref().unwrap_or_default()
}

/// Creates an object.
pub(crate) async fn create<K: Namespaced>(client: &Client, new: &K) -> kube::Result<K> {
    let api = api::<K>(client, namespace_of(new));
    object(api.create(&PostParams::default(), &Item::from(new.clone()))).await
}

/// Replaces an object of the same version.
pub(crate) async fn replace<K: Namespaced>(client: &Client, new: &K) -> kube::Result<K> {
    let api = api::<K>(client, namespace_of(new));
    object(api.replace(name_of(new), &PostParams::default(), &Item::from(new.clone()))).await
}

/// Replaces the status of an object of the same version.
pub(crate) async fn replace_status<K: Namespaced>(client: &Client, new: &K) -> kube::Result<K> {
    let api = api::<K>(client, namespace_of(new));
    object(api.replace_status(name_of(new), &PostParams::default(), &Item::from(new.clone()))).await
}

/// Patches an object with a strategic merge patch.
pub(crate) async fn patch<K: Namespaced>(
    client: &Client,
    metadata: &ObjectMeta,
    patch: &Value,
) -> kube::Result<K> {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let name = metadata.name.as_deref().unwrap_or_default();
    let patch = Patch::Strategic(patch);
    object(api::<K>(client, namespace).patch(name, &PatchParams::default(), &patch)).await
}

/// The selector of an object, or why it is none.
pub(crate) fn selector(selector: Option<&LabelSelector>) -> Result<Selector, Error> {
    // what has no selector selects nothing: the API requires one
    let selector = selector.cloned().ok_or_else(|| Error::invalid("it has no selector"))?;
    Selector::try_from(selector)
        .map_err(|error| Error::Invalid(format!("invalid selector: {error}")))
}

/// The current time, in the API's whole seconds.
pub(crate) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// A number of the API as a count: what is absent or negative is none.
pub(crate) fn count(number: Option<i32>) -> isize {
    isize::try_from(number.unwrap_or_default().max(0)).unwrap_or_default()
}

/// A count as a number of the API.
pub(crate) fn number(count: impl TryInto<i32>) -> i32 {
    count.try_into().unwrap_or(i32::MAX)
}

/// A count of items.
pub(crate) fn length<T>(items: &[T]) -> isize {
    isize::try_from(items.len()).unwrap_or(isize::MAX)
}

/// A non-negative count as an index or number of items.
pub(crate) fn size(count: isize) -> usize {
    usize::try_from(count).unwrap_or_default()
}
