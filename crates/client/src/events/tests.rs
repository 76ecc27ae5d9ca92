use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::IntoResponse;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;

fn event(object: &str, reason: &str, message: &str) -> Event {
    let writer = Writer {
        component: KUBELET,
        client: None,
        host: "node-1".to_owned(),
        correlator: Correlator::default(),
    };
    let about = ObjectReference {
        kind: Some("Pod".to_owned()),
        namespace: Some("ns".to_owned()),
        name: Some(object.to_owned()),
        ..ObjectReference::default()
    };
    writer.event(PendingEvent {
        about,
        kind: EventType::Normal,
        reason: reason.to_owned(),
        message: message.to_owned(),
        annotations: BTreeMap::from([("key".to_owned(), "value".to_owned())]),
        at: Timestamp::now(),
    })
}

#[test]
fn event_repetitions_increment_the_count() {
    let mut correlator = Correlator::default();
    let now = Instant::now();
    let (key, first) = correlator.fold(event("a", "Pulled", "image x"), now).unwrap();
    let (again_key, again) = correlator.fold(event("a", "Pulled", "image x"), now).unwrap();
    assert_eq!((key, again.count), (again_key, Some(2)));
    assert_eq!(again.metadata.name, first.metadata.name);
    assert_eq!(again.first_timestamp, first.first_timestamp);
    assert_eq!(first.metadata.annotations.unwrap()["key"], "value");
    for other in [
        event("b", "Pulled", "image x"),
        event("a", "Killed", "image x"),
        event("a", "Pulled", "y"),
    ] {
        let (other_key, other) = correlator.fold(other, now).unwrap();
        assert!(other_key != key && other.count == Some(1));
    }
    // the server's word on the count is taken
    correlator.written(key, Written { name: "kept".into(), count: 41 });
    let (_, more) = correlator.fold(event("a", "Pulled", "image x"), now).unwrap();
    assert_eq!((more.count, more.metadata.name.as_deref()), (Some(42), Some("kept")));
}

#[test]
fn event_similar_messages_are_combined_after_ten() {
    let mut correlator = Correlator::default();
    let now = Instant::now();
    let fold = |correlator: &mut Correlator, n: u32, now| {
        correlator.fold(event("a", "Failed", &format!("try {n}")), now).unwrap().1
    };
    for n in 1..10 {
        assert_eq!(fold(&mut correlator, n, now).message.unwrap(), format!("try {n}"));
    }
    let combined = fold(&mut correlator, 10, now);
    assert_eq!(combined.message.unwrap(), "(combined from similar events): try 10");
    let next = fold(&mut correlator, 11, now);
    assert_eq!((next.count, next.metadata.name), (Some(2), combined.metadata.name));
    let later = now + Duration::from_secs(601);
    assert_eq!(fold(&mut correlator, 12, later).message.unwrap(), "try 12");
}

#[test]
fn event_spam_filter_mutes_an_object() {
    let mut correlator = Correlator::default();
    let now = Instant::now();
    let mut fold = |object: &str, now| correlator.fold(event(object, "R", "m"), now).is_some();
    assert_eq!((0..100).filter(|_| fold("loud", now)).count(), 25);
    assert!(fold("quiet", now));
    assert!(!fold("loud", now + Duration::from_secs(299)));
    assert!(fold("loud", now + Duration::from_secs(301)));
}

#[test]
fn event_correlator_memory_is_bounded() {
    let mut correlator = Correlator::default();
    let start = Instant::now();
    for n in 0..5000 {
        let _ =
            correlator.fold(event(&format!("pod-{n}"), "R", "m"), start + Duration::from_millis(n));
    }
    assert_eq!(correlator.remembered(), 1024);
}

#[derive(Clone, Default)]
struct Api {
    requests: Arc<Mutex<Vec<(Method, String, Value)>>>,
    answers: Arc<Mutex<Vec<StatusCode>>>,
}

async fn answer(
    State(api): State<Api>,
    method: Method,
    uri: Uri,
    body: Bytes,
) -> impl IntoResponse {
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    api.requests.lock().push((method, uri.path().to_owned(), body.clone()));
    let code = api.answers.lock().pop().unwrap_or(StatusCode::OK);
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no",
                        "reason": "no", "code": code.as_u16()});
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {}});
    (code, if code.is_success() { event } else { status }.to_string())
}

async fn started(api: &Api) -> (Recorder, RecorderTask) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(api.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let config = kube::Config::new(format!("http://{address}").parse().unwrap());
    Recorder::start(Some(Client::try_from(config).unwrap()), "node-1")
}

#[tokio::test]
async fn events_are_created_then_counted() {
    let api = Api::default();
    let (recorder, task) = started(&api).await;
    for _ in 0..2 {
        recorder.event(node_reference("node-1"), EventType::Warning, "Rebooted", "again");
    }
    drop(recorder);
    task.task.await.unwrap();
    let requests = api.requests.lock();
    let (method, path, made) = &requests[0];
    assert_eq!((method, path.as_str()), (&Method::POST, "/api/v1/namespaces/default/events"));
    assert_eq!(made["involvedObject"], json!({"kind": "Node", "name": "node-1", "uid": "node-1"}));
    assert_eq!(made["source"], json!({"component": "kubelet", "host": "node-1"}));
    assert_eq!(made["reportingComponent"], "kubelet");
    assert_eq!(made["reportingInstance"], "node-1");
    assert_eq!((&made["type"], &made["count"]), (&json!("Warning"), &json!(1)));
    let name = made["metadata"]["name"].as_str().unwrap();
    let (method, path, change) = &requests[1];
    assert_eq!(
        (method, path.as_str()),
        (&Method::PATCH, format!("/api/v1/namespaces/default/events/{name}").as_str())
    );
    assert_eq!(change["count"], 2);
    assert_eq!(requests.len(), 2);
}

#[tokio::test]
async fn event_write_is_retried_on_5xx_and_not_on_4xx() {
    let api = Api::default();
    // popped from the end: 503 first, then success; then a refusal
    *api.answers.lock() =
        vec![StatusCode::FORBIDDEN, StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE];
    let (recorder, task) = started(&api).await;
    recorder.event(node_reference("n"), EventType::Normal, "A", "a");
    recorder.event(node_reference("n"), EventType::Normal, "B", "b");
    drop(recorder);
    task.task.await.unwrap();
    let reasons: Vec<_> =
        api.requests.lock().iter().map(|(_, _, body)| body["reason"].clone()).collect();
    assert_eq!(reasons, ["A", "A", "B"]);
}

#[tokio::test]
async fn event_lost_on_the_server_is_created_again() {
    let api = Api::default();
    *api.answers.lock() = vec![StatusCode::OK, StatusCode::NOT_FOUND, StatusCode::OK];
    let (recorder, task) = started(&api).await;
    for _ in 0..2 {
        recorder.event(node_reference("n"), EventType::Normal, "A", "a");
    }
    drop(recorder);
    task.task.await.unwrap();
    let requests = api.requests.lock();
    let methods: Vec<_> = requests.iter().map(|(method, ..)| method.as_str()).collect();
    assert_eq!(methods, ["POST", "PATCH", "POST"]);
    assert_eq!(requests[2].2["count"], 2);
}

#[tokio::test]
async fn event_recorder_without_client_only_logs() {
    let (recorder, task) = Recorder::start(None, "node-1");
    for n in 0..5000 {
        recorder.event(node_reference("n"), EventType::Normal, "A", &"ü".repeat(3000 + n % 2));
    }
    // although a recorder still exists
    task.finish().await.unwrap();
    drop(recorder);
}
