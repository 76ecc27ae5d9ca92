//! The managers of an object's fields, as `metadata.managedFields` lists them.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::format_error::FormatError;
use crate::set::Set;

/// How a manager set its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply.
    Apply,
    /// By any other write.
    Update,
}

impl Operation {
    /// Its name in an entry.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

/// What tells a manager from others. Of one that applies, the version is not part of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity<'a> {
    /// Its name.
    pub manager: Cow<'a, str>,
    /// How it writes.
    pub operation: Operation,
    /// The apiVersion that it writes; empty for [`Operation::Apply`].
    pub api_version: Cow<'a, str>,
    /// The subresource by which it writes, or empty.
    pub subresource: Cow<'a, str>,
}

/// A manager and its fields.
#[derive(Debug, Clone)]
pub struct Entry<'a> {
    pub(crate) identity: Identity<'a>,
    /// The version that its fields are of.
    pub(crate) api_version: Cow<'a, str>,
    /// When it last wrote, as the object has it.
    pub(crate) time: Option<Cow<'a, str>>,
    pub(crate) set: Set<'a>,
    /// The entry as it was read, unless something has changed since.
    pub(crate) source: Option<&'a Value>,
}

/// All managers of an object.
#[derive(Debug, Clone, Default)]
pub struct Managers<'a> {
    pub(crate) entries: Vec<Entry<'a>>,
}

/// Why `managedFields` cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// It is no list of objects.
    #[error("managedFields is no list of entries")]
    Shape,
    /// The operation is unknown.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// The version is missing.
    #[error("apiVersion must not be empty")]
    ApiVersion,
    /// The type of the fields is missing.
    #[error("missing fieldsType in managed fields entry {0}")]
    NoFieldsType(usize),
    /// The type of the fields is unknown.
    #[error("invalid fieldsType {1:?} in managed fields entry {0}")]
    FieldsType(usize, String),
    /// The fields are malformed.
    #[error("managed fields entry {0}: {1}")]
    Fields(usize, FormatError),
}

/// The most managers that do not apply; the oldest are merged into one for each version.
const MAX_UPDATERS: usize = 10;
/// The name of that one.
const ANCIENT: &str = "ancient-changes";

impl<'a> Managers<'a> {
    /// Reads `metadata.managedFields`.
    ///
    /// # Errors
    ///
    /// An entry is malformed.
    pub fn read(list: Option<&'a Value>) -> Result<Managers<'a>, EntryError> {
        let list = match list {
            None | Some(Value::Null) => return Ok(Managers::default()),
            Some(Value::Array(list)) => list,
            Some(_) => return Err(EntryError::Shape),
        };
        let mut managers = Managers { entries: Vec::with_capacity(list.len()) };
        for (i, entry) in list.iter().enumerate() {
            let entry = read_entry(i, entry)?;
            match managers.find(&entry.identity) {
                Some(at) => managers.entries[at] = entry,
                None => managers.entries.push(entry),
            }
        }
        Ok(managers)
    }

    /// `metadata.managedFields`; `None` without managers.
    #[must_use]
    pub fn to_value(&self) -> Option<Value> {
        if self.entries.is_empty() {
            return None;
        }
        let mut entries: Vec<&Entry<'_>> = self.entries.iter().collect();
        entries.sort_by(|a, b| written_order(a, b));
        Some(entries.into_iter().map(Entry::to_value).collect())
    }

    /// Whether nobody manages anything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The fields of a manager.
    #[must_use]
    pub fn set_of(&self, manager: &str, operation: Operation) -> Option<&Set<'a>> {
        let is_it = |entry: &&Entry<'_>| {
            entry.identity.manager == manager && entry.identity.operation == operation
        };
        self.entries.iter().find(is_it).map(|entry| &entry.set)
    }

    pub(crate) fn find(&self, identity: &Identity<'_>) -> Option<usize> {
        self.entries.iter().position(|entry| same(&entry.identity, identity))
    }

    /// Merges the oldest entries of updates until there are not too many.
    pub(crate) fn cap_updaters(&mut self) {
        let is_update = |entry: &Entry<'_>| entry.identity.operation == Operation::Update;
        let mut count = self.entries.iter().filter(|entry| is_update(entry)).count();
        if count <= MAX_UPDATERS {
            return;
        }
        let oldest: Vec<Identity<'a>> = {
            let mut updates: Vec<&Entry<'a>> =
                self.entries.iter().filter(|entry| is_update(entry)).collect();
            updates.sort_by(|a, b| a.time.cmp(&b.time).then_with(|| a.identity.cmp(&b.identity)));
            updates.into_iter().map(|entry| entry.identity.clone()).collect()
        };
        // The first entry of each version becomes the merged one when a second is found.
        let mut first_of: BTreeMap<Cow<'a, str>, Identity<'a>> = BTreeMap::new();
        for identity in oldest {
            if count <= MAX_UPDATERS {
                return;
            }
            let version = identity.api_version.clone();
            let bucket = Identity {
                manager: ANCIENT.into(),
                operation: Operation::Update,
                api_version: version.clone(),
                subresource: "".into(),
            };
            let Some(first) = first_of.get(&version) else {
                first_of.insert(version, identity);
                continue;
            };
            if self.find(&bucket).is_none()
                && let Some(at) = self.find(first)
            {
                self.entries[at].identity = bucket.clone();
                self.entries[at].source = None;
            }
            let Some(at) = self.find(&identity) else { continue };
            if identity == bucket {
                continue;
            }
            let merged = self.entries.swap_remove(at);
            if let Some(at) = self.find(&bucket) {
                let entry = &mut self.entries[at];
                entry.set = std::mem::take(&mut entry.set).union(merged.set);
                // The entries come by age.
                entry.time = merged.time;
                entry.source = None;
            }
            count = count.saturating_sub(1);
        }
    }
}

