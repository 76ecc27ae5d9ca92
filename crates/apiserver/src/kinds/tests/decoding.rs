use std::time::Duration;

use longshore_generators::examples;
use proptest::prelude::*;

use super::*;
use crate::api_types::{Gvk, types};
use crate::cpu_time::cpu_time;
use crate::schema::value::{arbitrary, depth};
use proptest::strategy::Strategy;

const POD: Gvk = Gvk { group: "", version: "v1", kind: "Pod" };

fn yaml(text: &str) -> Result<Decoded, StatusError> {
    decode(text.as_bytes(), Some("application/yaml"))
}

#[test]
fn decode_json_equals_yaml() {
    let text = r#"{"a": {"b": [1, -2, 1.5, true, null, "x"]}, "c": ""}"#;
    let wanted: Value = serde_json::from_str(text).unwrap();
    for content_type in
        [None, Some(""), Some("application/json"), Some("application/json; charset=utf-8")]
    {
        assert_eq!(decode(text.as_bytes(), content_type).unwrap().value, wanted);
    }
    assert_eq!(yaml(text).unwrap().value, wanted);
    let block = "a:\n  b: [1, -2, 1.5, true, ~, 'x']\nc: \"\"\n";
    assert_eq!(yaml(block).unwrap().value, wanted);
    assert_eq!(
        yaml("mode: 0644\n1: x\ntrue: z").unwrap().value,
        json!({"mode": 420, "1": "x", "true": "z"})
    );
    assert_eq!(yaml("a: &x {b: 1}\nc: *x").unwrap().value, json!({"a": {"b": 1}, "c": {"b": 1}}));
}

#[test]
fn decode_rejects_other_media_types() {
    for media_type in ["application/cbor", "text/plain", "x"] {
        let error = decode(b"{}", Some(media_type)).expect_err(media_type);
        assert_eq!((error.code, error.reason), (415, "UnsupportedMediaType"));
    }
}

#[test]
fn decode_errors_describe_the_text() {
    let table: [(&str, &[u8], &str); 8] = [
        ("application/json", b"{\"a\": }", "invalid character '}' looking for beginning of value"),
        ("application/json", b"{}{}", "invalid character '{' after top-level value"),
        ("application/json", b"", "unexpected end of JSON input"),
        ("application/json", b"\"\xff\"", "line 1"),
        ("application/json", b"{\"a\": 1e999}", "out of range"),
        ("application/yaml", b"a: [1", "line 1"),
        ("application/yaml", b"a: b: c", "line 1"),
        ("application/yaml", b"a: .inf", "line 1"),
    ];
    for (media_type, body, part) in table {
        let error = decode(body, Some(media_type)).expect_err("bad");
        assert_eq!((error.code, error.reason), (400, "BadRequest"), "{error}");
        assert!(error.message.contains(part), "{error}");
    }
    assert!(!yaml("password: [hunter2").unwrap_err().message.contains("hunter2"));
    assert_eq!(yaml("a: 1\n---\nb: 2").unwrap_err().code, 400);
}

#[test]
fn decode_duplicate_fields_last_wins_with_a_warning() {
    let text = r#"{"a": 1, "s": {"l": [{"x": 1, "x": 2, "x": 3}]}, "a": 2}"#;
    for decoded in [
        decode(text.as_bytes(), None),
        yaml(text),
        yaml("a: 1\ns:\n  l:\n  - x: 1\n    x: 2\n    x: 3\na: 2"),
    ] {
        let decoded = decoded.unwrap();
        assert_eq!(decoded.value, json!({"a": 2, "s": {"l": [{"x": 3}]}}));
        assert_eq!(decoded.duplicates, ["s.l[0].x", "a"]);
    }
}

