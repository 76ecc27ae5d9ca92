//! The custom kinds that are served now: a snapshot that changes as definitions do, beside the table of
//! built-in kinds. Built-in kinds that are off by default, and were switched on, are in it too.
//!
//! A row of the table lives as long as the process, since requests and watches refer to it: what differs
//! in its names is another row, about 500 bytes, and one that comes back is used again. What is large, the
//! definition itself, is replaced in its row and freed.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use longshore_structural::{Path, ReadError, Schema};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;

use crate::api_types::{
    Column, Conversion, ConversionWebhook, Definition, Gvk, Live, READ_WRITE, Resource, SCALE,
    Scale, Subresource, Version, grouped,
};
use crate::kinds::{self, custom_resource_definition as crd};
use crate::object;
use crate::schema::value::{items, text};

/// The kinds at one time that are not always served.
#[derive(Default)]
pub(crate) struct Snapshot {
    /// By group and version, the preferred versions first.
    resources: Vec<&'static Resource>,
    by_path: HashMap<(&'static str, &'static str, &'static str), &'static Resource>,
    /// Documents that are made of all of them, each on first use.
    index: OnceLock<Value>,
    swagger: OnceLock<String>,
}

impl Snapshot {
    /// All of them.
    pub(crate) fn resources(&self) -> &[&'static Resource] {
        &self.resources
    }

    fn put(&mut self, resource: &'static Resource) {
        self.resources.push(resource);
        self.by_path.insert((resource.group, resource.version, resource.plural), resource);
    }

    /// The index of the documents of OpenAPI 3.
    pub(crate) fn index(&self, make: impl FnOnce(&[&'static Resource]) -> Value) -> &Value {
        self.index.get_or_init(|| make(&self.resources))
    }

    /// The document of OpenAPI 2.
    pub(crate) fn swagger(&self, make: impl FnOnce(&[&'static Resource]) -> String) -> &str {
        self.swagger.get_or_init(|| make(&self.resources))
    }

    /// The resource whose objects have this `apiVersion` and kind, built-in or custom.
    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> Option<&'static Resource> {
        let custom = self.resources.iter().copied();
        kinds::resources()
            .chain(custom)
            .find(|of| of.kind == kind && of.gvk().api_version() == api_version)
    }

    /// The resource of this group, version and plural, built-in or custom.
    pub(crate) fn lookup(
        &self,
        group: &str,
        version: &str,
        plural: &str,
    ) -> Option<&'static Resource> {
        kinds::lookup(group, version, plural)
            .or_else(|| self.by_path.get(&(group, version, plural)).copied())
    }
}

/// What distinguishes the rows of two versions of definitions.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Row {
    group: String,
    version: String,
    plural: String,
    singular: String,
    kind: String,
    short_names: Vec<String>,
    categories: Vec<String>,
    namespaced: bool,
    has_status: bool,
    has_scale: bool,
    fields: Vec<String>,
}

/// A definition that was read, until its object changes.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) version: String,
    definition: Arc<Definition>,
    rows: Vec<Row>,
}

/// The kinds that are not always served, as definitions change.
#[derive(Default)]
pub(crate) struct Definitions {
    /// Those of this server's own.
    optional: Vec<&'static Resource>,
    current: watch::Sender<Arc<Snapshot>>,
    rows: Mutex<HashMap<Row, &'static Resource>>,
}

impl Definitions {
    /// With these kinds of the server's own, and no custom one yet.
    pub(crate) fn new(optional: Vec<&'static Resource>) -> Definitions {
        let definitions = Definitions { optional, ..Definitions::default() };
        definitions.replace(&[]);
        definitions
    }

    /// The kinds at this time.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.current.borrow().clone()
    }

