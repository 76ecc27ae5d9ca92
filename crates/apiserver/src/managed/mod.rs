//! The managers of objects' fields, and server-side apply, for the served kinds: the crate
//! `managedfields` with the merge rules and versions of this server. `operations` calls it before a write
//! is prepared, so that a client owns what it sent and not what the server made of it.
//!
//! Current limitations: an apply of a pod's `resize` or `ephemeralcontainers` owns all that it lists.

mod conversions;
mod duplicates;
mod options;
mod schema;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use longshore_managedfields::{
    ApplyError, Items, Schema, Set, Target, Type, TypeId, Versions, Writer, same_but_for_times,
};
use serde_json::{Value, json};

pub(crate) use conversions::Conversions;
pub(crate) use options::{Apply, manager};

use crate::api_types::{Conversion, Definition, Gvk, Resource};
use crate::kinds;
use crate::object;
use crate::schema::{self as schemas, Decoded, MAX_DEPTH, decode, value, word};
use crate::status::{Cause, StatusError};

/// The manager of what a cluster starts with.
pub(crate) const APISERVER: &str = "kube-apiserver";
/// The manager of what this server does in place of a controller.
pub(crate) const CONTROLLER: &str = "kube-controller-manager";

/// Who applies, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Applier<'a> {
    /// The name of the manager.
    pub(crate) manager: &'a str,
    /// Whether fields of others are taken.
    pub(crate) force: bool,
}

/// The groups that one stored kind is served in.
struct Groups<'a> {
    resource: &'a Resource,
    /// The definition of a custom kind, whose versions are its groups.
    definition: Option<Arc<Definition>>,
    /// What a webhook has converted.
    conversions: &'a Conversions,
}

impl Versions for Groups<'_> {
    fn convert(&self, object: &Value, api_version: &str) -> Option<(Value, &Schema, TypeId)> {
        if let Some(definition) = &self.definition {
            let (group, version) = api_version.split_once('/')?;
            let version = definition.version(version).filter(|_| group == self.resource.group)?;
            let rules = version.merge_rules(schema::of_custom);
            let has_version = object["apiVersion"] == api_version;
            let converted = match definition.conversion {
                // An object that is made has nothing yet.
                _ if has_version || object["metadata"].is_null() => object.clone(),
                Conversion::None => kinds::custom::relabelled(
                    self.resource,
                    definition,
                    object.clone(),
                    &version.name,
                ),
                Conversion::Webhook(_) => self.conversions.get(object, api_version)?,
            };
            return Some((converted, &rules.schema, rules.of));
        }
        let of_version = |gvk: Gvk| gvk.api_version() == api_version;
        let other = kinds::resources().find(|other| {
            other.kind == self.resource.kind
                && other.same_storage(self.resource)
                && of_version(other.gvk())
        })?;
        let rules = schema::rules();
        let own = object["apiVersion"].as_str().unwrap_or_default();
        let from = kinds::resources()
            .find(|from| from.same_storage(self.resource) && from.gvk().api_version() == own)
            .unwrap_or(self.resource);
        let stored = kinds::to_storage(from, object.clone());
        let converted = kinds::from_storage(other, stored);
        Some((converted, &rules.schema, rules.of(other.gvk())))
    }
}

/// Fields that a write leaves as they are stored.
fn reset(resource: &Resource, subresource: &str) -> Set<'static> {
    let strategy = kinds::strategy(resource);
    match subresource {
        "status" => Set::of_fields(strategy.reset_by_status),
        "approval" => Set::of_fields(&["spec", "status.certificate"]),
        _ if resource.has_status() => Set::of_fields(strategy.reset),
        _ => Set::new(),
    }
}

