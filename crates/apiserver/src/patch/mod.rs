//! Patches: a request body that says how a stored object changes. The result goes the way of any
//! body afterwards: conform, defaults, prepare, validate.
//!
//! Server-side apply is no patch of this kind: see `managed`.

mod json;
mod strategic;

use serde_json::Value;

use crate::api_types::{Gvk, types};
use crate::schema::{self, Decoded, MAX_DEPTH};
use crate::status::{Cause, StatusError};

/// The kinds of patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// RFC 6902: a list of operations.
    Json,
    /// RFC 7386: objects are merged, lists replaced.
    Merge,
    /// As a merge patch, but lists are merged by the key that the API facts name.
    Strategic,
}

/// The content types that [`PatchKind::of`] knows.
pub const ACCEPTED: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    APPLY,
];

/// Those of custom kinds, whose lists have no merge keys.
pub const ACCEPTED_CUSTOM: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", APPLY];

/// The content type of server-side apply.
pub const APPLY: &str = "application/apply-patch+yaml";

impl PatchKind {
    /// The kind of patch of this content type; 415 for others.
    pub fn of(content_type: Option<&str>) -> Result<Self, StatusError> {
        match schema::media_type(content_type) {
            "application/json-patch+json" => Ok(Self::Json),
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/strategic-merge-patch+json" => Ok(Self::Strategic),
            _ => Err(StatusError::unsupported_media_type(ACCEPTED)),
        }
    }
}

/// Applies a patch body to an object of this kind. 400 for a malformed patch, 413 for one beyond
/// the limits, 422 for one that cannot be carried out on this object.
pub fn apply(
    kind: PatchKind,
    gvk: Gvk,
    current: &Value,
    body: &[u8],
) -> Result<Decoded, StatusError> {
    let Decoded { value: patch, duplicates } = schema::json(body)?;
    let mut value = current.clone();
    let mut work = Work::default();
    match kind {
        PatchKind::Json => json::apply(&mut value, patch, &mut work)?,
        PatchKind::Merge => {
            object(&patch)?;
            json_patch::merge(&mut value, &patch);
        }
        PatchKind::Strategic => {
            object(&patch)?;
            strategic::apply(types().of(gvk), &mut value, patch, &mut work)?;
        }
    }
    if schema::value::depth(&value) > MAX_DEPTH {
        return Err(StatusError::bad_request(format!(
            "the patched object is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok(Decoded { value, duplicates })
}

/// Applies a patch body, and makes of the result an object of its kind with `conform`. That it is none is the
/// fault of the patch: 422.
pub(crate) fn conformed<T>(
    kind: PatchKind,
    gvk: Gvk,
    current: &Value,
    body: &[u8],
    conform: impl FnOnce(Decoded) -> Result<T, StatusError>,
) -> Result<T, StatusError> {
    conform(apply(kind, gvk, current, body)?).map_err(|error| {
        let reason = error.message.split_once(" cannot be handled as a ");
        let (400, Some((_, reason))) = (error.code, reason) else { return error };
        let reason = reason.split_once(": ").map_or(reason, |(_, reason)| reason);
        let patched = apply(kind, gvk, current, body).map(|patched| patched.value.to_string());
        let cause = Cause {
            reason: "FieldValueInvalid",
            message: format!("Invalid value: {:?}: {reason}", patched.unwrap_or_default()),
            field: "patch".to_owned(),
        };
        StatusError::invalid_kind("", "", "", vec![cause])
    })
}

/// How many values one patch has visited, list items compared and the like. Patches of people and
/// controllers stay far below: a body has at most 400,000 values, and each is visited a few times.
#[derive(Default)]
struct Work(usize);

impl Work {
    /// A few hundred milliseconds.
    const MAX_VISITS: usize = 4_000_000;

    fn charge(&mut self, visits: usize) -> Result<(), StatusError> {
        self.0 = self.0.saturating_add(visits);
        if self.0 > Self::MAX_VISITS {
            return Err(StatusError::too_large("the patch takes too much work to apply"));
        }
        Ok(())
    }

    /// Visits all values in this one. Returns how deeply they are nested: 0 for a scalar.
    fn visit(&mut self, value: &Value) -> Result<usize, StatusError> {
        self.charge(1)?;
        let mut deepest = 0;
        match value {
            Value::Array(list) => {
                for item in list {
                    deepest = deepest.max(1 + self.visit(item)?);
                }
                Ok(deepest.max(1))
            }
            Value::Object(map) => {
                for item in map.values() {
                    deepest = deepest.max(1 + self.visit(item)?);
                }
                Ok(deepest.max(1))
            }
            _ => Ok(0),
        }
    }
}

fn object(patch: &Value) -> Result<(), StatusError> {
    if patch.is_object() {
        Ok(())
    } else {
        Err(StatusError::bad_request("error decoding patch: a patch must be an object"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
