#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use longshore_pod::spec;
use tokio::sync::mpsc;

use super::*;

/// What the URL answers with, and the headers of the last look.
#[derive(Clone, Default)]
struct Answer(Arc<Mutex<(u16, String, HeaderMap)>>);

impl Answer {
    fn set(&self, status: u16, text: &str) {
        let mut answer = self.0.lock().unwrap();
        (answer.0, answer.1) = (status, text.to_owned());
    }
}

async fn serve(answer: Answer) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pods = get(async move |headers: HeaderMap| {
        let mut answer = answer.0.lock().unwrap();
        answer.2 = headers;
        (StatusCode::from_u16(answer.0).unwrap(), answer.1.clone()).into_response()
    });
    let moved = get(async || Redirect::permanent("pods?a=b"));
    let router = Router::new().route("/x/pods", pods).route("/x/moved", moved);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}/x/moved")
}

fn pod(name: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{containers: [{{name: c, image: i}}]}}}}"
    )
}

async fn told(updates: &mut mpsc::Receiver<(Source, Update)>) -> Vec<String> {
    let update = timeout(Duration::from_secs(10), updates.recv()).await.expect("in time");
    match update.expect("an update") {
        (Source::Http, Update::Snapshot(pods)) => pods
            .iter()
            .map(|pod| {
                let source = spec::annotation(pod, spec::SOURCE_ANNOTATION).unwrap_or_default();
                format!("{}/{}", source, spec::name(pod))
            })
            .collect(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_url_tells_a_pod_or_a_list_and_what_goes_wrong_changes_nothing() {
    let answer = Answer::default();
    answer.set(200, &pod("one"));
    let url = serve(answer.clone()).await;
    let complaints = Arc::new(Mutex::new(Vec::new()));
    let heard = complaints.clone();
    let complain: Complain =
        Arc::new(move |_, reason| heard.lock().unwrap().push(reason.to_owned()));
    let (sender, mut updates) = mpsc::channel(8);
    let header = BTreeMap::from([("x-token".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    let period = Duration::from_millis(20);
    let polling = poll_url(url, header, "node".to_owned(), period, complain, sender);
    let polling = tokio::spawn(polling);
    assert_eq!(told(&mut updates).await, ["http/one-node"]);
    {
        let seen = answer.0.lock().unwrap();
        let tokens: Vec<_> = seen.2.get_all("x-token").iter().collect();
        assert_eq!(tokens, ["a", "b"]);
    }
    let complained = async |text: &str| {
        let waited = timeout(Duration::from_secs(10), async {
            while !complaints.lock().unwrap().iter().any(|said| said.contains(text)) {
                tokio::time::sleep(period).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{text}: {:?}", complaints.lock().unwrap()));
    };
    answer.set(500, "");
    tokio::time::sleep(period * 3).await;
    answer.set(200, "");
    complained("there is nothing in it").await;
    answer.set(200, ": {");
    complained("is not a manifest").await;
    answer.set(200, &pod("Wrong"));
    complained("metadata.name: \"Wrong\"").await;
    answer.set(200, &format!("{{apiVersion: v1, kind: PodList, items: [{}, {{}}]}}", pod("two")));
    // Finding 13: an item that gives no pod hid the others.
    complained("items[1].metadata.name: required").await;
    assert_eq!(told(&mut updates).await, ["http/two-node"]);
    let bad = "{metadata: {name: two}, spec: {containers: 7}}";
    answer.set(200, &format!("{{apiVersion: v1, kind: PodList, items: [{bad}, {}]}}", pod("four")));
    complained("items[0].spec.containers").await;
    assert_eq!(told(&mut updates).await, ["http/two-node", "http/four-node"]);
    let list = format!(
        "{{apiVersion: v1, kind: PodList, items: [{0}, {0}, {1}]}}",
        pod("two"),
        pod("three")
    );
    answer.set(200, &list);
    assert_eq!(told(&mut updates).await, ["http/two-node", "http/three-node"]);
    complained("items[1].metadata.name: another").await;
    answer.set(200, "{apiVersion: v1, kind: PodList}");
    assert_eq!(told(&mut updates).await, Vec::<String>::new());
    polling.abort();
}

#[test]
fn a_page_may_be_elsewhere() {
    let from: Uri = "https://a.example:8443/x/y?q".parse().unwrap();
    for (to, expected) in [
        ("/z", "https://a.example:8443/z"),
        ("z?r", "https://a.example:8443/x/z?r"),
        ("http://b.example/z", "http://b.example/z"),
    ] {
        assert_eq!(resolve(&from, to).unwrap().to_string(), expected);
    }
    for wrong in ["ftp://a/b", "/only/a/path", ""] {
        let server = parse(wrong).and_then(|url| server(&url));
        assert!(server.unwrap_err().to_string().contains("no URL of http"), "{wrong}");
    }
}