    /// The kinds at any time from now on.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Snapshot>> {
        self.current.subscribe()
    }

    /// Serves these definitions from now on. Returns the resources that are not served any more.
    pub(crate) fn replace(&self, entries: &[&Entry]) -> Vec<&'static Resource> {
        let mut next = Snapshot::default();
        for resource in &self.optional {
            next.put(resource);
        }
        let mut rows = self.rows.lock();
        for entry in entries {
            let mut resource_of = |row: &Row| -> &'static Resource {
                match rows.get(row) {
                    Some(resource) => resource,
                    None => rows.entry(row.clone()).or_insert(leak(row, &entry.definition)),
                }
            };
            let versions: Arc<[&'static Resource]> =
                entry.rows.iter().map(&mut resource_of).collect();
            for resource in versions.iter() {
                if let Some(live) = resource.custom {
                    live.set(entry.definition.clone(), versions.clone());
                }
                next.put(resource);
            }
        }
        drop(rows);
        next.resources.sort_by(|a, b| {
            let versions = || order(a.version, b.version);
            a.group.cmp(b.group).then_with(versions).then_with(|| a.plural.cmp(b.plural))
        });
        let last = self.current.send_replace(Arc::new(next));
        let now = self.snapshot();
        // The row stays, what it refers to is freed.
        let is_served = |old: &Resource| now.resources.iter().any(|r| std::ptr::eq(*r, old));
        for old in last.resources.iter().filter(|old| !is_served(old)) {
            if let Some(live) = old.custom {
                live.set(Arc::default(), Arc::default());
            }
        }
        let is_gone = |old: &&&'static Resource| {
            !now.resources.iter().any(|resource| resource.same_storage(old))
        };
        last.resources.iter().filter(is_gone).copied().collect()
    }
}

fn leak(row: &Row, definition: &Arc<Definition>) -> &'static Resource {
    let text = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let texts = |list: &[String]| -> &'static [&'static str] {
        Box::leak(list.iter().map(|item| text(item)).collect())
    };
    let (group, kind) = (text(&row.group), text(&row.kind));
    let version = text(&row.version);
    let plural = text(&row.plural);
    let mut subresources = Vec::new();
    if row.has_status {
        let gvk = Gvk { group, version, kind };
        subresources.push(Subresource { name: "status", gvk, verbs: READ_WRITE });
    }
    if row.has_scale {
        subresources.push(SCALE);
    }
    let fields = row.fields.iter().map(|field| (text(field), text(field)));
    Box::leak(Box::new(Resource {
        version,
        short_names: texts(&row.short_names),
        categories: texts(&row.categories),
        namespaced: row.namespaced,
        subresources: Box::leak(subresources.into_boxed_slice()),
        storage: text(&format!("{group}/{plural}")),
        counts_generation: true,
        fields: Some(Box::leak(fields.collect())),
        custom: Some(Box::leak(Box::new(Live::new(definition.clone())))),
        ..grouped(group, plural, text(&row.singular), kind)
    }))
}

