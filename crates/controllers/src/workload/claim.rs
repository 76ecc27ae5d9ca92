//! Ownership: a controller adopts objects without one that its selector matches, and releases its own
//! that it no longer matches.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Client;
use kube::core::{Selector, SelectorExt};
use longshore_client::object;
use serde_json::json;
use tokio::sync::OnceCell;

use super::{Error, Namespaced, api, name_of, namespace_of, patch, uid_of};
use crate::writes::{has_code, is_not_found};

/// The reference to the controlling object.
pub(crate) fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    let references = metadata.owner_references.as_ref()?;
    references.iter().find(|reference| reference.controller == Some(true))
}

/// Whether the object of that UID controls the other.
pub(crate) fn is_controlled_by(metadata: &ObjectMeta, uid: &str) -> bool {
    controller_of(metadata).is_some_and(|reference| reference.uid == uid)
}

/// The reference by which an object controls others.
pub(crate) fn controller_reference<K: Namespaced>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: <K as k8s_openapi::Resource>::API_VERSION.to_owned(),
        kind: <K as k8s_openapi::Resource>::KIND.to_owned(),
        name: name_of(owner).to_owned(),
        uid: uid_of(owner).to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// What is to be done with an object.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    Ignore,
    Adopt,
    Release,
}

fn decide(owner: &ObjectMeta, matches: bool, metadata: &ObjectMeta) -> Decision {
    let is_deleted = owner.deletion_timestamp.is_some();
    match controller_of(metadata) {
        Some(reference) if Some(&reference.uid) != owner.uid.as_ref() => Decision::Ignore,
        Some(_) if matches => Decision::Keep,
        Some(_) if is_deleted => Decision::Ignore,
        Some(_) => Decision::Release,
        None if is_deleted || !matches || metadata.deletion_timestamp.is_some() => Decision::Ignore,
        None if metadata.namespace != owner.namespace => Decision::Ignore,
        None => Decision::Adopt,
    }
}

/// Those of the objects that the owner controls, after it has adopted and released some. `accepts`
/// is a further condition of a match. Adopted objects get the finalizer, and released ones lose it.
///
/// # Errors
/// The first request that failed; all were tried.
pub(crate) async fn claim<K: Namespaced, T: Namespaced>(
    client: &Client,
    owner: &K,
    selector: &Selector,
    objects: Vec<Arc<T>>,
    accepts: impl Fn(&T) -> bool,
    finalizer: Option<&str>,
) -> Result<Vec<Arc<T>>, Error> {
    let owner_metadata = k8s_openapi::Metadata::metadata(owner);
    // A stale store must not adopt: the owner is read once before the first adoption.
    let may_adopt = OnceCell::new();
    let (mut claimed, mut failure) = (Vec::new(), None);
    for one in objects {
        let metadata = k8s_openapi::Metadata::metadata(&*one);
        let no_labels = Default::default();
        let matches =
            selector.matches(metadata.labels.as_ref().unwrap_or(&no_labels)) && accepts(&one);
        let done = match decide(owner_metadata, matches, metadata) {
            Decision::Keep => Ok(true),
            Decision::Ignore => Ok(false),
            Decision::Release => {
                let change = json!({"metadata": {
                    "uid": metadata.uid,
                    "ownerReferences": [{"$patch": "delete", "uid": owner_metadata.uid}],
                    "$deleteFromPrimitiveList/finalizers": finalizer.map(|name| [name]),
                }});
                match patch::<T>(client, metadata, &without_nulls(change)).await {
                    // Invalid: the object of that name is another by now
                    Err(error) if !is_not_found(&error) && !has_code(&error, 422) => {
                        Err(error.into())
                    }
                    _ => Ok(false),
                }
            }
            Decision::Adopt => match may_adopt.get_or_try_init(|| recheck(client, owner)).await {
                Err(error) => Err(error),
                Ok(()) => {
                    let change = json!({"metadata": {
                        "uid": metadata.uid,
                        "ownerReferences": [controller_reference(owner)],
                        "finalizers": finalizer.map(|name| [name]),
                    }});
                    match patch::<T>(client, metadata, &without_nulls(change)).await {
                        Ok(_) => Ok(true),
                        Err(error) if is_not_found(&error) => Ok(false),
                        Err(error) => Err(error.into()),
                    }
                }
            },
        };
        match done {
            Ok(true) => claimed.push(one),
            Ok(false) => {}
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(claimed), Err)
}

fn without_nulls(mut patch: serde_json::Value) -> serde_json::Value {
    if let Some(metadata) = patch["metadata"].as_object_mut() {
        metadata.retain(|_, value| !value.is_null());
    }
    patch
}

/// Whether the owner, as the apiserver has it, is still the same and may adopt.
async fn recheck<K: Namespaced>(client: &Client, owner: &K) -> Result<(), Error> {
    let kind = <K as k8s_openapi::Resource>::KIND;
    let (namespace, name) = (namespace_of(owner), name_of(owner));
    let fresh = object(api::<K>(client, namespace).get(name)).await?;
    if uid_of(&fresh) != uid_of(owner) {
        return Err(Error::Invalid(format!(
            "original {kind} {namespace}/{name} is gone: got uid {}, wanted {}",
            uid_of(&fresh),
            uid_of(owner)
        )));
    }
    if let Some(time) = &k8s_openapi::Metadata::metadata(&fresh).deletion_timestamp {
        return Err(Error::Invalid(format!(
            "{namespace}/{name} has just been deleted at {}",
            time.0
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_decides_by_owner_labels_and_deletion() {
        let owner = ObjectMeta { uid: Some("me".into()), ..ObjectMeta::default() };
        let gone = ObjectMeta { deletion_timestamp: Some(super::super::now()), ..owner.clone() };
        let of = |uid: Option<&str>, deleted: bool| ObjectMeta {
            owner_references: uid.map(|uid| {
                vec![OwnerReference {
                    uid: uid.into(),
                    controller: Some(true),
                    ..OwnerReference::default()
                }]
            }),
            deletion_timestamp: deleted.then(super::super::now),
            ..ObjectMeta::default()
        };
        for (owner, matches, object, expected) in [
            (&owner, true, of(Some("me"), false), Decision::Keep),
            (&owner, true, of(Some("me"), true), Decision::Keep),
            (&owner, false, of(Some("me"), false), Decision::Release),
            (&gone, false, of(Some("me"), false), Decision::Ignore),
            (&gone, true, of(Some("me"), false), Decision::Keep),
            (&owner, true, of(Some("other"), false), Decision::Ignore),
            (&owner, true, of(None, false), Decision::Adopt),
            (&owner, true, of(None, true), Decision::Ignore),
            (&owner, false, of(None, false), Decision::Ignore),
            (&gone, true, of(None, false), Decision::Ignore),
        ] {
            assert_eq!(decide(owner, matches, &object), expected, "{matches} {object:?}");
        }
    }
}
