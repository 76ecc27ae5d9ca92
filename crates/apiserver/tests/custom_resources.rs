//! Custom kinds, from their definition to the end of their objects.

use crate::common;

use common::{Client, Cluster, eventually};
use serde_json::{Value, json};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUP: &str = "/apis/example.com/v1";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wi"], "categories": ["all"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object", "description": "A widget.",
                    "properties": {
                        "spec": {"type": "object", "required": ["size"],
                            "x-kubernetes-validations": [{"rule": "self.size != 13", "message": "not this one"}],
                            "properties": {
                            "size": {"type": "integer", "minimum": 1},
                            "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
                            "replicas": {"type": "integer"},
                            "ports": {"type": "array", "x-kubernetes-list-type": "map",
                                "x-kubernetes-list-map-keys": ["name"],
                                "items": {"type": "object", "required": ["name"], "properties": {
                                    "name": {"type": "string"}, "port": {"type": "integer"}}}},
                            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                        }},
                        "status": {"type": "object", "properties": {
                            "replicas": {"type": "integer"}, "selector": {"type": "string"},
                            "phase": {"type": "string"}}},
                    },
                }},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.selector"}},
                "additionalPrinterColumns": [
                    {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
                    {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}],
                "selectableFields": [{"jsonPath": ".spec.color"}],
            }],
        },
    })
}

fn widget(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
}

fn condition<'a>(definition: &'a Value, kind: &str) -> &'a Value {
    let conditions = definition["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// Creates a definition and waits until it is established.
async fn establish(admin: &Client, definition: Value) -> Value {
    let created = admin.create(CRDS, definition).await;
    let path = format!("{CRDS}/{}", created["metadata"]["name"].as_str().unwrap());
    eventually("established", || async {
        let (_, definition) = admin.get(&path).await;
        condition(&definition, "Established")["status"] == "True"
    })
    .await;
    admin.get(&path).await.1
}

async fn apply(admin: &Client, path: &str, manager: &str, body: Value) -> (u16, Value) {
    let path = format!("{path}?fieldManager={manager}");
    admin.send("PATCH", &path, "application/apply-patch+yaml", body.to_string().into_bytes()).await
}

// `curl` is awaited by a thread.
#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_are_served_from_their_definition_to_their_end() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    assert_eq!(admin.get(WIDGETS).await.0, 404);
    let defined = establish(admin, definition()).await;
    assert_eq!(defined["spec"]["names"]["singular"], "widget");
    assert_eq!(defined["spec"]["names"]["listKind"], "WidgetList");
    assert_eq!(defined["spec"]["conversion"]["strategy"], "None");
    assert_eq!(defined["status"]["storedVersions"], json!(["v1"]));
    assert_eq!(defined["status"]["acceptedNames"], defined["spec"]["names"]);
    assert_eq!(condition(&defined, "NamesAccepted")["reason"], "NoConflicts");

    // discovery and documents
    let (_, list) = admin.get(GROUP).await;
    assert_eq!(list["resources"][0]["shortNames"], json!(["wi"]));
    assert_eq!(list["resources"][1]["name"], "widgets/status");
    assert_eq!(list["resources"][2]["kind"], "Scale");
    let (_, group) = admin.get("/apis/example.com").await;
    assert_eq!(group["preferredVersion"]["version"], "v1");
    let (_, document) = admin.get("/openapi/v3/apis/example.com/v1").await;
    let schema = &document["components"]["schemas"]["com.example.v1.Widget"];
    assert_eq!(schema["properties"]["spec"]["required"], json!(["size"]));
    let (_, document) = admin.get("/openapi/v2").await;
    assert_eq!(document["definitions"]["com.example.v1.Widget"]["description"], "A widget.");
    let (_, index) = admin.get("/openapi/v3").await;
    assert!(index["paths"]["apis/example.com/v1"].is_object());

    // objects: defaults, pruning, versions of them, lists and watches
    let mut watch = admin.watch(&format!("{WIDGETS}?watch=1")).await;
    let spec = json!({"size": 1, "unknown": 2, "free": {"any": "thing"}});
    let created = admin.create(WIDGETS, widget("a", spec)).await;
    assert_eq!(created["spec"], json!({"size": 1, "color": "red", "free": {"any": "thing"}}));
    assert_eq!(created["metadata"]["generation"], 1);
    assert_eq!(watch.line().await, "ADDED a");
    let body = json!({"metadata": {"labels": {"x": "y"}}, "status": {"phase": "no"}});
    let (code, patched) = admin.call("PATCH", &format!("{WIDGETS}/a"), Some(body)).await;
    assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(1)), "{patched}");
    assert_eq!(patched["status"], Value::Null);
    let body = json!({"spec": {"size": 2}, "status": {"phase": "up", "replicas": 3}});
    let (_, patched) = admin.call("PATCH", &format!("{WIDGETS}/a/status"), Some(body)).await;
    assert_eq!((&patched["spec"]["size"], &patched["status"]["phase"]), (&json!(1), &json!("up")));
    let body = json!({"spec": {"color": "blue"}});
    let (_, patched) = admin.call("PATCH", &format!("{WIDGETS}/a"), Some(body)).await;
    assert_eq!(patched["metadata"]["generation"], 2);
    let (_, list) = admin.get(WIDGETS).await;
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("WidgetList"), 1));
    let (_, list) = admin.get(&format!("{WIDGETS}?fieldSelector=spec.color%3Dred")).await;
    assert_eq!(list["items"], json!([]));
    let (code, status) = admin.get(&format!("{WIDGETS}?fieldSelector=spec.size%3D1")).await;
    assert_eq!((code, &status["message"]), (400, &json!("field label not supported: spec.size")));
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, table) = cluster.admin_curl(WIDGETS, &["-H", &format!("Accept: {table}")]);
    assert_eq!(table["columnDefinitions"][1]["name"], "Size");
    assert_eq!(table["rows"][0]["cells"][1], 1);

    // scale
    let (_, scale) = admin.get(&format!("{WIDGETS}/a/scale")).await;
    assert_eq!((&scale["kind"], &scale["status"]["replicas"]), (&json!("Scale"), &json!(3)));
    let body = json!({"spec": {"replicas": 5}});
    let (code, scale) = admin.call("PATCH", &format!("{WIDGETS}/a/scale"), Some(body)).await;
    assert_eq!((code, &scale["spec"]["replicas"]), (200, &json!(5)), "{scale}");
    assert_eq!(admin.get(&format!("{WIDGETS}/a")).await.1["spec"]["replicas"], 5);

    // the end
    let (code, deleted) = admin.call("DELETE", &format!("{CRDS}/widgets.example.com"), None).await;
    assert_eq!(code, 200, "{deleted}");
    eventually("the kind is gone", || async {
        admin.get(WIDGETS).await.0 == 404 && admin.get("/apis/example.com").await.0 == 404
    })
    .await;
    assert_eq!(admin.get(&format!("{CRDS}/widgets.example.com")).await.0, 404);
    while let Some(event) = watch.next().await {
        if event["type"] == "DELETED" {
            break;
        }
    }
    assert!(watch.next().await.is_none(), "the watch ends with its kind");
}

