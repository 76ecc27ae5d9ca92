//! An apiserver of one collection for tests: its list and the events of its watch are given as text,
//! so that they may be anything.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The server; it ends with the test's runtime.
pub struct Scripted {
    script: Arc<Mutex<Script>>,
    client: kube::Client,
}

#[derive(Default)]
struct Script {
    items: Vec<String>,
    /// Whether it sends lists as streams.
    streams: bool,
    watches: Vec<mpsc::UnboundedSender<String>>,
    /// Events before the first watch.
    early: VecDeque<String>,
    lists: usize,
    watched: usize,
}

impl Scripted {
    /// A server with these objects.
    pub async fn start(items: &[String], streams: bool) -> Self {
        let script = Script { items: items.to_vec(), streams, ..Script::default() };
        let script = Arc::new(Mutex::new(script));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(script.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        let config = kube::Config::new(url.parse().unwrap());
        Self { script, client: kube::Client::try_from(config).unwrap() }
    }

    /// A client of it.
    pub fn client(&self) -> kube::Client {
        self.client.clone()
    }

    /// Sends an event to the watches, those to come included.
    pub fn send(&self, kind: &str, object: &str) {
        let mut script = self.script.lock();
        let line = format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
        script.watches.retain(|watch| watch.send(line.clone()).is_ok());
        if script.watches.is_empty() {
            script.early.push_back(line);
        }
    }

    /// How many lists and watches were requested.
    pub fn asked(&self) -> (usize, usize) {
        let script = self.script.lock();
        (script.lists, script.watched)
    }
}

async fn answer(State(script): State<Arc<Mutex<Script>>>, uri: Uri) -> (StatusCode, Body) {
    let query = uri.query().unwrap_or_default();
    let is_streamed = query.contains("sendInitialEvents=true");
    let mut script = script.lock();
    if is_streamed && !script.streams {
        let status = r#"{"kind":"Status","status":"Failure","code":422,"message":"no streams","reason":"Invalid","metadata":{}}"#;
        return (StatusCode::UNPROCESSABLE_ENTITY, status.into());
    }
    if !query.contains("watch=true") {
        script.lists += 1;
        let list = format!(
            r#"{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"100"}},"items":[{}]}}"#,
            script.items.join(",")
        );
        return (StatusCode::OK, list.into());
    }
    script.watched += 1;
    let mut first: Vec<String> = Vec::new();
    if is_streamed {
        let added = |item: &String| format!("{{\"type\":\"ADDED\",\"object\":{item}}}\n");
        first.extend(script.items.iter().map(added));
        first.push(
            r#"{"type":"BOOKMARK","object":{"kind":"K","apiVersion":"v1","metadata":{"resourceVersion":"100","annotations":{"k8s.io/initial-events-end":"true"}}}}"#
                .to_owned()
                + "\n",
        );
    }
    first.extend(script.early.drain(..));
    let (sender, events) = mpsc::unbounded_channel();
    script.watches.push(sender);
    let lines = stream::iter(first).chain(UnboundedReceiverStream::new(events));
    let body = lines.map(|line| Ok::<_, std::convert::Infallible>(Bytes::from(line)));
    (StatusCode::OK, Body::from_stream(body))
}

/// Objects of which each breaks the decoding of a list in another way, but for the last two, which
/// are good to the node; `rest` is the object without its metadata.
pub fn bad_objects(rest: &str) -> Vec<String> {
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let metadata = |index: usize, more: &str| {
        format!(
            r#""metadata":{{"name":"bad{index}","namespace":"x","uid":"bad{index}","resourceVersion":"5"{more}}}"#
        )
    };
    vec![
        format!(r#"{{{},"spec":7,"status":7,"endpoints":7}}"#, metadata(0, "")),
        format!(r#"{{{},{rest}}}"#, metadata(1, &format!(r#","finalizers":{deep}"#))),
        format!(r#"{{{},{rest}}}"#, metadata(2, r#","generation":99999999999999999999"#)),
        format!(r#"{{{},{rest}}}"#, metadata(3, r#","creationTimestamp":"when""#)),
        format!(
            r#"{{{},{rest}}}"#,
            metadata(4, &format!(r#","managedFields":[{{"fieldsV1":{deep}}}]"#))
        ),
        format!(
            r#"{{{},{rest}}}"#,
            metadata(5, r#","managedFields":[{"time":"9999-12-31T23:59:59Z"}]"#)
        ),
    ]
}