/// Versions as people read them: `v2` before `v1`, stable before beta before alpha, and others last.
fn order(a: &str, b: &str) -> std::cmp::Ordering {
    match (priority(a), priority(b)) {
        (Some(a), Some(b)) => b.cmp(&a),
        (Some(_), None) => std::cmp::Ordering::Less,
        (None, Some(_)) => std::cmp::Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Stability, major and minor number of `v1`, `v1beta2` or `v1alpha1`.
fn priority(version: &str) -> Option<(u8, u64, u64)> {
    let number = |text: &str| -> Option<u64> {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
        text.parse().ok().filter(|_| is_plain)
    };
    let rest = version.strip_prefix('v')?;
    for (word, stability) in [("alpha", 0), ("beta", 1)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

impl Entry {
    /// Reads a definition that is in effect: its names are accepted.
    pub(crate) fn read(object: &Value) -> Result<Entry, ReadError> {
        let spec = &object["spec"];
        let names = &object["status"]["acceptedNames"];
        let group = text(&spec["group"]);
        let mut versions = Vec::new();
        let mut rows = Vec::new();
        let texts = |list: &Value| items(list).iter().map(|item| text(item).to_owned()).collect();
        for version in items(&spec["versions"]) {
            let name = text(&version["name"]);
            let subresources = &version["subresources"];
            versions.push(read_version(group, text(&names["kind"]), version)?);
            if version["served"] == true {
                rows.push(Row {
                    group: group.to_owned(),
                    version: name.to_owned(),
                    plural: text(&names["plural"]).to_owned(),
                    singular: text(&names["singular"]).to_owned(),
                    kind: text(&names["kind"]).to_owned(),
                    short_names: texts(&names["shortNames"]),
                    categories: texts(&names["categories"]),
                    namespaced: spec["scope"] == "Namespaced",
                    has_status: subresources["status"].is_object(),
                    has_scale: subresources["scale"].is_object(),
                    fields: items(&version["selectableFields"])
                        .iter()
                        .map(|field| text(&field["jsonPath"]).trim_start_matches('.').to_owned())
                        .collect(),
                });
            }
        }
        versions.sort_by(|a, b| order(&a.name, &b.name));
        let stored = items(&spec["versions"]).iter().find(|version| version["storage"] == true);
        let definition = Definition {
            list_kind: text(&names["listKind"]).to_owned(),
            versions,
            stored: stored.map_or("", |version| text(&version["name"])).to_owned(),
            conversion: read_conversion(object::name(object), &spec["conversion"]),
            preserves_unknown: spec["preserveUnknownFields"] == true,
            is_terminating: object::is_deleting(object),
        };
        let version = object::resource_version(object).to_owned();
        Ok(Entry { version, definition: Arc::new(definition), rows })
    }
}

fn read_conversion(definition: &str, conversion: &Value) -> Conversion {
    if conversion["strategy"] != "Webhook" {
        return Conversion::None;
    }
    let webhook = &conversion["webhook"];
    let versions = items(&webhook["conversionReviewVersions"]).iter();
    Conversion::Webhook(ConversionWebhook {
        definition: definition.to_owned(),
        client: webhook["clientConfig"].clone(),
        review_versions: versions.map(|version| text(version).to_owned()).collect(),
    })
}

fn read_version(group: &str, kind: &str, version: &Value) -> Result<Version, ReadError> {
    let json = version["schema"]["openAPIV3Schema"].clone();
    let name = text(&version["name"]);
    let columns = match items(&version["additionalPrinterColumns"]) {
        [] => vec![Column {
            name: "Age".into(),
            kind: "date".into(),
            format: String::new(),
            description: "CreationTimestamp is a timestamp representing the server time when this \
                          object was created."
                .into(),
            priority: 0,
            path: Path::parse(".metadata.creationTimestamp"),
        }],
        columns => columns.iter().map(column).collect(),
    };
    let scale = &version["subresources"]["scale"];
    let path = |field: &str| Path::parse(text(&scale[field])).filter(|_| scale[field].is_string());
    let deprecation = (version["deprecated"] == true).then(|| {
        version["deprecationWarning"]
            .as_str()
            .map_or_else(|| format!("{group}/{name} {kind} is deprecated"), str::to_owned)
    });
    Ok(Version {
        name: name.to_owned(),
        schema: Schema::read(&json)?,
        rules: longshore_cel::crd::validator(&json, true),
        json,
        columns,
        scale: path("specReplicasPath")
            .zip(path("statusReplicasPath"))
            .map(|(spec, status)| Scale { spec, status, selector: path("labelSelectorPath") }),
        deprecation,
        merge: OnceLock::new(),
    })
}

fn column(column: &Value) -> Column {
    let path = text(&column["jsonPath"]);
    let description = match text(&column["description"]) {
        "" => format!("Custom resource definition column (in JSONPath format): {path}"),
        given => given.to_owned(),
    };
    Column {
        name: text(&column["name"]).to_owned(),
        kind: text(&column["type"]).to_owned(),
        format: text(&column["format"]).to_owned(),
        description,
        priority: column["priority"].as_i64().unwrap_or(0),
        path: Path::parse(path),
    }
}

/// Whether objects of a definition are served.
pub(crate) fn is_in_effect(definition: &Value) -> bool {
    let holds = |condition: &str| crd::has_condition(definition, condition, "True");
    ["NamesAccepted", "Established"].iter().any(|condition| holds(condition))
        && !is_built_in(definition)
}

/// Whether a definition is one of a kind that this server has itself: its objects are not the
/// definition's, and do not go with it.
pub(crate) fn is_built_in(definition: &Value) -> bool {
    let spec = &definition["spec"];
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    kinds::built_in().any(|resource| resource.group == group && resource.plural == plural)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn definitions_versions_are_ordered() {
        let mut versions = ["v1alpha1", "v1", "foo", "v2beta1", "v10", "v2", "v1beta2", "v0"];
        versions.sort_by(|a, b| order(a, b));
        assert_eq!(versions, ["v10", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo", "v0"]);
    }
}
