//! Custom resources whose versions a webhook in this process converts.

use crate::common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::hook::{HookBody, configure, serve, whole};
use common::*;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Request, Response};
use serde_json::{Value, json};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const NAME: &str = "hosts.stable.example.com";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A path of objects in a version.
fn hosts(version: &str) -> String {
    format!("/apis/stable.example.com/{version}/namespaces/default/hosts")
}

/// A webhook that converts `hostPort` of v1 to `host` and `port` of v2, and back.
struct Hook {
    port: u16,
    ca_bundle: String,
    calls: Arc<Mutex<Vec<Value>>>,
    /// How it misbehaves; empty: it does not.
    mode: Arc<Mutex<&'static str>>,
}

fn converted(mut object: Value, desired: &str) -> Value {
    object["apiVersion"] = desired.into();
    let map = object.as_object_mut().unwrap();
    if desired.ends_with("/v2") {
        if let Some(both) = map.remove("hostPort") {
            let (host, port) = both.as_str().unwrap().split_once(':').unwrap();
            map.insert("host".into(), host.into());
            map.insert("port".into(), port.into());
        }
    } else if let (Some(host), Some(port)) = (map.remove("host"), map.remove("port")) {
        let both = format!("{}:{}", host.as_str().unwrap(), port.as_str().unwrap());
        map.insert("hostPort".into(), both.into());
    }
    object
}

