//! The merge rules of the served kinds, from the table of types.

use std::collections::HashMap;
use std::sync::OnceLock;

use longshore_managedfields::{
    Field as SchemaField, Items, Key, ListType, MapType, Scalar, Schema, Type as SchemaType, TypeId,
};
use serde_json::{Value, json};

use crate::api_types::{Field, Gvk, Leaf, ListKind, Shape, Type, Types, types};

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
            Leaf::Any => Schema::ATOMIC,
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
