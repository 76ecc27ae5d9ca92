use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::api_types::{Leaf, Resource, Slot, Type, message};
use crate::kinds::{lookup, resources};
use crate::schema::value::arbitrary::of_type;
use crate::schema::value::{is_zero, items_mut, same};
use crate::schema::{FieldValidation, conform, read};

fn object(gvk: Gvk, body: &[u8]) -> Result<Value, StatusError> {
    read(gvk, body, Some(MEDIA_TYPE), FieldValidation::Strict).map(|(object, _)| object)
}

fn gvk(group: &str, plural: &str) -> Gvk {
    lookup(group, "v1", plural).expect("served").gvk()
}

/// What kube-apiserver 1.36 answered for the same objects, in both forms.
macro_rules! golden {
    ($($group:literal $plural:literal $name:literal),* $(,)?) => {
        [$((
            gvk($group, $plural),
            include_bytes!(concat!("golden/", $name, ".pb")).as_slice(),
            include_str!(concat!("golden/", $name, ".json")),
        )),*]
    };
}

#[test]
fn protobuf_objects_equal_json() {
    for (gvk, body, json) in golden![
        "" "configmaps" "configmap",
        "" "nodes" "node",
        "" "pods" "pod",
        "" "replicationcontrollers" "replicationcontroller",
        "" "secrets" "secret",
        "" "services" "service",
        "coordination.k8s.io" "leases" "lease",
        "discovery.k8s.io" "endpointslices" "endpointslice",
        "events.k8s.io" "events" "event",
    ] {
        let from_json = read(gvk, json.as_bytes(), None, FieldValidation::Strict).unwrap().0;
        let mut from_protobuf = object(gvk, body).unwrap();
        assert!(from_protobuf["metadata"]["managedFields"][0]["fieldsV1"].is_object());
        // Those who saved the JSON have left them out.
        from_protobuf["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert!(same(&from_protobuf, &from_json), "{from_protobuf}\n{from_json}");
    }
}

/// What upstream's server wrote is what is written here of the same object.
#[test]
fn protobuf_is_written_as_upstream_writes_it() {
    for (gvk, body, _) in golden![
        "" "configmaps" "configmap",
        "" "nodes" "node",
        "" "pods" "pod",
        "" "replicationcontrollers" "replicationcontroller",
        "" "secrets" "secret",
        "" "services" "service",
        "coordination.k8s.io" "leases" "lease",
        "discovery.k8s.io" "endpointslices" "endpointslice",
        "events.k8s.io" "events" "event",
    ] {
        let object = decode_any(body, as_given).unwrap();
        let written = encode(types().index_of(gvk).unwrap(), &gvk.api_version(), &object).unwrap();
        assert_eq!(written.escape_ascii().to_string(), body.escape_ascii().to_string());
    }
}

fn as_given(api_version: &str, kind: &str) -> (String, String) {
    (api_version.to_owned(), kind.to_owned())
}

/// Both ways, an object of `gvk` that was read by the rules for bodies.
fn there_and_back(gvk: Gvk, object: &Value) -> Value {
    let ty = types().index_of(gvk).unwrap();
    let bytes =
        encode(ty, &gvk.api_version(), object).unwrap_or_else(|why| panic!("{why}: {object}"));
    let read = decode_any(&bytes, as_given).unwrap_or_else(|why| panic!("{why}: {object}"));
    // Not the bytes: an empty `caBundle` is written, as Go does, and read as none, as Go shows it.
    let again = encode(ty, &gvk.api_version(), &read).unwrap();
    assert_eq!(decode_any(&again, as_given).unwrap(), read, "{object}");
    read
}

fn whole_kinds() -> Vec<Gvk> {
    resources().filter(|resource| !resource.storage.is_empty()).map(Resource::gvk).collect()
}

/// As Go reads a time, or a quantity, that is not there: zero values are as good as absent ones.
fn is_same(a: &Value, b: &Value) -> bool {
    const ZEROS: [&str; 2] = ["0", ""];
    let is_empty = |value: &Value| match value {
        Value::String(text) => ZEROS.contains(&text.as_str()),
        Value::Object(map) => map.values().all(|value| is_same(value, &Value::Null)),
        value => is_zero(value),
    };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let null = Value::Null;
            let keys = a.keys().chain(b.keys());
            let mut both =
                keys.map(|key| (a.get(key).unwrap_or(&null), b.get(key).unwrap_or(&null)));
            both.all(|(a, b)| is_same(a, b))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (a, b) => a == b || (is_empty(a) && is_empty(b)),
    }
}