async fn answer(
    request: Request<Incoming>,
    calls: Arc<Mutex<Vec<Value>>>,
    set: Arc<Mutex<&'static str>>,
) -> Response<HookBody> {
    let mode = *set.lock().unwrap();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    calls.lock().unwrap().push(review.clone());
    let request = &review["request"];
    let desired = request["desiredAPIVersion"].as_str().unwrap();
    let mut objects: Vec<Value> = request["objects"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| converted(object.clone(), desired))
        .collect();
    let mut uid = request["uid"].clone();
    let mut result = json!({"status": "Success"});
    let mut code = 200;
    match mode {
        "slow" => {
            while *set.lock().unwrap() == "slow" {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        "uneven" => {
            // The first of many takes the longest.
            let first = objects[0]["metadata"]["name"].as_str().unwrap().ends_with('0');
            tokio::time::sleep(Duration::from_millis(if first { 300 } else { 5 })).await;
        }
        "failed" => result = json!({"status": "Failed", "message": "no such port"}),
        "silent" => result = json!({"status": "Failed"}),
        "uid" => uid = "other".into(),
        "fewer" => drop(objects.pop()),
        "name" => objects[0]["metadata"]["name"] = "other".into(),
        "version" => objects[0]["apiVersion"] = "stable.example.com/v7".into(),
        "error" => code = 500,
        "garbage" => return Response::new(whole("\0garbage")),
        "labels" => {
            for object in &mut objects {
                object["metadata"]["labels"] = json!({"by": "hook"});
                object["metadata"]["finalizers"] = json!(["example.com/hook"]);
            }
        }
        _ => {}
    }
    let body = json!({
        "apiVersion": review["apiVersion"], "kind": "ConversionReview",
        "response": {"uid": uid, "result": result, "convertedObjects": objects},
    });
    Response::builder().status(code).body(whole(body.to_string())).unwrap()
}

impl Hook {
    async fn start() -> Hook {
        let calls: Arc<Mutex<Vec<Value>>> = Arc::default();
        let mode: Arc<Mutex<&'static str>> = Arc::default();
        let (known, how) = (calls.clone(), mode.clone());
        let (port, ca_bundle) = serve(&["127.0.0.1", "hook.default.svc"], move |request| {
            answer(request, known.clone(), how.clone())
        })
        .await;
        Hook { port, ca_bundle, calls, mode }
    }

    fn set(&self, mode: &'static str) {
        *self.mode.lock().unwrap() = mode;
    }

    /// The desired version and the number of objects of each call, which are forgotten.
    fn calls(&self) -> Vec<(String, usize)> {
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        let count = |review: &Value| {
            let request = &review["request"];
            let desired = request["desiredAPIVersion"].as_str().unwrap().to_owned();
            (desired, request["objects"].as_array().unwrap().len())
        };
        calls.iter().map(count).collect()
    }

    fn definition(&self) -> Value {
        let version = |name: &str, properties: Value| {
            let mut properties = properties;
            properties["status"] = json!({"type": "object", "properties": {
                "replicas": {"type": "integer"}, "phase": {"type": "string"}}});
            properties["spec"] = json!({"type": "object", "properties": {
                "replicas": {"type": "integer"}}});
            json!({
                "name": name, "served": true, "storage": name == "v1",
                "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
                "subresources": {"status": {}, "scale": {
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas"}},
            })
        };
        let text = json!({"type": "string"});
        let fresh = json!({"type": "string", "default": "new"});
        let mut v2 = version("v2", json!({"host": text, "port": text, "fresh": fresh}));
        v2["selectableFields"] = json!([{"jsonPath": ".host"}]);
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": NAME},
            "spec": {
                "group": "stable.example.com", "scope": "Namespaced",
                "names": {"plural": "hosts", "kind": "Host"},
                "versions": [version("v1", json!({"hostPort": text})), v2],
                "conversion": {"strategy": "Webhook", "webhook": {
                    "conversionReviewVersions": ["v2", "v1", "v1beta1"],
                    "clientConfig": {
                        "url": format!("https://127.0.0.1:{}/convert", self.port),
                        "caBundle": self.ca_bundle,
                    },
                }},
            },
        })
    }

    /// Defines the kind, and waits until it is served.
    async fn define(&self, admin: &Client) {
        let definition = self.definition();
        admin.create(CRDS, definition).await;
        let path = hosts("v2");
        eventually("served", || async { admin.get(&path).await.0 == 200 }).await;
        self.calls();
    }
}

/// Has objects stored in v2 from now on.
async fn store_v2(admin: &Client) {
    let path = format!("{CRDS}/{NAME}");
    let (_, mut definition) = admin.get(&path).await;
    for (version, stored) in
        definition["spec"]["versions"].as_array_mut().unwrap().iter_mut().zip([false, true])
    {
        version["storage"] = stored.into();
    }
    let (code, status) = admin.call("PUT", &path, Some(definition)).await;
    assert_eq!(code, 200, "{status}");
    // It is in effect once the server has read it.
    tokio::time::sleep(Duration::from_millis(300)).await;
}

fn v1(name: &str) -> Value {
    json!({"apiVersion": "stable.example.com/v1", "kind": "Host", "metadata": {"name": name},
        "hostPort": "localhost:8080"})
}

fn v2(name: &str, host: &str) -> Value {
    json!({"apiVersion": "stable.example.com/v2", "kind": "Host", "metadata": {"name": name},
        "host": host, "port": "80"})
}

fn call(version: &str, count: usize) -> (String, usize) {
    (format!("stable.example.com/{version}"), count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_reads_objects_of_mixed_versions() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    hook.define(admin).await;
    admin.create(&hosts("v1"), v1("a")).await;
    assert_eq!(hook.calls(), [], "it is stored as it is");
    let (_, shown) = admin.get(&format!("{}/a", hosts("v2"))).await;
    assert_eq!(shown["apiVersion"], "stable.example.com/v2");
    assert_eq!((&shown["host"], &shown["port"]), (&json!("localhost"), &json!("8080")));
    assert_eq!((&shown["fresh"], &shown["hostPort"]), (&json!("new"), &Value::Null));
    let review = hook.calls.lock().unwrap()[0].clone();
    assert_eq!(review["apiVersion"], "apiextensions.k8s.io/v1", "the first that both know");
    let sent = &review["request"]["objects"][0];
    assert_eq!(
        (&sent["hostPort"], &sent["metadata"]["uid"]),
        (&json!("localhost:8080"), &shown["metadata"]["uid"])
    );
    assert!(sent["metadata"]["resourceVersion"].is_null());
    assert!(shown["metadata"]["resourceVersion"].is_string());
    hook.calls();

    store_v2(admin).await;
    admin.create(&hosts("v1"), v1("b")).await;
    assert_eq!(hook.calls(), [call("v2", 1), call("v1", 1)], "to the store and back");
    for i in 0..5 {
        admin.create(&hosts("v2"), v2(&format!("c{i}"), "h")).await;
    }
    assert_eq!(hook.calls(), []);
    for (version, count, field) in [("v1", 6, "hostPort"), ("v2", 1, "host")] {
        let (code, list) = admin.get(&hosts(version)).await;
        assert_eq!(code, 200, "{list}");
        let items = list["items"].as_array().unwrap();
        let names: Vec<_> = items.iter().map(|o| o["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "b", "c0", "c1", "c2", "c3", "c4"]);
        assert!(items.iter().all(|object| object[field].is_string()), "{list}");
        let api_version = format!("stable.example.com/{version}");
        assert!(items.iter().all(|object| object["apiVersion"] == api_version));
        assert_eq!(list["apiVersion"], api_version);
        assert_eq!(hook.calls(), [call(version, count)], "what has the version is not sent");
    }
    // Selectors see the version that is listed.
    let (_, list) = admin.get(&format!("{}?fieldSelector=host%3Dlocalhost", hosts("v2"))).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 2, "{list}");
    let (_, list) = admin.get(&format!("{}?fieldSelector=metadata.name%3Da", hosts("v2"))).await;
    assert_eq!(list["items"][0]["host"], "localhost");

    // A write that changes nothing gets the object to the version that is stored now.
    let path = format!("{}/a", hosts("v2"));
    let (_, same) = admin.get(&path).await;
    let (code, written) = admin.call("PUT", &path, Some(same.clone())).await;
    assert_eq!(code, 200, "{written}");
    assert_ne!(revision(&written), revision(&same));
    hook.calls();
    assert_eq!(admin.get(&path).await.1["host"], "localhost");
    assert_eq!(hook.calls(), []);

    let (_, metrics) = admin.text("/metrics").await;
    for line in [
        "apiserver_conversion_webhook_request_total{result=\"success\",failure_type=\"\"} ",
        "apiserver_crd_conversion_webhook_duration_seconds_count{crd_name=\"hosts.stable.example.com\",from_version=\"v1\",to_version=\"v2\",succeeded=\"true\"} ",
    ] {
        assert!(metrics.contains(line), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_writes_objects_of_any_version() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    hook.define(admin).await;
    let (one, two) = (format!("{}/a", hosts("v1")), format!("{}/a", hosts("v2")));
    let created = admin.create(&hosts("v2"), v2("a", "h")).await;
    assert_eq!((&created["host"], &created["fresh"]), (&json!("h"), &json!("new")));
    assert_eq!(admin.get(&one).await.1["hostPort"], "h:80");

    let (code, patched) = admin.call("PATCH", &two, Some(json!({"host": "i"}))).await;
    assert_eq!((code, &patched["host"]), (200, &json!("i")), "{patched}");
    let (_, mut whole) = admin.get(&two).await;
    whole["port"] = "81".into();
    let (code, put) = admin.call("PUT", &two, Some(whole)).await;
    assert_eq!((code, &put["port"]), (200, &json!("81")), "{put}");
    let (code, put) = admin
        .call("PATCH", &format!("{two}/status"), Some(json!({"status": {"phase": "Up"}})))
        .await;
    assert_eq!((code, &put["status"]["phase"]), (200, &json!("Up")), "{put}");
    let scale = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "a", "namespace": "default"}, "spec": {"replicas": 3}});
    let (code, scale) = admin.call("PUT", &format!("{two}/scale"), Some(scale)).await;
    assert_eq!((code, &scale["spec"]["replicas"]), (200, &json!(3)), "{scale}");
    let (_, stored) = admin.get(&one).await;
    assert_eq!(stored["hostPort"], "i:81");
    assert_eq!(
        (&stored["spec"]["replicas"], &stored["status"]["phase"]),
        (&json!(3), &json!("Up"))
    );
    assert_eq!(stored["metadata"]["uid"], created["metadata"]["uid"]);
    // An unknown field is an error in the version that is written.
    let (code, status) = admin
        .call("PATCH", &format!("{two}?fieldValidation=Strict"), Some(json!({"hostPort": "x:1"})))
        .await;
    assert_eq!(code, 422, "{status}");
    // What a dry run says is not stored.
    let (code, dry) =
        admin.call("PATCH", &format!("{two}?dryRun=All"), Some(json!({"host": "dry"}))).await;
    assert_eq!((code, &dry["host"]), (200, &json!("dry")));
    assert_eq!(admin.get(&two).await.1["host"], "i");

    let (code, _) = admin.call("DELETE", &two, None).await;
    assert_eq!(code, 200);
    assert_eq!(admin.get(&one).await.0, 404);
    for name in ["x", "y"] {
        admin.create(&hosts("v1"), v1(name)).await;
    }
    let (code, deleted) = admin.call("DELETE", &hosts("v2"), None).await;
    assert_eq!((code, &deleted["items"][1]["host"]), (200, &json!("localhost")), "{deleted}");
    let (_, left) = admin.get(&hosts("v1")).await;
    assert_eq!(left["items"], json!([]));

    // Labels and annotations are the webhook's to change, and the rest of the metadata is not.
    hook.set("labels");
    let created = admin.create(&hosts("v1"), v1("l")).await;
    let (_, shown) = admin.get(&format!("{}/l", hosts("v2"))).await;
    assert_eq!(shown["metadata"]["labels"], json!({"by": "hook"}));
    assert!(shown["metadata"]["finalizers"].is_null());
    assert_eq!(revision(&shown), revision(&created));
    let (_, list) = admin.get(&format!("{}?labelSelector=by%3Dhook", hosts("v2"))).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
}

async fn apply(admin: &Client, path: &str, manager: &str, body: &Value) -> (u16, Value) {
    let path = format!("{path}?fieldManager={manager}");
    let body = body.to_string().into_bytes();
    admin.send("PATCH", &path, "application/apply-patch+yaml", body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_serves_apply_across_versions() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    hook.define(admin).await;
    let (one, two) = (format!("{}/a", hosts("v1")), format!("{}/a", hosts("v2")));
    let (code, made) = apply(admin, &two, "new", &v2("a", "h")).await;
    assert_eq!(code, 201, "{made}");
    let managers = |object: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let list = object["metadata"]["managedFields"].as_array().unwrap();
        list.iter().map(|entry| (text(&entry["manager"]), text(&entry["apiVersion"]))).collect()
    };
    assert_eq!(managers(&made), [("new".to_owned(), "stable.example.com/v2".to_owned())]);
    // What v1 calls `hostPort` is what the other owns in v2.
    let (code, conflict) = apply(admin, &one, "old", &v1("a")).await;
    assert_eq!(code, 409, "{conflict}");
    assert_eq!(conflict["details"]["causes"][0]["message"], "conflict with \"new\"");
    let (code, same) = apply(admin, &one, "old", &{
        let mut same = v1("a");
        same["hostPort"] = "h:80".into();
        same
    })
    .await;
    assert_eq!(code, 200, "{same}");
    assert_eq!(managers(&same).len(), 2, "{same}");
    // An update in v1 takes the fields from the manager in v2.
    let (code, put) = admin.call("PATCH", &one, Some(json!({"hostPort": "z:1"}))).await;
    assert_eq!((code, &put["hostPort"]), (200, &json!("z:1")), "{put}");
    let owned = put["metadata"]["managedFields"].as_array().unwrap();
    let of_new = owned.iter().find(|entry| entry["manager"] == "new");
    let keeps = |field: &str| of_new.is_some_and(|entry| !entry["fieldsV1"][field].is_null());
    assert!(!keeps("f:host") && !keeps("f:port"), "{put}");
    let (_, shown) = admin.get(&two).await;
    assert_eq!((&shown["host"], &shown["port"]), (&json!("z"), &json!("1")));
    // An apply that lists nothing any more leaves nothing of its own.
    let (code, forced) = admin
        .send(
            "PATCH",
            &format!("{two}?fieldManager=new&force=true"),
            "application/apply-patch+yaml",
            v2("a", "f").to_string().into_bytes(),
        )
        .await;
    assert_eq!((code, &forced["host"]), (200, &json!("f")), "{forced}");
    let nothing =
        json!({"apiVersion": "stable.example.com/v1", "kind": "Host", "metadata": {"name": "a"}});
    let (code, left) = apply(admin, &one, "new", &nothing).await;
    assert_eq!(code, 200, "{left}");
    assert!(left["hostPort"].is_null(), "{left}");
    // A webhook that fails fails an apply, and an update where only the record of others needs it does not.
    let (code, again) = apply(admin, &two, "new", &v2("a", "g")).await;
    assert_eq!(code, 200, "{again}");
    hook.set("failed");
    let (code, status) = apply(admin, &one, "third", &v1("a")).await;
    assert_eq!(code, 500, "{status}");
    assert_eq!(
        status["message"],
        "conversion webhook for stable.example.com/v1, Kind=Host failed: no such port"
    );
    let (code, put) = admin.call("PATCH", &one, Some(json!({"hostPort": "y:1"}))).await;
    assert_eq!((code, &put["hostPort"]), (200, &json!("y:1")), "{put}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_of_watches_keeps_the_order() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    hook.define(admin).await;
    admin.create(&hosts("v1"), v1("first")).await;
    let (_, list) = admin.get(&hosts("v2")).await;
    let mut initial = admin.watch(&format!("{}?watch=1", hosts("v2"))).await;
    let event = initial.next().await.unwrap();
    assert_eq!((&event["type"], &event["object"]["host"]), (&json!("ADDED"), &json!("localhost")));
    hook.set("uneven");
    let mut watches = vec![initial];
    for _ in 0..2 {
        watches.push(
            admin
                .watch(&format!("{}?watch=1&resourceVersion={}", hosts("v2"), revision(&list)))
                .await,
        );
    }
    let selected = format!(
        "{}?watch=1&fieldSelector=host%3Dx&resourceVersion={}",
        hosts("v2"),
        revision(&list)
    );
    let mut selected = admin.watch(&selected).await;
    let mut stored =
        admin.watch(&format!("{}?watch=1&resourceVersion={}", hosts("v1"), revision(&list))).await;
    hook.calls();
    const COUNT: usize = 24;
    for i in 0..COUNT {
        admin.create(&hosts("v1"), v1(&format!("n{i}"))).await;
    }
    let path = format!("{}/n3", hosts("v1"));
    let (code, _) = admin.call("PATCH", &path, Some(json!({"hostPort": "x:1"}))).await;
    assert_eq!(code, 200);
    let (code, _) = admin.call("DELETE", &path, None).await;
    assert_eq!(code, 200);
    let mut expected: Vec<(String, String, String)> =
        (0..COUNT).map(|i| ("ADDED".into(), format!("n{i}"), "localhost".into())).collect();
    for kind in ["MODIFIED", "DELETED"] {
        expected.push((kind.into(), "n3".into(), "x".into()));
    }
    for watch in &mut watches {
        for expected in &expected {
            let event = watch.next().await.unwrap();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let object = &event["object"];
            assert_eq!(object["apiVersion"], "stable.example.com/v2");
            let found =
                (text(&event["type"]), text(&object["metadata"]["name"]), text(&object["host"]));
            assert_eq!(found, *expected);
        }
    }
    for kind in ["ADDED", "DELETED"] {
        let event = selected.next().await.unwrap();
        assert_eq!((&event["type"], &event["object"]["host"]), (&json!(kind), &json!("x")));
    }
    assert_eq!(stored.next().await.unwrap()["object"]["hostPort"], "localhost:8080");

    // One whose webhook fails ends with the reason, and others go on.
    hook.set("failed");
    admin.create(&hosts("v1"), v1("last")).await;
    let event = watches[0].next().await.unwrap();
    assert_eq!(
        (&event["type"], &event["object"]["code"]),
        (&json!("ERROR"), &json!(500)),
        "{event}"
    );
    assert_eq!(
        event["object"]["message"],
        "conversion webhook for stable.example.com/v1, Kind=Host failed: no such port"
    );
    assert!(watches[0].next().await.is_none());
    for _ in 0..COUNT + 2 {
        assert_eq!(stored.next().await.unwrap()["object"]["apiVersion"], "stable.example.com/v1");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_that_fails_harms_nothing_else() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    hook.define(admin).await;
    admin.create(&hosts("v1"), v1("a")).await;
    admin.create(&hosts("v1"), v1("b")).await;
    let (one, two) = (format!("{}/a", hosts("v1")), format!("{}/a", hosts("v2")));
    let gvk = "conversion webhook for stable.example.com/v1, Kind=Host";
    for (mode, expected) in [
        ("failed", "failed: no such port"),
        ("silent", "failed: response.result.status was 'Failed', not 'Success'"),
        ("uid", "failed: expected response.uid="),
        ("fewer", "returned 0 objects, expected 1"),
        ("name", "returned invalid object: must have the same name: a != other"),
        (
            "version",
            "returned invalid object at index 0: invalid groupVersion (expected stable.example.com/v2, received stable.example.com/v7)",
        ),
        ("error", "failed: an error on the server ("),
        ("garbage", "failed: couldn't get version/kind; json parse error: "),
    ] {
        hook.set(mode);
        let (code, status) = admin.get(&two).await;
        assert_eq!(code, 500, "{mode} {status}");
        let message = status["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{gvk} {expected}")), "{mode}: {message}");
        let (code, status) = admin.get(&hosts("v2")).await;
        assert_eq!(code, 500, "{mode} {status}");
        assert_eq!(admin.get(&one).await.0, 200, "{mode}: it is stored in that version");
        let (code, _) = admin.call("POST", &hosts("v2"), Some(v2("new", "h"))).await;
        assert_eq!(code, 500, "{mode}");
        assert_eq!(
            admin.get(&format!("{}/new", hosts("v1"))).await.0,
            404,
            "{mode}: it is not stored"
        );
        let (code, _) = admin.call("PATCH", &two, Some(json!({"host": "x"}))).await;
        assert_eq!(code, 500, "{mode}");
    }
    // One that never answers delays requests to its kind, and no others.
    hook.set("slow");
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let (admin, path) = (admin.clone(), hosts("v2"));
            tokio::spawn(async move { admin.get(&path).await })
        })
        .collect();
    eventually("the webhook is called", || async { !hook.calls.lock().unwrap().is_empty() }).await;
    assert_eq!(admin.get(MAPS).await.0, 200);
    assert_eq!(admin.get(&hosts("v1")).await.0, 200);
    admin.create(MAPS, config_map("m", json!({}))).await;
    let (code, _) = admin.call("PATCH", &one, Some(json!({"hostPort": "i:1"}))).await;
    assert_eq!(code, 200);
    waiting.iter().for_each(tokio::task::JoinHandle::abort);

    // And the kind can go.
    hook.set("failed");
    let (code, status) = admin.call("DELETE", &format!("{CRDS}/{NAME}"), None).await;
    assert_eq!(code, 200, "{status}");
    eventually("gone", || async { admin.get(&format!("{CRDS}/{NAME}")).await.0 == 404 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_is_done_for_admission_webhooks() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    hook.define(admin).await;
    let admission = common::hook::Hook::start().await;
    let patch = json!([{"op": "replace", "path": "/hostPort", "value": "patched:9"}]);
    let path = common::hook::patch_path(&patch);
    let mut webhook = admission.webhook("m.example.com", &path, &["CREATE"], &["hosts"]);
    webhook["rules"][0]["apiVersions"] = json!(["v1"]);
    configure(admin, "mutating", "m", &[webhook]).await;
    let created = admin.create(&hosts("v2"), v2("a", "h")).await;
    assert_eq!((&created["host"], &created["port"]), (&json!("patched"), &json!("9")));
    let seen = admission.requests();
    assert_eq!(seen[0]["object"]["hostPort"], "h:80");
    assert_eq!(seen[0]["requestKind"]["version"], "v2");
    hook.set("failed");
    let (code, status) = admin.call("POST", &hosts("v2"), Some(v2("b", "h"))).await;
    assert_eq!(code, 500);
    assert_eq!(
        status["message"],
        "Internal error occurred: conversion webhook for stable.example.com/v2, Kind=Host failed: no such port"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversion_webhooks_are_called_by_service() {
    let (cluster, hook) = (Cluster::start().await, Hook::start().await);
    let admin = &cluster.admin;
    let mut definition = hook.definition();
    let client = &mut definition["spec"]["conversion"]["webhook"]["clientConfig"];
    client.as_object_mut().unwrap().remove("url");
    client["service"] =
        json!({"namespace": "default", "name": "hook", "port": hook.port, "path": "/crdconvert"});
    admin.create(CRDS, definition).await;
    eventually("served", || async { admin.get(&hosts("v2")).await.0 == 200 }).await;
    // As the official suite waits for its webhook: an object with nothing but a name.
    let stub = json!({"apiVersion": "stable.example.com/v2", "kind": "Host", "metadata": {"name": "stub"}});
    let (code, status) = admin.call("POST", &hosts("v2"), Some(stub.clone())).await;
    assert_eq!(code, 500);
    assert_eq!(
        status["message"],
        format!(
            "conversion webhook for stable.example.com/v2, Kind=Host failed: Post \
             \"https://hook.default.svc:{}/crdconvert?timeout=30s\": services \"hook\" not found",
            hook.port
        )
    );
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"type": "ExternalName", "externalName": "localhost",
            "ports": [{"port": hook.port}]},
    });
    admin.create("/api/v1/namespaces/default/services", service).await;
    admin.create(&hosts("v2"), stub).await;
    let (code, _) = admin.call("DELETE", &format!("{}/stub", hosts("v2")), None).await;
    assert_eq!(code, 200);
}
