//! Lists and watches of a kind.
//!
//! What lists, watches and begins again does not depend on the kind: it passes objects on as the text that
//! they came as, and is compiled once. Only the text is decoded for each kind.

use std::borrow::Cow;
use std::fmt;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};

use crate::Item;
use crate::decode::{self, TextVisitor};

/// What lists and watches report.
type Events = BoxStream<'static, Result<Event<Encoded>, watcher::Error>>;

/// Lists and watches all objects of a kind. Errors are followed by another try, later and later.
pub fn watch<K>(
    client: Client,
    config: watcher::Config,
) -> impl Stream<Item = Result<Event<Item<K>>, watcher::Error>> + Send + Unpin
where
    K: k8s_openapi::Resource + Resource<DynamicType = ()> + DeserializeOwned + Default,
{
    watch_encoded::<K>(client, config).map(|event| event.map(decoded))
}

/// The same, with each object still to be decoded.
pub fn watch_encoded<K: Resource<DynamicType = ()>>(
    client: Client,
    config: watcher::Config,
) -> Events {
    events(client, &ApiResource::erase::<K>(&()), config)
}

/// Of no kind, so that there is one copy of it.
fn events(client: Client, resource: &ApiResource, config: watcher::Config) -> Events {
    let api = Api::<Encoded>::all_with(client, resource);
    watcher(api, config).default_backoff().boxed()
}

fn decoded<K>(event: Event<Encoded>) -> Event<Item<K>>
where
    K: k8s_openapi::Resource + Resource + DeserializeOwned + Default,
{
    match event {
        Event::Apply(object) => Event::Apply(object.decode()),
        Event::Delete(object) => Event::Delete(object.decode()),
        Event::Init => Event::Init,
        Event::InitApply(object) => Event::InitApply(object.decode()),
        Event::InitDone => Event::InitDone,
    }
}

/// An object as its text, without `managedFields`.
#[derive(Clone)]
pub struct Encoded {
    text: Box<str>,
    /// Name, namespace, UID and version, as far as they can be read.
    metadata: ObjectMeta,
}

impl Encoded {
    /// Decodes it.
    pub fn decode<K>(&self) -> Item<K>
    where
        K: k8s_openapi::Resource + Resource + DeserializeOwned + Default,
    {
        decode::decode_lean(&self.text)
    }
}

impl fmt::Debug for Encoded {
    /// Without the text, which may hold a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoded").field("metadata", &self.metadata).finish_non_exhaustive()
    }
}

impl<'de> Deserialize<'de> for Encoded {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = deserializer.deserialize_newtype_struct(decode::RAW_VALUE, TextVisitor)?;
        let (lean, metadata) = decode::lean(&text);
        Ok(Self { text: lean.into(), metadata })
    }
}

impl Resource for Encoded {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(of: &ApiResource) -> Cow<'_, str> {
        of.kind.as_str().into()
    }

    fn group(of: &ApiResource) -> Cow<'_, str> {
        of.group.as_str().into()
    }

    fn version(of: &ApiResource) -> Cow<'_, str> {
        of.version.as_str().into()
    }

    fn plural(of: &ApiResource) -> Cow<'_, str> {
        of.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