fn with_target<T>(
    resource: &Resource,
    subresource: &str,
    conversions: &Conversions,
    write: impl FnOnce(&Target<'_>, &str) -> T,
) -> T {
    let definition = resource.definition();
    let version = definition.as_ref().and_then(|definition| definition.version(resource.version));
    let (schema, of) = match version {
        Some(version) => {
            let rules = version.merge_rules(schema::of_custom);
            (&rules.schema, rules.of)
        }
        None => {
            let rules = schema::rules();
            (&rules.schema, rules.of(resource.gvk()))
        }
    };
    let target = Target {
        schema,
        of,
        api_version: &resource.gvk().api_version(),
        kind: resource.kind,
        subresource,
        reset: &reset(resource, subresource),
        versions: &Groups { resource, definition: definition.clone(), conversions },
    };
    write(&target, &object::now().to_string())
}

/// Records the manager of a new object, which has its defaults.
pub(crate) fn record_create(
    resource: &Resource,
    manager: &str,
    object: &mut Value,
    conversions: &Conversions,
) {
    record_update(resource, "", manager, &json!({}), object, conversions);
}

/// Records what an update of the stored object changes.
pub(crate) fn record_update(
    resource: &Resource,
    subresource: &str,
    manager: &str,
    current: &Value,
    new: &mut Value,
    conversions: &Conversions,
) {
    with_target(resource, subresource, conversions, |target, now| {
        longshore_managedfields::update(target, current, new, Writer { manager, now });
    });
}

/// Reads the body of an apply, which is YAML or JSON.
pub(crate) fn read(body: &[u8]) -> Result<Decoded, StatusError> {
    let is_json = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{');
    if is_json && let Ok(decoded) = schemas::json(body) {
        return Ok(decoded);
    }
    let decoded = decode(body, Some("application/yaml")).map_err(|error| match error.code {
        400 => StatusError::bad_request(format!(
            "error decoding YAML: error converting YAML to JSON: {}",
            error.message
        )),
        _ => error,
    })?;
    match decoded.value {
        Value::Object(_) => Ok(decoded),
        // without any field
        Value::Null => Ok(Decoded { value: json!({}), ..decoded }),
        other => Err(StatusError::bad_request(format!(
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go \
             value of type map[string]interface {{}}",
            word(&other)
        ))),
    }
}

/// What is said of keys that occur twice in the body of an apply.
pub(crate) fn duplicates(body: &[u8], decoded: &Decoded) -> Option<String> {
    duplicates::complaint(body, &decoded.duplicates)
}

/// Applies an object to the stored one, or to none (`{}`).
pub(crate) fn apply(
    resource: &Resource,
    subresource: &str,
    current: &Value,
    patch: &Value,
    applier: Applier<'_>,
    conversions: &Conversions,
) -> Result<Value, StatusError> {
    let Applier { manager, force } = applier;
    let applied = with_target(resource, subresource, conversions, |target, now| {
        longshore_managedfields::apply(target, current, patch, Writer { manager, now }, force)
    });
    if let Some(failure) = conversions.failure() {
        return Err(failure);
    }
    let object = applied.map_err(|error| refusal(error, None))?;
    if value::depth(&object) > MAX_DEPTH {
        return Err(StatusError::bad_request(format!(
            "the applied object is nested deeper than {MAX_DEPTH} levels"
        )));
    }
    Ok(object)
}

/// An object with what a policy applies to it: no manager is recorded, and nothing may be changed that is one
/// value.
pub(crate) fn merged(kind: Gvk, object: &Value, patch: &Value) -> Result<Value, String> {
    let rules = schema::rules();
    let of = rules.of(kind);
    longshore_managedfields::validate(&rules.schema, of, patch)?;
    let mut atomic = Vec::new();
    atomics(&rules.schema, of, patch, String::new(), &mut atomic);
    if !atomic.is_empty() {
        let list = atomic.join(", ");
        return Err(format!(
            "invalid ApplyConfiguration: may not mutate atomic arrays, maps or structs: {list}"
        ));
    }
    let merged = longshore_managedfields::merge(&rules.schema, of, Some(object), Some(patch));
    let merged = merged.map_err(|error| error.to_string())?.unwrap_or_else(|| json!({}));
    match value::depth(&merged) > MAX_DEPTH {
        true => Err(format!("the object is nested deeper than {MAX_DEPTH} levels")),
        false => Ok(merged),
    }
}

/// Paths of what is one value.
fn atomics(schema: &Schema, of: TypeId, value: &Value, path: String, found: &mut Vec<String>) {
    match (schema.get(of), value) {
        (Type::Map(of), Value::Object(map)) => {
            for (name, value) in map {
                if let Some(field) = of.fields.iter().find(|field| field.name == *name) {
                    atomics(schema, field.of, value, format!("{path}.{name}"), found);
                }
            }
            if of.atomic {
                found.push(path);
            }
        }
        (Type::List(of), Value::Array(list)) => {
            for (index, value) in list.iter().enumerate() {
                atomics(schema, of.element, value, format!("{path}[{index}]"), found);
            }
            if matches!(of.items, Items::Atomic) {
                found.push(path);
            }
        }
        _ => {}
    }
}

/// Applies the replicas that a Scale names to the workload.
pub(crate) fn apply_scale(
    resource: &Resource,
    current: &Value,
    scale: &Value,
    applier: Applier<'_>,
    conversions: &Conversions,
) -> Result<Value, StatusError> {
    let Applier { manager, force } = applier;
    let mut patch = json!({"apiVersion": resource.gvk().api_version(), "kind": resource.kind});
    if let Some(replicas) = scale["spec"].get("replicas") {
        let is_set = resource.custom.is_some()
            && kinds::custom::set_replicas(resource, &mut patch, replicas.as_i64().unwrap_or(0));
        if !is_set {
            patch["spec"] = json!({ "replicas": replicas });
        }
    }
    let applied = with_target(resource, "scale", conversions, |target, now| {
        longshore_managedfields::apply(target, current, &patch, Writer { manager, now }, force)
    });
    if let Some(failure) = conversions.failure() {
        return Err(failure);
    }
    applied.map_err(|error| refusal(error, Some("autoscaling/v1")))
}

/// An apply that is refused, as clients know it. Managers in `version` are named by that.
fn refusal(error: ApplyError, version: Option<&'static str>) -> StatusError {
    match error {
        ApplyError::Kind(_) | ApplyError::ManagedFields => {
            StatusError::bad_request(error.to_string())
        }
        ApplyError::Conflicts(mut conflicts) => {
            if let Some(version) = version {
                for conflict in &mut conflicts {
                    conflict.with.api_version = version.into();
                }
            }
            let cause = |conflict: &longshore_managedfields::Conflict| Cause {
                reason: "FieldManagerConflict",
                message: format!("conflict with {}", conflict.manager()),
                field: conflict.path.clone(),
            };
            let causes = conflicts.iter().map(cause).collect();
            StatusError::apply_conflict(ApplyError::Conflicts(conflicts).to_string(), causes)
        }
        other => StatusError::internal_plain(other.to_string()),
    }
}

/// Takes the times of the stored managers back when nothing but times would be written.
pub(crate) fn keep_times(new: &mut Value, current: &Value) {
    let managers = |object: &Value| object["metadata"].get("managedFields").cloned();
    let (Some(of_new), Some(of_current)) = (managers(new), managers(current)) else { return };
    if of_new == of_current || !same_but_for_times(&of_new, &of_current) {
        return;
    }
    let set = |object: &mut Value, list: Value| {
        object::metadata_mut(object).insert("managedFields".into(), list);
    };
    set(new, of_current);
    if new != current {
        set(new, of_new);
    }
}
