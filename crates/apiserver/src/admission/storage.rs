//! What a cluster adds to volumes and claims: a class to claims that name none, and finalizers that
//! keep both while they are used; and which claims may grow.

use serde_json::{Value, json};

use crate::api_types::Resource;
use crate::kinds::{class_of, is_default, known};
use crate::object;
use crate::registry::Registry;
use crate::schema::quantity::Quantity;
use crate::schema::value::text;
use crate::status::StatusError;

const CLAIM: &str = "PersistentVolumeClaim";
/// Holds a volume that is bound.
pub(crate) const VOLUME_PROTECTION: &str = "kubernetes.io/pv-protection";
/// Holds a claim that pods use.
pub(crate) const CLAIM_PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Holds a class of attributes that claims or volumes have.
pub(crate) const ATTRIBUTES_PROTECTION: &str = "kubernetes.io/vac-protection";

/// A resource of storage.k8s.io that this crate itself works with.
pub(crate) fn resource(plural: &str) -> Result<&'static Resource, StatusError> {
    known("storage.k8s.io", plural)
}

/// The class of claims that name none: the newest that is marked so.
pub(crate) fn default_class<'a>(classes: impl Iterator<Item = &'a Value>) -> Option<&'a str> {
    newest(classes.filter(|class| is_default(class)))
}

/// The name of the newest object, of equally old ones the first.
pub(super) fn newest<'a>(objects: impl Iterator<Item = &'a Value>) -> Option<&'a str> {
    // Whole seconds in UTC sort as text.
    let age = |object: &Value| text(&object["metadata"]["creationTimestamp"]).to_owned();
    let newest = objects
        .max_by(|a, b| age(a).cmp(&age(b)).then_with(|| object::name(b).cmp(object::name(a))));
    newest.map(object::name)
}

/// What a new object gets.
pub(crate) async fn admit_create(
    registry: &Registry,
    of: &Resource,
    object: &mut Value,
) -> Result<(), StatusError> {
    let finalizer = match of.kind {
        "PersistentVolume" => VOLUME_PROTECTION,
        CLAIM => CLAIM_PROTECTION,
        "VolumeAttributesClass" => ATTRIBUTES_PROTECTION,
        _ => return Ok(()),
    };
    protect(object, finalizer);
    if of.kind == CLAIM && class_of(object).is_none() {
        let classes = registry.list_all(resource("storageclasses")?, "").await?;
        if let Some(class) = default_class(classes.iter()) {
            object::child_mut(object, "spec").insert("storageClassName".into(), class.into());
        }
    }
    Ok(())
}

fn protect(object: &mut Value, finalizer: &str) {
    let finalizers = object::metadata_mut(object).entry("finalizers").or_insert_with(|| json!([]));
    if let Some(list) = finalizers.as_array_mut()
        && !list.iter().any(|own| own == finalizer)
    {
        list.push(finalizer.into());
    }
}

/// The class of a claim, if it allows expansion.
pub(crate) async fn expandable_class(
    registry: &Registry,
    claims: &Resource,
    subresource: &str,
    (namespace, name): (&str, &str),
) -> Result<Option<String>, StatusError> {
    if claims.kind != CLAIM || !subresource.is_empty() {
        return Ok(None);
    }
    let Some(claim) = registry.find(claims, namespace, name).await? else { return Ok(None) };
    let Some(class) = class_of(&claim).filter(|class| !class.is_empty()) else { return Ok(None) };
    let found = registry.find(resource("storageclasses")?, "", class).await?;
    Ok(found.filter(|class| class["allowVolumeExpansion"] == true).map(|_| class.to_owned()))
}

/// A claim grows once it is bound, and when its class lets it.
pub(crate) fn admit_resize(
    claims: &Resource,
    subresource: &str,
    expandable_class: Option<&str>,
    new: &Value,
    old: &Value,
) -> Result<(), StatusError> {
    if claims.kind != CLAIM || !subresource.is_empty() {
        return Ok(());
    }
    let size = |claim: &Value| {
        let size = Quantity::parse(text(&claim["spec"]["resources"]["requests"]["storage"]));
        size.map_or(0, Quantity::amount)
    };
    if size(new) <= size(old) {
        return Ok(());
    }
    let refuse = |why| Err(StatusError::forbidden(claims, object::name(old), why));
    if old["status"]["phase"] != "Bound" {
        return refuse("Only bound persistent volume claims can be expanded");
    }
    let is_of_class = |claim: &Value| class_of(claim).is_some_and(|c| Some(c) == expandable_class);
    if !is_of_class(new) || !is_of_class(old) {
        return refuse(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
        );
    }
    Ok(())
}
