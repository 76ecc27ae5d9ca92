use longshore_managedfields::{Items, ListType, Managers, Operation, Type};
use serde_json::{Value, json};

use super::*;
use crate::kinds::{apply_defaults, core, known};

fn decoded(object: Value) -> Decoded {
    Decoded { value: object, duplicates: Vec::new() }
}

fn conformed(resource: &Resource, object: Value) -> Value {
    let validation = crate::schema::FieldValidation::Strict;
    crate::schema::conform(resource.gvk(), decoded(object), validation).unwrap().0
}

fn entry(object: &Value, manager: &str) -> Value {
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    list.into_iter().find(|entry| entry["manager"] == manager).unwrap_or(Value::Null)
}

#[test]
fn managed_schema_knows_every_kind() {
    let rules = schema::rules();
    for resource in kinds::resources().filter(|resource| !resource.storage.is_empty()) {
        let Type::Map(of) = rules.schema.get(rules.of(resource.gvk())) else {
            panic!("{}", resource.kind);
        };
        let metadata = of.fields.iter().find(|field| field.name == "metadata").unwrap();
        assert!(metadata.implied.is_some(), "{}", resource.kind);
    }
    let Type::Map(pod) = rules.schema.get(rules.of(core("pods").unwrap().gvk())) else { panic!() };
    let below = |of: &longshore_managedfields::MapType, name: &str| {
        let field = of.fields.iter().find(|field| field.name == name).unwrap();
        rules.schema.get(field.of).clone()
    };
    let Type::Map(spec) = below(pod, "spec") else { panic!() };
    let Type::List(ListType { items: Items::Keys(keys), element }) = below(&spec, "containers")
    else {
        panic!()
    };
    assert_eq!(keys[0].name, "name");
    let Type::Map(container) = rules.schema.get(element) else { panic!() };
    let Type::List(ListType { items: Items::Keys(keys), .. }) = below(container, "ports") else {
        panic!()
    };
    let keys: Vec<_> = keys.iter().map(|key| (key.name.as_ref(), key.default.clone())).collect();
    assert_eq!(keys, [("containerPort", Some(json!(0))), ("protocol", Some(json!("TCP")))]);
    assert!(matches!(below(&spec, "nodeSelector"), Type::Map(of) if of.atomic));
    let Type::Map(volume) = rules.schema.get(rules.of(core("persistentvolumes").unwrap().gvk()))
    else {
        panic!()
    };
    let Type::Map(spec) = below(volume, "spec") else { panic!() };
    assert!(matches!(below(&spec, "claimRef"), Type::Map(of) if !of.atomic), "it is granular");
}

#[test]
fn managed_fields_of_a_new_pod_are_upstreams() {
    let pods = core("pods").unwrap();
    let mut pod = conformed(
        pods,
        json!({
            "metadata": {"name": "nginx", "namespace": "default", "labels": {"run": "nginx"}},
            "spec": {"containers": [{"name": "nginx", "image": "nginx", "ports": [{"containerPort": 80}]}],
                     "dnsPolicy": "ClusterFirst", "restartPolicy": "Always"},
            "status": {"phase": "Running"},
        }),
    );
    apply_defaults(pods, &mut pod);
    record_create(pods, "kubectl-run", &mut pod, &Conversions::default());
    let entry = entry(&pod, "kubectl-run");
    assert!(entry["time"].is_string());
    assert_eq!(
        (&entry["operation"], &entry["apiVersion"], &entry["fieldsType"]),
        (&json!("Update"), &json!("v1"), &json!("FieldsV1"))
    );
    assert_eq!(entry.get("subresource"), None);
    assert_eq!(
        entry["fieldsV1"],
        json!({
            "f:metadata": {"f:labels": {".": {}, "f:run": {}}},
            "f:spec": {
                "f:containers": {
                    "k:{\"name\":\"nginx\"}": {
                        ".": {},
                        "f:image": {},
                        "f:imagePullPolicy": {},
                        "f:name": {},
                        "f:ports": {
                            ".": {},
                            "k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                                ".": {},
                                "f:containerPort": {},
                                "f:protocol": {},
                            },
                        },
                        "f:resources": {},
                        "f:terminationMessagePath": {},
                        "f:terminationMessagePolicy": {},
                    },
                },
                "f:dnsPolicy": {},
                "f:enableServiceLinks": {},
                "f:restartPolicy": {},
                "f:schedulerName": {},
                "f:securityContext": {},
                "f:terminationGracePeriodSeconds": {},
            },
        })
    );
}

