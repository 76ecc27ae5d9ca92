//! From pages as nodes write them to the answers of the API.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use proptest::prelude::*;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::page::{Page, Point, read};
use crate::{
    Directory, DirectoryError, Identity, Samples, ScrapeError, Scraper, Selection, Shared, Source,
    Usage, router,
};

/// The time of the first page in milliseconds since 1970.
const AT: i64 = 1_764_100_800_000;

/// A page as a node writes it, `seconds` after the first: the container `app` uses a quarter of a
/// core, the container `side` nothing to speak of, the node one and a half cores.
fn node_page(seconds: i64) -> String {
    let (at, app, side, node) = (
        AT + seconds * 1000,
        100.0 + seconds as f64 * 0.25,
        0.5 + seconds as f64 * 0.000_001,
        5000.0 + seconds as f64 * 1.5,
    );
    let started = AT / 1000 - 600;
    format!(
        r#"# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{{container="app",namespace="shop",pod="web-1"}} {app} {at}
container_cpu_usage_seconds_total{{container="side",namespace="shop",pod="web-1"}} {side} {at}
container_cpu_usage_seconds_total{{container="new",namespace="shop",pod="starting"}} 0 {at}
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{{container="app",namespace="shop",pod="web-1"}} 12582912 {at}
container_memory_working_set_bytes{{container="side",namespace="shop",pod="web-1"}} 1.2584960e+07 {at}
container_memory_working_set_bytes{{container="new",namespace="shop",pod="starting"}} 4096 {at}
# HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{{container="app",namespace="shop",pod="web-1"}} {started}.25
container_start_time_seconds{{container="side",namespace="shop",pod="web-1"}} {started}.5
# HELP container_swap_usage_bytes [ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems
# TYPE container_swap_usage_bytes gauge
container_swap_usage_bytes{{container="app",namespace="shop",pod="web-1"}} 0 {at}
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total {node} {at}
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 2147483648 {at}
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{{namespace="shop",pod="web-1"}} {app} {at}
# HELP scrape_error [ALPHA] (Deprecated since 1.29.0) 1 if there was an error while getting container metrics, 0 otherwise
# TYPE scrape_error gauge
scrape_error 0
"#
    )
}

fn samples(seconds: &[i64]) -> Samples {
    let mut samples = Samples::default();
    for at in seconds {
        samples.record("n1", read(&node_page(*at), 0));
    }
    samples
}

#[test]
fn page_is_read() {
    let page = read(&node_page(0), 0);
    let node = Point { at: AT, started: 0, cpu: 5_000_000_000_000, memory: 2_147_483_648 };
    assert_eq!(page.node, Some(node));
    let pods: Vec<_> = page.pods.keys().map(|(_, name)| name.as_str()).collect();
    assert_eq!(pods, ["web-1"], "those that have used nothing are left out");
    let containers = &page.pods.values().next().unwrap();
    let app = Point { at: AT, started: AT - 599_750, cpu: 100_000_000_000, memory: 12_582_912 };
    assert_eq!(containers["app"], app);
    assert_eq!(containers["side"].memory, 12_584_960);
}

#[test]
fn page_odd_lines_are_skipped() {
    let name = r#"container_cpu_usage_seconds_total"#;
    let good = r#"{container="a \"b\" \\ c",namespace="n",pod="p",}"#;
    let text = format!(
        "{name}{good} 1\ncontainer_memory_working_set_bytes{good} 2\n{name}{{container=\"x\n\
         {name}{{}} 1 1\n{name}{{pod=\"p\"}} 1\n{name}\n\nnode_cpu_usage_seconds_total NaN 1\n\
         node_memory_working_set_bytes -1\nnode_cpu_usage_seconds_total 1 x\n"
    );
    let page = read(&text, 7);
    assert_eq!(page.node, None);
    let point = Point { at: 7, started: 0, cpu: 1_000_000_000, memory: 2 };
    let containers = BTreeMap::from([("a \"b\" \\ c".to_owned(), point)]);
    assert_eq!(page.pods, [(("n".to_owned(), "p".to_owned()), containers)].into());
}

