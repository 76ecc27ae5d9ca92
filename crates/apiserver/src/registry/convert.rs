//! Objects of custom kinds, from one version to another. Where a definition has no webhook that is a
//! matter of labels; a webhook is called, and what it makes of an object is what is read and stored.

use std::sync::Arc;

#[cfg(test)]
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use super::{Registry, Stored};
use crate::api_types::{ConversionWebhook, Definition, Resource};
use crate::kinds::{self, custom};
use crate::offload;
use crate::schema::value::{size, text};
use crate::status::StatusError;

/// Has webhooks convert objects.
pub(crate) trait Converter: Send + Sync {
    /// Objects of one definition, none of which has the version `api_version`, in that version and in the
    /// same order. The error is the client's.
    fn convert<'a>(
        &'a self,
        registry: &'a Registry,
        webhook: &'a ConversionWebhook,
        objects: Vec<Value>,
        api_version: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, StatusError>>;
}

/// Calls no webhooks.
#[cfg(test)]
pub(super) struct NoConverter;

#[cfg(test)]
impl Converter for NoConverter {
    fn convert<'a>(
        &'a self,
        _: &'a Registry,
        webhook: &'a ConversionWebhook,
        _: Vec<Value>,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, StatusError>> {
        let why = format!("the webhook of {} cannot be called", webhook.definition);
        async { Err(StatusError::internal_plain(why)) }.boxed()
    }
}

impl Registry {
    /// A stored object as a resource shows it.
    pub(super) async fn shown(
        &self,
        resource: &Resource,
        stored: Value,
    ) -> Result<Value, StatusError> {
        if !resource.has_webhook() {
            return Ok(kinds::from_storage(resource, stored));
        }
        let stored = self.in_version(resource, stored, resource.version).await?;
        Ok(kinds::from_storage(resource, stored))
    }

    /// An object as it is stored.
    pub(super) async fn to_storage(
        &self,
        resource: &Resource,
        object: Value,
    ) -> Result<Value, StatusError> {
        let Some(definition) = resource.definition().filter(|of| of.webhook().is_some()) else {
            return Ok(kinds::to_storage(resource, object));
        };
        self.in_version(resource, object, &definition.stored).await
    }

    /// An object of one resource as another that has the same objects shows it.
    pub(crate) async fn as_other(
        &self,
        from: &Resource,
        to: &Resource,
        object: Value,
    ) -> Result<Value, StatusError> {
        match from.custom {
            None => Ok(kinds::from_storage(to, kinds::to_storage(from, object))),
            Some(_) => self.shown(to, object).await,
        }
    }

    async fn in_version(
        &self,
        resource: &Resource,
        object: Value,
        version: &str,
    ) -> Result<Value, StatusError> {
        let mut objects = self.all_in_version(resource, vec![object], version).await?;
        objects.pop().ok_or_else(|| StatusError::internal("an object was lost in conversion"))
    }

    /// Custom objects, each in any of the versions of their definition, in one of them, without what that
    /// does not name.
    pub(crate) async fn all_in_version(
        &self,
        resource: &Resource,
        mut objects: Vec<Value>,
        version: &str,
    ) -> Result<Vec<Value>, StatusError> {
        let Some(definition) = resource.definition() else { return Ok(objects) };
        let Some(webhook) = definition.webhook() else {
            let relabelled = |object| custom::relabelled(resource, &definition, object, version);
            return Ok(objects.into_iter().map(relabelled).collect());
        };
        let wanted = format!("{}/{version}", resource.group);
        check_versions(resource, &definition, &wanted, version, &objects)?;
        let mut places = Vec::new();
        let mut old = Vec::new();
        for (place, object) in objects.iter_mut().enumerate() {
            if object["apiVersion"] == wanted {
                continue;
            }
            match is_empty(object) {
                true => object["apiVersion"] = wanted.as_str().into(),
                false => {
                    places.push(place);
                    old.push(object.take());
                }
            }
        }
        if old.is_empty() {
            return Ok(objects);
        }
        let converted = self.converter.convert(self, webhook, old, &wanted).await?;
        let bytes = converted.iter().map(size).sum();
        offload::run(bytes, || {
            for (place, object) in places.into_iter().zip(converted) {
                if let Some(slot) = objects.get_mut(place) {
                    *slot = custom::pruned(&definition, object, version);
                }
            }
        });
        Ok(objects)
    }

    /// Has the object of a change converted, if a webhook does that for the resource:
    /// [`Stored::converted`] then has it for every watch.
    pub(crate) async fn convert_stored(
        &self,
        resource: &'static Resource,
        stored: &Stored,
    ) -> Result<(), StatusError> {
        if !resource.has_webhook() {
            return Ok(());
        }
        let Some(object) = stored.value() else { return Ok(()) };
        let shown = stored.cell(resource.version);
        let convert = || async { self.shown(resource, object.clone()).await.map(Arc::new) };
        shown.get_or_try_init(convert).await.map(drop)
    }
}

/// An object that says no more than what it is: there is nothing to convert.
fn is_empty(object: &Value) -> bool {
    let is_kind = |name: &String| name == "apiVersion" || name == "kind";
    object.as_object().is_some_and(|map| map.keys().all(is_kind))
}

fn check_versions(
    resource: &Resource,
    definition: &Definition,
    wanted: &str,
    version: &str,
    objects: &[Value],
) -> Result<(), StatusError> {
    if definition.version(version).is_none() {
        return Err(StatusError::internal_plain(format!(
            "request to convert CR to an invalid group/version: {wanted}"
        )));
    }
    let is_known = |api_version: &str| {
        let (group, version) = api_version.split_once('/').unwrap_or_default();
        group == resource.group && definition.version(version).is_some()
    };
    let unknown = objects
        .iter()
        .filter(|object| !is_empty(object))
        .map(|object| text(&object["apiVersion"]))
        .find(|version| !is_known(version));
    match unknown {
        Some(version) => Err(StatusError::internal_plain(format!(
            "request to convert CR from an invalid group/version: {version}"
        ))),
        None => Ok(()),
    }
}
