//! The `components/schemas` of a document: every type that its kinds reach.

use serde_json::{Map, Value, json};

use super::custom::{self, Dialect};
use crate::api_types::{Field, Gvk, Leaf, ListKind, Resource, Shape, Type, types};

const PREFIX: &str = "#/components/schemas/";

/// Schemas gathered so far; types still to be written out are queued.
#[derive(Default)]
pub(super) struct Schemas {
    done: Map<String, Value>,
    queue: Vec<&'static Type>,
}

impl Schemas {
    /// Adds the type of a kind and gives the reference to it.
    pub(super) fn add(&mut self, gvk: Gvk) -> String {
        match types().of(gvk) {
            Some(ty) => self.refer(ty),
            None => String::new(),
        }
    }

    /// Adds a custom kind and its lists; gives the references to both. `None`: the kind is built in.
    pub(super) fn add_custom(&mut self, resource: &Resource) -> Option<(String, String)> {
        let definition = resource.definition()?;
        let version = definition.version(resource.version)?;
        let keeps = definition.preserves_unknown;
        let (name, list) = (custom::name(resource), custom::list_name(resource));
        let object = custom::object(resource, version, keeps, Dialect::V3);
        self.done.insert(name.clone(), object);
        self.done.insert(list.clone(), custom::list(resource, Dialect::V3));
        for meta in custom::METAS {
            self.add_named(meta);
        }
        Some((format!("{PREFIX}{name}"), format!("{PREFIX}{list}")))
    }

    /// Adds the type of this full name and gives the reference to it.
    pub(super) fn add_named(&mut self, name: &str) -> String {
        match types().named(name) {
            Some(ty) => self.refer(ty),
            None => String::new(),
        }
    }

    fn refer(&mut self, ty: &'static Type) -> String {
        if !self.done.contains_key(ty.name) {
            self.done.insert(ty.name.to_owned(), Value::Null);
            self.queue.push(ty);
        }
        format!("{PREFIX}{}", ty.name)
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
        for (name, description) in custom::descriptions(ty.name) {
            properties[*name]["description"] = (*description).into();
        }
        let mut schema = json!({"type": "object"});
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
            // a reference cannot stand beside other keys
            Shape::One if leaf.get("$ref").is_some() => json!({"allOf": [leaf]}),
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
        let (name, schema) = match leaf {
            Leaf::Struct(index) => return json!({"$ref": self.refer(types().get(index))}),
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
                json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
            ),
            Leaf::IntOrString => (
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
                json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
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
        self.done.insert(name.to_owned(), schema);
        json!({"$ref": format!("{PREFIX}{name}")})
    }
}

/// `group/version/Kind`, or `version/Kind` in the core group.
fn kind_value(kind: &str) -> Option<Value> {
    let (api_version, kind) = kind.rsplit_once('/')?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    Some(json!({"group": group, "version": version, "kind": kind}))
}
