use proptest::prelude::*;

use super::*;
use crate::kinds::{lookup, resources};
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
        // The server that made them had set managedFields, which are not read.
        from_protobuf["metadata"].as_object_mut().unwrap().remove("managedFields");
        assert_eq!(from_protobuf, from_json, "{}", gvk.kind);
    }
}

/// Every field that a body may have can be read from protobuf, and none is there twice.
#[test]
fn protobuf_every_type_has_a_message() {
    fn collect(name: &str, names: &mut Vec<&'static str>) {
        for slot in message(name).unwrap_or_else(|| panic!("{name} is no message")).slots() {
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
        (enveloped("v1", "Secret", &[0xff]), 400, "the kinds differ"),
        (enveloped("v2", "Pod", &[0xff]), 400, "expected API version"),
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
        let ty = types().named(ty).unwrap();
        let read = reader.message(ty, ty.name, &body, 0, &mut into);
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

    #[test]
    fn protobuf_random_messages_never_panic(raw in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = object(gvk("", "pods"), &enveloped("v1", "Pod", &raw));
        let _ = object(gvk("", "pods"), &[MAGIC, &raw].concat());
    }
}
