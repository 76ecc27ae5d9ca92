//! What Go clients lean on: protobuf bodies, impersonation, and the refusals that they look into.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

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
                "accept: application/vnd.kubernetes.protobuf,application/json",
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
    for path in ["/api/v1/nothings", &format!("{PODS}/web/nothing"), "/apis/x/v1/y", "/nothing"] {
        let (code, status) = admin.get(path).await;
        assert_eq!((code, &status["details"]), (404, &json!({})), "{path}: {status}");
    }
}
