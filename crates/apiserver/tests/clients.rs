//! What Go clients lean on: protobuf bodies, impersonation, and the refusals that they look into.

use crate::common;

use common::*;
use serde_json::{Value, json};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

fn message(status: &Value) -> &str {
    status["message"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protobuf_create_and_delete() {
    let cluster = Cluster::start().await;
    let send = |method: &str, path: &str, body: &[u8]| {
        let file = cluster.dir.path().join("body");
        std::fs::write(&file, body).unwrap();
        let data = format!("@{}", file.display());
        cluster.admin_curl(
            path,
            &[
                "-X",
                method,
                "-H",
                "content-type: application/vnd.kubernetes.protobuf",
                "-H",
                "accept: application/json,application/vnd.kubernetes.protobuf",
                "--data-binary",
                &data,
            ],
        )
    };
    // metadata.name and data, as Go writes them: with unset fields.
    let config_map = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\
        \x12\x1b\x0a\x11\x0a\x01a\x12\x00\x1a\x00\"\x00*\x002\x008\x00B\x00\x12\x06\x0a\x01k\x12\x01v\x1a\x00\"\x00";
    let (code, made) = send("POST", CONFIG_MAPS, config_map);
    assert_eq!((code, &made["data"]), (201, &json!({"k": "v"})), "{made}");
    let (_, read) = cluster.admin.get(&format!("{CONFIG_MAPS}/a")).await;
    assert_eq!(read, made);
    assert_eq!(read["metadata"].get("generateName"), None, "nobody set it");

    let (code, status) = send("POST", &CONFIG_MAPS.replace("configmaps", "secrets"), config_map);
    assert_eq!((code, status["reason"].as_str()), (400, Some("BadRequest")), "{status}");
    let (code, status) = send("POST", CONFIG_MAPS, b"k8s\0\x0a\xff");
    assert_eq!(code, 400, "{status}");
    assert!(message(&status).contains("unexpected EOF"), "{status}");

    let options = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x06\x12\x04\x0a\x02no";
    let (code, status) = send("DELETE", &format!("{CONFIG_MAPS}/a"), options);
    assert_eq!(code, 409, "the precondition was read: {status}");
    let options = b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dDeleteOptions\x12\x00\x1a\x00\"\x00";
    assert_eq!(send("DELETE", &format!("{CONFIG_MAPS}/a"), options).0, 200);
}

/// The content type and the bytes of an answer.
async fn raw(client: &Client, path: &str, accept: &str) -> (u16, String, Vec<u8>) {
    let request = hyper::Request::get(path).header("accept", accept);
    let request = request.body(kube::client::Body::empty()).unwrap();
    let response = client.0.send(request).await.unwrap();
    let code = response.status().as_u16();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    (code, content_type, body.to_vec())
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protobuf_answers() {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    const METADATA: &str =
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let made = admin.create(CONFIG_MAPS, config_map("a", json!({"k": "some value"}))).await;
    let one = format!("{CONFIG_MAPS}/a");
    let both = format!("{PROTOBUF},application/json");

    let (code, content_type, bytes) = raw(admin, &one, &both).await;
    assert_eq!((code, &content_type[..]), (200, PROTOBUF));
    let gvk = longshore_apiserver::kinds::lookup("", "v1", "configmaps").unwrap().gvk();
    let validation = longshore_apiserver::schema::FieldValidation::Strict;
    let read = longshore_apiserver::schema::read(gvk, &bytes, Some(PROTOBUF), validation).unwrap();
    assert_eq!(read.0, made);

    let (code, content_type, list) = raw(admin, CONFIG_MAPS, PROTOBUF).await;
    assert_eq!((code, &content_type[..]), (200, PROTOBUF));
    assert!(list.starts_with(b"k8s\0\x0a\x13\x0a\x02v1\x12\x0dConfigMapList\x12"));
    // the object's message is in it as a whole: after the envelope, whose end is four bytes
    let message =
        &bytes[b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x00\x00".len()..bytes.len() - 4];
    assert!(has(&list, message));

    let (code, _, partial) = raw(admin, &one, METADATA).await;
    assert!(
        code == 200 && has(&partial, b"PartialObjectMetadata") && !has(&partial, b"some value")
    );
    assert_eq!(raw(admin, CONFIG_MAPS, METADATA).await.0, 406, "a list is another type");
    let metadata_list = METADATA.replace("PartialObjectMetadata", "PartialObjectMetadataList");
    let (code, _, partial) = raw(admin, CONFIG_MAPS, &metadata_list).await;
    assert!(code == 200 && has(&partial, b"PartialObjectMetadataList"));
    assert!(!has(&partial, b"some value"));

    let (code, content_type, status) = raw(admin, &format!("{CONFIG_MAPS}/b"), &both).await;
    assert_eq!((code, &content_type[..]), (404, PROTOBUF));
    assert!(has(&status, b"Status") && has(&status, b"configmaps \"b\" not found"));

    let watch = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1&resourceVersion=0");
    let (code, content_type, frames) =
        raw(admin, &watch, &format!("{PROTOBUF};stream=watch")).await;
    assert_eq!(
        (code, &content_type[..]),
        (200, "application/vnd.kubernetes.protobuf;stream=watch")
    );
    let length = u32::from_be_bytes(*frames.first_chunk().unwrap()) as usize;
    assert!(frames[4..4 + length].starts_with(b"\x0a\x05ADDED\x12"));
    assert!(frames[4..4 + length].ends_with(&bytes), "the object in its envelope");

    // documents and custom objects are JSON
    let (code, content_type, _) = raw(admin, "/version", &both).await;
    assert_eq!((code, &content_type[..]), (200, "application/json"));
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Cluster",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    admin.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let things = "/apis/example.com/v1/things";
    eventually("things are served", || async { admin.get(things).await.0 == 200 }).await;
    assert_eq!(raw(admin, things, PROTOBUF).await.0, 406);
    assert_eq!(raw(admin, things, &both).await.1, "application/json");
    assert_eq!(raw(admin, things, &metadata_list).await.1, PROTOBUF);
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.com";
    assert_eq!(raw(admin, definitions, PROTOBUF).await.1, PROTOBUF);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impersonation_requires_permission() {
    let cluster = Cluster::start().await;
    cluster.admin.create(CONFIG_MAPS, config_map("a", json!({}))).await;
    let read = |headers: &[&str]| {
        let flags: Vec<&str> = headers.iter().flat_map(|header| ["-H", header]).collect();
        cluster.admin_curl(&format!("{CONFIG_MAPS}/a"), &flags)
    };
    assert_eq!(read(&[]).0, 200);
    let (code, status) = read(&["impersonate-user: bob"]);
    assert_eq!(code, 403, "bob has no rights of the administrator's: {status}");
    assert!(message(&status).contains("User \"bob\" cannot get"), "{status}");
    assert_eq!(read(&["impersonate-user: bob", "impersonate-group: system:masters"]).0, 200);
    assert_eq!(read(&["impersonate-group: system:masters"]).0, 400);
    assert_eq!(read(&["impersonate-user: system:anonymous"]).0, 403);
    let (code, status) = cluster.admin_curl(
        "/apis/authentication.k8s.io/v1/selfsubjectreviews",
        &[
            "-H",
            "impersonate-user: system:serviceaccount:shop:till",
            "-H",
            "content-type: application/json",
            "-d",
            "{}",
        ],
    );
    assert_eq!(code, 201, "{status}");
    assert_eq!(
        status["status"]["userInfo"]["groups"],
        json!(["system:serviceaccounts", "system:serviceaccounts:shop", "system:authenticated"])
    );

    let node = |name: &str| cluster.pki().join(format!("client-system_node_n1.{name}"));
    let (certificate, key) = (node("crt").display().to_string(), node("key").display().to_string());
    let (code, body) = cluster.curl(
        &format!("{CONFIG_MAPS}/a"),
        &["--cert", &certificate, "--key", &key, "-H", "impersonate-user: kubernetes-admin"],
    );
    assert_eq!(code, 403, "{body}");
    assert!(body.contains(r#"cannot impersonate resource \"users\""#), "{body}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_errors_are_upstreams() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    admin.create(CONFIG_MAPS, config_map("a", json!({"k": "v"}))).await;
    admin.create(PODS, pod("web", "")).await;
    let named = format!("{CONFIG_MAPS}/a");
    let unnamed = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}});
    let target = json!({"kind": "Node", "name": "n1"});
    let elsewhere = json!({"metadata": {"name": "web", "namespace": "prod"}, "target": target});
    let table = [
        ("PUT", named.clone(), unnamed.clone(), 400, "name must be provided"),
        ("PUT", CONFIG_MAPS.to_owned(), unnamed.clone(), 405, "does not allow this method"),
        ("POST", format!("{PODS}/web/binding"), json!({"target": target}), 400, "name in URL"),
        ("POST", format!("{PODS}/web/eviction"), json!({}), 400, "name in URL"),
        (
            "POST",
            format!("{PODS}/web/eviction"),
            elsewhere.clone(),
            400,
            "namespace of the provided",
        ),
        ("POST", format!("{PODS}/web/binding"), elsewhere, 400, "namespace of the provided"),
        ("DELETE", named.clone(), json!({"propagationPolicy": "Sideways"}), 422, "\"Orphan\""),
        ("DELETE", named.clone(), json!({"propagationPolicy": "nil"}), 422, "\"Orphan\""),
        ("DELETE", named.clone(), json!({"dryRun": ["Some"]}), 422, "\"All\""),
        (
            "DELETE",
            named.clone(),
            json!({"propagationPolicy": "Orphan", "orphanDependents": true}),
            422,
            "cannot be both set",
        ),
        ("POST", format!("{CONFIG_MAPS}?dryRun=No"), unnamed.clone(), 422, "[\"No\"]"),
        ("POST", format!("{CONFIG_MAPS}?fieldValidation=x"), unnamed.clone(), 422, "\"Warn\""),
        // of what a patch makes, the patch is to blame
        ("PATCH", named.clone(), json!({"data": {"k": 1}}), 422, "cannot unmarshal number into Go"),
        ("BREW", CONFIG_MAPS.to_owned(), Value::Null, 405, "does not allow this method"),
    ];
    for (method, path, body, code, part) in table {
        let (found, status) = admin.call(method, &path, Some(body)).await;
        assert_eq!(
            (found, message(&status).contains(part)),
            (code, true),
            "{method} {path}: {status}"
        );
    }
    assert_eq!(admin.call("DELETE", &format!("{named}?propagationPolicy=x"), None).await.0, 422);
    assert_eq!(admin.get(&named).await.0, 200, "no refusal deleted it");
    // kubectl reads the details of each 404 without checking whether there are any.
    for path in ["/api/v1/nothings", &format!("{PODS}/web/nothing")] {
        let (code, status) = admin.get(path).await;
        assert_eq!((code, &status["details"]), (404, &json!({})), "{path}: {status}");
    }
    // These have no Status, as upstream's: clients make one of their own.
    for path in ["/apis/x/v1/y", "/nothing"] {
        assert_eq!(admin.get(path).await, (404, Value::Null), "{path}");
    }
}
