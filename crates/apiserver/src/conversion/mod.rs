//! Conversion of custom objects by webhooks: `spec.conversion` of a definition with the strategy Webhook.
//! `registry` calls it wherever an object is read from or written to the store in a version other than the
//! one that it has.
//!
//! A webhook is trusted with what its version of an object looks like, and with labels and annotations;
//! the rest of the metadata stays as it is. What one definition's webhook does is bounded: the time of
//! a call, the size of its answer, and the number of calls at once.

mod metrics;
mod review;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use self::metrics::{Conversion, Failure, Metrics};
use self::review::Refusal;
use crate::api_types::ConversionWebhook;
use crate::object;
use crate::offload;
use crate::registry::{Converter, Registry};
use crate::schema;
use crate::schema::value::{items, size, text};
use crate::status::StatusError;
use crate::webhook_client::{ClientConfig, WebhookClient};

/// How long a webhook may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// How many calls of one definition's webhook there are at once.
const MAX_CALLS: usize = 64;
/// The size from which on objects are converted by another call (bytes): their answer has to fit.
const MAX_BATCH: usize = 1 << 20;
/// Definitions whose number of calls is remembered while none is under way.
const MAX_IDLE: usize = 1000;

/// Converts objects by the webhooks of their definitions.
pub(crate) struct WebhookConverter {
    client: WebhookClient,
    /// Slots for calls, by definition.
    slots: Mutex<HashMap<String, Arc<Semaphore>>>,
    metrics: Metrics,
}

impl Converter for WebhookConverter {
    fn convert<'a>(
        &'a self,
        registry: &'a Registry,
        webhook: &'a ConversionWebhook,
        objects: Vec<Value>,
        api_version: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Value>, StatusError>> {
        self.convert_all(registry, webhook, objects, api_version).boxed()
    }
}

impl WebhookConverter {
    pub(crate) fn new(client: WebhookClient) -> WebhookConverter {
        WebhookConverter { client, slots: Mutex::default(), metrics: Metrics::default() }
    }

    /// In Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        self.metrics.render()
    }

    async fn convert_all(
        &self,
        registry: &Registry,
        webhook: &ConversionWebhook,
        objects: Vec<Value>,
        api_version: &str,
    ) -> Result<Vec<Value>, StatusError> {
        let mut converted = Vec::with_capacity(objects.len());
        let mut objects = objects.into_iter().peekable();
        while objects.peek().is_some() {
            let mut bytes = 0;
            let mut batch = Vec::new();
            while let Some(object) =
                objects.next_if(|next| batch.is_empty() || bytes + size(next) <= MAX_BATCH)
            {
                bytes += size(&object);
                batch.push(object);
            }
            converted.extend(self.convert_batch(registry, webhook, batch, api_version).await?);
        }
        Ok(converted)
    }

    /// Converts objects by one call; they are not empty.
    async fn convert_batch(
        &self,
        registry: &Registry,
        webhook: &ConversionWebhook,
        objects: Vec<Value>,
        api_version: &str,
    ) -> Result<Vec<Value>, StatusError> {
        let first = objects.first().map(review::gvk).unwrap_or_default();
        let from = first.split(',').next().unwrap_or_default().to_owned();
        let began = Instant::now();
        let result = self.call(registry, webhook, objects, api_version, &first).await;
        let version = |api_version: &str| {
            api_version.rsplit_once('/').map_or("", |(_, version)| version).to_owned()
        };
        self.metrics.observe(&Conversion {
            definition: &webhook.definition,
            from: &version(&from),
            to: &version(api_version),
            took: began.elapsed(),
            failure: result.as_ref().err().map(|(failure, _)| *failure),
        });
        result.map_err(|(_, why)| {
            tracing::warn!(definition = webhook.definition, "{why}");
            StatusError::internal_plain(why)
        })
    }

    async fn call(
        &self,
        registry: &Registry,
        webhook: &ConversionWebhook,
        mut objects: Vec<Value>,
        api_version: &str,
        gvk: &str,
    ) -> Result<Vec<Value>, (Failure, String)> {
        let failed = |why: String| format!("conversion webhook for {gvk} failed: {why}");
        let version =
            review::version(&webhook.review_versions).map_err(|why| (Failure::Call, why))?;
        let uid = object::new_uid().map_err(|error| (Failure::Call, error.to_string()))?;
        // What is stored has none, and neither has what webhooks see.
        let versions: Vec<Option<Value>> = objects.iter_mut().map(take_version).collect();
        let mut request = review::request(version, &uid, api_version, objects);
        let body = longshore_json::write(&request)
            .map_err(|error| (Failure::Call, failed(error.to_string())))?;
        let originals = request["request"]["objects"].take();
        drop(request);
        let answer = self
            .post(registry, webhook, Bytes::from(body))
            .await
            .map_err(|why| (Failure::Call, failed(why)))?;
        offload::run(answer.len(), || {
            let review = schema::json(&answer)
                .map_err(|error| {
                    (Failure::Call, failed(format!("{}{}", schema::NO_KIND, error.message)))
                })?
                .value;
            let converted = review::converted(version, &uid, review)
                .map_err(|why| (Failure::Malformed, failed(why)))?;
            accept_all(items(&originals), converted, api_version, gvk)
        })
        .map(|mut converted| {
            for (object, version) in converted.iter_mut().zip(versions) {
                put_version(object, version);
            }
            converted
        })
    }

    /// Calls the webhook. Waiting for a slot counts for the time that it has.
    async fn post(
        &self,
        registry: &Registry,
        webhook: &ConversionWebhook,
        body: Bytes,
    ) -> Result<Bytes, String> {
        let client = ClientConfig::of(&webhook.client)?;
        let slots = self.slots(&webhook.definition);
        let called = timeout(TIMEOUT, async {
            let _slot = slots.acquire().await;
            self.client.call(registry, &client, body, TIMEOUT).await
        });
        match called.await {
            Ok(answer) => answer.map_err(|error| error.reason()),
            Err(_) => Err(format!("Post {:?}: context deadline exceeded", client.url(TIMEOUT))),
        }
    }

    fn slots(&self, definition: &str) -> Arc<Semaphore> {
        let mut slots = self.slots.lock();
        if slots.len() >= MAX_IDLE {
            slots.retain(|_, slots| Arc::strong_count(slots) > 1);
        }
        let fresh = || Arc::new(Semaphore::new(MAX_CALLS));
        slots.entry(definition.to_owned()).or_insert_with(fresh).clone()
    }
}