#[test]
fn usage_is_that_between_two_samples() {
    assert_eq!(samples(&[0]).node("n1"), None);
    let two = samples(&[0, 15]);
    let node =
        Usage { nanocores: 1_500_000_000, memory: 2_147_483_648, at: AT + 15_000, window: 15_000 };
    assert_eq!(two.node("n1"), Some(node));
    assert_eq!(two.node("n2"), None);
    let containers = two.pod("shop", "web-1").unwrap();
    let found: Vec<_> = containers.iter().map(|(name, it)| (name.as_str(), it.nanocores)).collect();
    assert_eq!(found, [("app", 250_000_000), ("side", 1000)]);
    assert_eq!(two.pod("other", "web-1"), None);
    // a page that says nothing new, or something older, changes nothing
    assert_eq!(samples(&[0, 15, 15, 3]).node("n1"), two.node("n1"));
}

fn point(at: i64, started: i64, cpu: u64) -> Page {
    let point = Point { at, started, cpu, memory: 1024 };
    let pod = ("n".to_owned(), "p".to_owned());
    Page { node: None, pods: [(pod, [("c".to_owned(), point)].into())].into() }
}

#[test]
fn usage_of_restarted_containers() {
    // points in time, starts and CPU time; what is used in nanocores
    for (points, expected) in [
        (vec![(100_000, 50_000, 1_000_000)], None),
        (vec![(100_000, 50_000, 1_000_000), (110_000, 50_000, 3_000_000)], Some(200_000)),
        // young enough to be measured from the start
        (vec![(100_000, 90_000, 1_000_000)], Some(100_000)),
        (vec![(100_000, 91_000, 1_000_000)], None),
        (vec![(100_000, 85_000, 1_000_000)], None),
        // started again since: nothing of before counts
        (vec![(100_000, 50_000, 9_000_000), (115_000, 112_000, 1_000_000)], None),
        (vec![(100_000, 50_000, 9_000_000), (115_000, 105_000, 1_000_000)], Some(100_000)),
        // a counter that goes back
        (vec![(100_000, 50_000, 9_000_000), (115_000, 50_000, 1_000_000)], None),
    ] {
        let mut samples = Samples::default();
        for (at, started, cpu) in &points {
            samples.record("n1", point(*at, *started, *cpu));
        }
        let found = samples.pod("n", "p").map(|containers| containers[0].1.nanocores);
        assert_eq!(found, expected, "{points:?}");
    }
}

#[test]
fn samples_of_what_is_gone_are_forgotten() {
    let mut samples = samples(&[0, 15]);
    samples.record("n1", Page::default());
    assert_eq!(samples.pod("shop", "web-1"), None);
    assert!(samples.node("n1").is_some());
    samples.record("n2", point(1, 0, 1));
    samples.retain(&BTreeSet::from(["n2".to_owned()]));
    assert_eq!(samples.node("n1"), None);
}

/// One node and one pod, noting what is asked for.
#[derive(Clone, Default)]
struct Fixed(Arc<Mutex<Vec<Selection>>>);

fn identity(namespace: Option<&str>, name: &str) -> Identity {
    Identity {
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
    }
}

#[async_trait::async_trait]
impl Directory for Fixed {
    async fn nodes(&self, selection: &Selection) -> Result<Vec<Identity>, DirectoryError> {
        self.0.lock().unwrap().push(selection.clone());
        if selection.label_selector.as_deref() == Some("=") {
            let (reason, message) = ("BadRequest".to_owned(), "no selector".to_owned());
            return Err(DirectoryError { code: 400, reason, message });
        }
        Ok(vec![identity(None, "n1"), identity(None, "unknown")])
    }

    async fn pods(
        &self,
        namespace: Option<&str>,
        selection: &Selection,
    ) -> Result<Vec<Identity>, DirectoryError> {
        self.0.lock().unwrap().push(selection.clone());
        let all = [("shop", "web-1"), ("shop", "starting"), ("other", "p")];
        let all = all.iter().filter(|(of, _)| namespace.is_none_or(|wanted| wanted == *of));
        Ok(all.map(|(namespace, name)| identity(Some(namespace), name)).collect())
    }
}

async fn get(directory: &Fixed, path: &str) -> (u16, Value) {
    let shared = Shared::default();
    *shared.write() = samples(&[0, 15]);
    let request = Request::get(format!("/apis/metrics.k8s.io/v1beta1{path}"));
    let router = router(shared, directory.clone());
    let response = router.oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let mut body = response.into_body().collect().await.unwrap().to_bytes().to_vec();
    let mut value: Value = serde_json::from_slice(&std::mem::take(&mut body)).unwrap();
    forget_creation(&mut value);
    (code, value)
}

/// It is the time of the request.
fn forget_creation(value: &mut Value) {
    if let Some(items) = value.get_mut("items").and_then(Value::as_array_mut) {
        items.iter_mut().for_each(forget_creation);
    }
    if let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("creationTimestamp");
    }
}

