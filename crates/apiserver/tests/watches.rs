//! Lists in chunks and watches over real HTTPS.

use crate::common;

use std::time::Duration;

use common::*;
use serde_json::{Value, json};
use tokio::time::timeout;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// Secrets, since there are none but a test's own.
fn secret(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data})
}

fn names(list: &Value) -> Vec<String> {
    let items = list["items"].as_array().unwrap().iter();
    items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_chunks_are_of_one_revision() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    for i in 0..10 {
        admin.create(SECRETS, secret(&format!("m{i}"), json!({}))).await;
    }
    let (_, first) = admin.get(&format!("{SECRETS}?limit=4")).await;
    assert_eq!(names(&first), ["m0", "m1", "m2", "m3"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 6);
    // What happens meanwhile is not seen.
    admin.create(SECRETS, secret("m4a", json!({}))).await;
    admin.call("DELETE", &format!("{SECRETS}/m5"), None).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let (_, second) = admin.get(&format!("{SECRETS}?limit=4&continue={token}")).await;
    assert_eq!(names(&second), ["m4", "m5", "m6", "m7"]);
    assert_eq!(revision(&second), revision(&first));
    let token = second["metadata"]["continue"].as_str().unwrap();
    let (_, third) = admin.get(&format!("{SECRETS}?limit=4&continue={token}")).await;
    assert_eq!(names(&third), ["m8", "m9"]);
    assert_eq!(third["metadata"]["continue"], Value::Null);

    let (_, now) = admin.get(SECRETS).await;
    assert_eq!(names(&now).len(), 10);
    let exact =
        format!("{SECRETS}?resourceVersion={}&resourceVersionMatch=Exact", revision(&first));
    assert!(names(&admin.get(&exact).await.1).contains(&"m5".to_owned()));
    let future = format!("{SECRETS}?resourceVersion=99999&resourceVersionMatch=NotOlderThan");
    let (code, status) = cluster.admin_curl(&future, &[]);
    assert_eq!(
        (code, status["details"]["causes"][0]["reason"].as_str()),
        (504, Some("ResourceVersionTooLarge"))
    );
    for bad in [
        "continue=x",
        "limit=x",
        "timeoutSeconds=x",
        "resourceVersion=x",
        "labelSelector=%3D%3D",
        "fieldSelector=spec.x%3Dy",
        "continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MSwic3RhcnQiOiIuLi9zZWNyZXRzIn0",
    ] {
        assert_eq!(admin.get(&format!("{SECRETS}?{bad}")).await.0, 400, "{bad}");
    }
    assert_eq!(names(&admin.get(&format!("{SECRETS}?limit=-1")).await.1).len(), 10);
    for (bad, field, message) in [
        ("resourceVersionMatch=Exact", "resourceVersionMatch", "forbidden unless resourceVersion"),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            "resourceVersionMatch",
            "Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        ),
        (
            "resourceVersionMatch=Odd&resourceVersion=1",
            "resourceVersionMatch",
            "Unsupported value: \"Odd\": supported values: \"Exact\", \"NotOlderThan\", \"\"",
        ),
        (
            "sendInitialEvents=true",
            "sendInitialEvents",
            "Forbidden: sendInitialEvents is forbidden",
        ),
        ("watch=1&resourceVersionMatch=NotOlderThan", "resourceVersionMatch", "unless sendInitial"),
    ] {
        let (code, status) = admin.get(&format!("{SECRETS}?{bad}")).await;
        let cause = &status["details"]["causes"][0];
        assert_eq!((code, &status["details"]["kind"]), (422, &json!("ListOptions")), "{status}");
        assert_eq!(cause["field"], field, "{status}");
        assert!(cause["message"].as_str().unwrap().contains(message), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_selectors() {
    let cluster = Cluster::start().await;
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "")] {
        cluster.admin.create(PODS, pod(name, node)).await;
    }
    for (query, expected) in [
        ("fieldSelector=spec.nodeName%3Dn1", vec!["a"]),
        ("fieldSelector=spec.nodeName!%3Dn1", vec!["b", "c"]),
        ("fieldSelector=metadata.name%3Db", vec!["b"]),
        ("labelSelector=app+in+(a,c)", vec!["a", "c"]),
        ("labelSelector=!app", vec![]),
        ("labelSelector=app%3Da&limit=1", vec!["a"]),
    ] {
        let (code, list) = cluster.admin.get(&format!("{PODS}?{query}")).await;
        assert_eq!(
            (code, names(&list)),
            (200, expected.iter().map(|s| s.to_string()).collect()),
            "{query}"
        );
    }
    let (_, all) = cluster.admin.get("/api/v1/pods?fieldSelector=metadata.name%3Dc").await;
    assert_eq!(names(&all), ["c"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_starts_from_list_or_resource_version() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let first = admin.create(SECRETS, secret("a", json!({}))).await;
    let mut all = admin.watch(&format!("{SECRETS}?watch=1")).await;
    let mut zero = admin.watch(&format!("{SECRETS}?watch=true&resourceVersion=0")).await;
    let mut later =
        admin.watch(&format!("{SECRETS}?watch=1&resourceVersion={}", revision(&first))).await;
    assert_eq!((all.line().await, zero.line().await), ("ADDED a".into(), "ADDED a".into()));
    admin.create(SECRETS, secret("b", json!({}))).await;
    admin.call("PATCH", &format!("{SECRETS}/b"), Some(json!({"data": {"x": "eQ=="}}))).await;
    let (_, before) = admin.get(&format!("{SECRETS}/b")).await;
    admin.call("DELETE", &format!("{SECRETS}/b"), None).await;
    for watch in [&mut all, &mut zero, &mut later] {
        assert_eq!(watch.line().await, "ADDED b");
        assert_eq!(watch.line().await, "MODIFIED b");
        let deleted = watch.next().await.unwrap();
        assert_eq!(deleted["type"], "DELETED");
        let at: i64 = revision(&deleted["object"]).parse().unwrap();
        assert!(at > revision(&before).parse::<i64>().unwrap(), "the revision of the deletion");
        assert_eq!(deleted["object"]["data"], before["data"]);
    }
    // All of it again, from history; nothing of other namespaces.
    admin.create("/api/v1/namespaces/kube-system/secrets", secret("else", json!({}))).await;
    let mut again =
        admin.watch(&format!("{SECRETS}?watch=1&resourceVersion={}", revision(&first))).await;
    for expected in ["ADDED b", "MODIFIED b", "DELETED b"] {
        assert_eq!(again.line().await, expected);
    }
    let mut everywhere = admin.watch("/api/v1/secrets?watch=1").await;
    assert_eq!(
        (everywhere.line().await, everywhere.line().await),
        ("ADDED a".into(), "ADDED else".into())
    );
    let (code, _) = cluster.admin_curl(&format!("{SECRETS}?watch=1&resourceVersion=99999"), &[]);
    assert_eq!(code, 504, "from the future");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_object_enters_and_leaves_a_selection() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let mut watch = admin.watch(&format!("{PODS}?watch=1&fieldSelector=spec.nodeName%3Dn1")).await;
    let mut labelled = admin.watch(&format!("{PODS}?watch=1&labelSelector=hot%3Dyes")).await;
    admin.create(PODS, pod("web", "")).await;
    let binding = json!({"metadata": {"name": "web"}, "target": {"kind": "Node", "name": "n1"}});
    admin.create(&format!("{PODS}/web/binding"), binding).await;
    assert_eq!(watch.line().await, "ADDED web");
    for (label, expected) in
        [(json!("yes"), "ADDED web"), (json!(null), "DELETED web"), (json!("yes"), "ADDED web")]
    {
        admin
            .call(
                "PATCH",
                &format!("{PODS}/web"),
                Some(json!({"metadata": {"labels": {"hot": label}}})),
            )
            .await;
        assert_eq!(labelled.line().await, expected);
        assert_eq!(watch.line().await, "MODIFIED web");
    }
    admin.call("DELETE", &format!("{PODS}/web?gracePeriodSeconds=0"), None).await;
    let mut last = watch.line().await;
    if last == "MODIFIED web" {
        last = watch.line().await;
    }
    assert_eq!(last, "DELETED web");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_streaming_list_ends_with_a_bookmark() {
    let cluster = Cluster::start().await;
    cluster.admin.create(SECRETS, secret("a", json!({}))).await;
    let query =
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = cluster.admin.watch(&format!("{SECRETS}?{query}")).await;
    assert_eq!(watch.line().await, "ADDED a");
    let bookmark = watch.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "Secret");
    assert_eq!(bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    let from = revision(&bookmark["object"]);
    cluster.admin.create(SECRETS, secret("b", json!({}))).await;
    assert_eq!(watch.line().await, "ADDED b");
    let mut resumed =
        cluster.admin.watch(&format!("{SECRETS}?watch=1&resourceVersion={from}")).await;
    assert_eq!(resumed.line().await, "ADDED b");
    let (code, _) = cluster.admin.get(&format!("{SECRETS}?watch=1&sendInitialEvents=true")).await;
    assert_eq!(code, 422, "needs resourceVersionMatch");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_of_compacted_revision_is_expired() {
    let cluster =
        Cluster::start_with(|config| config.compaction_interval = Duration::from_millis(200)).await;
    let admin = &cluster.admin;
    for i in 0..4 {
        admin.create(SECRETS, secret(&format!("m{i}"), json!({}))).await;
    }
    let (_, first) = admin.get(&format!("{SECRETS}?limit=2")).await;
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let n = std::sync::atomic::AtomicUsize::new(0);
    eventually("compaction", || async {
        let i = n.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        admin.create(SECRETS, secret(&format!("x{i}"), json!({}))).await;
        admin.get(&format!("{SECRETS}?limit=2&continue={token}")).await.0 == 410
    })
    .await;
    let (_, status) = admin.get(&format!("{SECRETS}?limit=2&continue={token}")).await;
    assert_eq!(status["reason"], "Expired");
    let mut watch = admin.watch(&format!("{SECRETS}?watch=1&resourceVersion={}", 1)).await;
    let event = watch.next().await.unwrap();
    assert_eq!(
        (event["type"].as_str(), event["object"]["code"].as_u64()),
        (Some("ERROR"), Some(410))
    );
    assert_eq!(event["object"]["reason"], "Expired");
    assert!(watch.next().await.is_none(), "and then it ends");
    assert_eq!(
        admin.get(&format!("{SECRETS}?resourceVersion=1&resourceVersionMatch=Exact")).await.0,
        410
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_ends_on_timeout_and_shutdown() {
    let cluster = Cluster::start().await;
    let mut short = cluster.admin.watch(&format!("{SECRETS}?watch=1&timeoutSeconds=1")).await;
    assert!(short.next().await.is_none());
    let mut long = cluster.admin.watch(&format!("{SECRETS}?watch=1")).await;
    let both = async { tokio::join!(long.next(), cluster.stop()) };
    let (ended, ()) = timeout(Duration::from_secs(60), both).await.expect("the watch ends");
    assert!(ended.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_events_of_both_groups() {
    let cluster = Cluster::start().await;
    let mut watch =
        cluster.admin.watch("/apis/events.k8s.io/v1/namespaces/default/events?watch=1").await;
    let event = json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": "e1"},
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
        "reason": "Started", "message": "it runs", "type": "Normal",
    });
    cluster.admin.create("/api/v1/namespaces/default/events", event).await;
    let seen = watch.next().await.unwrap();
    assert_eq!(
        (seen["object"]["apiVersion"].as_str(), seen["object"]["note"].as_str()),
        (Some("events.k8s.io/v1"), Some("it runs"))
    );
    let (_, list) = cluster
        .admin
        .get("/api/v1/events?fieldSelector=involvedObject.name%3Dweb,reason%3DStarted")
        .await;
    assert_eq!(names(&list), ["e1"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_and_bare_metadata() {
    let cluster = Cluster::start().await;
    cluster.admin.create(PODS, pod("web", "")).await;
    let get_as = |path: String, accept: &'static str| {
        let client = cluster.admin.clone();
        async move {
            let request = hyper::Request::get(path)
                .header("accept", accept)
                .body(kube::client::Body::empty())
                .unwrap();
            let response = client.0.send(request).await.unwrap();
            let code = response.status().as_u16();
            let text =
                http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
            (code, serde_json::from_slice::<Value>(&text).unwrap())
        }
    };
    let table = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let (_, got) = get_as(PODS.into(), table).await;
    assert_eq!(
        (got["kind"].as_str(), got["rows"][0]["cells"][0].as_str()),
        (Some("Table"), Some("web"))
    );
    let (_, got) = get_as(format!("{PODS}/web"), table).await;
    assert_eq!(got["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let (_, got) =
        get_as(PODS.into(), "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
            .await;
    assert_eq!(got["kind"], "PartialObjectMetadataList");
    assert_eq!(got["items"][0]["spec"], Value::Null);
    let protobuf_table = "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1";
    let (code, _) = get_as(PODS.into(), protobuf_table).await;
    assert_eq!(code, 406);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_large_objects_reach_every_watcher() {
    let cluster = Cluster::start().await;
    let mut watches = Vec::new();
    for _ in 0..3 {
        watches.push(cluster.admin.watch("/api/v1/secrets?watch=1").await);
    }
    for size in [10, 4 << 10, 300 << 10] {
        let object = secret(&format!("of-{size}"), json!({"k": "x".repeat(size)}));
        let made = cluster.admin.create("/api/v1/namespaces/default/secrets", object).await;
        for watch in &mut watches {
            let event = watch.next().await.unwrap();
            assert_eq!(event, json!({"type": "ADDED", "object": made}));
        }
    }
}
