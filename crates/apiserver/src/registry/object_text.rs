//! Objects as the text in which they are stored.

use std::io::Write as _;

use longshore_json::Object;
use longshore_store::{KeyValue, Revision};

use crate::api_types::Resource;
use crate::kinds;

/// An object that is stored as JSON and shown as it is stored, but for its resourceVersion.
pub(crate) struct ObjectText<'s> {
    /// Up to the first field of the metadata, and from there on.
    parts: (&'s [u8], &'s [u8]),
    revision: Revision,
}

impl<'s> ObjectText<'s> {
    /// `None`: it has to be read to be shown.
    pub(super) fn of(resource: &Resource, stored: &'s KeyValue) -> Option<ObjectText<'s>> {
        if !kinds::is_shown_as_stored(resource) {
            return None;
        }
        let text = &stored.value;
        let object = Object::read(text)?;
        if object.kind != resource.kind || object.api_version != resource.gvk().api_version() {
            return None;
        }
        let parts = text.split_at_checked(object.start_of_metadata(text)?)?;
        Some(ObjectText { parts, revision: stored.mod_revision })
    }

    /// Writes it.
    pub(crate) fn append(&self, text: &mut Vec<u8>) {
        text.extend_from_slice(self.parts.0);
        // a vector takes all that is written to it
        let _ = write!(text, r#""resourceVersion":"{}","#, self.revision);
        text.extend_from_slice(self.parts.1);
    }
}
