//! `pods/log`, from the client through the apiserver to a node's port and back.
//! The node is a stand-in that speaks TLS and answers as scripted; the node daemon's own tests have the real one.

use crate::common;

use std::time::Duration;

use bytes::Bytes;
use common::node::{NodeBody, node};
use common::*;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use serde_json::json;
use tokio::time::timeout;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn answer(request: &Request<Incoming>) -> Response<NodeBody> {
    let whole = |text: &'static str| {
        http_body_util::Full::new(Bytes::from_static(text.as_bytes())).boxed_unsync()
    };
    let (code, body) = match request.uri().path() {
        "/containerLogs/default/web/gone" => (404, whole("no such container")),
        "/containerLogs/default/web/moved" => (302, whole("")),
        "/containerLogs/default/web/bad" => (400, whole("container \"bad\" is waiting to start")),
        _ if request.uri().query().is_some_and(|query| query.contains("follow=true")) => {
            let lines = futures::stream::unfold(0, |line| async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((Ok(Frame::data(Bytes::from(format!("line {line}\n")))), line + 1))
            });
            (200, StreamBody::new(lines).boxed_unsync())
        }
        _ => (200, whole("hello\n")),
    };
    let mut response = Response::new(body);
    *response.status_mut() = code.try_into().unwrap();
    response.headers_mut().insert("location", "https://127.0.0.1:1/".parse().unwrap());
    response
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_from_the_kubelet() {
    let cluster = Cluster::start().await;
    let node = node(&cluster, |request| answer(&request)).await;
    let admin = &cluster.admin;
    let mut web = pod("web", "n1");
    web["spec"]["containers"] =
        json!(["c", "gone", "moved", "bad"].map(|name| json!({"name": name, "image": "i"})));
    admin.create(PODS, web).await;
    admin.create(PODS, pod("unscheduled", "")).await;

    let query = "container=c&tailLines=5&timestamps=true&sinceSeconds=60&evil=1";
    assert_eq!(admin.text(&format!("{PODS}/web/log?{query}")).await, (200, "hello\n".into()));
    assert_eq!(
        node.asked.lock().unwrap().last().unwrap(),
        "/containerLogs/default/web/c?timestamps=true&sinceSeconds=60&tailLines=5"
    );
    let (code, status) = admin.get(&format!("{PODS}/web/log")).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (400, "a container name must be specified for pod web, choose one of: [c gone moved bad]")
    );
    for (query, expected) in [
        ("container=x", 400),
        ("container=c&tailLines=-1", 422),
        ("container=c&sinceTime=x", 400),
        ("container=gone", 404),
        ("container=moved", 500),
        ("container=bad", 400),
    ] {
        assert_eq!(
            cluster.admin_curl(&format!("{PODS}/web/log?{query}"), &[]).0,
            expected,
            "{query}"
        );
    }
    assert!(node.port > 0);
    assert_eq!(admin.text(&format!("{PODS}/unscheduled/log")).await, (204, String::new()));

    // Lines come as they are written, and the end of the server ends them.
    let request = Request::get(format!("{PODS}/web/log?container=c&follow=true"));
    let response = admin.0.send(request.body(kube::client::Body::empty()).unwrap()).await.unwrap();
    let mut lines = Box::pin(response.into_body().into_data_stream());
    let mut text = String::new();
    while !text.contains("line 3\n") {
        text.push_str(std::str::from_utf8(&lines.next().await.unwrap().unwrap()).unwrap());
    }
    let both = async {
        tokio::join!(cluster.stop(), async { while let Some(Ok(_)) = lines.next().await {} })
    };
    timeout(Duration::from_secs(60), both).await.expect("the lines end");
}
