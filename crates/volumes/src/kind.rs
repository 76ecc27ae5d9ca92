//! Names of the kinds of volumes, for messages.

use serde::Serialize;

/// What kind a volume or a projected source is of: the one field of the object that is set.
pub(super) fn kind_of(object: &impl Serialize) -> String {
    let fields = serde_json::to_value(object).unwrap_or_default();
    let kind = fields.as_object().and_then(|fields| fields.keys().find(|key| *key != "name"));
    kind.cloned().unwrap_or_else(|| "unknown".to_owned())
}