#[test]
fn managed_fields_of_a_status_are_of_the_subresource() {
    let pods = core("pods").unwrap();
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "uid": "u"},
        "spec": {"containers": [{"name": "c"}]}});
    record_create(pods, "maker", &mut pod, &Conversions::default());
    pod["metadata"]["managedFields"] = json!([{"manager": "maker", "operation": "Update", "apiVersion": "v1",
        "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:hostname": {}}}}]);
    let mut new = pod.clone();
    new["spec"] = json!({"hostname": "ignored"});
    new["metadata"]["ownerReferences"] = json!([{"uid": "ignored"}]);
    new["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}], "podIPs": [{"ip": "10.0.0.1"}]});
    record_update(pods, "status", "kubelet", &pod, &mut new, &Conversions::default());
    let entry = entry(&new, "kubelet");
    assert_eq!(entry["subresource"], "status");
    assert_eq!(
        entry["fieldsV1"],
        json!({"f:status": {
            "f:conditions": {
                ".": {},
                "k:{\"type\":\"Ready\"}": {
                    ".": {},
                    "f:lastProbeTime": {},
                    "f:lastTransitionTime": {},
                    "f:status": {},
                    "f:type": {},
                },
            },
            "f:podIPs": {".": {}, "k:{\"ip\":\"10.0.0.1\"}": {".": {}, "f:ip": {}}},
        }})
    );
}

#[test]
fn managed_fields_of_events_are_known_in_both_groups() {
    let of_core = core("events").unwrap();
    let of_events = known("events.k8s.io", "events").unwrap();
    let mut event = conformed(
        of_events,
        json!({"metadata": {"name": "e", "namespace": "default", "uid": "u"}, "note": "n", "reason": "r",
               "regarding": {"kind": "Pod"}}),
    );
    event["metadata"].as_object_mut().unwrap().remove("uid");
    record_create(of_events, "recorder", &mut event, &Conversions::default());
    event["metadata"]["uid"] = "u".into();
    let stored = kinds::to_storage(of_events, event);
    let current = kinds::from_storage(of_core, stored);
    let owned = |object: &Value| {
        let list = object["metadata"]["managedFields"].clone();
        let managers = Managers::read(Some(&list)).unwrap();
        managers.set_of("recorder", Operation::Update).unwrap().to_fields()
    };
    assert_eq!(owned(&current)["f:note"], json!({}));
    let mut new = current.clone();
    new["message"] = "other".into();
    record_update(of_core, "", "other", &current, &mut new, &Conversions::default());
    assert_eq!(entry(&new, "other")["fieldsV1"], json!({"f:message": {}}));
    assert_eq!(owned(&new).get("f:note"), None, "it is the same field");
    assert_eq!(owned(&new)["f:reason"], json!({}));
}

#[test]
fn managed_times_alone_are_not_written() {
    let object = |time: &str, data: &str| json!({"metadata": {"managedFields": [{"manager": "m", "time": time}]}, "data": data});
    for (new, kept) in [
        (object("2", "a"), object("1", "a")),
        (object("2", "b"), object("2", "b")),
        (json!({"metadata": {}, "data": "a"}), json!({"metadata": {}, "data": "a"})),
    ] {
        let mut found = new;
        keep_times(&mut found, &object("1", "a"));
        assert_eq!(found, kept);
    }
}

#[test]
fn managed_apply_bodies_are_yaml_or_json() {
    let expected = json!({"a": {"b": [1]}});
    for body in ["{\"a\": {\"b\": [1]}}", "a:\n  b:\n  - 1\n", " {a: {b: [1]}}"] {
        assert_eq!(read(body.as_bytes()).unwrap().value, expected, "{body}");
    }
    let error = read(b"a: [").unwrap_err();
    assert_eq!(error.code, 400);
    assert!(error.message.starts_with("error decoding YAML: "), "{}", error.message);
    assert_eq!(read(b"{\"a\": 1, \"a\": 2}").unwrap().duplicates.len(), 1);
    let pods = core("pods").unwrap();
    let applier = Applier { manager: "m", force: false };
    assert_eq!(
        apply(pods, "", &json!({}), &json!([1]), applier, &Conversions::default())
            .unwrap_err()
            .code,
        400
    );
}
