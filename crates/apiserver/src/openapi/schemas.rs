//! The schemas of a document: every type that its kinds reach.

use serde_json::{Map, Value, json};

use super::custom::{self, Dialect};
use super::descriptions;
use super::operations::{META, PATCH, Path};
use super::server::VERSION_INFO;
use crate::api_types::{Field, Leaf, ListKind, Resource, Shape, Type, types};

/// Name, after [`META`] but for that of versions; what is required; fields with their types.
type DiscoveryType =
    (&'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const API_VERSION: (&str, &str) = ("apiVersion", "string");
/// The types of discovery, and of the version.
const DISCOVERY: &[DiscoveryType] = &[
    (
        "APIVersions",
        &["versions", "serverAddressByClientCIDRs"],
        &[
            API_VERSION,
            ("kind", "string"),
            ("serverAddressByClientCIDRs", "[]ServerAddressByClientCIDR"),
            ("versions", "[]string"),
        ],
    ),
    ("APIGroupList", &["groups"], &[API_VERSION, ("groups", "[]APIGroup"), ("kind", "string")]),
    (
        "APIGroup",
        &["name", "versions"],
        &[
            API_VERSION,
            ("kind", "string"),
            ("name", "string"),
            ("preferredVersion", "GroupVersionForDiscovery"),
            ("serverAddressByClientCIDRs", "[]ServerAddressByClientCIDR"),
            ("versions", "[]GroupVersionForDiscovery"),
        ],
    ),
    (
        "APIResourceList",
        &["groupVersion", "resources"],
        &[
            API_VERSION,
            ("groupVersion", "string"),
            ("kind", "string"),
            ("resources", "[]APIResource"),
        ],
    ),
    (
        "APIResource",
        &["name", "singularName", "namespaced", "kind", "verbs"],
        &[
            ("categories", "[]string"),
            ("group", "string"),
            ("kind", "string"),
            ("name", "string"),
            ("namespaced", "boolean"),
            ("shortNames", "[]string"),
            ("singularName", "string"),
            ("storageVersionHash", "string"),
            ("verbs", "[]string"),
            ("version", "string"),
        ],
    ),
    (
        "GroupVersionForDiscovery",
        &["groupVersion", "version"],
        &[("groupVersion", "string"), ("version", "string")],
    ),
    (
        "ServerAddressByClientCIDR",
        &["clientCIDR", "serverAddress"],
        &[("clientCIDR", "string"), ("serverAddress", "string")],
    ),
    (
        VERSION_INFO,
        &[
            "major",
            "minor",
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
        ],
        &[
            ("buildDate", "string"),
            ("compiler", "string"),
            ("emulationMajor", "string"),
            ("emulationMinor", "string"),
            ("gitCommit", "string"),
            ("gitTreeState", "string"),
            ("gitVersion", "string"),
            ("goVersion", "string"),
            ("major", "string"),
            ("minCompatibilityMajor", "string"),
            ("minCompatibilityMinor", "string"),
            ("minor", "string"),
            ("platform", "string"),
        ],
    ),
];

/// The names of the schemas of a resource's objects and lists.
pub(super) struct ResourceSchemas {
    pub(super) object: String,
    pub(super) list: String,
}

/// Schemas gathered so far; types still to be written out are queued.
pub(super) struct Schemas {
    to: Dialect,
    done: Map<String, Value>,
    queue: Vec<&'static Type>,
}

impl Schemas {
    pub(super) fn new(to: Dialect) -> Schemas {
        Schemas { to, done: Map::new(), queue: Vec::new() }
    }

    /// Adds a resource's objects and lists.
    pub(super) fn add_resource(&mut self, resource: &Resource) -> ResourceSchemas {
        self.add_custom(resource).unwrap_or_else(|| {
            let object = types().of(resource.gvk()).map_or("", |ty| self.add(ty));
            let list = types().named(&format!("{object}List")).map_or(object, |ty| self.add(ty));
            ResourceSchemas { object: object.to_owned(), list: list.to_owned() }
        })
    }

    /// `None`: the kind is built in.
    fn add_custom(&mut self, resource: &Resource) -> Option<ResourceSchemas> {
        let definition = resource.definition()?;
        let version = definition.version(resource.version)?;
        let keeps = definition.preserves_unknown;
        let (object, list) = (custom::name(resource), custom::list_name(resource));
        let schema = custom::object(resource, version, keeps, self.to);
        self.done.insert(object.clone(), schema);
        self.done.insert(list.clone(), custom::list(resource, self.to));
        for meta in custom::METAS {
            self.add_named(meta);
        }
        Some(ResourceSchemas { object, list })
    }

    /// Adds what requests and answers are.
    pub(super) fn add_contents(&mut self, path: &Path) {
        for name in path.operations.iter().flat_map(|operation| operation.schemas()) {
            self.add_named(name);
        }
    }

    /// Adds the built-in type of this full name, if it is one.
    fn add_named(&mut self, name: &str) {
        if name == PATCH {
            self.done.insert(name.to_owned(), json!({"type": "object"}));
        } else if let Some(ty) = types().named(name) {
            self.add(ty);
        } else if let Some((_, required, fields)) =
            DISCOVERY.iter().find(|(known, ..)| name.strip_prefix(META).unwrap_or(name) == *known)
        {
            self.add_discovery(name, required, fields);
        }
    }

    /// Discovery is not among the types of objects.
    fn add_discovery(&mut self, name: &str, required: &[&str], fields: &[(&str, &str)]) {
        if self.done.contains_key(name) {
            return;
        }
        self.done.insert(name.to_owned(), Value::Null);
        let mut properties = Map::new();
        for (field, kind) in fields {
            let (kind, is_list) = match kind.strip_prefix("[]") {
                Some(kind) => (kind, true),
                None => (*kind, false),
            };
            let leaf = match kind {
                "string" | "boolean" => json!({"type": kind}),
                other => {
                    let other = format!("{META}{other}");
                    self.add_named(&other);
                    self.reference(&other)
                }
            };
            let property = match (is_list, leaf.get("$ref")) {
                // upstream's verbs are a type of their own, without rules for merging
                (true, _) if *field == "verbs" => json!({"type": "array", "items": leaf}),
                (true, _) => {
                    json!({"type": "array", "items": leaf, "x-kubernetes-list-type": "atomic"})
                }
                (false, Some(_)) if self.to == Dialect::V3 => json!({"allOf": [leaf]}),
                (false, _) => leaf,
            };
            properties.insert((*field).to_owned(), property);
        }
        describe(name, &mut properties);
        let mut schema = json!({"type": "object", "required": required, "properties": properties});
        if let Some(text) = text(name) {
            schema["description"] = text.into();
        }
        if let Some(kind) = name.strip_prefix(META).filter(|_| fields.contains(&API_VERSION)) {
            schema["x-kubernetes-group-version-kind"] =
                json!([{"group": "", "version": "v1", "kind": kind}]);
        }
        self.done.insert(name.to_owned(), schema);
    }

    fn add(&mut self, ty: &'static Type) -> &'static str {
        if !self.done.contains_key(ty.name) {
            self.done.insert(ty.name.to_owned(), Value::Null);
            self.queue.push(ty);
        }
        ty.name
    }

    fn reference(&self, name: &str) -> Value {
        json!({"$ref": format!("{}{name}", self.to.prefix())})
    }

    /// Writes out everything that was added and what that reaches.
    pub(super) fn finish(mut self) -> Map<String, Value> {
        while let Some(ty) = self.queue.pop() {
            let schema = self.schema(ty);
            self.done.insert(ty.name.to_owned(), schema);
        }
        self.done
    }

    fn schema(&mut self, ty: &Type) -> Value {
        let mut properties: Map<String, Value> =
            ty.fields.iter().map(|field| (field.name.to_owned(), self.property(field))).collect();
        describe(ty.name, &mut properties);
        let mut schema = json!({"type": "object"});
        if let Some(text) = text(ty.name) {
            schema["description"] = text.into();
        }
        if !properties.is_empty() {
            schema["properties"] = properties.into();
        }
        if !ty.required.is_empty() {
            schema["required"] = json!(ty.required);
        }
        if ty.atomic {
            schema["x-kubernetes-map-type"] = "atomic".into();
        }
        let kinds: Vec<Value> = ty.kinds.iter().filter_map(|kind| kind_value(kind)).collect();
        if !kinds.is_empty() {
            schema["x-kubernetes-group-version-kind"] = kinds.into();
        }
        schema
    }

    fn property(&mut self, field: &Field) -> Value {
        let leaf = self.leaf(field.leaf);
        let mut property = match field.shape {
            // in version 3 a reference cannot stand beside other keys
            Shape::One if self.to == Dialect::V3 && leaf.get("$ref").is_some() => {
                json!({"allOf": [leaf]})
            }
            Shape::One => leaf,
            Shape::List => json!({"type": "array", "items": leaf}),
            Shape::Map => json!({"type": "object", "additionalProperties": leaf}),
            Shape::MapOfLists => {
                json!({"type": "object", "additionalProperties": {"type": "array", "items": leaf}})
            }
        };
        let strategies = [(field.patch_merge, "merge"), (field.patch_retain_keys, "retainKeys")];
        let strategy: Vec<&str> =
            strategies.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
        if !strategy.is_empty() {
            property["x-kubernetes-patch-strategy"] = strategy.join(",").into();
        }
        if let Some(key) = field.merge_key {
            property["x-kubernetes-patch-merge-key"] = key.into();
        }
        if let Some(list) = field.list {
            let kind = match list {
                ListKind::Atomic => "atomic",
                ListKind::Set => "set",
                ListKind::Map => "map",
            };
            property["x-kubernetes-list-type"] = kind.into();
        }
        if !field.map_keys.is_empty() {
            property["x-kubernetes-list-map-keys"] = json!(field.map_keys);
        }
        if field.atomic_map || field.granular_map {
            let kind = if field.atomic_map { "atomic" } else { "granular" };
            property["x-kubernetes-map-type"] = kind.into();
        }
        property
    }

    fn leaf(&mut self, leaf: Leaf) -> Value {
        let (name, mut schema) = match leaf {
            Leaf::Struct(index) => {
                let name = self.add(types().get(index));
                return self.reference(name);
            }
            Leaf::String => return json!({"type": "string"}),
            Leaf::Bytes => return json!({"type": "string", "format": "byte"}),
            Leaf::Bool => return json!({"type": "boolean"}),
            Leaf::Int32 => return json!({"type": "integer", "format": "int32"}),
            Leaf::Int64 => return json!({"type": "integer", "format": "int64"}),
            Leaf::Double => return json!({"type": "number", "format": "double"}),
            Leaf::Any => return json!({"type": "object"}),
            Leaf::Either(_) => return json!({}),
            Leaf::Quantity => (
                "io.k8s.apimachinery.pkg.api.resource.Quantity",
                match self.to {
                    Dialect::V2 => json!({"type": "string"}),
                    Dialect::V3 => json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
                },
            ),
            Leaf::IntOrString => (
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
                match self.to {
                    Dialect::V2 => json!({"format": "int-or-string", "type": "string"}),
                    Dialect::V3 => json!({
                        "format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}],
                    }),
                },
            ),
            Leaf::Time => (
                "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
                json!({"type": "string", "format": "date-time"}),
            ),
            Leaf::MicroTime => (
                "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
                json!({"type": "string", "format": "date-time"}),
            ),
        };
        if let Some(text) = text(name) {
            schema["description"] = text.into();
        }
        self.done.insert(name.to_owned(), schema);
        self.reference(name)
    }
}

/// What the type of this name is.
fn text(name: &str) -> Option<String> {
    descriptions::of(name)?.text()
}

/// Says of the fields of the type of this name what they are.
fn describe(name: &str, properties: &mut Map<String, Value>) {
    for (field, text) in descriptions::of(name).into_iter().flat_map(|known| known.fields()) {
        if let Some(property) = properties.get_mut(field) {
            property["description"] = text.into();
        }
    }
}

/// `group/version/Kind`, or `version/Kind` in the core group.
fn kind_value(kind: &str) -> Option<Value> {
    let (api_version, kind) = kind.rsplit_once('/')?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Some(json!({"group": group, "version": version, "kind": kind}))
}
