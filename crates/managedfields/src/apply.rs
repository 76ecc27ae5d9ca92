//! What a write means for the managers of an object's fields. An update owns what it changed, and takes
//! it from others. An apply owns what it lists, removes what it listed before and nobody else owns, and
//! conflicts where it would change what another manager owns.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::compare::Comparison;
use crate::element::Element;
use crate::managers::{Entry, EntryError, Identity, Managers, Operation};
use crate::schema::{Schema, TypeId};
use crate::set::Set;
use crate::typed::{collapse, fields_of, merge, remove, with_named_fields};
use crate::validate::{Mismatch, validate};

/// The annotation in which a client-side `kubectl apply` keeps what it applied.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The manager of `kubectl`, which goes over from client-side apply without conflicts.
const KUBECTL: &str = "kubectl";
/// The manager of what was there before the first apply, when nobody had been recorded.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";
/// The name of a manager that gives none.
const UNKNOWN: &str = "unknown";
/// The most that all annotations of an object may have, in bytes.
const MAX_ANNOTATIONS: usize = 256 << 10;

/// Metadata that nobody manages.
const STRIPPED: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "metadata.name",
    "metadata.namespace",
    "metadata.creationTimestamp",
    "metadata.selfLink",
    "metadata.uid",
    "metadata.clusterName",
    "metadata.generation",
    "metadata.managedFields",
    "metadata.resourceVersion",
];

/// The versions of a kind.
pub trait Versions {
    /// An object in another version, with its type there. `None`: there is no such version any more, and
    /// what is recorded of it is dropped.
    fn convert(&self, object: &Value, api_version: &str) -> Option<(Value, &Schema, TypeId)>;
}

/// A kind that has one version.
#[derive(Debug, Clone, Copy)]
pub struct OneVersion;

impl Versions for OneVersion {
    fn convert(&self, _: &Value, _: &str) -> Option<(Value, &Schema, TypeId)> {
        None
    }
}

/// What is written.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The types.
    pub schema: &'a Schema,
    /// The type of the object.
    pub of: TypeId,
    /// The version in which it is written, and its group: `v1`, `apps/v1`.
    pub api_version: &'a str,
    /// Its kind.
    pub kind: &'a str,
    /// The subresource, or empty.
    pub subresource: &'a str,
    /// Fields that the server takes from the stored object, whatever is written.
    pub reset: &'a Set<'a>,
    /// The other versions.
    pub versions: &'a dyn Versions,
}

/// Who writes, and when.
#[derive(Debug, Clone, Copy)]
pub struct Writer<'a> {
    /// The name of the manager.
    pub manager: &'a str,
    /// The time, as objects have it.
    pub now: &'a str,
}

/// A field that another manager owns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The other manager.
    pub with: Identity<'static>,
    /// The path of the field, for example `.spec.replicas`.
    pub path: String,
    field: Vec<Element<'static>>,
}

/// Why an apply is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApplyError {
    /// The applied object is not of the kind.
    #[error("invalid object type: {0}")]
    Kind(String),
    /// The applied object has managedFields.
    #[error("metadata.managedFields must be nil")]
    ManagedFields,
    /// The stored managedFields cannot be read.
    #[error("failed to decode managed fields: {0}")]
    Stored(#[from] EntryError),
    /// The applied object is not of its type.
    #[error("failed to create typed patch object ({object}): {why}")]
    Patch {
        /// Namespace, name and kind.
        object: String,
        /// What is wrong.
        why: String,
    },
    /// The objects cannot be merged.
    #[error("failed to merge config: {0}")]
    Merge(Mismatch),
    /// The objects cannot be compared.
    #[error("failed to compare objects: {0}")]
    Compare(Mismatch),
    /// Others own what would change.
    #[error("{}", message(.0))]
    Conflicts(Vec<Conflict>),
}