fn web() -> Value {
    json!({
        "kind": "PodMetrics",
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "web-1", "namespace": "shop", "labels": {"app": "web"}},
        "timestamp": "2025-11-25T20:00:15Z",
        "window": "15s",
        "containers": [
            {"name": "app", "usage": {"cpu": "250m", "memory": "12Mi"}},
            {"name": "side", "usage": {"cpu": "1u", "memory": "12290Ki"}},
        ],
    })
}

#[tokio::test]
async fn api_objects_are_those_of_metrics_server() {
    let directory = Fixed::default();
    let node = json!({
        "kind": "NodeMetrics",
        "apiVersion": "metrics.k8s.io/v1beta1",
        "metadata": {"name": "n1", "labels": {"app": "web"}},
        "timestamp": "2025-11-25T20:00:15Z",
        "window": "15s",
        "usage": {"cpu": "1500m", "memory": "2Gi"},
    });
    let list = |kind: &str, items: &[&Value]| json!({"kind": kind, "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items});
    for (path, expected) in [
        ("/nodes", list("NodeMetricsList", &[&node])),
        ("/nodes/n1", node.clone()),
        ("/pods", list("PodMetricsList", &[&web()])),
        ("/namespaces/shop/pods", list("PodMetricsList", &[&web()])),
        ("/namespaces/other/pods", list("PodMetricsList", &[])),
        ("/namespaces/shop/pods/web-1", web()),
    ] {
        assert_eq!(get(&directory, path).await, (200, expected), "{path}");
    }
    let (_, resources) = get(&directory, "").await;
    assert_eq!(resources["resources"][1]["kind"], "PodMetrics");
    assert_eq!(resources["groupVersion"], "metrics.k8s.io/v1beta1");
}

#[tokio::test]
async fn api_refusals() {
    let directory = Fixed::default();
    for (path, code, message) in [
        ("/nodes/unknown", 404, r#"nodemetrics.metrics.k8s.io "unknown" not found"#),
        ("/nodes/x", 404, r#"nodemetrics.metrics.k8s.io "x" not found"#),
        (
            "/namespaces/shop/pods/starting",
            404,
            r#"podmetrics.metrics.k8s.io "shop/starting" not found"#,
        ),
        ("/nodes?labelSelector=%3D", 400, "no selector"),
    ] {
        let (found, status) = get(&directory, path).await;
        assert_eq!((found, status["message"].as_str()), (code, Some(message)), "{path}");
        assert_eq!(
            (status["kind"].as_str(), status["code"].as_u64()),
            (Some("Status"), Some(code.into()))
        );
    }
    get(&directory, "/pods?labelSelector=app%3Dweb&fieldSelector=metadata.name%3Da").await;
    let asked = directory.0.lock().unwrap().pop().unwrap();
    assert_eq!(asked.label_selector.as_deref(), Some("app=web"));
    assert_eq!(asked.field_selector.as_deref(), Some("metadata.name=a"));
}

/// Pages of a node that writes a new one each time, and of one that never answers.
struct Pages(Mutex<i64>);

#[async_trait::async_trait]
impl Source for Pages {
    async fn page(&self, node: &str) -> Result<String, ScrapeError> {
        match node {
            "n1" => {
                let mut seconds = self.0.lock().unwrap();
                *seconds += 15;
                Ok(node_page(*seconds))
            }
            _ => std::future::pending().await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn scraper_keeps_on_whatever_a_node_does() {
    let shared = Shared::default();
    let scraper = Scraper::new(shared.clone(), Pages(Mutex::new(0)), Fixed::default());
    scraper.round().await.unwrap();
    assert_eq!(shared.read().node("n1"), None);
    scraper.round().await.unwrap();
    assert_eq!(shared.read().node("n1").unwrap().nanocores, 1_500_000_000);
    assert_eq!(shared.read().node("unknown"), None);
}

proptest! {
    /// Any text is a page, and any two samples are a usage or none.
    #[test]
    fn nothing_makes_it_panic(
        text in "(node_cpu_usage_seconds_total|container_cpu_usage_seconds_total)?[ {}a-z=\",\\\\0-9eE.+-]{0,60}",
        points in prop::collection::vec((any::<i64>(), any::<i64>(), any::<u64>()), 0..4),
    ) {
        let _ = read(&text, 0);
        let mut samples = Samples::default();
        for (at, started, cpu) in points {
            samples.record("n1", point(at, started, cpu));
        }
        let _ = samples.pod("n", "p");
    }
}
