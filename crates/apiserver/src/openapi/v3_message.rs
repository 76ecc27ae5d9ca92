//! PURE: a document of OpenAPI 3 as a message. Numbers of fields are those of package `openapi.v3` in
//! gnostic-models (`OpenAPIv3.proto`), which client-go reads.

use serde_json::Value;

use super::message::{Field, Form, encode};

/// The message `openapi.v3.Document`.
pub(super) fn document(document: &Value) -> Vec<u8> {
    encode(document_fields(), document)
}

fn document_fields() -> &'static [Field] {
    &[
        ("openapi", 1, Form::Text),
        ("info", 2, Form::Message(info)),
        ("paths", 4, Form::Named(1, &Form::Message(path))),
        ("components", 5, Form::Message(components)),
    ]
}

fn info() -> &'static [Field] {
    &[("title", 1, Form::Text), ("version", 6, Form::Text)]
}

fn components() -> &'static [Field] {
    &[
        ("schemas", 1, Form::Named(1, &Form::Choice(schema_or_reference))),
        ("securitySchemes", 7, Form::Named(1, &Form::Inside(1, &Form::Message(security_scheme)))),
    ]
}

fn security_scheme() -> &'static [Field] {
    &[
        ("type", 1, Form::Text),
        ("description", 2, Form::Text),
        ("name", 3, Form::Text),
        ("in", 4, Form::Text),
    ]
}

fn path() -> &'static [Field] {
    &[
        ("get", 4, Form::Message(operation)),
        ("put", 5, Form::Message(operation)),
        ("post", 6, Form::Message(operation)),
        ("delete", 7, Form::Message(operation)),
        ("options", 8, Form::Message(operation)),
        ("head", 9, Form::Message(operation)),
        ("patch", 10, Form::Message(operation)),
        ("parameters", 13, Form::Each(&Form::Inside(1, &Form::Message(parameter)))),
        ("x-", 14, Form::Any),
    ]
}

fn operation() -> &'static [Field] {
    &[
        ("tags", 1, Form::Each(&Form::Text)),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("parameters", 6, Form::Each(&Form::Inside(1, &Form::Message(parameter)))),
        ("requestBody", 7, Form::Inside(1, &Form::Message(request_body))),
        // Codes only: no operation has a response by default.
        ("responses", 8, Form::Named(2, &Form::Inside(1, &Form::Message(response)))),
        ("x-", 13, Form::Any),
    ]
}

fn parameter() -> &'static [Field] {
    &[
        ("name", 1, Form::Text),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 10, Form::Choice(schema_or_reference)),
        ("x-", 14, Form::Any),
    ]
}

fn request_body() -> &'static [Field] {
    &[
        ("description", 1, Form::Text),
        ("content", 2, Form::Named(1, &Form::Message(media_type))),
        ("required", 3, Form::Flag),
    ]
}

fn response() -> &'static [Field] {
    &[
        ("description", 1, Form::Text),
        ("content", 3, Form::Named(1, &Form::Message(media_type))),
        ("x-", 5, Form::Any),
    ]
}

fn media_type() -> &'static [Field] {
    &[("schema", 1, Form::Choice(schema_or_reference))]
}

fn schema() -> &'static [Field] {
    &[
        ("nullable", 1, Form::Flag),
        ("example", 7, Form::Any),
        ("title", 9, Form::Text),
        ("multipleOf", 10, Form::Double),
        ("maximum", 11, Form::Double),
        ("exclusiveMaximum", 12, Form::Flag),
        ("minimum", 13, Form::Double),
        ("exclusiveMinimum", 14, Form::Flag),
        ("maxLength", 15, Form::Number),
        ("minLength", 16, Form::Number),
        ("pattern", 17, Form::Text),
        ("maxItems", 18, Form::Number),
        ("minItems", 19, Form::Number),
        ("uniqueItems", 20, Form::Flag),
        ("maxProperties", 21, Form::Number),
        ("minProperties", 22, Form::Number),
        ("required", 23, Form::Each(&Form::Text)),
        ("enum", 24, Form::Each(&Form::Any)),
        ("type", 25, Form::Text),
        ("allOf", 26, Form::Each(&Form::Choice(schema_or_reference))),
        ("oneOf", 27, Form::Each(&Form::Choice(schema_or_reference))),
        ("anyOf", 28, Form::Each(&Form::Choice(schema_or_reference))),
        ("not", 29, Form::Message(schema)),
        ("items", 30, Form::Inside(1, &Form::Choice(schema_or_reference))),
        ("properties", 31, Form::Named(1, &Form::Choice(schema_or_reference))),
        ("additionalProperties", 32, Form::Choice(additional)),
        ("default", 33, Form::Choice(default)),
        ("description", 34, Form::Text),
        ("format", 35, Form::Text),
        ("x-", 36, Form::Any),
    ]
}

fn reference() -> &'static [Field] {
    &[("$ref", 1, Form::Text)]
}

fn schema_or_reference(value: &Value) -> Option<&'static Form> {
    const SCHEMA: Form = Form::Inside(1, &Form::Message(schema));
    const REFERENCE: Form = Form::Inside(2, &Form::Message(reference));
    Some(if value.get("$ref").is_some() { &REFERENCE } else { &SCHEMA })
}

/// What properties that have no name are: a schema, or whether there may be any.
fn additional(value: &Value) -> Option<&'static Form> {
    const SCHEMA: Form = Form::Inside(1, &Form::Choice(schema_or_reference));
    const FLAG: Form = Form::Inside(2, &Form::Flag);
    Some(if value.is_boolean() { &FLAG } else { &SCHEMA })
}

/// The message has no defaults that are objects or lists.
fn default(value: &Value) -> Option<&'static Form> {
    const DOUBLE: Form = Form::Inside(1, &Form::Double);
    const FLAG: Form = Form::Inside(2, &Form::Flag);
    const TEXT: Form = Form::Inside(3, &Form::Text);
    match value {
        Value::Number(_) => Some(&DOUBLE),
        Value::Bool(_) => Some(&FLAG),
        Value::String(_) => Some(&TEXT),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::message::{field, left_out};
    use super::*;

    #[test]
    fn openapi_v3_message_has_the_fields_of_the_proto() {
        let written = encode(
            &[("s", 1, Form::Choice(schema_or_reference))],
            &json!({"s": {
                "default": "d",
                "items": {"$ref": "#/r"},
                "not": {"additionalProperties": false, "default": {}},
            }}),
        );
        let default = field(33, field(3, "d"));
        // a reference within an ItemsItem, field 30 of a schema
        let items = field(30, field(1, field(2, field(1, "#/r"))));
        // additionalProperties is field 32, its flag 2; `not` is field 29
        let not = field(29, field(32, [0x10, 0]));
        let schema = [default, items, not].concat();
        assert_eq!(written, field(1, field(1, schema)));
    }

    #[test]
    fn openapi_v3_message_leaves_out_no_key_of_the_documents() {
        let index = crate::openapi::index(&[], true);
        for path in index["paths"].as_object().unwrap().keys() {
            let json = crate::openapi::document(&[], true, path).unwrap();
            assert_eq!(left_out(document_fields(), &json), Default::default(), "{path}");
            assert!(document(&json).len() > 100, "{path}");
        }
    }
}