/// Records in `new`, which is to be stored instead of `live`, what its writer changed. An object that is
/// made has an empty `live`. What cannot be compared is recorded as nobody's.
pub fn update(target: &Target<'_>, live: &Value, new: &mut Value, writer: Writer<'_>) {
    let given = take_managed_fields(new);
    let stored = live["metadata"].get("managedFields");
    let is_subresource = !target.subresource.is_empty();
    let managed = match &given {
        // Only a write of the whole object can write the managers themselves.
        Some(_) if is_subresource => Given::Stored,
        Some(list) if is_reset(list) => Given::Nobody,
        Some(list) if Some(list) != stored => Given::Own(list),
        _ => Given::Stored,
    };
    let managers = match managed {
        Given::Nobody => Ok(Managers::default()),
        Given::Own(list) => match Managers::read(Some(list)) {
            Ok(managers) if !managers.is_empty() => Ok(managers),
            _ => Managers::read(stored),
        },
        Given::Stored => Managers::read(stored),
    };
    let mut managers = managers.unwrap_or_default();
    let recorded = update_managers(target, live, new, &mut managers, writer);
    let list = recorded.ok().and_then(|()| managers.to_value());
    drop(managers);
    set_managed_fields(new, list);
}

enum Given<'a> {
    Stored,
    Nobody,
    Own(&'a Value),
}

/// Whether the list says that the managers are to be forgotten: it is empty, or has one empty entry.
fn is_reset(list: &Value) -> bool {
    match list.as_array().map(Vec::as_slice) {
        Some([]) => true,
        Some([Value::Object(one)]) => one.is_empty(),
        _ => false,
    }
}

fn update_managers<'a>(
    target: &Target<'a>,
    live: &'a Value,
    new: &'a Value,
    managers: &mut Managers<'a>,
    writer: Writer<'a>,
) -> Result<(), ApplyError> {
    // Of an object that has none they are recorded from the first apply on.
    if managers.is_empty() && live["metadata"]["uid"].is_string() {
        return Ok(());
    }
    record_update(target, live, new, managers, writer)
}

fn record_update<'a>(
    target: &Target<'a>,
    live: &'a Value,
    new: &'a Value,
    managers: &mut Managers<'a>,
    writer: Writer<'a>,
) -> Result<(), ApplyError> {
    reconcile(target, live, managers);
    let changed = release(target, live, new, managers, None)?;
    let own = changed.modified.union(changed.added).difference(&Set::of_fields(STRIPPED));
    if !own.is_empty() {
        let identity = identity(target, writer.manager, Operation::Update);
        let entry = match managers.find(&identity) {
            Some(at) => &mut managers.entries[at],
            None => {
                managers.entries.push(Entry {
                    identity,
                    api_version: target.api_version.into(),
                    time: None,
                    set: Set::new(),
                    source: None,
                });
                let last = managers.entries.len() - 1;
                &mut managers.entries[last]
            }
        };
        entry.set = std::mem::take(&mut entry.set).union(own);
        entry.api_version = target.api_version.into();
        entry.time = Some(writer.now.into());
        entry.source = None;
    }
    managers.cap_updaters();
    Ok(())
}

fn identity<'a>(target: &Target<'a>, manager: &'a str, operation: Operation) -> Identity<'a> {
    Identity {
        manager: if manager.is_empty() { UNKNOWN } else { manager }.into(),
        operation,
        api_version: match operation {
            Operation::Apply => Cow::Borrowed(""),
            Operation::Update => target.api_version.into(),
        },
        subresource: target.subresource.into(),
    }
}

/// Fields that are one value now may have been recorded by their parts.
fn reconcile(target: &Target<'_>, live: &Value, managers: &mut Managers<'_>) {
    for entry in &mut managers.entries {
        let changed = if entry.api_version == target.api_version {
            collapse(target.schema, target.of, &mut entry.set)
        } else if let Some((_, schema, of)) = target.versions.convert(live, &entry.api_version) {
            collapse(schema, of, &mut entry.set)
        } else {
            false
        };
        if changed {
            entry.source = None;
        }
    }
}

