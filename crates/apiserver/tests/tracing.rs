//! Spans of requests, as a collector receives them.

use crate::common;

use std::path::Path;
use std::sync::Arc;

use common::hook::{Hook, configure};
use common::upstream::Etcd;
use common::*;
use hyper::Request;
use longshore_apiserver::{Config, TracingConfig};
use longshore_store::EtcdStore;
use longshore_telemetry::testing::{Collected, Collector};
use longshore_telemetry::{Kind, SpanContext};
use serde_json::json;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ALL: u32 = 1_000_000;

/// A cluster whose spans of so many of a million requests go to a collector.
async fn traced(dir: &Path, rate: u32) -> (Cluster, Collector) {
    traced_with(dir, rate, |_| {}).await
}

async fn traced_with(
    dir: &Path,
    rate: u32,
    adapt: impl FnOnce(&mut Config),
) -> (Cluster, Collector) {
    let collector = Collector::start(&dir.join("otlp.sock"));
    let endpoint = collector.endpoint();
    let tracing = Some(TracingConfig::new(endpoint, rate));
    let configure = |config: &mut Config| {
        config.tracing = tracing;
        adapt(config);
    };
    (Cluster::start_with(configure).await, collector)
}

/// Sends a request with the context of a span of the client.
async fn send(client: &Client, method: &str, path: &str, context: &str, body: serde_json::Value) {
    let request = Request::builder().method(method).uri(path).header("traceparent", context);
    let request = request.header("content-type", "application/json");
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    client.0.request_text(request.body(body).unwrap()).await.unwrap();
}

/// All spans, once the server has stopped.
async fn spans(cluster: Cluster, mut collector: Collector) -> Vec<Collected> {
    let stopped = tokio::spawn(cluster.stop());
    let mut spans = collector.spans().await;
    stopped.await.unwrap();
    while let Ok(more) =
        tokio::time::timeout(std::time::Duration::from_millis(500), collector.spans()).await
    {
        spans.extend(more);
    }
    spans
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_of_requests_have_the_webhooks_that_they_call() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, collector) = traced(dir.path(), 0).await;
    let hook = Hook::start().await;
    let look = hook.webhook("look.example.com", "/", &["CREATE"], &["configmaps"]);
    configure(&cluster.admin, "validating", "look", &[look]).await;
    let client = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    send(&cluster.admin, "POST", MAPS, client, config_map("a", json!({}))).await;
    let called = hook.contexts.lock().unwrap().clone();
    // at a rate of 0 there is but the trace of the administrator's client
    let spans = spans(cluster, collector).await;
    let one = |name: &str| {
        let mut found = spans.iter().filter(|span| span.name == name);
        let span = found.next().unwrap_or_else(|| panic!("{name}: {spans:?}"));
        assert!(found.next().is_none(), "{name}: {spans:?}");
        span
    };
    let request = one("POST /api/v1/namespaces/{:namespace}/configmaps");
    let (create, call, post) = (one("Create"), one("Call validating webhook"), one("HTTP POST"));
    let before = ["authentication", "authorization", "priorityandfairness"].map(one);
    assert_eq!(spans.len(), 7);
    let client = SpanContext::parse(client).unwrap();
    for (step, next) in before.iter().zip(before[1..].iter().chain([&create])) {
        assert_eq!((step.parent, step.kind), (Some(request.context.span), Kind::Internal));
        assert!(step.begins <= step.ends && step.ends <= next.begins, "{step:?}, {next:?}");
    }
    for (span, parent, kind) in [
        (request, client.span, Kind::Server),
        (create, request.context.span, Kind::Internal),
        (call, create.context.span, Kind::Internal),
        (post, call.context.span, Kind::Client),
    ] {
        assert_eq!((span.context.trace, span.parent), (client.trace, Some(parent)));
        assert_eq!(span.kind, kind);
        assert!(!span.failed && request.begins <= span.begins && span.ends <= request.ends);
    }
    assert_eq!(called, [post.context.traceparent()]);
    for (key, value) in [
        ("http.request.method", "POST"),
        ("url.path", MAPS),
        ("url.scheme", "https"),
        ("http.response.status_code", "201"),
        ("network.peer.address", "127.0.0.1"),
    ] {
        assert_eq!(request.attributes[key], value, "{key}");
    }
    assert!(!request.attributes["audit-id"].is_empty());
    assert_eq!(request.resource["service.name"], "apiserver");
    assert!(request.resource["service.instance.id"].starts_with("apiserver-"));
    assert_eq!(create.attributes["resource"], "configmaps");
    assert_eq!(call.attributes["webhook"], "look.example.com");
    assert_eq!(call.attributes["configuration"], "look");
    assert_eq!(post.attributes["http.response.status_code"], "200");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_of_unprivileged_clients_are_links() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, collector) = traced(dir.path(), ALL).await;
    let user = cluster.user("ann", "").await;
    let client = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    send(&user, "GET", "/version", client, json!(null)).await;
    let spans = spans(cluster, collector).await;
    let client = SpanContext::parse(client).unwrap();
    let request =
        spans.iter().find(|span| span.attributes.get("url.path").is_some_and(|p| p == "/version"));
    let request = request.unwrap();
    assert_eq!((request.name.as_str(), request.parent), ("GET", None));
    assert_ne!(request.context.trace, client.trace);
    assert_eq!(request.links, [client.span]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_have_the_calls_of_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Path::new("/usr/bin/etcd"), dir.path()).await;
    etcd.ready().await;
    let store = Arc::new(EtcdStore::connect([etcd.url.as_str()]).await.unwrap());
    let (cluster, collector) = traced_with(dir.path(), 0, |config| config.store = store).await;
    let client = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    send(&cluster.admin, "POST", MAPS, client, config_map("a", json!({}))).await;
    let spans = spans(cluster, collector).await;
    let named = |name: &str| spans.iter().find(|span| span.name == name);
    let create = named("Create").unwrap();
    let call = named("etcdserverpb.KV/Txn").unwrap_or_else(|| panic!("{spans:?}"));
    assert_eq!((call.parent, call.kind), (Some(create.context.span), Kind::Client));
    assert!(!call.failed && create.begins <= call.begins && call.ends <= create.ends);
}
