//! Server-side apply and managedFields over real HTTPS.

use crate::common;

use common::*;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const APPLY: &str = "application/apply-patch+yaml";

async fn apply(client: &Client, path: &str, body: Value) -> (u16, Value) {
    client.send("PATCH", path, APPLY, body.to_string().into_bytes()).await
}

fn deployment(name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "nginx", "image": "nginx:1"}]},
            },
        },
    })
}

/// The managers with their operation and subresource, sorted: writes within a second have one time.
fn managers(object: &Value) -> Vec<String> {
    let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let list = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let mut managers: Vec<String> = list
        .iter()
        .map(|entry| {
            let (manager, operation) = (text(entry, "manager"), text(entry, "operation"));
            format!("{manager} {operation} {}", text(entry, "subresource")).trim_end().to_owned()
        })
        .collect();
    managers.sort();
    managers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_makes_changes_and_removes() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let path = format!("{DEPLOYMENTS}/web");
    let as_a = format!("{path}?fieldManager=a");
    let (code, made) = apply(admin, &as_a, deployment("web")).await;
    assert_eq!(code, 201, "{made}");
    assert_eq!(managers(&made), ["a Apply"]);
    assert_eq!(made["spec"]["template"]["spec"]["restartPolicy"], "Always", "it has its defaults");
    assert_eq!(made["metadata"]["generation"], 1);

    let (code, same) = apply(admin, &as_a, deployment("web")).await;
    assert_eq!((code, &same), (200, &made), "nothing is written");

    let mut patch = deployment("web");
    patch["spec"].as_object_mut().unwrap().remove("replicas");
    patch["metadata"]["labels"] = json!({"tier": "front"});
    let (code, changed) = apply(admin, &as_a, patch).await;
    assert_eq!(code, 200, "{changed}");
    assert_eq!(changed["metadata"]["labels"], json!({"tier": "front"}));
    assert_eq!(changed["spec"]["replicas"], 1, "the default");
    assert_eq!(changed["metadata"]["generation"], 2);

    let (code, _) = admin
        .send("PATCH", &format!("{path}?dryRun=All&fieldManager=b&force=true"), APPLY, {
            let mut patch = deployment("web");
            patch["spec"]["replicas"] = 9.into();
            patch.to_string().into_bytes()
        })
        .await;
    assert_eq!(code, 200);
    assert_eq!(admin.get(&path).await.1, changed, "a dry run writes nothing");
    let (code, made) =
        apply(admin, &format!("{DEPLOYMENTS}/dry?fieldManager=a&dryRun=All"), deployment("dry"))
            .await;
    assert_eq!((code, managers(&made)), (201, vec!["a Apply".to_owned()]));
    assert_eq!(admin.get(&format!("{DEPLOYMENTS}/dry")).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_conflicts_and_force() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let path = format!("{DEPLOYMENTS}/web");
    admin.create(&format!("{DEPLOYMENTS}?fieldManager=maker"), deployment("web")).await;
    let patch = json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 5}});
    let (code, status) = apply(admin, &format!("{path}?fieldManager=a"), patch.clone()).await;
    assert_eq!(code, 409);
    assert_eq!(
        status,
        json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": "Apply failed with 1 conflict: conflict with \"maker\" using apps/v1: .spec.replicas",
            "reason": "Conflict",
            "details": {"causes": [{
                "reason": "FieldManagerConflict",
                "message": "conflict with \"maker\" using apps/v1",
                "field": ".spec.replicas",
            }]},
            "code": 409,
        })
    );
    let (code, taken) = apply(admin, &format!("{path}?fieldManager=a&force=true"), patch).await;
    assert_eq!((code, &taken["spec"]["replicas"]), (200, &json!(5)));
    assert_eq!(managers(&taken), ["a Apply", "maker Update"]);

    // A Scale owns the replicas by its subresource, and takes them.
    let scale = format!("{path}/scale");
    let patch = json!({"spec": {"replicas": 2}});
    assert_eq!(admin.call("PATCH", &format!("{scale}?fieldManager=hpa"), Some(patch)).await.0, 200);
    let (_, scaled) = admin.get(&path).await;
    assert_eq!(managers(&scaled), ["hpa Update scale", "maker Update"]);
    let patch = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 4}});
    let (code, status) = apply(admin, &format!("{scale}?fieldManager=b"), patch.clone()).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (
            409,
            "Apply failed with 1 conflict: conflict with \"hpa\" with subresource \"scale\" using \
             autoscaling/v1: .spec.replicas"
        )
    );
    let (code, result) = apply(admin, &format!("{scale}?fieldManager=b&force=1"), patch).await;
    assert_eq!((code, &result["spec"]["replicas"]), (200, &json!(4)), "{result}");
    let (_, scaled) = admin.get(&path).await;
    assert_eq!(managers(&scaled), ["b Apply scale", "maker Update"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_refuses_bad_requests() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let path = format!("{MAPS}/m");
    let map = config_map("m", json!({"a": "1"}));
    let body = |change: &dyn Fn(&mut Value)| {
        let mut map = map.clone();
        change(&mut map);
        map
    };
    let long = "x".repeat(129);
    for (query, body, code, message) in [
        (
            "",
            map.clone(),
            422,
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        ),
        (&*format!("fieldManager={long}"), map.clone(), 422, "may not be more than 128 bytes"),
        ("fieldManager=a%07", map.clone(), 422, "invalid character U+0007 (at position 1)"),
        (
            "fieldManager=a",
            body(&|map| map["kind"] = "Secret".into()),
            400,
            "invalid object type: /v1, Kind=Secret",
        ),
        (
            "fieldManager=a",
            body(&|map| map["kind"] = json!(null)),
            400,
            "invalid object type: /v1, Kind=",
        ),
        (
            "fieldManager=a",
            body(&|map| map["metadata"]["managedFields"] = json!([])),
            400,
            "metadata.managedFields must be nil",
        ),
        (
            "fieldManager=a",
            body(&|map| map["metadata"]["name"] = "n".into()),
            400,
            "the name of the object (n) does not match the name on the URL (m)",
        ),
        (
            "fieldManager=a",
            body(&|map| map["metadata"]["namespace"] = "n".into()),
            400,
            "namespace",
        ),
        (
            "fieldManager=a",
            body(&|map| map["x"] = 1.into()),
            500,
            "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .x: field not declared in schema",
        ),
        (
            "fieldManager=a",
            body(&|map| map["metadata"]["uid"] = "u".into()),
            409,
            "Operation cannot be fulfilled on configmaps \"m\": uid mismatch: the provided object specified uid u, and no existing object was found",
        ),
    ] {
        let (found, status) = apply(admin, &format!("{path}?{query}"), body.clone()).await;
        assert_eq!(found, code, "{query} {body}: {status}");
        assert!(status["message"].as_str().unwrap().contains(message), "{query} {body}: {status}");
    }
    let send = |query: &'static str, content_type: &'static str, body: &'static [u8]| {
        let path = format!("{path}?{query}");
        async move { admin.send("PATCH", &path, content_type, body.to_vec()).await }
    };
    let (code, status) = send("fieldManager=a", "application/apply-patch+cbor", b"\xa0").await;
    assert_eq!(code, 415);
    assert_eq!(status["message"], "415: Unsupported Media Type");
    let (code, status) = send("force=true", "application/merge-patch+json", b"{}").await;
    assert_eq!(code, 422);
    assert!(
        status["message"]
            .as_str()
            .unwrap()
            .contains("force: Forbidden: may not be specified for non-apply patch")
    );
    let (code, status) = send("fieldManager=a", APPLY, b"a: [").await;
    assert_eq!((code, status["reason"].as_str()), (400, Some("BadRequest")));
    assert_eq!(send("fieldManager=a", APPLY, b"[]").await.0, 400);
    assert_eq!(send("fieldManager=a", APPLY, b"").await.0, 400);
    let twice = b"{apiVersion: v1, kind: ConfigMap, metadata: {name: m}, data: {a: x, a: y}}";
    let (code, status) = send("fieldManager=a&fieldValidation=Strict", APPLY, twice).await;
    assert_eq!(code, 400, "{status}");
    assert!(status["message"].as_str().unwrap().starts_with("error strict decoding YAML: "));
    assert_eq!(admin.get(&path).await.0, 404, "nothing was made");
    let deep = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"x\":{}1{}}}",
        "[".repeat(5000),
        "]".repeat(5000)
    );
    let (code, _) =
        admin.send("PATCH", &format!("{path}?fieldManager=a"), APPLY, deep.into_bytes()).await;
    assert_eq!(code, 400);

    assert_eq!(apply(admin, &format!("{path}?fieldManager=a"), map.clone()).await.0, 201);
    let stale = body(&|map| map["metadata"]["resourceVersion"] = "1".into());
    let (code, status) = apply(admin, &format!("{path}?fieldManager=a"), stale).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")), "{status}");
    let (code, _) =
        apply(admin, &format!("{DEPLOYMENTS}/absent/status?fieldManager=a"), deployment("absent"))
            .await;
    assert_eq!(code, 404, "a subresource makes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn managed_fields_follow_every_write() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let path = format!("{MAPS}/m");
    let made = admin
        .create(&format!("{MAPS}?fieldManager=post"), config_map("m", json!({"a": "1", "b": "1"})))
        .await;
    assert_eq!(
        made["metadata"]["managedFields"][0]["fieldsV1"],
        json!({"f:data": {".": {}, "f:a": {}, "f:b": {}}})
    );
    let mut new = made.clone();
    new["data"]["a"] = "2".into();
    let (_, put) = admin.call("PUT", &format!("{path}?fieldManager=put"), Some(new)).await;
    assert_eq!(managers(&put), ["post Update", "put Update"]);
    let patch = json!({"data": {"b": "2", "c": "2"}});
    let (_, patched) =
        admin.call("PATCH", &format!("{path}?fieldManager=merge"), Some(patch)).await;
    let fields = |object: &Value, manager: &str| {
        let list = object["metadata"]["managedFields"].as_array().unwrap().clone();
        list.into_iter().find(|entry| entry["manager"] == manager).unwrap()["fieldsV1"].clone()
    };
    assert_eq!(fields(&patched, "merge"), json!({"f:data": {"f:b": {}, "f:c": {}}}));
    assert_eq!(fields(&patched, "post"), json!({"f:data": {}}));
    let operations =
        json!([{"op": "replace", "path": "/data/c", "value": "3"}]).to_string().into_bytes();
    let (_, patched) = admin
        .send(
            "PATCH",
            &format!("{path}?fieldManager=json"),
            "application/json-patch+json",
            operations,
        )
        .await;
    assert_eq!(fields(&patched, "json"), json!({"f:data": {"f:c": {}}}));
    for reset in [json!([]), json!([{}])] {
        let mut new = admin.get(&path).await.1;
        new["metadata"]["managedFields"] = reset;
        let (code, new) = admin.call("PUT", &path, Some(new)).await;
        assert_eq!((code, new["metadata"].get("managedFields")), (200, None), "{new}");
        let (_, applied) = apply(
            admin,
            &format!("{path}?fieldManager=a&force=true"),
            config_map("m", json!({"a": "9"})),
        )
        .await;
        assert_eq!(managers(&applied), ["a Apply", "before-first-apply Update"]);
    }
    // Without the list the managers stay.
    let (_, put) = admin
        .call("PUT", &format!("{path}?fieldManager=put"), Some(config_map("m", json!({"a": "9"}))))
        .await;
    assert_eq!(managers(&put), ["a Apply", "before-first-apply Update"]);

    let deployments = format!("{DEPLOYMENTS}?fieldManager=maker");
    admin.create(&deployments, deployment("web")).await;
    let path = format!("{DEPLOYMENTS}/web");
    let patch = json!({"status": {"replicas": 3}, "spec": {"replicas": 7}});
    let (code, new) =
        admin.call("PATCH", &format!("{path}/status?fieldManager=controller"), Some(patch)).await;
    assert_eq!(code, 200);
    assert_eq!(fields(&new, "controller"), json!({"f:status": {"f:replicas": {}}}));
    let status = json!({"apiVersion": "apps/v1", "kind": "Deployment", "status": {"readyReplicas": 3}, "spec": {"replicas": 1}});
    let (code, new) = apply(admin, &format!("{path}/status?fieldManager=applier"), status).await;
    assert_eq!(code, 200, "{new}");
    assert_eq!(fields(&new, "applier"), json!({"f:status": {"f:readyReplicas": {}}}));
    assert_eq!((&new["status"]["readyReplicas"], &new["spec"]["replicas"]), (&json!(3), &json!(3)));
    assert_eq!(
        managers(&new),
        ["applier Apply status", "controller Update status", "maker Update"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_races_lose_no_field() {
    let cluster = Cluster::start().await;
    let path = format!("{MAPS}/shared");
    let racers = (0..8).map(|racer| {
        let (client, path) = (cluster.admin.clone(), format!("{path}?fieldManager=m{racer}"));
        tokio::spawn(async move {
            let body = config_map("shared", json!({format!("k{racer}"): "v"}));
            let (code, status) = apply(&client, &path, body).await;
            assert!(code == 200 || code == 201, "{status}");
            code
        })
    });
    let mut made = 0;
    for racer in racers.collect::<Vec<_>>() {
        made += usize::from(racer.await.unwrap() == 201);
    }
    assert_eq!(made, 1, "one of them made it");
    let (_, map) = cluster.admin.get(&path).await;
    assert_eq!(map["data"].as_object().unwrap().len(), 8);
    assert_eq!(managers(&map).len(), 8);
}
