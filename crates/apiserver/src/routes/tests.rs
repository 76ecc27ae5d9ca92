#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use hyper::{Method, Uri};
use proptest::prelude::*;

use super::request::RequestLine;

fn parse(method: Method, uri: &str) -> Result<RequestLine, u16> {
    RequestLine::parse(&method, &uri.parse::<Uri>().unwrap()).map_err(|error| error.code)
}

/// `verb group/version namespace resource name subresource`, `-` for what is empty.
fn line(method: Method, uri: &str) -> String {
    let line = match parse(method, uri) {
        Ok(line) => line,
        Err(code) => return code.to_string(),
    };
    let Some(path) = line.resource else {
        return format!("{} {}", line.verb, line.path);
    };
    let show = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let parts = [&path.namespace, &path.resource, &path.name, &path.subresource]
        .map(|part| show(part))
        .join(" ");
    format!("{} {}/{} {parts}", line.verb, show(&path.group), path.version)
}

#[test]
fn request_lines() {
    for (method, uri, expected) in [
        (Method::GET, "/", "get /"),
        (Method::GET, "/api", "get /api"),
        (Method::GET, "/api/v1", "get /api/v1"),
        (Method::GET, "/apis/apps/v1", "get /apis/apps/v1"),
        (Method::GET, "/api/v1/pods", "list -/v1 - pods - -"),
        (Method::GET, "/api/v1/pods/?watch=true", "watch -/v1 - pods - -"),
        (Method::GET, "/api/v1/pods?watch=0", "list -/v1 - pods - -"),
        (Method::GET, "/api/v1/namespaces/a/pods/b?watch=1", "get -/v1 a pods b -"),
        (Method::HEAD, "/api/v1/namespaces/a/pods/b", "get -/v1 a pods b -"),
        (Method::POST, "/api/v1/namespaces/a/pods/b/binding", "create -/v1 a pods b binding"),
        (Method::GET, "/api/v1/namespaces/a", "get -/v1 a namespaces a -"),
        (Method::PUT, "/api/v1/namespaces/a/finalize", "update -/v1 a namespaces a finalize"),
        (Method::DELETE, "/api/v1/namespaces/a/pods", "deletecollection -/v1 a pods - -"),
        (
            Method::PATCH,
            "/apis/coordination.k8s.io/v1/namespaces/a/leases/b",
            "patch coordination.k8s.io/v1 a leases b -",
        ),
        (Method::GET, "/api/v1/pods?fieldSelector=metadata.name%3Dx", "list -/v1 - pods x -"),
        (Method::GET, "/api/v1/pods?fieldSelector=metadata.name!%3Dx", "list -/v1 - pods - -"),
        (Method::GET, "/api/v1/namespaces/a/pods/b%20c", "get -/v1 a pods b c -"),
        (Method::GET, "/api/v1/namespaces/a/pods/b%2Fc", "400"),
        (Method::GET, "/api/v1/namespaces/a/pods/..", "400"),
        (Method::GET, "/api/v1/namespaces//pods", "400"),
        (Method::GET, "/api/v1/namespaces/a/pods/b/log/c", "404"),
        (Method::GET, "/api/v1/nodes/n1/proxy", "get -/v1 - nodes n1 proxy"),
        (Method::POST, "/api/v1/nodes/n1:10250/proxy/", "create -/v1 - nodes n1:10250 proxy"),
        (Method::GET, "/api/v1/nodes/n1/proxy/a/../%2e%2e//b/", "get -/v1 - nodes n1 proxy"),
        (Method::GET, "/api/v1/nodes/n1/proxyx/a", "404"),
        (Method::GET, "/api/v1/namespaces/a/pods/b/proxy", "get -/v1 a pods b proxy"),
        (Method::PUT, "/api/v1/namespaces/a/pods/b:80/proxy/x/y", "update -/v1 a pods b:80 proxy"),
        (
            Method::GET,
            "/api/v1/namespaces/a/services/https:b:web/proxy/",
            "get -/v1 a services https:b:web proxy",
        ),
        (Method::GET, "/api/v1/namespaces/a/configmaps/b/proxy/x", "404"),
        (Method::GET, "/api/v1/nodes/../proxy/a", "400"),
        (Method::OPTIONS, "/api/v1/pods", " -/v1 - pods - -"),
    ] {
        assert_eq!(line(method, uri), expected, "{uri}");
    }
}

#[test]
fn what_a_node_is_asked_is_left_as_it_is() {
    for (uri, expected) in [
        ("/api/v1/nodes/n1/proxy", ""),
        ("/api/v1/nodes/n1/proxy/", ""),
        ("/api/v1/nodes/n1/proxy/logs/", "logs/"),
        ("/api/v1/nodes/n1/proxy//logs/%2e%2e/a?b=c", "logs/%2e%2e/a"),
    ] {
        let line = parse(Method::GET, uri).unwrap();
        assert_eq!(line.resource.unwrap().below, expected, "{uri}");
    }
}

// Finding 2: a panic in one request ended the daemon.
#[tokio::test]
async fn a_panic_ends_its_request_alone() {
    let panics = async { if true { panic!("of this request") } else { Err(super::too_long()) } };
    let error = super::contained(panics).await.err().unwrap();
    assert_eq!((error.code, error.reason), (500, "InternalError"));
    assert!(!error.message.contains("of this request"), "{error}");
    let fine = super::contained(async { Err(super::too_long()) }).await;
    assert_eq!(fine.err().unwrap().code, 504);
}

proptest! {
    #[test]
    fn no_line_is_too_odd(path in "/(api|apis/g|x)(/[a-z%./0-9]{0,12}){0,6}", query in "[a-zA-Z%=&!,]{0,30}") {
        if let Ok(uri) = format!("{path}?{query}").parse::<Uri>() {
            let _ = RequestLine::parse(&Method::GET, &uri);
        }
    }
}
