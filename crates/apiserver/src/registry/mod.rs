//! Objects in the store: keys, revisions, lists and changes. `operations` decides what is written;
//! here it is written, or refused, as one atomic step.

mod changes;
mod continue_token;
mod convert;
mod keys;
mod list;
mod object_text;
mod storage_form;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use longshore_store::{Error, Expect, KeyValue, Revision, Store};
use parking_lot::Mutex;
use serde_json::{Value, json};

pub(crate) use changes::{Change, Feeds, Stored, Subscription};
pub(crate) use continue_token::is_token as is_continue_token;
pub(crate) use convert::Converter;
pub(crate) use keys::is_path_segment;
pub(crate) use list::{Items, ListRequest, Size, VersionMatch};
use object_text::CheckedTexts;
pub(crate) use object_text::ObjectText;
pub use storage_form::StorageMediaType;
pub(crate) use storage_form::{
    check as check_stored, decode as decode_stored, encode as encode_stored,
};

use crate::api_types::Resource;
use crate::object;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::{Cause, MODIFIED, StatusError};
use crate::text::{Text, TextBuilder};

/// An update that loses the race this often gives up: something writes the object in a loop.
const MAX_ATTEMPTS: usize = 64;

/// The most unreadable objects that are remembered, so that each is logged once.
const MAX_LEFT_OUT: usize = 1000;

/// All stored objects.
pub(crate) struct Registry {
    store: Arc<dyn Store>,
    /// In which form objects are stored from now on; either is read.
    media_type: StorageMediaType,
    converter: Arc<dyn Converter>,
    feeds: Feeds,
    /// The newest write of this server by resource, for readers that must see it.
    written: Mutex<HashMap<&'static str, Revision>>,
    /// Objects that were left out of a list and logged, by key.
    left_out: Mutex<HashMap<Arc<str>, Revision>>,
    /// Of resources, as the last list found it.
    sizes: Mutex<HashMap<&'static str, Size>>,
    checked_texts: CheckedTexts,
}

/// What a write does with the stored object.
pub(crate) enum Write {
    /// Store this instead. An equal object is not stored again.
    Put(Value),
    /// Store this first, so that watchers see it, and then delete it.
    PutThenDelete(Value),
    /// Delete it as it is.
    Delete,
    /// Leave it as it is.
    Keep,
}

/// What a write did.
pub(crate) struct Written {
    /// The object afterwards, or as it was when it was deleted.
    pub(crate) object: Value,
    /// Whether it is gone.
    pub(crate) deleted: bool,
    /// Another client has finished the deletion.
    pub(crate) by_other: bool,
}

impl Written {
    /// The object that is stored now.
    pub(crate) fn stored(&self) -> Option<&Value> {
        (!self.deleted).then_some(&self.object)
    }
}

impl Registry {
    /// Without webhooks.
    #[cfg(test)]
    pub(crate) fn new(store: Arc<dyn Store>) -> Registry {
        let converter = Arc::new(convert::NoConverter);
        Registry::with_converter(store, StorageMediaType::default(), converter)
    }

