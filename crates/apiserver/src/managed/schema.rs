//! The merge rules of the served kinds, from the table of types.

use std::collections::HashMap;
use std::sync::OnceLock;

use longshore_managedfields::{
    Field as SchemaField, Items, Key, ListType, MapType, Scalar, Schema, Type as SchemaType, TypeId,
};
use longshore_structural as structural;
use serde_json::{Value, json};

use crate::api_types::{Field, Gvk, Leaf, ListKind, MergeRules, Shape, Type, Types, types};

/// The types of all served kinds.
pub(super) struct Rules {
    pub(super) schema: Schema,
    structs: Vec<TypeId>,
}

impl Rules {
    /// The type of objects of this kind; nothing is known of one that is not in the table.
    pub(super) fn of(&self, gvk: Gvk) -> TypeId {
        let known = types().index_of(gvk).and_then(|index| self.structs.get(index));
        known.copied().unwrap_or(Schema::ANY)
    }
}

/// The rules, made on first use.
pub(super) fn rules() -> &'static Rules {
    static RULES: OnceLock<Rules> = OnceLock::new();
    RULES.get_or_init(|| build(types()))
}

/// The rules of a version of a definition.
pub(super) fn of_custom(custom: &structural::Schema) -> MergeRules {
    let types = types();
    let mut schema = Schema::new();
    let scalars = [Scalar::Number, Scalar::Text, Scalar::Bool, Scalar::Any]
        .map(|scalar| schema.add(SchemaType::Scalar(scalar)));
    let structs = vec![Schema::ANY; types.all().len()];
    let mut builder = Builder { schema, structs, scalars, shared: HashMap::new() };
    let metadata = builder.reach(types, METADATA);
    let of = builder.custom(custom, true, metadata);
    MergeRules { schema: builder.schema, of }
}

/// The type of objects' metadata.
const METADATA: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

fn build(types: &Types) -> Rules {
    let mut schema = Schema::new();
    let structs = types.all().iter().map(|_| schema.declare()).collect();
    let scalars = [Scalar::Number, Scalar::Text, Scalar::Bool, Scalar::Any]
        .map(|scalar| schema.add(SchemaType::Scalar(scalar)));
    let mut builder = Builder { schema, structs, scalars, shared: HashMap::new() };
    for (index, of) in types.all().iter().enumerate() {
        let of = builder.structure(types, of, of.atomic);
        if let Some(id) = builder.structs.get(index) {
            builder.schema.define(*id, of);
        }
    }
    Rules { schema: builder.schema, structs: builder.structs }
}

struct Builder {
    schema: Schema,
    structs: Vec<TypeId>,
    /// Of numbers, strings, booleans, and any of them.
    scalars: [TypeId; 4],
    /// Lists and maps without rules of their own.
    shared: HashMap<(bool, TypeId), TypeId>,
}

impl Builder {
    /// Adds the type of this name and those that it reaches.
    fn reach(&mut self, types: &Types, name: &str) -> TypeId {
        let Some(first) = types.all().iter().position(|of| of.name == name) else {
            return Schema::ANY;
        };
        let mut reached = vec![first];
        let mut next = 0;
        while let Some(index) = reached.get(next).copied() {
            self.structs[index] = self.schema.declare();
            for field in &types.get(index).fields {
                if let Leaf::Struct(index) = field.leaf
                    && !reached.contains(&index)
                {
                    reached.push(index);
                }
            }
            next += 1;
        }
        for index in reached {
            let of = types.get(index);
            let defined = self.structure(types, of, of.atomic);
            self.schema.define(self.structs[index], defined);
        }
        self.structs[first]
    }