#[tokio::test]
async fn custom_resources_are_validated() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    establish(admin, definition()).await;
    for (spec, message) in [
        (json!({"size": 13}), "spec: Invalid value: not this one"),
        (
            json!({"size": 0}),
            "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1",
        ),
        (
            json!({"size": "x"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
        (
            json!({"size": 1, "color": "green"}),
            "spec.color: Unsupported value: \"green\": supported values: \"red\", \"blue\"",
        ),
        (
            json!({"size": 1, "ports": [{"name": "a"}, {"name": "a"}]}),
            "spec.ports[1]: Duplicate value: {\"name\":\"a\"}",
        ),
        (
            json!({"size": 1, "replicas": -1}),
            "spec.replicas: Invalid value: -1: should be a non-negative integer",
        ),
    ] {
        let (code, status) = admin.call("POST", WIDGETS, Some(widget("a", spec))).await;
        let found = status["message"].as_str().unwrap();
        assert!(
            code == 422 && found.starts_with("Widget.example.com \"a\" is invalid: "),
            "{found}"
        );
        assert!(found.contains(message), "{found}");
    }
    let (code, status) = admin.call("POST", WIDGETS, Some(widget("a", json!({})))).await;
    let message = status["message"].as_str().unwrap();
    assert_eq!(code, 422);
    let unchecked = "spec.size: Required value, <nil>: Invalid value: null: some validation rules were not checked";
    assert!(message.contains(unchecked), "{message}");
    let unknown = widget("a", json!({"size": 1, "extra": {"x": 1}}));
    let path = format!("{WIDGETS}?fieldValidation=Strict");
    let (code, status) = admin.call("POST", &path, Some(unknown)).await;
    assert_eq!(code, 400);
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("strict decoding error: unknown field \"spec.extra\""), "{message}");
    let (code, status) =
        admin.call("POST", WIDGETS, Some(json!({"metadata": {"name": "a"}}))).await;
    assert_eq!(code, 400, "{status}");
    assert!(status["message"].as_str().unwrap().contains("Object 'Kind' is missing in"));
    let strategic = "application/strategic-merge-patch+json";
    admin.create(WIDGETS, widget("b", json!({"size": 1}))).await;
    let (code, _) = admin.send("PATCH", &format!("{WIDGETS}/b"), strategic, b"{}".to_vec()).await;
    assert_eq!(code, 415);
    let (code, status) =
        admin.call("PUT", &format!("{WIDGETS}/b"), Some(widget("b", json!({"size": 2})))).await;
    assert_eq!(code, 422, "{status}");
    assert!(status["message"].as_str().unwrap().contains("must be specified for an update"));
}

#[tokio::test]
async fn custom_resources_are_applied_by_the_rules_of_their_schema() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    establish(admin, definition()).await;
    let path = format!("{WIDGETS}/a");
    let first = widget("a", json!({"size": 1, "ports": [{"name": "a", "port": 1}]}));
    let (code, applied) = apply(admin, &path, "one", first.clone()).await;
    assert_eq!(code, 201, "{applied}");
    let second = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"},
        "spec": {"ports": [{"name": "b", "port": 2}]}});
    let (code, applied) = apply(admin, &path, "two", second).await;
    assert_eq!((code, applied["spec"]["ports"].as_array().unwrap().len()), (200, 2), "{applied}");
    let (code, status) = apply(admin, &path, "two", widget("a", json!({"size": 2}))).await;
    assert_eq!((code, &status["reason"]), (409, &json!("Conflict")), "{status}");
    assert!(status["message"].as_str().unwrap().contains(".spec.size"), "{status}");
    let (code, _) = apply(admin, &path, "one", first).await;
    assert_eq!(code, 200);
}

