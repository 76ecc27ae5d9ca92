//! Consistent lists, in chunks.

use longshore_store::{Error, KeyValue, ListOptions, Page, Revision};
use serde_json::{Value, json};

use super::object_text::ObjectText;
use super::{Registry, continue_token, is_path_segment, keys, refusal, too_large};
use crate::api_types::Resource;
use crate::kinds;
use crate::offload;
use crate::selector::{FieldSelector, LabelSelector};
use crate::status::StatusError;

/// Bounds the memory of one read of the store, whatever the client requests.
const PAGE: usize = 500;
/// How many bytes are read from the store and written to an answer in the time in which one byte of
/// a request's body is checked.
const READS_AS_ONE_CHECK: usize = 4;

/// How a list's resourceVersion is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionMatch {
    /// The newest.
    Newest,
    /// This one or a newer one.
    NotOlderThan(Revision),
    /// This one.
    Exact(Revision),
}

/// How much there is of a resource in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
}

/// What to list.
pub(crate) struct ListRequest<'a> {
    pub(crate) resource: &'a Resource,
    /// Empty: all.
    pub(crate) namespace: &'a str,
    pub(crate) labels: LabelSelector,
    pub(crate) fields: FieldSelector,
    /// 0: no limit.
    pub(crate) limit: usize,
    pub(crate) continue_token: &'a str,
    pub(crate) version: VersionMatch,
}

impl ListRequest<'_> {
    fn selects_all(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}

/// The revision of a chunked list is compacted: it can go on, as an inconsistent one.
fn too_old(prefix: &str, start: &str) -> StatusError {
    match continue_token::inconsistent(prefix, start) {
        Ok(token) => StatusError::expired(
            "The provided continue parameter is too old to display a consistent list result. \
             You can start a new list without the continue parameter, or use the continue token \
             in this response to retrieve the remainder of the results. Continuing with the \
             provided token results in an inconsistent list - objects that were created, modified, \
             or deleted between the time the first chunk was returned and now may show up in the \
             list.",
        )
        .continuing(token),
        Err(error) => error,
    }
}

/// What is to say about a chunk of a list, apart from its items.
pub(crate) struct ListMeta {
    pub(crate) revision: Revision,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

impl ListMeta {
    /// The list's `metadata`.
    pub(crate) fn to_value(&self) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(token) = &self.continue_token {
            metadata["continue"] = token.as_str().into();
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = remaining.into();
        }
        metadata
    }
}

/// What takes the objects of a list.
pub(crate) trait Items: Send {
    /// Takes an object.
    fn object(&mut self, object: Value) -> Result<(), StatusError>;

    /// Whether [`Items::text`] is as good.
    fn takes_text(&self) -> bool {
        false
    }

    /// Takes the text of an object that is shown as it is stored, which saves reading and writing it.
    fn text(&mut self, _text: ObjectText) -> Result<(), StatusError> {
        Err(StatusError::internal("a list of texts where objects are wanted"))
    }
}

impl<F: FnMut(Value) -> Result<(), StatusError> + Send> Items for F {
    fn object(&mut self, object: Value) -> Result<(), StatusError> {
        self(object)
    }
}

