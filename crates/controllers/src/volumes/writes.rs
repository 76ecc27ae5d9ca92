//! Writes of the version that was decided about. What was written is in the store at once.

use kube::api::PostParams;
use kube::{Api, Client};
use longshore_client::{Item, object};
use longshore_informer::{Informer, Object};

use crate::workload::{name_of, namespace_of};

/// A kind that is written here.
pub(super) trait Written: Object + k8s_openapi::Resource + Sized {
    /// The API of an object: of its namespace, or of the cluster.
    fn api(client: &Client, namespace: &str) -> Api<Item<Self>>;
}

macro_rules! written {
    ($($kind:path => |$client:ident, $namespace:tt| $api:expr;)*) => {
        $(impl Written for $kind {
            fn api($client: &Client, $namespace: &str) -> Api<Item<Self>> {
                $api
            }
        })*
    };
}

written! {
    k8s_openapi::api::core::v1::PersistentVolume => |client, _| Api::all(client.clone());
    k8s_openapi::api::core::v1::PersistentVolumeClaim =>
        |client, namespace| Api::namespaced(client.clone(), namespace);
    k8s_openapi::api::storage::v1::VolumeAttributesClass => |client, _| Api::all(client.clone());
}

/// Replaces an object of the same version.
pub(super) async fn replace<K: Written>(
    client: &Client,
    informer: &Informer<K>,
    new: &K,
) -> kube::Result<K> {
    let api = K::api(client, namespace_of(new));
    let params = PostParams::default();
    let written = object(api.replace(name_of(new), &params, &Item::from(new.clone()))).await?;
    informer.observe(written.clone());
    Ok(written)
}

/// Replaces the status of an object of the same version.
pub(super) async fn replace_status<K: Written>(
    client: &Client,
    informer: &Informer<K>,
    new: &K,
) -> kube::Result<K> {
    let api = K::api(client, namespace_of(new));
    let (params, item) = (PostParams::default(), Item::from(new.clone()));
    let written = object(api.replace_status(name_of(new), &params, &item)).await?;
    informer.observe(written.clone());
    Ok(written)
}

/// Changes the finalizers of an object so that it has that one, or not.
pub(super) async fn protect<K: Written>(
    client: &Client,
    informer: &Informer<K>,
    object: &K,
    finalizer: &str,
    is_wanted: bool,
) -> kube::Result<()> {
    let mut new = object.clone();
    let finalizers = new.metadata_mut().finalizers.get_or_insert_default();
    finalizers.retain(|own| own != finalizer);
    if is_wanted {
        finalizers.push(finalizer.to_owned());
    }
    if new.metadata().finalizers.as_ref().is_some_and(Vec::is_empty) {
        new.metadata_mut().finalizers = None;
    }
    replace(client, informer, &new).await.map(drop)
}

/// Whether an object is to get the finalizer (`Some(true)`), or to lose it unless it is used
/// (`Some(false)`).
pub(super) fn protection<K: Object>(object: &K, finalizer: &str) -> Option<bool> {
    let finalizers = object.metadata().finalizers.as_deref().unwrap_or_default();
    let has_it = finalizers.iter().any(|own| own == finalizer);
    let is_deleting = object.metadata().deletion_timestamp.is_some();
    (has_it == is_deleting).then_some(!is_deleting)
}
