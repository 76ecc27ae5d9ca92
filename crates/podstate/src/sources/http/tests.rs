use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use longshore_pod::spec;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::*;

/// The response of the URL, and the headers of the last request.
#[derive(Clone, Default)]
struct Response(Arc<Mutex<(u16, String, HeaderMap)>>);

impl Response {
    fn set(&self, status: u16, text: &str) {
        let mut response = self.0.lock();
        (response.0, response.1) = (status, text.to_owned());
    }
}

async fn serve(response: Response) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let pods = get(async move |headers: HeaderMap| {
        let mut response = response.0.lock();
        response.2 = headers;
        (StatusCode::from_u16(response.0).unwrap(), response.1.clone()).into_response()
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

async fn snapshot(updates: &mut mpsc::Receiver<(Source, Update)>) -> Vec<String> {
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
async fn http_source_reads_pods_and_lists_and_keeps_them_on_errors() {
    let response = Response::default();
    response.set(200, &pod("one"));
    let url = serve(response.clone()).await;
    let reports = Arc::new(Mutex::new(Vec::new()));
    let received = reports.clone();
    let report: ReportInvalid = Arc::new(move |invalid| {
        let duplicate = invalid.duplicate.map(|(pod, source)| (spec::name(pod), source.as_str()));
        received.lock().push(format!("{} {duplicate:?}", invalid.reason));
    });
    let (sender, mut updates) = mpsc::channel(8);
    let header = BTreeMap::from([("x-token".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
    let period = Duration::from_millis(20);
    let polling = poll_url(url, header, "node".to_owned(), period, report, sender);
    let polling = tokio::spawn(polling);
    assert_eq!(snapshot(&mut updates).await, ["http/one-node"]);
    {
        let seen = response.0.lock();
        let tokens: Vec<_> = seen.2.get_all("x-token").iter().collect();
        assert_eq!(tokens, ["a", "b"]);
    }
    let reported = async |text: &str| {
        let waited = timeout(Duration::from_secs(10), async {
            while !reports.lock().iter().any(|report| report.contains(text)) {
                tokio::time::sleep(period).await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{text}: {:?}", reports.lock()));
    };
    response.set(500, "");
    tokio::time::sleep(period * 3).await;
    response.set(200, "");
    reported("it is empty").await;
    response.set(200, ": {");
    reported("is not a manifest").await;
    response.set(200, &pod("Wrong"));
    reported("metadata.name: \"Wrong\"").await;
    response.set(200, &format!("{{apiVersion: v1, kind: PodList, items: [{}, {{}}]}}", pod("two")));
    // Finding 13: an invalid item hid the others.
    reported("items[1].metadata.name: required").await;
    assert_eq!(snapshot(&mut updates).await, ["http/two-node"]);
    let bad = "{metadata: {name: two}, spec: {containers: 7}}";
    response
        .set(200, &format!("{{apiVersion: v1, kind: PodList, items: [{bad}, {}]}}", pod("four")));
    reported("items[0].spec.containers").await;
    assert_eq!(snapshot(&mut updates).await, ["http/two-node", "http/four-node"]);
    let list = format!(
        "{{apiVersion: v1, kind: PodList, items: [{0}, {0}, {1}]}}",
        pod("two"),
        pod("three")
    );
    response.set(200, &list);
    assert_eq!(snapshot(&mut updates).await, ["http/two-node", "http/three-node"]);
    reported("items[1].metadata.name: another").await;
    reported("UID Some((\"two-node\", \"http\"))").await;
    response.set(200, "{apiVersion: v1, kind: PodList}");
    assert_eq!(snapshot(&mut updates).await, Vec::<String>::new());
    polling.abort();
}

#[test]
fn http_source_resolves_redirects() {
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
        assert!(server.unwrap_err().to_string().contains("not an http"), "{wrong}");
    }
}
