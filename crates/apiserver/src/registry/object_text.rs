//! Objects as the text in which they are stored.

use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;

use longshore_json::Object;
use longshore_store::{KeyValue, Revision};
use quick_cache::sync::Cache;

use crate::api_types::{Gvk, Resource};
use crate::kinds;

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
        Self { starts: Cache::new(TEXTS), hasher: RandomState::new() }
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
pub(crate) struct ObjectText<'s> {
    /// Up to the first field of the metadata, and from there on.
    parts: (&'s [u8], &'s [u8]),
    revision: Revision,
}

impl<'s> ObjectText<'s> {
    /// `None`: it has to be read to be shown.
    pub(super) fn of(
        resource: &Resource,
        stored: &'s KeyValue,
        checked: &CheckedTexts,
    ) -> Option<ObjectText<'s>> {
        if !kinds::is_shown_as_stored(resource) {
            return None;
        }
        let parts = stored.value.split_at_checked(checked.start_of_metadata(resource, stored)?)?;
        Some(ObjectText { parts, revision: stored.mod_revision })
    }

    /// Writes it.
    pub(crate) fn append(&self, text: &mut Vec<u8>) {
        // the name of the field and the digits of a number of 64 bits
        text.reserve(self.parts.0.len().saturating_add(self.parts.1.len()).saturating_add(48));
        text.extend_from_slice(self.parts.0);
        // a vector takes all that is written to it
        let _ = write!(text, r#""resourceVersion":"{}","#, self.revision);
        text.extend_from_slice(self.parts.1);
    }
}