    /// Adds a schema of a definition. `is_object`: it has kind and metadata.
    fn custom(&mut self, custom: &structural::Schema, is_object: bool, metadata: TypeId) -> TypeId {
        let [number, text, boolean, any] = self.scalars;
        match custom.kind.as_str() {
            _ if custom.int_or_string => any,
            "string" => text,
            "boolean" => boolean,
            "integer" | "number" => number,
            "array" => {
                let Some(items) = &custom.items else { return Schema::ANY };
                let element = self.custom(items, items.embedded, metadata);
                let items = match custom.list {
                    Some(structural::ListKind::Set) => Items::Set,
                    Some(structural::ListKind::Map) => {
                        let default = |name: &str| items.properties.get(name)?.default.clone();
                        let key = |name: &String| Key {
                            name: name.clone().into(),
                            default: default(name),
                        };
                        Items::Keys(custom.list_keys.iter().map(key).collect())
                    }
                    Some(structural::ListKind::Atomic) | None => Items::Atomic,
                };
                self.schema.add(SchemaType::List(ListType { items, element }))
            }
            "object" => {
                let mut fields: Vec<SchemaField> = Vec::new();
                let mut put = |name: &str, of: TypeId| {
                    fields.push(SchemaField { name: name.to_owned().into(), of, implied: None });
                };
                if is_object {
                    put("apiVersion", text);
                    put("kind", text);
                    put("metadata", metadata);
                }
                for (name, property) in &custom.properties {
                    if is_object && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                        continue;
                    }
                    let of = self.custom(property, property.embedded, metadata);
                    put(name, of);
                }
                let element = match &custom.additional {
                    structural::Additional::Like(additional) => {
                        Some(self.custom(additional, additional.embedded, metadata))
                    }
                    structural::Additional::Allowed(true) => Some(Schema::ANY),
                    _ if custom.preserves_unknown => Some(Schema::ANY),
                    _ => None,
                };
                let atomic = custom.is_atomic_map();
                self.schema.add(SchemaType::Map(MapType { atomic, fields, element }))
            }
            _ => Schema::ANY,
        }
    }

    fn structure(&mut self, types: &Types, of: &Type, atomic: bool) -> SchemaType {
        let fields = of.fields.iter().map(|field| {
            let always = of.always.contains(&field.name);
            let value = || match (field.shape, field.leaf) {
                (Shape::One, Leaf::Struct(_)) => json!({}),
                _ => Value::Null,
            };
            SchemaField {
                name: field.name.into(),
                of: self.field(types, field),
                implied: always.then(value),
            }
        });
        SchemaType::Map(MapType { atomic, fields: fields.collect(), element: None })
    }

    fn field(&mut self, types: &Types, field: &Field) -> TypeId {
        let [number, text, boolean, any] = self.scalars;
        let leaf = match field.leaf {
            Leaf::String | Leaf::Bytes => text,
            Leaf::Bool => boolean,
            Leaf::Int32 | Leaf::Int64 | Leaf::Double => number,
            Leaf::Quantity | Leaf::IntOrString | Leaf::Time | Leaf::MicroTime => any,
            // Objects that the API only carries are one value.
            Leaf::Any | Leaf::Either(_) => Schema::ATOMIC,
            Leaf::Struct(index) => match field.shape {
                // The field has other rules than its type.
                Shape::One if field.atomic_map || field.granular_map => {
                    let of = self.structure(types, types.get(index), field.atomic_map);
                    return self.schema.add(of);
                }
                _ => self.structs.get(index).copied().unwrap_or(Schema::ANY),
            },
        };
        match field.shape {
            Shape::One => leaf,
            Shape::List => self.list(field, leaf),
            Shape::Map => self.map(field.atomic_map, leaf),
            Shape::MapOfLists => {
                let list = self.list(field, leaf);
                self.map(field.atomic_map, list)
            }
        }
    }

    fn list(&mut self, field: &Field, element: TypeId) -> TypeId {
        let items = match field.list {
            Some(ListKind::Set) => Items::Set,
            Some(ListKind::Map) => {
                let default = |name: &str| {
                    let known = field.key_defaults.iter().find(|(key, _)| *key == name);
                    known.map(|(_, value)| value.clone())
                };
                let key =
                    |name: &&'static str| Key { name: (*name).into(), default: default(name) };
                Items::Keys(field.map_keys.iter().map(key).collect())
            }
            Some(ListKind::Atomic) | None => {
                let schema = &mut self.schema;
                let atomic = ListType { items: Items::Atomic, element };
                let add = || schema.add(SchemaType::List(atomic));
                return *self.shared.entry((true, element)).or_insert_with(add);
            }
        };
        let id = self.schema.declare();
        self.schema.define(id, SchemaType::List(ListType { items, element }));
        id
    }

    fn map(&mut self, atomic: bool, element: TypeId) -> TypeId {
        let schema = &mut self.schema;
        let of = MapType { atomic, fields: Vec::new(), element: Some(element) };
        if atomic {
            return schema.add(SchemaType::Map(of));
        }
        let add = || schema.add(SchemaType::Map(of));
        *self.shared.entry((false, element)).or_insert_with(add)
    }
}
