//! ConversionReview: what webhooks are sent, and what they may answer. Messages are upstream's.

use serde_json::{Map, Value, json};

use crate::kinds;
use crate::schema::type_of;
use crate::schema::value::text;

const GROUP: &str = "apiextensions.k8s.io";
const KIND: &str = "ConversionReview";
/// The versions that are sent.
const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// The version of reviews that a webhook is sent: the first of its own that is known here.
pub(super) fn version(accepted: &[String]) -> Result<&'static str, String> {
    let known = |own: &String| VERSIONS.into_iter().find(|known| known == own);
    let found = accepted.iter().find_map(known);
    found.ok_or_else(|| "no supported conversion review versions".to_owned())
}

/// A review of these objects, which are to get the version `api_version`.
pub(super) fn request(version: &str, uid: &str, api_version: &str, objects: Vec<Value>) -> Value {
    json!({
        "kind": KIND,
        "apiVersion": format!("{GROUP}/{version}"),
        "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
        // There as well when upstream's server calls.
        "response": {"uid": "", "convertedObjects": null, "result": {"metadata": {}}},
    })
}

/// The converted objects of an answer.
pub(super) fn converted(version: &str, uid: &str, mut review: Value) -> Result<Vec<Value>, String> {
    let wanted = format!("{GROUP}/{version}, Kind={KIND}");
    let given = gvk(&review);
    if version == "v1" && given != wanted {
        return Err(format!("expected webhook response of {wanted}, got {given}"));
    }
    let response = match review.get_mut("response") {
        Some(response) if response.is_object() => response,
        _ => return Err("no response provided".to_owned()),
    };
    let given = text(&response["uid"]);
    if version == "v1" && given != uid {
        return Err(format!("expected response.uid={uid:?}, got {given:?}"));
    }
    let status = text(&response["result"]["status"]);
    if status != "Success" {
        return Err(match text(&response["result"]["message"]) {
            "" => format!("response.result.status was '{status}', not 'Success'"),
            message => message.to_owned(),
        });
    }
    match response["convertedObjects"].take() {
        Value::Array(objects) => Ok(objects),
        Value::Null => Ok(Vec::new()),
        other => Err(format!(
            "json: cannot unmarshal {} into Go struct field \
             ConversionResponse.response.convertedObjects of type []runtime.RawExtension",
            json_kind(&other)
        )),
    }
}

/// Group, version and kind of an object, as upstream writes them.
pub(super) fn gvk(object: &Value) -> String {
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    match (version, kind) {
        ("", "") => "/, Kind=".to_owned(),
        (version, kind) if version.contains('/') => format!("{version}, Kind={kind}"),
        (version, kind) => format!("/{version}, Kind={kind}"),
    }
}

/// Why a converted object is not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It is none, or of another version or kind.
    Form(String),
    /// It is another object.
    Object(String),
    /// Its metadata cannot be read, or is not valid.
    Metadata(String),
}

/// The converted object with the metadata of the original, but for labels and annotations, which a
/// webhook may change.
pub(super) fn accept(
    original: &Value,
    mut converted: Value,
    api_version: &str,
) -> Result<Value, Refusal> {
    let given = text(&converted["apiVersion"]);
    let kinds = (text(&original["kind"]), text(&converted["kind"]));
    if !converted.is_object() {
        let found = json_kind(&converted);
        return Err(Refusal::Form(format!("json: the object is a value of type {found}")));
    }
    if kinds.1.is_empty() {
        let shown = crate::schema::field::shortened(converted.to_string());
        return Err(Refusal::Form(format!("Object 'Kind' is missing in '{shown}'")));
    }
    if given != api_version {
        return Err(Refusal::Form(format!(
            "invalid groupVersion (expected {api_version}, received {given})"
        )));
    }
    if kinds.0 != kinds.1 {
        return Err(Refusal::Form(format!(
            "invalid kind (expected {}, received {})",
            kinds.0, kinds.1
        )));
    }
    for (what, field) in [("name", "name"), ("namespace", "namespace"), ("UID", "uid")] {
        let of = |object: &Value| text(&object["metadata"][field]).to_owned();
        let (expected, found) = (of(original), of(&converted));
        if expected != found {
            return Err(Refusal::Object(format!(
                "must have the same {what}: {expected} != {found}"
            )));
        }
    }
    restore_metadata(original, &mut converted).map_err(Refusal::Metadata)?;
    Ok(converted)
}

