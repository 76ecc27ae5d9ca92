//! Objects as the text in which they are stored.

use std::hash::BuildHasher;
use std::io::Write as _;

use bytes::Bytes;
use foldhash::quality::RandomState;
use longshore_json::Object;
use longshore_store::{KeyValue, Revision};
use quick_cache::sync::Cache;

use crate::api_types::{Gvk, Resource};
use crate::kinds;
use crate::text::TextBuilder;

/// How many texts are known to be those of objects: an entry has some 50 bytes.
const TEXTS: usize = 1 << 16;

/// Which stored texts have been read, and where in them the metadata begins. What was stored at a
/// revision never changes, and to read a text takes longer than all else that a list does with it.
pub(super) struct CheckedTexts {
    starts: Cache<(Revision, u64), usize>,
    hasher: RandomState,
}

impl Default for CheckedTexts {
    fn default() -> Self {
        Self { starts: Cache::new(TEXTS), hasher: RandomState::default() }
    }
}

impl CheckedTexts {
    /// Of an object of the resource's kind and version. `None`: it has to be read to be shown.
    fn start_of_metadata(&self, resource: &Resource, stored: &KeyValue) -> Option<usize> {
        let Gvk { group, version, kind } = resource.gvk();
        let of = (&stored.key, stored.value.len(), group, version, kind);
        let key = (stored.mod_revision, self.hasher.hash_one(of));
        if let Some(start) = self.starts.get(&key) {
            return Some(start);
        }
        let text = &stored.value;
        let object = Object::read(text)?;
        if object.kind != kind || object.api_version != resource.gvk().api_version() {
            return None;
        }
        let start = object.start_of_metadata(text)?;
        self.starts.insert(key, start);
        Some(start)
    }
}

/// An object that is stored as JSON and shown as it is stored, but for its resourceVersion.
pub(crate) struct ObjectText {
    /// Up to the first field of the metadata.
    head: Bytes,
    /// From there on.
    rest: Bytes,
    revision: Revision,
}

impl ObjectText {
    /// `None`: it has to be read to be shown.
    pub(super) fn of(
        resource: &Resource,
        stored: &KeyValue,
        checked: &CheckedTexts,
    ) -> Option<ObjectText> {
        if !kinds::is_shown_as_stored(resource) {
            return None;
        }
        let start = checked.start_of_metadata(resource, stored)?;
        let mut rest = stored.value.clone();
        let head = (start <= rest.len()).then(|| rest.split_to(start))?;
        Some(ObjectText { head, rest, revision: stored.mod_revision })
    }

    /// Writes it.
    pub(crate) fn append(self, text: &mut TextBuilder) {
        text.push(self.head);
        // a vector takes all that is written to it
        let _ = write!(text.written(), r#""resourceVersion":"{}","#, self.revision);
        text.push(self.rest);
    }
}