/// The objects that an answer has for the originals, in the same order.
fn accept_all(
    originals: &[Value],
    converted: Vec<Value>,
    api_version: &str,
    gvk: &str,
) -> Result<Vec<Value>, (Failure, String)> {
    if converted.len() != originals.len() {
        let why = format!(
            "conversion webhook for {gvk} returned {} objects, expected {}",
            converted.len(),
            originals.len()
        );
        return Err((Failure::Partial, why));
    }
    let is_list = originals.len() > 1;
    let mut accepted = Vec::with_capacity(converted.len());
    for (i, (original, object)) in originals.iter().zip(converted).enumerate() {
        let object = review::accept(original, object, api_version).map_err(|refusal| {
            let (what, why) = match (refusal, is_list) {
                (Refusal::Metadata(why), true) => {
                    (format!("invalid metadata in object at index {i}"), why)
                }
                (Refusal::Metadata(why), false) => ("invalid metadata".to_owned(), why),
                (Refusal::Object(why), false) => ("invalid object".to_owned(), why),
                (Refusal::Form(why), false) => ("invalid object at index 0".to_owned(), why),
                (Refusal::Object(why) | Refusal::Form(why), true) => {
                    (format!("invalid converted object at index {i}"), why)
                }
            };
            let why = format!("conversion webhook for {gvk} returned {what}: {why}");
            (Failure::InvalidObject, why)
        })?;
        accepted.push(object);
    }
    Ok(accepted)
}

fn take_version(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("resourceVersion")
}

fn put_version(object: &mut Value, version: Option<Value>) {
    if let Some(version) = version.filter(|version| !text(version).is_empty()) {
        object::metadata_mut(object).insert("resourceVersion".into(), version);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(name: &str, version: &str) -> Value {
        json!({
            "apiVersion": format!("example.com/{version}"), "kind": "Widget",
            "metadata": {"name": name},
        })
    }

    #[test]
    fn conversion_names_the_object_that_is_wrong() {
        let originals = [object("a", "v1"), object("b", "v1")];
        let gvk = "example.com/v1, Kind=Widget";
        let accept = |originals: &[Value], converted: Vec<Value>| {
            accept_all(originals, converted, "example.com/v2", gvk)
                .map_err(|(failure, why)| (failure, why.replace(gvk, "W")))
        };
        let both = vec![object("a", "v2"), object("b", "v2")];
        assert_eq!(accept(&originals, both.clone()), Ok(both.clone()));
        let refused = |originals: &[Value], converted: Vec<Value>, failure, why: &str| {
            assert_eq!(accept(originals, converted), Err((failure, why.to_owned())));
        };
        refused(
            &originals,
            vec![object("a", "v2")],
            Failure::Partial,
            "conversion webhook for W returned 1 objects, expected 2",
        );
        refused(
            &originals,
            vec![object("b", "v2"), object("a", "v2")],
            Failure::InvalidObject,
            "conversion webhook for W returned invalid converted object at index 0: must have the same name: a != b",
        );
        refused(
            &originals,
            vec![object("a", "v2"), object("b", "v1")],
            Failure::InvalidObject,
            "conversion webhook for W returned invalid converted object at index 1: invalid groupVersion (expected example.com/v2, received example.com/v1)",
        );
        refused(
            &originals[..1],
            vec![object("a", "v1")],
            Failure::InvalidObject,
            "conversion webhook for W returned invalid object at index 0: invalid groupVersion (expected example.com/v2, received example.com/v1)",
        );
        refused(
            &originals[..1],
            vec![object("b", "v2")],
            Failure::InvalidObject,
            "conversion webhook for W returned invalid object: must have the same name: a != b",
        );
    }
}
