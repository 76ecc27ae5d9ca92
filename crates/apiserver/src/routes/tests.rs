#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use hyper::{Method, Uri};
use proptest::prelude::*;

use super::request::RequestLine;
use super::served;
use crate::authz::Target;
use crate::definitions::{Definitions, Snapshot};
use crate::kinds::{built_in, optional};

fn parse(method: &Method, uri: &str) -> Result<RequestLine, u16> {
    RequestLine::parse(method, &uri.parse::<Uri>().unwrap()).map_err(|error| error.code)
}

/// `verb group/version namespace resource name subresource`, `-` for what is empty: what is to be
/// authorized.
fn line(method: &Method, uri: &str) -> String {
    let line = match parse(method, uri) {
        Ok(line) => line,
        Err(code) => return code.to_string(),
    };
    let (Target::Resource(target), Some(path)) = (line.target(), &line.resource) else {
        return format!("{} {}", line.verb, line.path);
    };
    let show = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let parts =
        [target.namespace, target.resource, target.name, target.subresource].map(show).join(" ");
    format!("{} {}/{} {parts}", line.verb, show(target.group), path.version)
}

/// 200 for what is served, or the code of the refusal before anything is authorized.
fn served(snapshot: &Snapshot, method: &Method, uri: &str) -> u16 {
    let line = match parse(method, uri) {
        Ok(line) => line,
        Err(code) => return code,
    };
    line.resource
        .map_or(200, |path| served::route(snapshot, &path, method).map_or_else(|e| e.code, |_| 200))
}

#[test]
fn request_lines() {
    for (method, uri, expected) in [
        (Method::GET, "/", "get /"),
        (Method::GET, "/api", "get /api"),
        // What is served by its path is authorized by the same text.
        (Method::GET, "/logs/%73ecret.log", "get /logs/secret.log"),
        (Method::GET, "/logs/%ff", "400"),
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
        (Method::GET, "/api/v1/namespaces/a/pods/b%2Fc", "404"),
        (Method::GET, "/api/v1/namespaces/a/pods/..", "400"),
        (Method::GET, "/api/v1/namespaces//pods", "404"),
        (Method::GET, "/api/v1//pods", "404"),
        (Method::GET, "/api/v1/namespaces/a/pods///", "list -/v1 a pods - -"),
        (Method::GET, "/api/v1/%6eamespaces/a/pods", "list -/v1 a pods - -"),
        (Method::DELETE, "/api/v1/namespaces/a/namespaces/b", "delete -/v1 a namespaces b -"),
        (Method::GET, "/api/v1/pods?watch", "watch -/v1 - pods - -"),
        (Method::GET, "/api/v1/pods?watch=", "watch -/v1 - pods - -"),
        (Method::GET, "/api/v1/pods?watch=FALSE", "list -/v1 - pods - -"),
        (Method::GET, "/api/v1/watch/pods", "watch -/v1 - pods - -"),
        (Method::GET, "/api/v1/watch/namespaces/a/pods/b", "watch -/v1 a pods b -"),
        (Method::GET, "/api/v1/watch/namespaces/a", "watch -/v1 a namespaces a -"),
        (Method::GET, "/api/v1/watch", "list -/v1 - watch - -"),
        (
            Method::GET,
            "/api/v1/watch/pods?fieldSelector=metadata.name%3Dx",
            "watch -/v1 - pods - -",
        ),
        (
            Method::DELETE,
            "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx",
            "deletecollection -/v1 a pods - -",
        ),
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
        (Method::HEAD, "/healthz", "head /healthz"),
        (Method::OPTIONS, "/healthz", "options /healthz"),
    ] {
        assert_eq!(line(&method, uri), expected, "{uri}");
    }
}

#[test]
fn kubelet_paths_are_unchanged() {
    for (uri, expected) in [
        ("/api/v1/nodes/n1/proxy", ""),
        ("/api/v1/nodes/n1/proxy/", ""),
        ("/api/v1/nodes/n1/proxy/logs/", "logs/"),
        ("/api/v1/nodes/n1/proxy//logs/%2e%2e/a?b=c", "logs/%2e%2e/a"),
    ] {
        let line = parse(&Method::GET, uri).unwrap();
        assert_eq!(line.resource.unwrap().below, expected, "{uri}");
    }
}

// Finding 2: a panic in one request ended the daemon.
#[tokio::test]
async fn panic_ends_only_its_request() {
    let panics =
        async { if true { panic!("of this request") } else { Err::<(), _>(super::too_long()) } };
    let error = super::contained(panics).await.err().unwrap();
    assert_eq!((error.code, error.reason), (500, "InternalError"));
    assert!(!error.message.contains("of this request"), "{error}");
    let fine = super::contained(async { Err::<(), _>(super::too_long()) }).await;
    assert_eq!(fine.err().unwrap().code, 504);
}