#[test]
fn decode_depth_limit() {
    let table = [
        ("application/json", "[".repeat(100_000)),
        ("application/json", "{\"a\":".repeat(100_000)),
        ("application/json", format!("{}{}", "[".repeat(101), "]".repeat(101))),
        ("application/yaml", "[".repeat(100_000)),
        ("application/yaml", "{a: ".repeat(100_000)),
        ("application/yaml", "- ".repeat(100_000)),
        ("application/yaml", (0..2000).map(|i| format!("{}a:\n", " ".repeat(i))).collect()),
    ];
    for (media_type, body) in table {
        let (decoded, took) = cpu_time(|| decode(body.as_bytes(), Some(media_type)));
        let error = decoded.expect_err("deep");
        assert_eq!(error.code, 400, "{error}");
        assert!(error.message.len() < 1000 && took < Duration::from_secs(5), "{took:?}");
    }
    let nested = |levels| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    assert_eq!(depth(&decode(nested(100).as_bytes(), None).unwrap().value), 100);
    assert_eq!(depth(&yaml(&nested(50)).unwrap().value), 50);
    let maps: String = (0..50).map(|i| format!("{}a:\n", " ".repeat(i))).collect();
    assert_eq!(depth(&yaml(&maps).unwrap().value), 50);
}