#[test]
fn protobuf_objects_of_every_kind_there_and_back() {
    let corpus = include_str!("../../../tests/data/objects.yaml");
    let mut seen = 0;
    for text in corpus.split("\n---\n") {
        let given: Value = serde_saphyr::from_str(text).unwrap();
        let kinds = whole_kinds();
        let is_its =
            |gvk: &&Gvk| given["apiVersion"] == gvk.api_version() && given["kind"] == gvk.kind;
        let Some(gvk) = kinds.iter().find(is_its) else { continue };
        let body = given.to_string();
        let mut object = read(*gvk, body.as_bytes(), None, FieldValidation::Strict).unwrap().0;
        // Whole objects within others say what they are.
        for claim in items_mut(object.pointer_mut("/spec/volumeClaimTemplates")) {
            claim.insert("apiVersion".into(), "v1".into());
            claim.insert("kind".into(), "PersistentVolumeClaim".into());
        }
        let read = there_and_back(*gvk, &object);
        assert!(is_same(&object, &read), "{object}\n{read}");
        seen += 1;
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn protobuf_extremes_there_and_back() {
    let event = gvk("", "events");
    for (field, text, back) in [
        ("eventTime", "1970-01-01T00:00:00.000000Z", Some("1970-01-01T00:00:00.000000Z")),
        ("eventTime", "1969-12-31T23:59:59.999999Z", Some("1969-12-31T23:59:59.999999Z")),
        ("eventTime", "2026-01-01T00:00:00.123456789Z", Some("2026-01-01T00:00:00.123456Z")),
        ("firstTimestamp", "9999-12-31T23:59:59Z", Some("9999-12-31T23:59:59Z")),
        ("firstTimestamp", "0000-01-01T00:00:00Z", Some("0000-01-01T00:00:00Z")),
        ("firstTimestamp", "0001-01-01T00:00:00Z", None),
        ("firstTimestamp", "2026-01-01T01:00:00+01:00", Some("2026-01-01T00:00:00Z")),
    ] {
        let read =
            there_and_back(event, &json!({"apiVersion": "v1", "kind": "Event", field: text}));
        assert_eq!(read[field].as_str(), back, "{text}");
    }
    let lease = gvk("coordination.k8s.io", "leases");
    for number in [i64::from(i32::MIN), -1, 0, 1, 127, 128, i64::from(i32::MAX)] {
        let given = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "spec": {"leaseDurationSeconds": number}});
        assert_eq!(there_and_back(lease, &given)["spec"]["leaseDurationSeconds"], number);
    }
    // Go writes a whole number without a decimal point.
    let crd = gvk("apiextensions.k8s.io", "customresourcedefinitions");
    for (number, back) in
        [("80", "80"), ("80.0", "80"), ("-7e3", "-7000"), ("1.5", "1.5"), ("1e300", "1e+300")]
    {
        let schema = format!(r#"{{"type": "number", "maximum": {number}}}"#);
        let schema: Value = serde_json::from_str(&schema).unwrap();
        let given = json!({"kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
            "spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": schema}}]}});
        let read = there_and_back(crd, &given);
        let maximum = read.pointer("/spec/versions/0/schema/openAPIV3Schema/maximum");
        assert_eq!(maximum.map(Value::to_string).as_deref(), Some(back));
    }
    let map = gvk("", "configmaps");
    let long = "é".repeat(100_000);
    let given = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"},
        "data": {"": "", "a": long, "\u{0}": "\u{0}"}, "binaryData": {"b": "", "c": "AAEC"}});
    let read = there_and_back(map, &given);
    assert!(is_same(&given, &read));
    assert_eq!(read["binaryData"], given["binaryData"]);
    // more values than a body may have, for each manager adds some
    let many: Map<String, Value> = (0..450_000).map(|i| (format!("{i}"), "".into())).collect();
    let given =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}, "data": many});
    let bytes = encode(types().index_of(map).unwrap(), "v1", &given).unwrap();
    assert_eq!(decode(map, &bytes).unwrap_err().code, 413);
    assert_eq!(decode_any(&bytes, as_given).unwrap()["data"], given["data"]);
    let wrong = [
        json!({"data": 1}),
        json!({"data": {"a": 1}}),
        json!({"binaryData": {"a": "%"}}),
        json!({"immutable": "x"}),
        json!({"metadata": []}),
        json!({"metadata": {"creationTimestamp": "now"}}),
        json!({"metadata": {"generation": 1.5}}),
    ];
    for object in wrong {
        assert!(encode(types().index_of(map).unwrap(), "v1", &object).is_err(), "{object}");
    }
}

