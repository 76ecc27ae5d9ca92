//! Patches: a request body that says how a stored object changes. The result goes the way of any
//! body afterwards: conform, defaults, prepare, validate.
//!
//! Server-side apply is no patch of this kind: see `managed`.

mod json;
mod strategic;

use serde_json::Value;

use crate::api_types::{Gvk, is_named_text, types};
use crate::schema::{self, Decoded, FieldValidation, MAX_DEPTH, printed};
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
            _ => Err(StatusError::unsupported_media_type(ACCEPTED_CUSTOM)),
        }
    }
}

/// Applies a patch body to an object of this kind. Returns the result, and fields of a JSON patch's operations
/// that are unknown. 400 for a malformed patch, 413 for one beyond
/// the limits, 422 for one that cannot be carried out on this object.
pub fn apply(
    kind: PatchKind,
    gvk: Gvk,
    current: &Value,
    body: &[u8],
) -> Result<(Decoded, Vec<String>), StatusError> {
    let Decoded { value: patch, mut duplicates } =
        schema::json(body).map_err(|error| undecoded(kind, error))?;
    let mut value = current.clone();
    let mut work = Work::default();
    let mut unknown = Vec::new();
    match kind {
        PatchKind::Json => {
            unknown = json::apply(&mut value, patch, &mut work)?;
            // They are of the patch, and not of the object.
            duplicates.clear();
        }
        PatchKind::Merge if patch.is_null() => {
            return Err(StatusError::bad_request("Invalid JSON Patch"));
        }
        PatchKind::Merge => {
            object(kind, &patch)?;
            json_patch::merge(&mut value, &patch);
        }
        PatchKind::Strategic if patch.is_null() => {}
        PatchKind::Strategic => {
            object(kind, &patch)?;
            strategic::apply(types().of(gvk), &mut value, patch, &mut work)?;
            // The patch of a kind cannot make another of it.
            for (field, own) in [("apiVersion", gvk.api_version()), ("kind", gvk.kind.to_owned())] {
                if let Some(given) = value.get_mut(field) {
                    *given = own.into();
                }
            }
        }
    }
    if schema::value::depth(&value) > MAX_DEPTH {
        return Err(StatusError::bad_request(format!(
            "the patched object is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok((Decoded { value, duplicates }, unknown))
}

/// The refusal of a patch that is no JSON.
fn undecoded(kind: PatchKind, error: StatusError) -> StatusError {
    match (error.code, kind) {
        (400, PatchKind::Json | PatchKind::Merge) => {
            StatusError::bad_request(format!("error decoding patch: {}", error.message))
        }
        _ => error,
    }
}

/// Applies a patch body, and makes of the result an object of its kind with `conform`. That it is none is the
/// fault of the patch: 422.
pub(crate) fn conformed<T>(
    kind: PatchKind,
    gvk: Gvk,
    current: &Value,
    body: &[u8],
    validation: FieldValidation,
    conform: impl FnOnce(Decoded) -> Result<(T, Vec<String>), StatusError>,
) -> Result<(T, Vec<String>), StatusError> {
    let (patched, unknown) =
        apply(kind, gvk, current, body).map_err(StatusError::without_causes)?;
    let problems: Vec<String> =
        unknown.iter().map(|field| format!("json patch unknown field {field:?}")).collect();
    if validation == FieldValidation::Strict && !problems.is_empty() {
        let why = format!("strict decoding error: {}", problems.join(", "));
        return Err(refused(&String::from_utf8_lossy(body), &why));
    }
    let (object, mut warnings) = conform(patched).map_err(|error| {
        let Some(reason) = not_of_its_kind(&error) else { return error };
        let patched = || {
            let (patched, _) = apply(kind, gvk, current, body).ok()?;
            Some(patched.value.to_string())
        };
        match kind {
            PatchKind::Strategic => {
                let patch = schema::json(body).map(|patch| printed(&patch.value));
                refused(&patch.unwrap_or_default(), &restored(reason))
            }
            _ => refused(&patched().unwrap_or_default(), reason),
        }
    })?;
    if validation == FieldValidation::Warn {
        warnings.extend(problems);
    }
    Ok((object, warnings))
}

/// Why a patched object is none of its kind, if that is what an error says.
fn not_of_its_kind(error: &StatusError) -> Option<&str> {
    let message = error.message.as_str();
    match message.split_once(" cannot be handled as a ") {
        _ if error.code != 400 => None,
        Some((_, reason)) => Some(reason.split_once(": ").map_or(reason, |(_, reason)| reason)),
        None => Some(message).filter(|message| message.starts_with(schema::NO_KIND)),
    }
}

fn refused(patch: &str, reason: &str) -> StatusError {
    let cause = Cause {
        reason: "FieldValueInvalid",
        message: format!("Invalid value: {patch:?}: {reason}"),
        field: "patch".to_owned(),
    };
    StatusError::invalid_kind("", "", "", vec![cause])
}

/// A value of the wrong type, in the words of upstream for strategic merge patches.
fn restored(reason: &str) -> String {
    let types = reason
        .strip_prefix("json: cannot unmarshal ")
        .and_then(|rest| Some((rest, rest.rsplit_once(" of type ")?.1)));
    let Some((given, wanted)) = types else { return reason.to_owned() };
    let given = match given.split([' ', '.']).next().unwrap_or_default() {
        "array" => "slice",
        "object" => "map",
        "number" if given.split(' ').nth(1).is_some_and(|number| number.contains('.')) => "float64",
        "number" => "int64",
        other => other,
    };
    match wanted {
        // a text whose type has a name
        _ if given == "int64" && (wanted == "string" || is_named_text(wanted)) => {
            format!("cannot convert {given} to {wanted}")
        }
        "int32" | "int64" if given == "float64" => format!("cannot convert {given} to {wanted}"),
        "string" | "bool" | "int32" | "int64" | "float64" => format!("unrecognized type: {wanted}"),
        _ if is_named_text(wanted) => format!("unrecognized type: {wanted}"),
        _ if wanted.starts_with("map[") => format!("cannot restore map from {given}"),
        _ if wanted.starts_with("[]") => format!("cannot restore slice from {given}"),
        _ => format!("cannot restore struct from: {given}"),
    }
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

fn object(kind: PatchKind, patch: &Value) -> Result<(), StatusError> {
    if patch.is_object() {
        return Ok(());
    }
    let word = schema::word(patch);
    let why =
        format!("json: cannot unmarshal {word} into Go value of type map[string]interface {{}}");
    Err(undecoded(kind, StatusError::bad_request(why)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