/// An apply that does not force.
struct Claim<'i> {
    identity: &'i Identity<'i>,
    force: bool,
}

/// Takes from all managers what has changed, and returns that in the version that is written. A claim
/// that does not force conflicts instead.
fn release<'a>(
    target: &Target<'a>,
    live: &'a Value,
    new: &'a Value,
    managers: &mut Managers<'_>,
    claim: Option<&Claim<'_>>,
) -> Result<Comparison<'a>, ApplyError> {
    let changed =
        compare(target.schema, target.of, live, new, target.reset).map_err(ApplyError::Compare)?;
    let mut other_versions: Vec<(String, Option<Comparison<'static>>)> = Vec::new();
    for entry in &managers.entries {
        let version = entry.api_version.as_ref();
        if version != target.api_version
            && !other_versions.iter().any(|(known, _)| known == version)
        {
            let changed = compare_in(target, live, new, version).map_err(ApplyError::Compare)?;
            other_versions.push((version.to_owned(), changed));
        }
    }
    let changed_in = |version: &str| match version == target.api_version {
        true => Some(&changed),
        false => {
            let known = other_versions.iter().find(|(known, _)| known == version);
            known.and_then(|(_, changed)| changed.as_ref())
        }
    };
    let is_claimant =
        |entry: &Entry<'_>| claim.is_some_and(|claim| *claim.identity == entry.identity);
    // What is recorded of a version that is gone says nothing.
    managers.entries.retain(|entry| is_claimant(entry) || changed_in(&entry.api_version).is_some());
    let mut conflicts = Vec::new();
    if claim.is_some_and(|claim| !claim.force) {
        let others = managers.entries.iter().filter(|entry| !is_claimant(entry));
        for (entry, changed) in others.filter_map(|e| Some((e, changed_in(&e.api_version)?))) {
            let taken = entry.set.intersection(&changed.modified);
            let taken = taken.union(entry.set.intersection(&changed.added));
            conflicts.extend(taken.into_owned().paths().into_iter().map(|field| Conflict {
                with: owned(&entry.identity),
                path: field.iter().map(ToString::to_string).collect(),
                field,
            }));
        }
        if !conflicts.is_empty() {
            conflicts.sort_by(|a, b| a.with.cmp(&b.with));
            return Err(ApplyError::Conflicts(conflicts));
        }
    }
    if !changed.is_empty() {
        for entry in managers.entries.iter_mut().filter(|entry| !is_claimant(entry)) {
            let Some(changed) = changed_in(&entry.api_version) else { continue };
            for set in [&changed.modified, &changed.added, &changed.removed] {
                if !entry.set.intersection(set).is_empty() {
                    entry.set = std::mem::take(&mut entry.set).difference(set);
                    entry.source = None;
                }
            }
        }
    }
    managers.entries.retain(|entry| !entry.set.is_empty());
    Ok(changed)
}

fn compare<'a>(
    schema: &'a Schema,
    of: TypeId,
    live: &'a Value,
    new: &'a Value,
    reset: &Set<'_>,
) -> Result<Comparison<'a>, Mismatch> {
    let ignored = Set::of_fields(&["metadata.managedFields"]);
    Ok(Comparison::of(schema, of, live, new)?.without(&ignored).without(reset))
}

fn compare_in(
    target: &Target<'_>,
    live: &Value,
    new: &Value,
    version: &str,
) -> Result<Option<Comparison<'static>>, Mismatch> {
    let Some((live, schema, of)) = target.versions.convert(live, version) else {
        return Ok(None);
    };
    let Some((new, ..)) = target.versions.convert(new, version) else { return Ok(None) };
    Ok(Some(compare(schema, of, &live, &new, target.reset)?.into_owned()))
}