fn same(a: &Identity<'_>, b: &Identity<'_>) -> bool {
    a.manager == b.manager
        && a.operation == b.operation
        && a.api_version == b.api_version
        && a.subresource == b.subresource
}

fn written_order(a: &Entry<'_>, b: &Entry<'_>) -> Ordering {
    let (of_a, of_b) = (&a.identity, &b.identity);
    of_a.operation
        .cmp(&of_b.operation)
        .then_with(|| a.time.cmp(&b.time))
        .then_with(|| of_a.manager.cmp(&of_b.manager))
        .then_with(|| a.api_version.cmp(&b.api_version))
        .then_with(|| of_a.subresource.cmp(&of_b.subresource))
}

fn read_entry(at: usize, entry: &Value) -> Result<Entry<'_>, EntryError> {
    let map = entry.as_object().ok_or(EntryError::Shape)?;
    let text = |field: &str| map.get(field).and_then(Value::as_str).unwrap_or_default();
    let operation = match text("operation") {
        "Apply" => Operation::Apply,
        "Update" => Operation::Update,
        _ => return Err(EntryError::Operation),
    };
    let api_version = match text("apiVersion") {
        "" => return Err(EntryError::ApiVersion),
        version => version,
    };
    match text("fieldsType") {
        "FieldsV1" => {}
        "" => return Err(EntryError::NoFieldsType(at)),
        other => return Err(EntryError::FieldsType(at, other.to_owned())),
    }
    let set = match map.get("fieldsV1") {
        Some(fields) => Set::from_fields(fields).map_err(|error| EntryError::Fields(at, error))?,
        None => Set::new(),
    };
    let of_identity = if operation == Operation::Apply { "" } else { api_version };
    Ok(Entry {
        identity: Identity {
            manager: text("manager").into(),
            operation,
            api_version: of_identity.into(),
            subresource: text("subresource").into(),
        },
        api_version: api_version.into(),
        time: map.get("time").and_then(Value::as_str).map(Cow::Borrowed),
        set,
        source: Some(entry),
    })
}

impl Entry<'_> {
    fn to_value(&self) -> Value {
        if let Some(source) = self.source {
            return source.clone();
        }
        let mut map = Map::new();
        let mut put = |field: &str, text: &str| {
            if !text.is_empty() {
                map.insert(field.to_owned(), text.into());
            }
        };
        put("manager", &self.identity.manager);
        put("operation", self.identity.operation.name());
        put("apiVersion", &self.api_version);
        put("subresource", &self.identity.subresource);
        put("time", self.time.as_deref().unwrap_or_default());
        put("fieldsType", "FieldsV1");
        map.insert("fieldsV1".into(), self.set.to_fields());
        Value::Object(map)
    }
}