fn restore_metadata(original: &Value, converted: &mut Value) -> Result<(), String> {
    let Some(metadata) = converted.get_mut("metadata") else {
        return Err("missing metadata in converted object".to_owned());
    };
    if !metadata.is_object() {
        let kind = type_of(metadata);
        return Err(format!("invalid metadata of type {kind} in converted object"));
    }
    let given = std::mem::replace(metadata, original["metadata"].clone());
    if metadata.is_null() {
        *metadata = json!({});
    }
    let Some(metadata) = metadata.as_object_mut() else {
        let kind = type_of(&original["metadata"]);
        return Err(format!("invalid metadata of type {kind} in input object"));
    };
    for field in ["labels", "annotations"] {
        let new = match given.get(field) {
            None | Some(Value::Null) => {
                metadata.remove(field);
                continue;
            }
            Some(Value::Object(new)) => new,
            Some(other) => {
                let kind = type_of(other);
                return Err(format!("invalid metadata.{field} of type {kind} in converted object"));
            }
        };
        check_texts(field, new)?;
        if metadata.get(field).and_then(Value::as_object) != Some(new) {
            kinds::check_texts(field, &Value::Object(new.clone()))?;
        }
        metadata.insert(field.to_owned(), Value::Object(new.clone()));
    }
    Ok(())
}

fn check_texts(field: &str, map: &Map<String, Value>) -> Result<(), String> {
    match map.iter().find(|(_, value)| !value.is_string()) {
        Some((key, value)) => Err(format!(
            "metadata.{field}[{key}] must be a string, but is {} in converted object",
            type_of(value)
        )),
        None => Ok(()),
    }
}

fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V2: &str = "example.com/v2";

    fn original() -> Value {
        json!({
            "apiVersion": "example.com/v1", "kind": "Widget",
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "u", "generation": 3,
                "labels": {"old": "1"}, "annotations": {"note": "x"},
            },
            "hostPort": "h:1",
        })
    }

    fn answer(result: Value, objects: Value) -> Value {
        json!({
            "kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "response": {"uid": "id", "result": result, "convertedObjects": objects},
        })
    }

    #[test]
    fn conversion_review_version_is_the_first_that_is_known() {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(version(&texts(&["v2", "v1beta1", "v1"])), Ok("v1beta1"));
        assert_eq!(version(&texts(&["v1", "v1beta1"])), Ok("v1"));
        let none = Err("no supported conversion review versions".to_owned());
        assert_eq!(version(&texts(&["v2"])), none);
    }

    #[test]
    fn conversion_answers_are_checked_like_upstreams() {
        let success = json!({"status": "Success"});
        let read = |version: &str, review: Value| converted(version, "id", review);
        let good = answer(success.clone(), json!([1, 2]));
        assert_eq!(read("v1", good.clone()), Ok(vec![json!(1), json!(2)]));
        let refused =
            |review: Value, why: &str| assert_eq!(read("v1", review), Err(why.to_owned()));
        let mut other = good.clone();
        other["apiVersion"] = "apiextensions.k8s.io/v1beta1".into();
        refused(
            other.clone(),
            "expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, got \
             apiextensions.k8s.io/v1beta1, Kind=ConversionReview",
        );
        other["response"]["uid"] = "other".into();
        assert!(read("v1beta1", other).is_ok(), "that version never had these checks");
        let mut other = good.clone();
        other["response"]["uid"] = "ot\"her".into();
        refused(other, "expected response.uid=\"id\", got \"ot\\\"her\"");
        let mut none = good;
        none["response"] = Value::Null;
        refused(none, "no response provided");
        let failed = json!({"status": "Failure", "message": "no way"});
        refused(answer(failed, json!([])), "no way");
        refused(
            answer(json!({"status": "Failed"}), json!([])),
            "response.result.status was 'Failed', not 'Success'",
        );
        refused(answer(json!({}), json!([])), "response.result.status was '', not 'Success'");
        assert_eq!(read("v1", answer(success, Value::Null)), Ok(Vec::new()));
    }

    #[test]
    fn conversion_answers_of_any_shape_are_no_panic() {
        for review in [json!([]), json!("x"), json!(1), json!(true), json!({"response": []})] {
            for version in VERSIONS {
                assert!(converted(version, "id", review.clone()).is_err(), "{version} {review}");
            }
        }
    }

    #[test]
    fn conversion_keeps_all_metadata_but_labels_and_annotations() {
        let converted = json!({
            "apiVersion": V2, "kind": "Widget", "host": "h", "port": "1",
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "u", "generation": 9, "finalizers": ["x"],
                "labels": {"new": "2"},
            },
        });
        let accepted = accept(&original(), converted, V2).unwrap();
        let expected = json!({
            "apiVersion": V2, "kind": "Widget", "host": "h", "port": "1",
            "metadata": {
                "name": "a", "namespace": "ns", "uid": "u", "generation": 3, "labels": {"new": "2"},
            },
        });
        assert_eq!(accepted, expected);
    }

    #[test]
    fn conversion_refuses_other_objects() {
        use Refusal::{Form, Metadata, Object};
        let is = |make: fn(String) -> Refusal, why: &str| make(why.to_owned());
        for (pointer, value, expected) in [
            ("", json!(7), is(Form, "json: the object is a value of type number")),
            ("/kind", json!(null), is(Form, "Object 'Kind' is missing in '")),
            (
                "/apiVersion",
                json!("example.com/v1"),
                is(Form, "invalid groupVersion (expected example.com/v2, received example.com/v1)"),
            ),
            ("/kind", json!("Gadget"), is(Form, "invalid kind (expected Widget, received Gadget)")),
            ("/metadata/name", json!("b"), is(Object, "must have the same name: a != b")),
            ("/metadata/namespace", json!(1), is(Object, "must have the same namespace: ns != ")),
            ("/metadata/uid", json!(null), is(Object, "must have the same UID: u != ")),
            ("/metadata", json!([]), is(Object, "must have the same name: a != ")),
            (
                "/metadata/labels",
                json!("x"),
                is(Metadata, "invalid metadata.labels of type string in converted object"),
            ),
            (
                "/metadata/annotations",
                json!({"a": 1}),
                is(Metadata, "metadata.annotations[a] must be a string, but is int64 in converted"),
            ),
            (
                "/metadata/labels",
                json!({"a": "no way"}),
                is(Metadata, "metadata.labels: Invalid value: \"no way\": a valid label must be"),
            ),
        ] {
            let mut converted = original();
            converted["apiVersion"] = V2.into();
            *converted.pointer_mut(pointer).unwrap() = value;
            let refused = accept(&original(), converted, V2).unwrap_err();
            let (Form(found) | Object(found) | Metadata(found)) = &refused;
            let (Form(wanted) | Object(wanted) | Metadata(wanted)) = &expected;
            assert!(found.starts_with(wanted.as_str()), "{pointer}: {found}");
            assert_eq!(std::mem::discriminant(&refused), std::mem::discriminant(&expected));
        }
        let nameless = json!({"apiVersion": "example.com/v1", "kind": "Widget"});
        let bare = json!({"apiVersion": V2, "kind": "Widget"});
        let missing = Metadata("missing metadata in converted object".to_owned());
        assert_eq!(accept(&nameless, bare, V2), Err(missing));
    }

    proptest! {
        /// Whatever a webhook answers, the object stays the one that it is.
        #[test]
        fn conversion_of_any_answer_keeps_the_object(
            body in crate::schema::value::arbitrary::value(),
            metadata in crate::schema::value::arbitrary::value(),
        ) {
            let _ = accept(&original(), body.clone(), V2);
            let mut answered = json!({"apiVersion": V2, "kind": "Widget", "spec": body});
            answered["metadata"] = metadata;
            for field in ["name", "namespace", "uid"] {
                if let Some(map) = answered["metadata"].as_object_mut() {
                    map.insert(field.into(), original()["metadata"][field].clone());
                }
            }
            if let Ok(accepted) = accept(&original(), answered, V2) {
                let rest = |object: &Value| {
                    let mut metadata = object["metadata"].clone();
                    let map = metadata.as_object_mut().unwrap();
                    map.remove("labels");
                    map.remove("annotations");
                    metadata
                };
                prop_assert_eq!(rest(&accepted), rest(&original()));
            }
        }
    }
}