fn owned(identity: &Identity<'_>) -> Identity<'static> {
    Identity {
        manager: identity.manager.to_string().into(),
        operation: identity.operation,
        api_version: identity.api_version.to_string().into(),
        subresource: identity.subresource.to_string().into(),
    }
}

/// Applies `patch` to the stored object, or to an empty one that is made by it. Returns the object that is
/// to be stored.
///
/// # Errors
///
/// The patch is none of the kind, or, without `force`, changes what others own.
pub fn apply(
    target: &Target<'_>,
    live: &Value,
    patch: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    check_patch(target, patch)?;
    let applied = match apply_as(target, live, patch, writer, force) {
        Err(ApplyError::Conflicts(conflicts)) if writer.manager == KUBECTL => {
            match allowed_by_last_applied(target, live) {
                None => Err(ApplyError::Conflicts(conflicts)),
                Some(allowed) => {
                    let is_foreign = |conflict: &Conflict| !allowed.has(&conflict.field);
                    let foreign: Vec<Conflict> = conflicts.into_iter().filter(is_foreign).collect();
                    match foreign.is_empty() {
                        true => apply_as(target, live, patch, writer, true),
                        false => Err(ApplyError::Conflicts(foreign)),
                    }
                }
            }
        }
        result => result,
    };
    let mut object = applied?;
    if writer.manager == KUBECTL && last_applied(&object).is_some() {
        keep_last_applied(&mut object, patch);
    }
    Ok(object)
}

fn check_patch(target: &Target<'_>, patch: &Value) -> Result<(), ApplyError> {
    let text = |field: &str| patch[field].as_str().unwrap_or_default();
    if text("apiVersion") != target.api_version || text("kind") != target.kind {
        return Err(ApplyError::Kind(kind_text(patch)));
    }
    if patch["metadata"].get("managedFields").is_some_and(|list| !list.is_null()) {
        return Err(ApplyError::ManagedFields);
    }
    validate(target.schema, target.of, patch).map_err(|why| {
        let name = |field: &str| patch["metadata"][field].as_str().unwrap_or_default();
        let object = format!("{}/{}; {}", name("namespace"), name("name"), kind_text(patch));
        ApplyError::Patch { object, why }
    })
}

/// Group, version and kind of an object, as upstream writes them.
fn kind_text(object: &Value) -> String {
    let text = |field: &str| object[field].as_str().unwrap_or_default();
    match text("apiVersion") {
        version if version.contains('/') => format!("{version}, Kind={}", text("kind")),
        version => format!("/{version}, Kind={}", text("kind")),
    }
}

fn apply_as(
    target: &Target<'_>,
    live: &Value,
    patch: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Value, ApplyError> {
    let nothing = json!({});
    let mut managers = Managers::read(live["metadata"].get("managedFields"))?;
    if managers.is_empty() {
        let before = Writer { manager: BEFORE_FIRST_APPLY, ..writer };
        record_update(target, &nothing, live, &mut managers, before)?;
    }
    reconcile(target, live, &mut managers);

    let merged = merge(target.schema, target.of, Some(live), Some(patch));
    let merged = merged.map_err(ApplyError::Merge)?.unwrap_or_else(|| json!({}));
    let listed = fields_of(target.schema, target.of, patch).map_err(ApplyError::Compare)?;
    let set = listed.recursive_difference(target.reset);
    let identity = identity(target, writer.manager, Operation::Apply);
    let last = managers.find(&identity).map(|at| managers.entries.remove(at));
    managers.entries.push(Entry {
        identity: identity.clone(),
        api_version: target.api_version.into(),
        time: last.as_ref().and_then(|last| last.time.clone()),
        set,
        source: None,
    });
    let object = match &last {
        Some(last) => prune(target, merged, &managers, last).map_err(ApplyError::Compare)?,
        None => merged,
    };

    let claim = Claim { identity: &identity, force };
    release(target, live, &object, &mut managers, Some(&claim))?;
    let changed = object != *live;
    if let Some(at) = managers.find(&identity) {
        let entry = &mut managers.entries[at];
        entry.set = std::mem::take(&mut entry.set).difference(&Set::of_fields(STRIPPED));
        if changed {
            entry.time = Some(writer.now.into());
        } else if let Some(last) = &last
            && last.set == entry.set
            && last.api_version == entry.api_version
        {
            entry.source = last.source;
        }
        if entry.set.is_empty() {
            managers.entries.swap_remove(at);
        }
    }
    let list = managers.to_value();
    drop(managers);
    let mut object = object;
    take_managed_fields(&mut object);
    set_managed_fields(&mut object, list);
    Ok(object)
}

/// Removes what the manager listed last time and does not list any more, unless others own it.
fn prune(
    target: &Target<'_>,
    merged: Value,
    managers: &Managers<'_>,
    last: &Entry<'_>,
) -> Result<Value, Mismatch> {
    if last.set.is_empty() {
        return Ok(merged);
    }
    let version = last.api_version.as_ref();
    if version == target.api_version {
        return prune_in(target, target.schema, target.of, version, merged, managers, &last.set);
    }
    let Some((converted, schema, of)) = target.versions.convert(&merged, version) else {
        return Ok(merged);
    };
    let pruned = prune_in(target, schema, of, version, converted, managers, &last.set)?;
    Ok(target.versions.convert(&pruned, target.api_version).map_or(merged, |(object, ..)| object))
}

/// The same for an object that is in the version in which the manager wrote last.
fn prune_in(
    target: &Target<'_>,
    schema: &Schema,
    of: TypeId,
    version: &str,
    merged: Value,
    managers: &Managers<'_>,
    last: &Set<'_>,
) -> Result<Value, Mismatch> {
    let owned_in = |version: &str| {
        let of_version = managers.entries.iter().filter(|entry| entry.api_version == version);
        of_version.fold(Set::new(), |all, entry| all.union(entry.set.clone()))
    };
    let owned = owned_in(version);
    if last.clone().difference(&owned).is_empty() {
        return Ok(merged);
    }
    let last = with_named_fields(schema, of, last.clone());
    let pruned = remove(schema, of, merged.clone(), &last);
    let mut pruned = keep_owned(schema, of, &merged, &pruned, owned)?;
    let mut versions: Vec<&str> = managers.entries.iter().map(|e| e.api_version.as_ref()).collect();
    versions.sort_unstable();
    versions.dedup();
    for other in versions.into_iter().filter(|other| *other != version) {
        let Some((merged_there, schema, of)) = in_version(target, &merged, other) else { continue };
        let Some((pruned_there, ..)) = in_version(target, &pruned, other) else { continue };
        let kept = keep_owned(schema, of, &merged_there, &pruned_there, owned_in(other))?;
        if let Some((kept, ..)) = in_version(target, &kept, version) {
            pruned = kept;
        }
    }
    // What was not the manager's own stays.
    let gone = missing(schema, of, &merged, &pruned)?.intersection(&last);
    Ok(remove(schema, of, merged.clone(), &gone))
}

fn in_version<'t>(
    target: &Target<'t>,
    object: &Value,
    version: &str,
) -> Option<(Value, &'t Schema, TypeId)> {
    match version == target.api_version && object["apiVersion"] == target.api_version {
        true => Some((object.clone(), target.schema, target.of)),
        false => target.versions.convert(object, version),
    }
}

/// The merged object without what pruning removed, but with all that somebody owns.
fn keep_owned(
    schema: &Schema,
    of: TypeId,
    merged: &Value,
    pruned: &Value,
    owned: Set<'_>,
) -> Result<Value, Mismatch> {
    let gone = missing(schema, of, merged, pruned)?;
    let gone = gone.difference(&with_named_fields(schema, of, owned)).into_owned();
    Ok(remove(schema, of, merged.clone(), &gone))
}

/// The fields of the merged object that the pruned one has not.
fn missing(
    schema: &Schema,
    of: TypeId,
    merged: &Value,
    pruned: &Value,
) -> Result<Set<'static>, Mismatch> {
    let all = with_named_fields(schema, of, fields_of(schema, of, merged)?);
    let rest = with_named_fields(schema, of, fields_of(schema, of, pruned)?);
    Ok(all.difference(&rest).into_owned())
}