/// Every field that a body may have can be read from protobuf, and none is there twice.
#[test]
fn protobuf_every_type_has_a_message() {
    fn collect(name: &str, names: &mut Vec<&'static str>) {
        for (_, slot) in message(name).unwrap_or_else(|| panic!("{name} is no message")).slots() {
            match slot {
                Slot::Field { name, .. } => names.push(name),
                Slot::Inline(part) => collect(part, names),
            }
        }
    }
    let bodies = resources()
        .flat_map(|r| std::iter::once(r.gvk()).chain(r.subresources.iter().map(|s| s.gvk)));
    let mut queue: Vec<&Type> =
        bodies.chain([Gvk::DELETE_OPTIONS]).filter_map(|gvk| types().of(gvk)).collect();
    let mut seen = std::collections::HashSet::new();
    while let Some(ty) = queue.pop() {
        if !seen.insert(ty.name) {
            continue;
        }
        let mut names = Vec::new();
        collect(ty.name, &mut names);
        names.sort_unstable();
        // A whole object's apiVersion and kind are in the envelope.
        let is_whole = !ty.kinds.is_empty();
        let fields = ty.fields.iter().map(|f| f.name);
        let wanted: Vec<&str> =
            fields.filter(|f| !is_whole || !matches!(*f, "apiVersion" | "kind")).collect();
        assert_eq!(names, wanted, "{}", ty.name);
        queue.extend(ty.fields.iter().filter_map(|f| match f.leaf {
            Leaf::Struct(index) => Some(types().get(index)),
            _ => None,
        }));
    }
}

/// A field with bytes in it; all the lengths here are short.
fn bytes_field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, bytes.len() as u8];
    field.extend_from_slice(bytes);
    field
}

fn enveloped(api_version: &str, kind: &str, raw: &[u8]) -> Vec<u8> {
    let mut meta = bytes_field(1, api_version.as_bytes());
    meta.extend(bytes_field(2, kind.as_bytes()));
    let mut body = MAGIC.to_vec();
    body.extend(bytes_field(1, &meta));
    body.push(2 << 3 | 2);
    let mut length = raw.len();
    while length > 0x7f {
        body.push((length & 0x7f) as u8 | 0x80);
        length >>= 7;
    }
    body.push(length as u8);
    body.extend_from_slice(raw);
    body
}

