//! `pods/proxy` and `services/proxy`, to a program that a pod could run.

use crate::common;

use std::convert::Infallible;
use std::net::{IpAddr, UdpSocket};

use bytes::Bytes;
use common::*;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpListener;

/// Says what it was asked, with which of these headers.
async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let shown: Vec<&str> = ["authorization", "x-forwarded-uri", "x-own"]
        .into_iter()
        .filter_map(|name| head.headers.get(name)?.to_str().ok())
        .collect();
    let body = body.collect().await.unwrap().to_bytes();
    let text = format!(
        "{} {} [{}] {}",
        head.method,
        head.uri,
        shown.join(" "),
        String::from_utf8_lossy(&body)
    );
    let mut response = Response::new(Full::new(Bytes::from(text)));
    if head.uri.path() == "/moved" {
        *response.status_mut() = hyper::StatusCode::FOUND;
        response.headers_mut().insert("location", "/there?a=b".parse().unwrap());
    }
    Ok(response)
}

/// A program that serves on this machine, and the pod `web` that it is in, behind the service `web`.
async fn pod(cluster: &Cluster) -> u16 {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer)),
            );
        }
    });
    let admin = &cluster.admin;
    let mut pod = common::pod("web", "n1");
    pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": port}]);
    admin.create("/api/v1/namespaces/default/pods", pod).await;
    let status = json!({"status": {"podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}});
    let path = "/api/v1/namespaces/default/pods/web/status";
    assert_eq!(admin.call("PATCH", path, Some(status)).await.0, 200);
    let service = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": port}]},
    });
    admin.create("/api/v1/namespaces/default/services", service).await;
    let target = |name: &str| json!({"kind": "Pod", "namespace": "default", "name": name});
    let endpoints = json!({
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {"name": "web"},
        "subsets": [{
            "addresses": [
                // Neither is a pod with this address.
                {"ip": "10.9.9.9", "targetRef": target("web")},
                {"ip": "10.9.9.8"},
            ],
            "ports": [{"name": "http", "port": port}],
        }],
    });
    admin.create("/api/v1/namespaces/default/endpoints", endpoints).await;
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_proxy_by_name_and_port() {
    let cluster = Cluster::start().await;
    let port = pod(&cluster).await;
    let way = "/api/v1/namespaces/default/pods/web/proxy";
    let get = |path: &str, arguments: &[&str]| cluster.admin_text(path, arguments);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let sent = [
            "-X",
            method,
            "-d",
            "sent",
            "-H",
            "x-own: mine",
            "-H",
            "authorization: Bearer planted",
        ];
        let asked = format!("{way}/a//b%2F..?c=%20");
        let expected = format!("{method} /a//b%2F..?c=%20 [{way}/a//b%2F.. mine] sent");
        assert_eq!(get(&asked, &sent), (200, expected), "{method}");
    }
    assert_eq!(get(&format!("{way}/x"), &["-I"]).0, 200);
    for name in [format!("web:{port}"), format!("http:web:{port}"), ":web:".to_owned()] {
        let path = format!("/api/v1/namespaces/default/pods/{name}/proxy/");
        assert_eq!(get(&path, &[]).0, 200, "{name}");
    }
    for (name, code) in [("web:none", 400), ("ftp:web:1", 400), ("none", 404), ("web:1", 503)] {
        let path = format!("/api/v1/namespaces/default/pods/{name}/proxy/");
        assert_eq!(get(&path, &[]).0, code, "{name}");
    }
    // What is served in the clear takes no TLS.
    let path = format!("/api/v1/namespaces/default/pods/https:web:{port}/proxy/");
    assert_eq!(get(&path, &[]).0, 503);
    let moved = get(&format!("{way}/moved"), &["-w", "%{redirect_url}\n%{http_code}"]);
    assert!(moved.1.ends_with(&format!("{way}/there?a=b")), "{moved:?}");
    let unscheduled = common::pod("waits", "");
    cluster.admin.create("/api/v1/namespaces/default/pods", unscheduled).await;
    assert_eq!(get("/api/v1/namespaces/default/pods/waits/proxy/", &[]).0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_proxy_requires_authorization() {
    let cluster = Cluster::start().await;
    pod(&cluster).await;
    let nobody = cluster.user("nobody", "none").await;
    for kind in ["pods", "services"] {
        let path = format!("/api/v1/namespaces/default/{kind}/web/proxy/x");
        let (code, refused) = nobody.call("PUT", &path, None).await;
        assert_eq!(code, 403, "{refused}");
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(&format!("cannot update resource \"{kind}/proxy\"")), "{message}");
    }
    // Where a pod says that it is, is not for it to choose freely.
    let status =
        json!({"status": {"podIP": "169.254.169.254", "podIPs": [{"ip": "169.254.169.254"}]}});
    let path = "/api/v1/namespaces/default/pods/web/status";
    assert_eq!(cluster.admin.call("PATCH", path, Some(status)).await.0, 200);
    assert_eq!(cluster.admin_text("/api/v1/namespaces/default/pods/web/proxy/", &[]).0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_proxy_reaches_only_pods() {
    let cluster = Cluster::start().await;
    let port = pod(&cluster).await;
    let get = |name: &str| {
        cluster.admin_text(&format!("/api/v1/namespaces/default/services/{name}/proxy/x"), &[])
    };
    let (code, text) = get("web:http");
    assert_eq!(code, 503, "{text}");
    assert!(text.contains("no endpoints available for service"), "{text}");
    let target = json!({"kind": "Pod", "namespace": "default", "name": "web"});
    let subsets = json!({"subsets": [{
        "addresses": [{"ip": "127.0.0.1", "targetRef": target}],
        "ports": [{"name": "http", "port": port}],
    }]});
    // The rules let no endpoint be on the loopback.
    let path = "/api/v1/namespaces/default/endpoints/web";
    assert_eq!(cluster.admin.call("PATCH", path, Some(subsets.clone())).await.0, 422);
    for (name, code) in [("web:81", 503), ("none:80", 404), ("none", 404), ("a:b:c:d", 400)] {
        assert_eq!(get(name).0, code, "{name}");
    }
    let Some(own) = own_address() else {
        return eprintln!("SKIPPED: this machine has no address but the loopback's");
    };
    let mut there = subsets;
    there["subsets"][0]["addresses"][0]["ip"] = own.to_string().into();
    assert_eq!(cluster.admin.call("PATCH", path, Some(there)).await.0, 200);
    let status = json!({"status": {"podIP": own, "podIPs": [{"ip": own}]}});
    let pod = "/api/v1/namespaces/default/pods/web/status";
    assert_eq!(cluster.admin.call("PATCH", pod, Some(status)).await.0, 200);
    for name in ["web:http", "web:80", "http:web:http"] {
        let (code, text) = get(name);
        assert_eq!((code, text.starts_with("GET /x [")), (200, true), "{name}: {text}");
    }
}

/// An address of this machine that others could use. Nothing is sent to find it.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then_some(ip)
}