/// What a client-side apply set and nobody has changed since.
fn allowed_by_last_applied(target: &Target<'_>, live: &Value) -> Option<Set<'static>> {
    let applied: Value = serde_json::from_str(last_applied(live)?).ok()?;
    if applied["apiVersion"] != target.api_version {
        return None;
    }
    validate(target.schema, target.of, &applied).ok()?;
    let set = fields_of(target.schema, target.of, &applied).ok()?;
    let changed = Comparison::of(target.schema, target.of, &applied, live).ok()?;
    let set = set.difference(&changed.modified).difference(&changed.added);
    Some(set.difference(&changed.removed).into_owned())
}

fn last_applied(object: &Value) -> Option<&str> {
    object["metadata"]["annotations"][LAST_APPLIED].as_str().filter(|text| !text.is_empty())
}

/// Keeps the annotation of client-side apply up to date, so that a client can go back to it.
fn keep_last_applied(object: &mut Value, patch: &Value) {
    let mut applied = patch.clone();
    if let Some(annotations) = annotations_mut(&mut applied) {
        annotations.remove(LAST_APPLIED);
    }
    let Some(annotations) = annotations_mut(object) else { return };
    annotations.insert(LAST_APPLIED.to_owned(), format!("{applied}\n").into());
    let size = |(name, value): (&String, &Value)| name.len() + value.as_str().map_or(0, str::len);
    if annotations.iter().map(size).sum::<usize>() > MAX_ANNOTATIONS {
        annotations.remove(LAST_APPLIED);
    }
}

fn annotations_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.pointer_mut("/metadata/annotations")?.as_object_mut()
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

fn set_managed_fields(object: &mut Value, list: Option<Value>) {
    let Some(list) = list else { return };
    let metadata = object
        .as_object_mut()
        .map(|map| map.entry("metadata").or_insert_with(|| Value::Object(Map::new())));
    if let Some(metadata) = metadata.and_then(Value::as_object_mut) {
        metadata.insert("managedFields".into(), list);
    }
}

/// Whether two lists of entries are the same but for their times.
#[must_use]
pub fn same_but_for_times(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_array(), b.as_array()) else { return false };
    let rest = |entry: &Value| -> Option<Vec<(String, Value)>> {
        let fields = entry.as_object()?.iter().filter(|(name, _)| *name != "time");
        Some(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| rest(a) == rest(b))
}

impl Conflict {
    /// The other manager, as messages name it.
    #[must_use]
    pub fn manager(&self) -> String {
        let Identity { manager, operation, api_version, subresource } = &self.with;
        let mut text = format!("{manager:?}");
        if !subresource.is_empty() {
            text.push_str(&format!(" with subresource {subresource:?}"));
        }
        if *operation == Operation::Update {
            text.push_str(&format!(" using {api_version}"));
        }
        text
    }
}

/// The conflicts as one message.
fn message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!(
            "Apply failed with 1 conflict: conflict with {}: {}",
            one.manager(),
            one.path
        );
    }
    let mut lines: Vec<String> = Vec::new();
    for of_one in conflicts.chunk_by(|a, b| a.with == b.with) {
        if let Some(first) = of_one.first() {
            lines.push(format!("conflicts with {}:", first.manager()));
        }
        lines.extend(of_one.iter().map(|conflict| format!("- {}", conflict.path)));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