#[tokio::test]
async fn custom_resources_have_versions() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let mut two = definition();
    let mut second = two["spec"]["versions"][0].clone();
    second["name"] = "v2".into();
    second["storage"] = false.into();
    second["deprecated"] = true.into();
    second["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["extra"] =
        json!({"type": "string", "default": "x"});
    two["spec"]["versions"].as_array_mut().unwrap().push(second);
    establish(admin, two.clone()).await;
    admin.create(WIDGETS, widget("a", json!({"size": 1}))).await;
    let newer = WIDGETS.replace("/v1/", "/v2/");
    let (_, object) = admin.get(&format!("{newer}/a")).await;
    assert_eq!(
        (&object["apiVersion"], &object["spec"]["extra"]),
        (&json!("example.com/v2"), &json!("x"))
    );
    let (_, group) = admin.get("/apis/example.com").await;
    assert_eq!(group["preferredVersion"]["version"], "v2");
    let mut watch = admin.watch(&format!("{newer}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["object"]["apiVersion"], "example.com/v2");

    // a version that is not served any more, and one that is
    let path = format!("{CRDS}/widgets.example.com");
    let (_, mut stored) = admin.get(&path).await;
    stored["spec"]["versions"][1]["served"] = false.into();
    let (code, status) = admin.call("PUT", &path, Some(stored)).await;
    assert_eq!(code, 200, "{status}");
    eventually("v2 is not served", || async { admin.get(&newer).await.0 == 404 }).await;
    assert_eq!(admin.get(WIDGETS).await.0, 200);
    let (_, mut stored) = admin.get(&path).await;
    stored["spec"]["versions"].as_array_mut().unwrap().remove(0);
    stored["spec"]["versions"][0]["storage"] = true.into();
    let (code, status) = admin.call("PUT", &path, Some(stored)).await;
    assert_eq!(code, 422, "{status}");
    assert!(status["message"].as_str().unwrap().contains("was previously a storage version"));
}

#[tokio::test]
async fn custom_resource_definitions_are_validated() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    for (pointer, value, message) in [
        (
            "/metadata/name",
            json!("other.example.com"),
            "metadata.name: Invalid value: \"other.example.com\": must be spec.names.plural+\".\"+spec.group",
        ),
        ("/spec/scope", json!("Galaxy"), "spec.scope: Unsupported value: \"Galaxy\""),
        (
            schema,
            json!({}),
            "spec.validation.openAPIV3Schema.type: Required value: must not be empty at the root",
        ),
        (
            schema,
            json!({"type": "object", "properties": {"spec": {"type": "object", "uniqueItems": true}}}),
            "spec.validation.openAPIV3Schema.properties[spec].uniqueItems: Forbidden: uniqueItems cannot be set to true",
        ),
        (
            schema,
            json!({"type": "object", "properties": {"spec": {"type": "string", "default": 1}}}),
            "spec.validation.openAPIV3Schema.properties[spec].default: Invalid value",
        ),
        (
            "/spec/versions/0/storage",
            json!(false),
            "must have exactly one version marked as storage version",
        ),
        ("/spec/preserveUnknownFields", json!(true), "cannot set to true"),
        (
            "/spec/conversion",
            json!({"strategy": "Webhook"}),
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
        ),
        (
            "/spec/conversion",
            json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
                "clientConfig": {"url": "http://a"}}}),
            "spec.conversion.webhookClientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme",
        ),
        (
            "/spec/conversion",
            json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v3", "v3"],
                "clientConfig": {"service": {"namespace": "a", "name": "b", "port": 70000}}}}),
            "[spec.conversion.webhookClientConfig.service.port: Invalid value: 70000: port is not \
             valid: must be between 1 and 65535, inclusive, \
             spec.conversion.conversionReviewVersions[1]: Invalid value: \"v3\": duplicate version, \
             spec.conversion.conversionReviewVersions: Invalid value: [\"v3\",\"v3\"]: must include \
             at least one of v1, v1beta1]",
        ),
        (
            "/spec/conversion",
            json!({"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"]}}),
            "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook",
        ),
    ] {
        let mut definition = definition();
        match (definition.pointer_mut(pointer), pointer.strip_prefix("/spec/")) {
            (Some(place), _) => *place = value.clone(),
            (None, field) => definition["spec"][field.unwrap()] = value.clone(),
        }
        let (code, status) = admin.call("POST", CRDS, Some(definition)).await;
        assert_eq!(code, 422, "{pointer} {value}: {status}");
        assert!(status["message"].as_str().unwrap().contains(message), "{status}");
    }
    let mut deep = json!({"type": "object"});
    for _ in 0..30 {
        deep = json!({"type": "object", "properties": {"a": deep}});
    }
    let mut definition = definition();
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = deep;
    definition["spec"]["versions"][0]["selectableFields"] = json!([]);
    let (code, status) = admin.call("POST", CRDS, Some(definition)).await;
    assert!(code == 201 || code == 400, "{status}");
}

