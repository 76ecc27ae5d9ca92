mod fields;
mod objects;
mod properties;
mod values;

use serde_json::{Value, json};

use crate::*;

/// A workload: a struct with a list by key, nested ones, sets, maps, and atomic values.
pub(super) fn schema() -> (Schema, TypeId) {
    let mut schema = Schema::new();
    let text = schema.add(Type::Scalar(Scalar::Text));
    let number = schema.add(Type::Scalar(Scalar::Number));
    let any = schema.add(Type::Scalar(Scalar::Any));
    let structure = |schema: &mut Schema, atomic: bool, fields: &[(&'static str, TypeId)]| {
        let id = schema.declare();
        let field = |(name, of): &(&'static str, TypeId)| Field {
            name: (*name).into(),
            of: *of,
            implied: (*name == "resources" || *name == "metadata" || *name == "spec")
                .then(|| json!({})),
        };
        let fields = fields.iter().map(field).collect();
        schema.define(id, Type::Map(MapType { atomic, fields, element: None }));
        id
    };
    let list = |schema: &mut Schema, items: Items, element: TypeId| {
        schema.add(Type::List(ListType { items, element }))
    };
    let key = |name: &'static str, default: Option<Value>| Key { name: name.into(), default };
    let map_of = |schema: &mut Schema, element: TypeId| {
        schema.add(Type::Map(MapType { element: Some(element), ..MapType::default() }))
    };

    let texts = map_of(&mut schema, text);
    let finalizers = list(&mut schema, Items::Set, text);
    let entries = list(&mut schema, Items::Atomic, Schema::ANY);
    let metadata = structure(
        &mut schema,
        false,
        &[
            ("name", text),
            ("namespace", text),
            ("uid", text),
            ("resourceVersion", text),
            ("labels", texts),
            ("annotations", texts),
            ("finalizers", finalizers),
            ("managedFields", entries),
        ],
    );
    let port = structure(
        &mut schema,
        false,
        &[("containerPort", number), ("protocol", text), ("name", text)],
    );
    let keys = vec![key("containerPort", None), key("protocol", Some(json!("TCP")))];
    let ports = list(&mut schema, Items::Keys(keys), port);
    let args = list(&mut schema, Items::Atomic, text);
    let env_var = structure(&mut schema, false, &[("name", text), ("value", text)]);
    let env = list(&mut schema, Items::Keys(vec![key("name", None)]), env_var);
    let quantities = map_of(&mut schema, any);
    let resources = structure(&mut schema, false, &[("limits", quantities)]);
    let container = structure(
        &mut schema,
        false,
        &[
            ("name", text),
            ("image", text),
            ("args", args),
            ("env", env),
            ("ports", ports),
            ("resources", resources),
        ],
    );
    let containers = list(&mut schema, Items::Keys(vec![key("name", None)]), container);
    let selector = structure(&mut schema, true, &[("matchLabels", texts)]);
    let spec = structure(
        &mut schema,
        false,
        &[
            ("replicas", number),
            ("paused", any),
            ("selector", selector),
            ("containers", containers),
            ("extension", Schema::ANY),
        ],
    );
    let status = structure(&mut schema, false, &[("replicas", number)]);
    let workload = structure(
        &mut schema,
        false,
        &[
            ("apiVersion", text),
            ("kind", text),
            ("metadata", metadata),
            ("spec", spec),
            ("status", status),
        ],
    );
    (schema, workload)
}

/// `fieldsV1` as a set.
pub(super) fn set(fields: &Value) -> Set<'static> {
    Set::from_fields(fields).unwrap().into_owned()
}

/// The members as paths, which tests write and read more easily.
pub(super) fn paths(set: &Set<'_>) -> Vec<String> {
    set.paths().iter().map(|path| path.iter().map(ToString::to_string).collect()).collect()
}