/// CVE-2019-11253, CVE-2019-11254: a billion laughs.
#[test]
fn decode_yaml_alias_bombs_are_rejected() {
    let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for i in 1..30 {
        let list = vec![format!("*a{}", i - 1); 9].join(",");
        bomb.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    let merges = format!("a: &a {{{}}}\nb:\n{}", "x: 1, y: 2", "  - <<: *a\n".repeat(50_000));
    let long_aliases = format!("a: &a [{}]\nb: [{}]", "x,".repeat(5000), "*a,".repeat(900));
    for body in [bomb, merges, long_aliases] {
        let (decoded, took) = cpu_time(|| yaml(&body));
        let error = decoded.expect_err("a bomb");
        assert!(matches!(error.code, 400 | 413), "{error}");
        assert!(error.message.len() < 1000 && took < Duration::from_secs(5), "{took:?}");
    }
}

/// CVE-2019-11254: documents that a YAML reader went over again and again.
#[test]
fn decode_yaml_time_is_linear() {
    for part in [
        "- ",
        "? ",
        ": ",
        "!!str ",
        "&a ",
        "*a ",
        "'",
        "\"\\",
        "#\n",
        "\n",
        "|\n",
        "a: 'x\n",
        "{",
        "[",
        "]",
        ", ",
        "%YAML 1.2\n",
        "--- ",
        "...\n",
        "\t",
        "a: |\n  b\n",
        "a:\n",
        "<<: ",
        "\u{feff}",
        "- &a x\n",
        "k: [a, b]\n",
        "? [a]\n: b\n",
    ] {
        for start in ["", "a: ", "- [", "x: \"", "x: '", "x: |\n "] {
            let body = format!("{start}{}", part.repeat(200_000 / part.len()));
            let (_, took) = cpu_time(|| yaml(&body));
            assert!(took < Duration::from_secs(10), "{start:?} {part:?}: {took:?}");
        }
    }
}

#[test]
fn decode_number_of_values_is_limited() {
    let lists = format!("[{}0]", "0,".repeat(1_000_000));
    let maps = format!("[{}0]", r#"{"":0},"#.repeat(200_000));
    for body in [lists, maps] {
        let error = decode(body.as_bytes(), None).expect_err("too many");
        assert_eq!((error.code, error.reason), (413, "RequestEntityTooLarge"), "{error}");
        assert_eq!(yaml(&body).unwrap_err().code / 100, 4);
    }
}

#[test]
fn decode_warnings_are_bounded() {
    let key = "k".repeat(500_000);
    let fields: String = (0..200).map(|i| format!(r#""{i}":1,"{i}":2,"#)).collect();
    let body = format!(r#"{{"{key}": {{{fields}"z":0}}}}"#);
    let decoded = decode(body.as_bytes(), None).unwrap();
    assert_eq!(decoded.duplicates.iter().map(String::len).max(), Some(1027));
    let labels: Value = (0..20_000).map(|i| (format!("-{i}"), json!("x".repeat(40)))).collect();
    let owner = json!({"controller": true, "name": "n".repeat(1000)});
    let owners = Value::Array(vec![owner; 1000]);
    let object = json!({"metadata": {"name": "c", "labels": labels, "ownerReferences": owners}});
    let (validated, took) = cpu_time(|| validate_create(resource("configmaps"), &object));
    let error = validated.unwrap_err();
    assert!(error.message.len() < 200_000 && took < Duration::from_secs(10), "{took:?}");
}

#[test]
fn unknown_fields() {
    let object = json!({"metadata": {"name": "p", "nope": 1}, "spec": {"containers": [{"name": "c", "imag": "x"}]}});
    let body = || Decoded { value: object.clone(), duplicates: vec!["spec.x".into()] };
    let wanted = [
        r#"unknown field "metadata.nope""#,
        r#"unknown field "spec.containers[0].imag""#,
        r#"duplicate field "spec.x""#,
    ];
    let (value, warnings) = conform(POD, body(), FieldValidation::Warn).unwrap();
    assert_eq!(warnings, wanted);
    assert_eq!(
        value,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}})
    );
    let (ignored, warnings) = conform(POD, body(), FieldValidation::Ignore).unwrap();
    assert_eq!((ignored, warnings), (value, vec![]));
    let error = conform(POD, body(), FieldValidation::Strict).unwrap_err();
    assert_eq!(
        (error.code, error.message),
        (
            400,
            format!(
                r#"Pod in version "v1" cannot be handled as a Pod: strict decoding error: {}"#,
                wanted.join(", ")
            )
        )
    );
}

#[test]
fn wrong_types() {
    let prefix = r#"Pod in version "v1" cannot be handled as a Pod: "#;
    let table = [
        (
            json!({"spec": {"containers": [{"image": 5}]}}),
            "json: cannot unmarshal number into Go struct field Container.spec.containers.image of type string",
        ),
        (
            json!({"spec": {"hostNetwork": "yes"}}),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.hostNetwork of type bool",
        ),
        (
            json!({"spec": {"containers": {}}}),
            "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (
            json!({"spec": []}),
            "json: cannot unmarshal array into Go struct field Pod.spec of type v1.PodSpec",
        ),
        (
            json!({"spec": {"priority": 3_000_000_000_i64}}),
            "json: cannot unmarshal number 3000000000 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            json!({"spec": {"priority": 1.5}}),
            "json: cannot unmarshal number 1.5 into Go struct field PodSpec.spec.priority of type int32",
        ),
        (
            json!({"metadata": {"labels": {"a": 1}}}),
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            json!({"spec": {"restartPolicy": 1}}),
            "json: cannot unmarshal number into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy",
        ),
        (
            json!({"spec": {"containers": [{"ports": [{"protocol": true}]}]}}),
            "json: cannot unmarshal bool into Go struct field ContainerPort.spec.containers.ports.protocol of type v1.Protocol",
        ),
        (
            json!({"spec": {"containers": [{"resources": {"limits": []}}]}}),
            "json: cannot unmarshal array into Go struct field ResourceRequirements.spec.containers.resources.limits of type v1.ResourceList",
        ),
        (
            json!({"spec": {"containers": [{"securityContext": {"capabilities": {"add": [1]}}}]}}),
            "json: cannot unmarshal number into Go struct field Capabilities.spec.containers.securityContext.capabilities.add of type v1.Capability",
        ),
        (
            json!({"spec": {"volumes": [{"csi": []}]}}),
            "json: cannot unmarshal array into Go struct field Volume.spec.volumes.VolumeSource.csi of type v1.CSIVolumeSource",
        ),
        (
            json!({"spec": {"volumes": [{"secret": {"items": {}}}]}}),
            "json: cannot unmarshal object into Go struct field SecretVolumeSource.spec.volumes.VolumeSource.secret.items of type []v1.KeyToPath",
        ),
        (
            json!({"spec": {"containers": [{"resources": {"limits": {"cpu": "1x"}}}]}}),
            "quantities must match the regular expression \
             '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ];
    for (object, message) in table {
        let error = conform(POD, decoded(object), FieldValidation::Warn).expect_err(message);
        assert_eq!((error.code, error.message), (400, format!("{prefix}{message}")));
    }
}

#[test]
fn decode_rejects_other_kinds() {
    let table = [
        (
            json!({"kind": "Service", "apiVersion": "v1"}),
            r#"Service in version "v1" cannot be handled as a Pod: "#,
        ),
        (
            json!({"apiVersion": "v2"}),
            "Pod in version \"v2\" cannot be handled as a Pod: no kind \"Pod\" is registered for version \"v2\" in scheme",
        ),
        (
            json!({"apiVersion": "autoscaling/v1", "kind": "Scale"}),
            "Scale in version \"v1\" cannot be handled as a Pod: converting (v1.Scale) to (core.Pod): unknown conversion",
        ),
        (
            json!({"kind": 5}),
            "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string",
        ),
        (json!({"apiVersion": "a/b/c"}), "unexpected GroupVersion string: a/b/c"),
    ];
    for (object, message) in table {
        let error = conform(POD, decoded(object), FieldValidation::Warn).expect_err(message);
        assert!(error.code == 400 && error.message.starts_with(message), "{error}");
    }
    let options = decoded(
        json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1", "gracePeriodSeconds": 0}),
    );
    let (options, _) = conform(Gvk::DELETE_OPTIONS, options, FieldValidation::Strict).unwrap();
    assert_eq!(options["gracePeriodSeconds"], 0);
}

/// Finding 13: the last day that the API can name is past the last timestamp of our library, so an
/// object that held it could not be written any more.
#[test]
fn decode_times_up_to_year_9999() {
    let lease = Gvk { group: "coordination.k8s.io", version: "v1", kind: "Lease" };
    for (text, stored) in [
        ("9999-12-31T23:59:59Z", Some("9999-12-31T23:59:59Z")),
        ("9999-12-31T23:59:59.7Z", Some("9999-12-31T23:59:59Z")),
        ("9999-12-31T01:00:00+12:00", Some("9999-12-30T13:00:00Z")),
        ("9999-12-31Z", None),
        // one such time made each list unreadable that it was in
        ("-009999-01-02T02:00:00Z", None),
        ("0000-01-01T00:00:00+01:00", None),
        ("0000-01-01T00:00:00Z", Some("0000-01-01T00:00:00Z")),
        ("9999-12-32T00:00:00Z", None),
        ("10000-01-01T00:00:00Z", None),
        ("2026-01-01", None),
    ] {
        let body = json!({"metadata": {"name": "l", "creationTimestamp": text}});
        let conformed = conform(lease, decoded(body), FieldValidation::Strict);
        let time = conformed.ok().map(|(value, _)| value["metadata"]["creationTimestamp"].clone());
        assert_eq!(time, stored.map(Into::into), "{text}");
    }
}

#[test]
fn decode_normalizes_values() {
    let lease = Gvk { group: "coordination.k8s.io", version: "v1", kind: "Lease" };
    let body = json!({
        "metadata": {"name": "l", "creationTimestamp": "2026-01-01T01:00:00.5+01:00", "deletionTimestamp": null,
                     "labels": {}, "annotations": {"a": null}},
        "spec": {"renewTime": "2026-01-01T00:00:00.123456789Z"},
    });
    let (value, _) = conform(lease, decoded(body), FieldValidation::Strict).unwrap();
    assert_eq!(
        value,
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "l", "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": {"a": ""}},
            "spec": {"renewTime": "2026-01-01T00:00:00.123456Z"},
        })
    );
    let body = json!({"spec": {"containers": [{"resources": {"limits": {"cpu": 0.5, "memory": "1024Mi"}}, "ports": [null]}],
                               "volumes": [{"name": "v", "emptyDir": {}}]}});
    let (value, _) = conform(POD, decoded(body), FieldValidation::Strict).unwrap();
    assert_eq!(
        value["spec"],
        json!({"containers": [{"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}, "ports": [{}]}],
               "volumes": [{"name": "v", "emptyDir": {}}]})
    );
    assert_eq!(value["metadata"], json!({}));
    let secret = Gvk { group: "", version: "v1", kind: "Secret" };
    let body = |data: &str| decoded(json!({"data": {"a": data}}));
    assert_eq!(
        conform(secret, body("aGk=\n"), FieldValidation::Warn).unwrap().0["data"]["a"],
        "aGk="
    );
    assert_eq!(conform(secret, body("a"), FieldValidation::Warn).unwrap_err().code, 400);
}

/// Everything after defaulting; what it says does not matter here.
fn stages(resource: &Resource, object: &Value, old: &Value) {
    let mut created = object.clone();
    prepare_create(resource, &mut created);
    let _ = validate_create(resource, &created);
    for old in [old, &created] {
        let mut new = object.clone();
        prepare_update(resource, &mut new, old);
        let _ = validate_update(resource, &new, old);
        let mut new = object.clone();
        prepare_status_update(resource, &mut new, old);
        let _ = validate_status_update(resource, &new, old);
    }
    let mut finalized = object.clone();
    prepare_namespace_finalize(&mut finalized, old);
    let _ = validate_binding(object);
    let stored = to_storage(resource, object.clone());
    let _ = from_storage(resource, stored);
}

fn hostile(
    plural: &'static str,
    example: Value,
) -> impl proptest::strategy::Strategy<Value = (&'static str, Value, Value)> {
    let objects = longshore_generators::hostile(example.clone(), 8);
    objects.prop_map(move |object| (plural, example.clone(), object))
}

proptest! {
    #[test]
    fn decoding_never_panics(text in "\\PC{0,200}") {
        let _ = decode(text.as_bytes(), None);
        let _ = yaml(&text);
    }

    #[test]
    fn decode_round_trip(value in arbitrary::value()) {
        let text = value.to_string();
        let read = decode(text.as_bytes(), None).unwrap().value;
        prop_assert_eq!(read.to_string(), text);
    }

    /// Objects of any kind with any values, through every stage that a write goes through.
    #[test]
    fn no_write_panics(seeds in any::<(u64, u64)>(), at in any::<prop::sample::Index>()) {
        let resource = &at.get(crate::kinds::KINDS).resource;
        let typed = |seed| {
            let object = arbitrary::of_type(types().of(resource.gvk()).unwrap(), seed);
            // where data allows any JSON, schemas of custom resources do not
            conform(resource.gvk(), decoded(object), FieldValidation::Ignore).unwrap().0
        };
        let mut object = typed(seeds.0);
        apply_defaults(resource, &mut object);
        let mut again = object.clone();
        apply_defaults(resource, &mut again);
        prop_assert_eq!(&again, &object, "defaults are stable");
        conform(resource.gvk(), decoded(object.clone()), FieldValidation::Strict).expect("defaults conform");
        stages(resource, &object, &typed(seeds.1));
    }

    /// Finding 1: numbers, quantities and times at their extremes, through every stage.
    #[test]
    fn extremes_of_objects_are_written_or_refused(
        (plural, example, object) in prop_oneof![
            hostile("pods", examples::pod()),
            hostile("services", examples::service()),
            hostile("endpointslices", examples::endpoint_slice()),
            hostile("nodes", examples::node()),
        ],
    ) {
        let resource = resource(plural);
        let conforming = conform(resource.gvk(), decoded(object.clone()), FieldValidation::Warn);
        let mut object = conforming.map_or(object, |(object, _)| object);
        apply_defaults(resource, &mut object);
        stages(resource, &object, &example);
        stages(resource, &example, &object);
    }

    #[test]
    fn decode_malformed_objects_never_panic(object in arbitrary::object(), old in arbitrary::object(), at in any::<prop::sample::Index>()) {
        let resource = &at.get(crate::kinds::KINDS).resource;
        let _ = conform(resource.gvk(), decoded(object.clone()), FieldValidation::Warn);
        let mut defaulted = object;
        apply_defaults(resource, &mut defaulted);
        stages(resource, &defaulted, &old);
    }

    #[test]
    fn decode_conform_is_idempotent(object in arbitrary::object(), at in any::<prop::sample::Index>()) {
        let gvk = at.get(crate::kinds::KINDS).resource.gvk();
        if let Ok((once, _)) = conform(gvk, decoded(object), FieldValidation::Warn) {
            let (twice, warnings) = conform(gvk, decoded(once.clone()), FieldValidation::Warn).unwrap();
            prop_assert_eq!((twice, warnings), (once, vec![]));
        }
    }
}
