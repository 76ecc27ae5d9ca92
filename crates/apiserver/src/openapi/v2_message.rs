//! PURE: a document of OpenAPI 2 as a message. Numbers of fields are those of package `openapi.v2` in
//! gnostic-models (`OpenAPIv2.proto`), which client-go reads.

use serde_json::Value;

use super::message::{Field, Form, encode};

/// The message `openapi.v2.Document`.
pub(super) fn document(document: &Value) -> Vec<u8> {
    encode(document_fields(), document)
}

fn document_fields() -> &'static [Field] {
    &[
        ("swagger", 1, Form::Text),
        ("info", 2, Form::Message(info)),
        ("paths", 8, Form::Named(2, &Form::Message(path))),
        ("definitions", 9, Form::Named(1, &Form::Message(schema))),
        ("security", 12, Form::Each(&Form::Named(1, &Form::Inside(1, &Form::Each(&Form::Text))))),
        ("securityDefinitions", 13, Form::Named(1, &Form::Inside(2, &Form::Message(api_key)))),
    ]
}

fn info() -> &'static [Field] {
    &[("title", 1, Form::Text), ("version", 2, Form::Text)]
}

fn api_key() -> &'static [Field] {
    &[
        ("type", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("description", 4, Form::Text),
    ]
}

fn path() -> &'static [Field] {
    &[
        ("get", 2, Form::Message(operation)),
        ("put", 3, Form::Message(operation)),
        ("post", 4, Form::Message(operation)),
        ("delete", 5, Form::Message(operation)),
        ("options", 6, Form::Message(operation)),
        ("head", 7, Form::Message(operation)),
        ("patch", 8, Form::Message(operation)),
        ("parameters", 9, Form::Each(&Form::Choice(parameter))),
        ("x-", 10, Form::Any),
    ]
}

fn operation() -> &'static [Field] {
    &[
        ("tags", 1, Form::Each(&Form::Text)),
        ("description", 3, Form::Text),
        ("operationId", 5, Form::Text),
        ("produces", 6, Form::Each(&Form::Text)),
        ("consumes", 7, Form::Each(&Form::Text)),
        ("parameters", 8, Form::Each(&Form::Choice(parameter))),
        ("responses", 9, Form::Named(1, &Form::Inside(1, &Form::Message(response)))),
        ("schemes", 10, Form::Each(&Form::Text)),
        ("x-", 13, Form::Any),
    ]
}

fn response() -> &'static [Field] {
    &[
        ("description", 1, Form::Text),
        ("schema", 2, Form::Inside(1, &Form::Message(schema))),
        ("x-", 5, Form::Any),
    ]
}

fn body_parameter() -> &'static [Field] {
    &[
        ("description", 1, Form::Text),
        ("name", 2, Form::Text),
        ("in", 3, Form::Text),
        ("required", 4, Form::Flag),
        ("schema", 5, Form::Message(schema)),
    ]
}

fn query_parameter() -> &'static [Field] {
    &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 6, Form::Text),
        ("uniqueItems", 20, Form::Flag),
    ]
}

fn path_parameter() -> &'static [Field] {
    &[
        ("required", 1, Form::Flag),
        ("in", 2, Form::Text),
        ("description", 3, Form::Text),
        ("name", 4, Form::Text),
        ("type", 5, Form::Text),
        ("uniqueItems", 19, Form::Flag),
    ]
}

fn schema() -> &'static [Field] {
    &[
        ("$ref", 1, Form::Text),
        ("format", 2, Form::Text),
        ("title", 3, Form::Text),
        ("description", 4, Form::Text),
        ("default", 5, Form::Any),
        ("multipleOf", 6, Form::Double),
        ("maximum", 7, Form::Double),
        ("exclusiveMaximum", 8, Form::Flag),
        ("minimum", 9, Form::Double),
        ("exclusiveMinimum", 10, Form::Flag),
        ("maxLength", 11, Form::Number),
        ("minLength", 12, Form::Number),
        ("pattern", 13, Form::Text),
        ("maxItems", 14, Form::Number),
        ("minItems", 15, Form::Number),
        ("uniqueItems", 16, Form::Flag),
        ("maxProperties", 17, Form::Number),
        ("minProperties", 18, Form::Number),
        ("required", 19, Form::Each(&Form::Text)),
        ("enum", 20, Form::Each(&Form::Any)),
        ("additionalProperties", 21, Form::Choice(additional)),
        ("type", 22, Form::Inside(1, &Form::Text)),
        ("items", 23, Form::Inside(1, &Form::Message(schema))),
        ("allOf", 24, Form::Each(&Form::Message(schema))),
        ("properties", 25, Form::Named(1, &Form::Message(schema))),
        ("x-", 31, Form::Any),
    ]
}

/// What properties that have no name are: a schema, or whether there may be any.
fn additional(value: &Value) -> Option<&'static Form> {
    const SCHEMA: Form = Form::Inside(1, &Form::Message(schema));
    const FLAG: Form = Form::Inside(2, &Form::Flag);
    Some(if value.is_boolean() { &FLAG } else { &SCHEMA })
}

/// ParametersItem with a Parameter: that of the body, or the NonBodyParameter of the query or the path.
fn parameter(value: &Value) -> Option<&'static Form> {
    const BODY: Form = Form::Inside(1, &Form::Inside(1, &Form::Message(body_parameter)));
    const OF_QUERY: Form =
        Form::Inside(1, &Form::Inside(2, &Form::Inside(3, &Form::Message(query_parameter))));
    const OF_PATH: Form =
        Form::Inside(1, &Form::Inside(2, &Form::Inside(4, &Form::Message(path_parameter))));
    Some(match value["in"].as_str() {
        Some("body") => &BODY,
        Some("path") => &OF_PATH,
        _ => &OF_QUERY,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::message::field;
    use super::*;

    #[test]
    fn openapi_message_has_the_fields_of_the_proto() {
        let written = document(&json!({
            "swagger": "2.0",
            "definitions": {"a": {"type": "object", "additionalProperties": true}},
            "security": [{"BearerToken": []}],
            "unknown": 1,
        }));
        // a schema: additionalProperties is field 21, its flag 2; type is field 22
        let schema = [field(21, [0x10, 1]), field(22, field(1, "object"))].concat();
        let definition = field(1, [field(1, "a"), field(2, schema)].concat());
        let security = field(1, [field(1, "BearerToken"), field(2, "")].concat());
        let expected = [field(9, definition), field(12, security), field(1, "2.0")].concat();
        assert_eq!(written, expected);
    }

    #[test]
    fn openapi_message_tells_parameters_by_their_place() {
        let parameters = json!([
            {"in": "body", "name": "b", "schema": {}},
            {"in": "query", "name": "q", "uniqueItems": true},
            {"in": "path", "name": "p"},
        ]);
        let fields = [("parameters", 1, Form::Each(&Form::Choice(parameter)))];
        let written = encode(&fields, &json!({"parameters": parameters}));
        let body = [field(3, "body"), field(2, "b"), field(5, "")].concat();
        let query = [field(2, "query"), field(4, "q"), vec![0xa0, 1, 1]].concat();
        let path = [field(2, "path"), field(4, "p")].concat();
        let expected = [
            field(1, field(1, field(1, body))),
            field(1, field(1, field(2, field(3, query)))),
            field(1, field(1, field(2, field(4, path)))),
        ];
        assert_eq!(written, expected.concat());
    }
}