#[test]
fn protobuf_delete_options_in_any_group() {
    let raw = [1 << 3, 0, 4 << 3 | 2, 6, b'O', b'r', b'p', b'h', b'a', b'n'];
    for group in ["v1", "coordination.k8s.io/v1"] {
        let options =
            object(Gvk::DELETE_OPTIONS, &enveloped(group, "DeleteOptions", &raw)).unwrap();
        assert_eq!(options["gracePeriodSeconds"], 0, "a pointer to zero is no absent field");
        assert_eq!(options["propagationPolicy"], "Orphan");
    }
    let wide =
        enveloped("v1", "DeleteOptions", &[1 << 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    assert_eq!(object(Gvk::DELETE_OPTIONS, &wide).unwrap()["gracePeriodSeconds"], -1);
}

#[test]
fn protobuf_packed_numbers_and_unknown_fields() {
    let security = bytes_field(4, &[0, 0x88, 0x27]);
    let spec = bytes_field(14, &security);
    let mut raw = bytes_field(2, &spec);
    raw.extend([0xf8, 0xff, 0x03, 7]); // field 8191, which no pod has
    let pod = object(gvk("", "pods"), &enveloped("v1", "Pod", &raw)).unwrap();
    assert_eq!(pod["spec"], json!({"securityContext": {"supplementalGroups": [0, 5000]}}));
}

#[test]
fn protobuf_errors_describe_the_body() {
    let pods = gvk("", "pods");
    let table: [(Vec<u8>, u16, &str); 10] = [
        (b"".to_vec(), 400, "expected prefix"),
        (b"{}".to_vec(), 400, "expected prefix"),
        (b"k8s\0\x0a\xff".to_vec(), 400, "unexpected EOF"),
        (b"k8s\0\x0b".to_vec(), 400, "unknown wire type 3"),
        (b"k8s\0\x1a\x04gzip".to_vec(), 400, "an encoded body"),
        (enveloped("v1", "Secret", &[0xff]), 400, "unknown conversion"),
        (enveloped("v2", "Pod", &[0xff]), 400, "no kind \"Pod\" is registered for version \"v2\""),
        (
            enveloped("v1", "Pod", &bytes_field(1, &bytes_field(1, b"\xff"))),
            400,
            "metadata: name: invalid utf-8",
        ),
        (enveloped("v1", "Pod", &[1 << 3, 5]), 400, "metadata: a number cannot be its value"),
        (enveloped("v1", "Pod", &[0xff; 12]), 400, "more than 64 bits"),
    ];
    for (body, code, part) in table {
        let error = object(pods, &body).expect_err(part);
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn protobuf_number_of_values_is_limited() {
    // Each two bytes are one more environment variable, or one more finalizer.
    for item in [[7 << 3 | 2, 0], [14 << 3 | 2, 0]] {
        let many = item.repeat(1_000_000);
        let (ty, body) = match item[0] >> 3 {
            7 => ("io.k8s.api.core.v1.Container", many),
            _ => ("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta", many),
        };
        let mut reader = Reader::default();
        let mut into = Map::new();
        let index = types().index_named(ty).unwrap();
        let read = reader.object(index, &body, 0, &mut into);
        let error = reader.state.finish(read.map(|()| Value::Null).map_err(|e| e.to_string()));
        assert_eq!(error.unwrap_err().code, 413);
    }
}

proptest! {
    /// Damage at any place is an answer, never a panic.
    #[test]
    fn protobuf_damaged_bodies_never_panic(at in 0usize..20_000, byte: u8, cut in 0usize..20_000) {
        let whole = include_bytes!("golden/pod.pb");
        let mut body = whole.to_vec();
        let at = at % body.len();
        body[at] = byte;
        body.truncate(body.len().max(cut) - cut.min(body.len()) / 7);
        let decoded = decode(gvk("", "pods"), &body);
        prop_assert!(decoded.as_ref().map_or_else(|e| e.code == 400, |d| d.value.is_object()));
        if let Ok(decoded) = decoded {
            let _ = conform(gvk("", "pods"), decoded, FieldValidation::Strict);
        }
    }

    /// Any object that is accepted can be stored, and is read as it was.
    #[test]
    fn protobuf_arbitrary_objects_there_and_back(seed: u64) {
        let kinds = whole_kinds();
        let gvk = kinds[(seed % kinds.len() as u64) as usize];
        let mut given = of_type(types().of(gvk).unwrap(), seed);
        given["apiVersion"] = gvk.api_version().into();
        given["kind"] = gvk.kind.into();
        let body = given.to_string();
        if let Ok((mut object, _)) = read(gvk, body.as_bytes(), None, FieldValidation::Strict) {
            // Go shows the type of these, whether it was given or not.
            let claims = object.pointer_mut("/spec/volumeClaimTemplates");
            for claim in claims.and_then(Value::as_array_mut).into_iter().flatten() {
                claim["apiVersion"] = "v1".into();
                claim["kind"] = "PersistentVolumeClaim".into();
            }
            let read = there_and_back(gvk, &object);
            prop_assert!(is_same(&object, &read), "{}\n{}", object, read);
        }
    }

    #[test]
    fn protobuf_hostile_stored_values_never_panic(
        raw in proptest::collection::vec(any::<u8>(), 0..300),
        at in 0usize..20_000,
        byte: u8,
    ) {
        let _ = decode_any(&raw, as_given);
        let _ = decode_any(&[MAGIC, &raw].concat(), as_given);
        let mut body = include_bytes!("golden/node.pb").to_vec();
        let at = at % body.len();
        body[at] = byte;
        if let Ok(read) = decode_any(&body, as_given) {
            let _ = encode(types().index_of(gvk("", "nodes")).unwrap(), "v1", &read);
        }
    }

    #[test]
    fn protobuf_random_messages_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = object(gvk("", "pods"), &enveloped("v1", "Pod", &raw));
        let _ = object(gvk("", "pods"), &[MAGIC, &raw].concat());
    }
}