/// Finding 4: a selector must mean the same to authorization and to the list. With an
/// escaped comma `type!=a\,metadata.name=b` selects all but one, not one.
#[test]
fn authorization_of_selectors() {
    for (selector, name, fields) in [
        ("metadata.name%3Dx", "x", "metadata.name=x"),
        ("metadata.name%3D%3Dx,type%3Dy", "x", "metadata.name=x type=y"),
        ("type!%3Da%5C,metadata.name%3Dx", "", ""),
        ("type!%3Da%5C%5C,metadata.name%3Dx", "x", "metadata.name=x"),
        ("type%3Da%5C,metadata.name%5C%3Dx", "", "type=a,metadata.name=x"),
        ("metadata.name%3Dx,type!%3Da%3Db", "", ""),
        ("metadata.name%20%3Dx", "", "metadata.name =x"),
        ("metadata.name%3D..", "", "metadata.name=.."),
    ] {
        let uri = format!("/api/v1/namespaces/a/secrets?fieldSelector={selector}");
        let line = parse(&Method::GET, &uri).unwrap();
        let Target::Resource(target) = line.target() else { panic!("{uri}") };
        let shown: Vec<String> = target.fields.iter().map(|(f, v)| format!("{f}={v}")).collect();
        assert_eq!((target.name, shown.join(" ").as_str()), (name, fields), "{selector}");
    }
}

/// Upstream's paths and methods.
fn upstreams_paths() -> BTreeMap<&'static str, Vec<&'static str>> {
    let lines = include_str!("../../tests/data/paths-1.36.txt").lines();
    let lines = lines.filter(|line| !line.starts_with('#'));
    let paths = lines.map(|line| line.split_once(' ').expect("path and methods"));
    paths.map(|(path, methods)| (path, methods.split(',').collect())).collect()
}

/// With everything that is off by default.
fn all() -> Arc<Snapshot> {
    Definitions::new(optional().collect()).snapshot()
}

/// CVE-2019-11247: the served set of paths is exactly upstream's, for every resource, scope,
/// subresource and method.
#[test]
fn served_paths_are_upstreams() {
    let upstreams = upstreams_paths();
    let (everything, nothing) = (all(), Snapshot::default());
    let subresources: BTreeSet<&str> = built_in()
        .flat_map(|r| r.subresources.iter().map(|subresource| subresource.name))
        .chain(["namespaces", "nodes", "nothing", "pods", "watch"])
        .collect();
    let plurals: BTreeSet<&str> = built_in()
        .map(|r| r.plural)
        .chain(["finalize", "nothing", "proxy", "status", "watch"])
        .collect();
    let versions: BTreeSet<String> = built_in()
        .map(|r| match r.group {
            "" => format!("/api/{}", r.version),
            group => format!("/apis/{group}/{}", r.version),
        })
        .chain(["/api/v2", "/apis/apps/v1beta1", "/apis/v1/v1"].map(str::to_owned))
        .collect();
    let mut templates: Vec<String> = Vec::new();
    for version in &versions {
        for prefix in ["", "/watch", "/proxy"] {
            for scope in ["", "/namespaces/{namespace}"] {
                let base = format!("{version}{prefix}{scope}");
                for resource in &plurals {
                    templates.push(format!("{base}/{resource}"));
                    templates.push(format!("{base}/{resource}/{{name}}"));
                    for subresource in &subresources {
                        templates.push(format!("{base}/{resource}/{{name}}/{subresource}"));
                    }
                    for below in ["proxy", "status"] {
                        templates.push(format!("{base}/{resource}/{{name}}/{below}/{{path}}"));
                    }
                }
            }
        }
    }
    let mut found = BTreeSet::new();
    for template in &templates {
        // a namespace's own path has its name where the others have theirs
        let template = template.replace("/namespaces/{name}", "/namespaces/{namespace}");
        let methods = upstreams.get(template.as_str());
        let uri =
            template.replace("{namespace}", "a").replace("{name}", "b").replace("{path}", "c/d");
        const METHODS: [&str; 9] =
            ["GET", "DELETE", "HEAD", "POST", "PUT", "PATCH", "OPTIONS", "TRACE", "BREW"];
        // On a path that is not served the method does not matter.
        for method in if methods.is_some() { &METHODS[..] } else { &METHODS[..2] } {
            let expected = match methods {
                None => 404,
                Some(methods) if methods.contains(method) => 200,
                Some(_) => 405,
            };
            let code = served(&everything, &method.parse().unwrap(), &uri);
            assert_eq!(code, expected, "{method} {uri} ({template})");
            if optional().any(|resource| uri.split('/').any(|part| part == resource.plural)) {
                let code = served(&nothing, &method.parse().unwrap(), &uri);
                assert_eq!(code, 404, "{method} {uri} by default");
            }
        }
        found.extend(upstreams.get_key_value(template.as_str()).map(|(path, _)| *path));
    }
    let missed: Vec<_> = upstreams.keys().filter(|path| !found.contains(*path)).collect();
    assert!(missed.is_empty(), "not tried: {missed:?}");
    assert!(templates.len() > 10_000 && upstreams.len() > 150, "{}", upstreams.len());
}

proptest! {
    #[test]
    fn no_line_is_too_odd(path in "/(api|apis/g|x)(/[a-z%./0-9]{0,12}){0,6}", query in "[a-zA-Z%=&!,]{0,30}") {
        if let Ok(uri) = format!("{path}?{query}").parse::<Uri>()
            && let Ok(line) = RequestLine::parse(&Method::GET, &uri)
            && let Some(path) = line.resource
        {
            let _ = served::route(&Snapshot::default(), &path, &Method::GET);
        }
    }
}