#[tokio::test]
async fn custom_resource_rights_are_by_group_and_plural() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    establish(admin, definition()).await;
    let jane = cluster.user("jane", "").await;
    let (code, status) = jane.get(WIDGETS).await;
    assert_eq!(code, 403);
    assert!(status["message"].as_str().unwrap().starts_with("widgets.example.com is forbidden"));
    let role = json!({"metadata": {"name": "see"}, "rules": [
        {"apiGroups": ["example.com"], "resources": ["widgets"], "verbs": ["list"]}]});
    admin.create("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
    let binding = json!({"metadata": {"name": "see"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "see"},
        "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}]});
    admin.create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await;
    eventually("jane may list", || async { jane.get(WIDGETS).await.0 == 200 }).await;
    let (code, _) = jane.call("POST", WIDGETS, Some(widget("a", json!({"size": 1})))).await;
    assert_eq!(code, 403);
}

#[tokio::test]
async fn custom_resources_outlive_a_restart_and_are_seen_by_other_servers() {
    let store = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(
        longshore_store::EmbeddedStore::open(store.path().join("store")).await.unwrap(),
    );
    let shared = store.clone();
    let first = Cluster::start_with(|config| config.store = shared).await;
    let shared = store.clone();
    let second = Cluster::start_with(|config| config.store = shared).await;
    establish(&first.admin, definition()).await;
    first.admin.create(WIDGETS, widget("a", json!({"size": 1}))).await;
    eventually("the other server serves the kind", || async {
        second.admin.get(&format!("{WIDGETS}/a")).await.0 == 200
    })
    .await;
    first.stop().await;
    let third = Cluster::start_with(|config| config.store = store).await;
    assert_eq!(third.admin.get(&format!("{WIDGETS}/a")).await.0, 200, "from the first request on");
    let (code, _) = third.admin.call("DELETE", &format!("{CRDS}/widgets.example.com"), None).await;
    assert_eq!(code, 200);
    eventually("gone everywhere", || async {
        second.admin.get(WIDGETS).await.0 == 404 && third.admin.get(WIDGETS).await.0 == 404
    })
    .await;
}