    /// All objects of a store. Custom ones whose definitions have a webhook are converted by `converter`.
    pub(crate) fn with_converter(
        store: Arc<dyn Store>,
        media_type: StorageMediaType,
        converter: Arc<dyn Converter>,
    ) -> Registry {
        Registry {
            media_type,
            feeds: Feeds::new(store.clone()),
            converter,
            store,
            written: Mutex::default(),
            left_out: Mutex::default(),
            sizes: Mutex::default(),
            checked_texts: CheckedTexts::default(),
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// In which form objects of built-in kinds are stored.
    pub(crate) fn media_type(&self) -> StorageMediaType {
        self.media_type
    }

    pub(crate) fn feeds(&self) -> &Feeds {
        &self.feeds
    }

    /// The revision of the newest write of this server to a resource; 0 before the first.
    pub(crate) fn written(&self, resource: &Resource) -> Revision {
        let written = self.written.lock();
        written.get(resource.storage).copied().unwrap_or(0)
    }

    /// How much there is of a resource, if it was listed.
    pub(crate) fn size(&self, resource: &Resource) -> Option<Size> {
        self.sizes.lock().get(resource.storage).copied()
    }

    fn note_size(&self, resource: &Resource, size: Size) {
        self.sizes.lock().insert(resource.storage, size);
    }

    fn note(&self, resource: &Resource, revision: Revision) {
        let mut written = self.written.lock();
        let newest = written.entry(resource.storage).or_default();
        *newest = revision.max(*newest);
    }

    /// One object; 404 when there is none.
    pub(crate) async fn get(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Value, StatusError> {
        self.find(resource, namespace, name)
            .await?
            .ok_or_else(|| StatusError::not_found(resource, name))
    }

    /// The text of one object, as the resource shows it.
    pub(crate) async fn get_text(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Text, StatusError> {
        let stored = self.stored(resource, namespace, name).await?;
        if let Some(stored) = ObjectText::of(resource, &stored, &self.checked_texts) {
            let mut text = TextBuilder::default();
            stored.append(&mut text);
            return Ok(text.finish());
        }
        let object = self.decode(resource, &stored).await?;
        longshore_json::write(&object).map(Text::from).map_err(StatusError::internal)
    }

    /// One object, if there is one.
    pub(crate) async fn find(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, StatusError> {
        let key = keys::object(resource, namespace, name)?;
        match self.store.get(&key).await.map_err(refusal)? {
            Some(stored) => self.decode(resource, &stored).await.map(Some),
            None => Ok(None),
        }
    }

    /// One object as it is stored; 404 when there is none.
    async fn stored(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<KeyValue, StatusError> {
        let key = keys::object(resource, namespace, name)?;
        let stored = self.store.get(&key).await.map_err(refusal)?;
        stored.ok_or_else(|| StatusError::not_found(resource, name))
    }

    /// All objects of a resource, in one namespace or (empty) in all.
    ///
    /// Users choose how many there are, and how large: [`Registry::select`] keeps less of them.
    pub(crate) async fn list_all(
        &self,
        resource: &Resource,
        namespace: &str,
    ) -> Result<Vec<Value>, StatusError> {
        self.select(resource, namespace, Some).await
    }

    /// What `select` takes of each object of a resource, in one namespace or (empty) in all. Only a page
    /// of them is in memory at a time.
    pub(crate) async fn select<T: Send>(
        &self,
        resource: &Resource,
        namespace: &str,
        mut select: impl FnMut(Value) -> Option<T> + Send,
    ) -> Result<Vec<T>, StatusError> {
        let request = ListRequest {
            resource,
            namespace,
            labels: LabelSelector::default(),
            fields: FieldSelector::default(),
            limit: 0,
            continue_token: "",
            version: VersionMatch::Newest,
        };
        let mut selected = Vec::new();
        self.list(&request, |object| {
            selected.extend(select(object));
            Ok(())
        })
        .await?;
        Ok(selected)
    }

    /// A stored object as the resource shows it.
    async fn decode(&self, resource: &Resource, stored: &KeyValue) -> Result<Value, StatusError> {
        self.shown(resource, read(stored)?).await
    }

    /// The stored form: no resourceVersion, since the store's revision is the truth.
    async fn encode(&self, resource: &Resource, mut object: Value) -> Result<Bytes, StatusError> {
        object::metadata_mut(&mut object).remove("resourceVersion");
        let stored = self.to_storage(resource, object).await?;
        storage_form::encode(self.media_type, resource, stored)
    }

    /// A stored object for a list. One that cannot be read must not hide the others: it is left out, and
    /// logged once for each version. `get` answers with an error, and `delete_unreadable` removes it.
    fn read_for_list(&self, stored: &KeyValue) -> Option<Value> {
        let object = read(stored).ok();
        if object.is_none() {
            let mut known = self.left_out.lock();
            if known.len() >= MAX_LEFT_OUT {
                known.clear();
            }
            let before = known.insert(stored.key.clone(), stored.mod_revision);
            if before != Some(stored.mod_revision) {
                let KeyValue { key, mod_revision, .. } = stored;
                tracing::error!(
                    %key,
                    mod_revision,
                    "cannot decode a stored object, it is omitted from lists"
                );
            }
        }
        object
    }

    /// Deletes an object that cannot be read, whatever its finalizers were. `None`: it can be read.
    pub(crate) async fn delete_unreadable(
        &self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        dry_run: bool,
    ) -> Result<Option<Written>, StatusError> {
        let stored = self.stored(resource, namespace, name).await?;
        if read(&stored).is_ok() {
            return Ok(None);
        }
        let mut revision = stored.mod_revision;
        if !dry_run {
            let key = &stored.key;
            (_, revision) = self.store.delete(key, revision).await.map_err(refusal)?;
            self.note(resource, revision);
            tracing::warn!(%key, "an undecodable object was deleted");
        }
        let mut object = stub(resource, namespace, name);
        object::set_resource_version(&mut object, revision);
        Ok(Some(Written { object, deleted: true, by_other: false }))
    }

    /// Stores a new object; 409 when the name is taken. With `ttl` it goes by itself after that time.
    pub(crate) async fn create(
        &self,
        resource: &Resource,
        object: Value,
        ttl: Option<Duration>,
    ) -> Result<Value, StatusError> {
        let name = object::name(&object).to_owned();
        let key = keys::object(resource, object::namespace(&object), &name)?;
        let value = self.encode(resource, object).await?;
        match self.store.put(&key, value, Expect::Absent, ttl).await {
            Ok(stored) => {
                self.note(resource, stored.mod_revision);
                self.decode(resource, &stored).await
            }
            Err(Error::Conflict { .. }) => Err(StatusError::already_exists(resource, &name)),
            Err(error) => Err(refusal(error)),
        }
    }

    /// Updates an object as `decide` says, and retries on conflict.
    /// `decide` refuses what must not be repeated on a newer version. With `dry_run` nothing is written.
    pub(crate) async fn write(
        &self,
        resource: &Resource,
        (namespace, name): (&str, &str),
        ttl: Option<Duration>,
        dry_run: bool,
        mut decide: impl FnMut(&Value) -> Result<Write, StatusError> + Send,
    ) -> Result<Written, StatusError> {
        let mut stored = self.stored(resource, namespace, name).await?;
        for _ in 0..MAX_ATTEMPTS {
            let raw = read(&stored)?;
            let is_outdated = is_outdated(resource, &raw);
            let current = self.shown(resource, raw).await?;
            let (mut next, deletes) = match decide(&current)? {
                Write::Keep => (None, false),
                Write::Delete => (None, true),
                Write::Put(object) => (Some(object), false),
                Write::PutThenDelete(object) => (Some(object), true),
            };
            if let Some(object) = &mut next {
                object::set_resource_version(object, stored.mod_revision);
            }
            // What is in an old version of its kind, or encrypted with an old key, is stored anew all the
            // same: that is how objects get from one to the next.
            let is_stale = is_outdated
                || stored.is_stale
                || !storage_form::is_current(self.media_type, resource, &stored.value);
            let next = next.filter(|object| is_stale || *object != current);
            if dry_run {
                return Ok(Written {
                    object: next.unwrap_or(current),
                    deleted: deletes,
                    by_other: false,
                });
            }
            // Nor is what differs only in zero values, which are not stored.
            let value = match next {
                Some(object) => Some(self.encode(resource, object).await?),
                None => None,
            };
            let value = value.filter(|value| is_stale || *value != stored.value);
            let conflict = match self
                .write_once(resource, &stored.key, stored.mod_revision, value, deletes, ttl)
                .await
            {
                Ok(Some(written)) => return Ok(written),
                Ok(None) => {
                    return Ok(Written { object: current, deleted: false, by_other: false });
                }
                Err(WriteError::Store(Error::Conflict { current, .. })) => current,
                Err(error) => return Err(error.into_status()),
            };
            stored = match conflict {
                Some(newer) => newer,
                // Another client has finished the deletion, such as a pod's node.
                None if deletes && object::is_deleting(&current) => {
                    return Ok(Written { object: current, deleted: true, by_other: true });
                }
                None => self.stored(resource, namespace, name).await?,
            };
        }
        Err(StatusError::conflict(resource, name, MODIFIED))
    }

    /// `None` when there was nothing to do.
    async fn write_once(
        &self,
        resource: &Resource,
        key: &str,
        mut revision: Revision,
        next: Option<Bytes>,
        deletes: bool,
        ttl: Option<Duration>,
    ) -> Result<Option<Written>, WriteError> {
        let (mut written, mut by_other) = (None, false);
        if let Some(value) = next {
            let stored = self.store.put(key, value, Expect::Revision(revision), ttl).await?;
            revision = stored.mod_revision;
            self.note(resource, revision);
            written = Some(stored);
        }
        if deletes {
            match self.store.delete(key, revision).await {
                // Our own write released it, and its node deleted it first.
                Err(Error::Conflict { current: None, .. }) if written.is_some() => by_other = true,
                deleted => {
                    let (mut previous, revision) = deleted?;
                    previous.mod_revision = revision;
                    self.note(resource, revision);
                    written = Some(previous);
                }
            }
        }
        let Some(written) = written else { return Ok(None) };
        let object = self.decode(resource, &written).await?;
        Ok(Some(Written { object, deleted: deletes, by_other }))
    }
}

/// Why an attempt to write failed.
enum WriteError {
    /// The store refused it.
    Store(Error),
    /// The object cannot be stored.
    Object(StatusError),
}

impl From<Error> for WriteError {
    fn from(error: Error) -> WriteError {
        WriteError::Store(error)
    }
}

impl From<StatusError> for WriteError {
    fn from(error: StatusError) -> WriteError {
        WriteError::Object(error)
    }
}

impl WriteError {
    fn into_status(self) -> StatusError {
        match self {
            WriteError::Store(error) => refusal(error),
            WriteError::Object(error) => error,
        }
    }
}

/// Whether a custom object is stored in another version than its definition stores now.
fn is_outdated(resource: &Resource, raw: &Value) -> bool {
    resource.definition().is_some_and(|definition| {
        let version = raw["apiVersion"].as_str().unwrap_or_default().rsplit_once('/');
        version.is_none_or(|(_, version)| version != definition.stored)
    })
}

/// What is known of an object that cannot be read.
pub(crate) fn stub(resource: &Resource, namespace: &str, name: &str) -> Value {
    let mut object = json!({
        "kind": resource.kind,
        "apiVersion": resource.gvk().api_version(),
        "metadata": {"name": name},
    });
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object
}

/// A stored object in its stored form.
fn read(stored: &KeyValue) -> Result<Value, StatusError> {
    decode_raw(&stored.value, stored.mod_revision).ok_or_else(|| {
        StatusError::internal(format!("the stored object {} cannot be read", stored.key))
    })
}

/// Parses stored bytes and puts the revision in. `None` for what is no object with a name: it was
/// damaged, encrypted, or written in a form that is not known here.
fn decode_raw(bytes: &[u8], revision: Revision) -> Option<Value> {
    let mut value = storage_form::decode(bytes)?;
    if object::name(&value).is_empty() {
        return None;
    }
    object::set_resource_version(&mut value, revision);
    Some(value)
}

/// A failure of the store as clients know it.
pub(crate) fn refusal(error: Error) -> StatusError {
    match error {
        Error::Compacted { requested, oldest } => {
            StatusError::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        Error::Future { requested, newest } => too_large(requested, newest),
        Error::Conflict { .. } | Error::Transform { .. } | Error::Closed | Error::Backend(_) => {
            tracing::error!(%error, "the store failed");
            StatusError::internal(error)
        }
    }
}

/// A resourceVersion from the future, or of another cluster.
pub(crate) fn too_large(requested: Revision, newest: Revision) -> StatusError {
    let message = format!("Too large resource version: {requested}, current: {newest}");
    let mut error = StatusError::timeout(message).retry_after(1);
    if let Some(details) = &mut error.details {
        details.causes.push(Cause {
            reason: "ResourceVersionTooLarge",
            message: "Too large resource version".into(),
            field: String::new(),
        });
    }
    error
}