impl Registry {
    /// Lists objects as of one revision, each handed to `items` as soon as it is read.
    pub(crate) async fn list(
        &self,
        request: &ListRequest<'_>,
        mut items: impl Items,
    ) -> Result<ListMeta, StatusError> {
        let prefix = keys::prefix(request.resource, request.namespace)?;
        let (mut start, mut revision) = match (request.continue_token, request.version) {
            ("", VersionMatch::Exact(revision)) => (None, revision),
            ("", _) => (None, 0),
            (token, _) => {
                let (start, revision) = continue_token::decode(&prefix, token)?;
                (Some(start), revision)
            }
        };
        let is_continued = start.is_some();
        let is_one_key =
            !is_continued && (!request.resource.namespaced || !request.namespace.is_empty());
        let name = request.fields.name().filter(|name| is_path_segment(name));
        if let (Some(name), true) = (name, is_one_key) {
            return self.list_one(request, name, revision, items).await;
        }
        let mut found = 0;
        let mut size = Size::default();
        loop {
            let wanted = match request.limit {
                0 => PAGE,
                limit => (limit - found).min(PAGE),
            };
            // how many are left is shown in answers to limited lists
            let uncounted = request.limit == 0;
            let options = ListOptions { start: start.take(), limit: wanted, revision, uncounted };
            let went_on = options.start.clone().filter(|_| is_continued);
            let page = self.page(&prefix, options, went_on.as_deref()).await?;
            revision = page.revision;
            if let VersionMatch::NotOlderThan(least) = request.version
                && least > revision
            {
                return Err(too_large(least, revision));
            }
            let bytes = page.items.iter().map(|stored| stored.value.len()).sum::<usize>();
            size.objects = size.objects.saturating_add(page.items.len() as u64);
            size.bytes = size.bytes.saturating_add(bytes as u64);
            if request.resource.has_webhook() {
                for object in self.read_converted(request.resource, &page.items).await? {
                    if request.matches(&object) {
                        found += 1;
                        items.object(object)?;
                    }
                }
            } else {
                offload::run(bytes / READS_AS_ONE_CHECK, || {
                    page.items.iter().try_for_each(|stored| {
                        if let Some(text) = self.text_for_list(request, &items, stored) {
                            found += 1;
                            return items.text(text);
                        }
                        let Some(raw) = self.read_for_list(stored) else { return Ok(()) };
                        let object = kinds::from_storage(request.resource, raw);
                        if !request.matches(&object) {
                            return Ok(());
                        }
                        found += 1;
                        items.object(object)
                    })
                })?;
            }
            let last = page.items.last().filter(|_| page.remaining > 0);
            let Some(last) = last else {
                if !is_continued && request.namespace.is_empty() {
                    self.note_size(request.resource, size);
                }
                return Ok(ListMeta { revision, continue_token: None, remaining: None });
            };
            if request.limit > 0 && found >= request.limit {
                return Ok(ListMeta {
                    revision,
                    continue_token: Some(continue_token::encode(&prefix, &last.key, revision)?),
                    remaining: request.selects_all().then_some(page.remaining),
                });
            }
            start = Some(format!("{}\0", last.key));
        }
    }

    /// The text of an object, for whoever takes it in place of the object.
    fn text_for_list(
        &self,
        request: &ListRequest<'_>,
        items: &impl Items,
        stored: &KeyValue,
    ) -> Option<ObjectText> {
        let takes_text = items.takes_text() && request.selects_all();
        takes_text.then(|| ObjectText::of(request.resource, stored, &self.checked_texts)).flatten()
    }

    /// Stored objects as a resource shows them, by one call of a webhook where one converts them.
    async fn read_converted(
        &self,
        resource: &Resource,
        stored: &[KeyValue],
    ) -> Result<Vec<Value>, StatusError> {
        let bytes = stored.iter().map(|stored| stored.value.len()).sum::<usize>();
        let mut objects: Vec<Value> = offload::run(bytes / READS_AS_ONE_CHECK, || {
            stored.iter().filter_map(|stored| self.read_for_list(stored)).collect()
        });
        if resource.has_webhook() {
            objects = self.all_in_version(resource, objects, resource.version).await?;
        }
        Ok(offload::run(bytes / READS_AS_ONE_CHECK, || {
            objects.into_iter().map(|object| kinds::from_storage(resource, object)).collect()
        }))
    }

    async fn page(
        &self,
        prefix: &str,
        options: ListOptions,
        went_on: Option<&str>,
    ) -> Result<Page, StatusError> {
        self.store().list(prefix, options).await.map_err(|error| match (error, went_on) {
            (Error::Compacted { .. }, Some(start)) => too_old(prefix, start),
            (Error::Compacted { .. }, None) => {
                StatusError::expired("The resourceVersion for the provided list is too old.")
            }
            (error, _) => refusal(error),
        })
    }

    /// A field selector on the name, where the namespace is known: one key instead of all.
    async fn list_one(
        &self,
        request: &ListRequest<'_>,
        name: &str,
        revision: Revision,
        mut items: impl Items,
    ) -> Result<ListMeta, StatusError> {
        let key = keys::object(request.resource, request.namespace, name)?;
        let options = ListOptions { limit: 1, revision, uncounted: true, ..Default::default() };
        let page = self.page(&key, options, None).await?;
        if let VersionMatch::NotOlderThan(least) = request.version
            && least > page.revision
        {
            return Err(too_large(least, page.revision));
        }
        let one: Vec<KeyValue> =
            page.items.into_iter().filter(|stored| *stored.key == *key).collect();
        for object in self.read_converted(request.resource, &one).await? {
            if request.matches(&object) {
                items.object(object)?;
            }
        }
        Ok(ListMeta { revision: page.revision, continue_token: None, remaining: None })
    }
}
