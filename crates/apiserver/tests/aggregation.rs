//! APIServices, and an aggregated server in this process behind a service.

use crate::common;

use bytes::Bytes;
use common::hook::*;
use common::*;
use futures::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const FLUNDERS: &str = "/apis/wardle.example.com/v1/namespaces/default/flunders";

/// Lists one resource, and otherwise says what it was sent.
async fn wardle(request: Request<Incoming>) -> Response<HookBody> {
    let path = request.uri().path().to_owned();
    let header = |name: &str| {
        let values = request.headers().get_all(name).iter();
        values.map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let list = json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "wardle.example.com/v1",
        "resources": [{
            "name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
            "verbs": ["create", "get", "list"],
        }],
    });
    if path == "/apis/wardle.example.com/v1" {
        return Response::new(whole(list.to_string()));
    }
    if request.uri().query() == Some("watch=1") {
        let first = futures::stream::iter([Ok(Frame::data(Bytes::from(
            "{\"type\":\"ADDED\",\"object\":{}}\n",
        )))]);
        let stream = first.chain(futures::stream::pending());
        return Response::new(StreamBody::new(stream).boxed_unsync());
    }
    if path.ends_with("/moved") {
        return Response::builder().status(302).header("location", "/x").body(whole("")).unwrap();
    }
    if request.headers().contains_key("upgrade") {
        let user = header("x-remote-user").join(",");
        tokio::spawn(async move {
            let upgraded = hyper::upgrade::on(request).await.unwrap();
            let mut stream = TokioIo::new(upgraded);
            stream.write_all(format!("hello {user}").as_bytes()).await.unwrap();
        });
        return Response::builder()
            .status(101)
            .header("connection", "Upgrade")
            .header("upgrade", "test")
            .body(whole(""))
            .unwrap();
    }
    let said = json!({
        "method": request.method().as_str(), "target": request.uri().to_string(),
        "user": header("x-remote-user"), "groups": header("x-remote-group"),
        "authorization": header("authorization"),
    });
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut said = said;
    said["body"] = String::from_utf8_lossy(&body).into();
    Response::builder()
        .header("content-type", "application/json")
        .body(whole(said.to_string()))
        .unwrap()
}

async fn condition(client: &Client) -> Value {
    let (_, api) = client.get(&format!("{SERVICES}/v1.wardle.example.com")).await;
    api["status"]["conditions"][0].clone()
}

async fn eventually_reason(client: &Client, reason: &str) {
    eventually(reason, || async { condition(client).await["reason"] == reason }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregation_hands_requests_on_to_another_server() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let (port, ca_bundle) = serve(&["wardle.default.svc"], wardle).await;
    let api = json!({
        "metadata": {"name": "v1.wardle.example.com", "labels": {"sample": "yes"}},
        "spec": {
            "group": "wardle.example.com", "version": "v1", "caBundle": ca_bundle,
            "groupPriorityMinimum": 2000, "versionPriority": 200,
            "service": {"namespace": "default", "name": "wardle", "port": port},
        },
    });
    let created = admin.create(SERVICES, api).await;
    assert!(created["status"]["conditions"].is_null(), "{created}");
    assert_eq!(cluster.admin_text(FLUNDERS, &[]), (503, "service unavailable\n".to_owned()));
    eventually_reason(admin, "ServiceNotFound").await;
    let message = "service/wardle in \"default\" is not present";
    assert_eq!(condition(admin).await["message"], message);

    let service = json!({
        "metadata": {"name": "wardle"},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    admin.create("/api/v1/namespaces/default/services", service).await;
    eventually_reason(admin, "Passed").await;
    assert_eq!(condition(admin).await["message"], "all checks passed");

    // Requests, with the user's name in headers, whatever the client says.
    let planted =
        ["-H", "X-Remote-User: root", "-H", "X-Remote-Group: system:masters", "-d", "what is sent"];
    let (code, said) = cluster.admin_curl(&format!("{FLUNDERS}?a=b%20c"), &planted);
    assert_eq!(code, 200, "{said}");
    assert_eq!((&said["method"], &said["body"]), (&json!("POST"), &json!("what is sent")));
    assert_eq!(said["target"], format!("{FLUNDERS}?a=b%20c"));
    assert_eq!(said["user"], json!(["kubernetes-admin"]));
    assert_eq!(said["groups"], json!(["system:masters", "system:authenticated"]));
    let (code, _) = cluster.curl(FLUNDERS, &[]);
    assert!([401, 403].contains(&code), "it is authorized here: {code}");
    let mut watch = admin.watch(&format!("{FLUNDERS}?watch=1")).await;
    assert_eq!(watch.next().await.unwrap()["type"], "ADDED");
    let (code, text) = cluster.admin_text(&format!("{FLUNDERS}/moved"), &[]);
    assert_eq!(code, 502, "{text}");
    let request = Request::get(format!("{FLUNDERS}/a/connect"))
        .header("connection", "Upgrade")
        .header("upgrade", "test");
    let response = admin.0.send(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status().as_u16(), 101);
    let mut heard = String::new();
    let mut stream = TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    stream.read_to_string(&mut heard).await.unwrap();
    assert_eq!(heard, "hello kubernetes-admin");

    // Discovery in all its forms.
    let (_, groups) = admin.get("/apis").await;
    let names: Vec<&str> =
        groups["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert_eq!((names[0], names[1]), ("apiregistration.k8s.io", "apps"));
    assert_eq!(names.last(), Some(&"wardle.example.com"));
    let (_, group) = admin.get("/apis/wardle.example.com").await;
    assert_eq!(group["kind"], "APIGroup");
    assert_eq!(group["preferredVersion"]["groupVersion"], "wardle.example.com/v1");
    let (_, list) = admin.get("/apis/wardle.example.com/v1").await;
    assert_eq!(list["resources"][0]["name"], "flunders");
    let accept = "Accept: application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let aggregated = || {
        let (_, all) = cluster.admin_curl("/apis", &["-H", accept]);
        let items = all["items"].as_array().unwrap().clone();
        items.into_iter().find(|g| g["metadata"]["name"] == "wardle.example.com").unwrap()
    };
    let version = aggregated()["versions"][0].clone();
    assert_eq!(
        (&version["freshness"], &version["resources"][0]["resource"]),
        (&json!("Current"), &json!("flunders"))
    );
    let (_, index) = admin.get("/openapi/v3").await;
    let url = index["paths"]["apis/wardle.example.com/v1"]["serverRelativeURL"].as_str().unwrap();
    let (code, document) = cluster.admin_curl(url, &[]);
    assert_eq!(
        (code, &document["target"]),
        (200, &json!("/openapi/v3/apis/wardle.example.com/v1"))
    );

    // The service goes, and then the APIService.
    let (code, _) = admin.call("DELETE", "/api/v1/namespaces/default/services/wardle", None).await;
    assert_eq!(code, 200);
    eventually_reason(admin, "ServiceNotFound").await;
    assert_eq!(cluster.admin_text(FLUNDERS, &[]).0, 503);
    let version = aggregated()["versions"][0].clone();
    assert_eq!(
        (&version["freshness"], &version["resources"][0]["resource"]),
        (&json!("Stale"), &json!("flunders"))
    );
    let (_, metrics) = admin.text("/metrics").await;
    assert!(
        metrics.contains("aggregator_unavailable_apiservice{name=\"v1.wardle.example.com\"} 1")
    );
    let (code, _) =
        admin.call("DELETE", &format!("{SERVICES}?labelSelector=sample%3Dyes"), None).await;
    assert_eq!(code, 200);
    assert_eq!(admin.get(FLUNDERS).await.0, 404);
    assert_eq!(admin.get("/apis/wardle.example.com").await.0, 404);
    let (_, groups) = admin.get("/apis").await;
    assert!(!groups.to_string().contains("wardle"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregation_reports_a_server_that_is_not_what_it_should_be() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let (port, _) = serve(&["wardle.default.svc"], wardle).await;
    let (_, other_ca) = serve(&["wardle.default.svc"], wardle).await;
    let service = json!({
        "metadata": {"name": "wardle"},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    });
    admin.create("/api/v1/namespaces/default/services", service).await;
    let api = json!({
        "metadata": {"name": "v1.wardle.example.com"},
        "spec": {
            "group": "wardle.example.com", "version": "v1", "caBundle": other_ca,
            "groupPriorityMinimum": 2000, "versionPriority": 200,
            "service": {"namespace": "default", "name": "wardle", "port": port},
        },
    });
    admin.create(SERVICES, api).await;
    eventually_reason(admin, "FailedDiscoveryCheck").await;
    let message = condition(admin).await["message"].as_str().unwrap().to_owned();
    let begins = "failing or missing response from https://wardle.default.svc:";
    assert!(message.starts_with(begins) && message.contains("certificate"), "{message}");
    let path = format!("{SERVICES}/v1.wardle.example.com");
    let insecure = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    let (code, status) = admin.call("PATCH", &path, Some(insecure)).await;
    assert_eq!(code, 200, "{status}");
    eventually_reason(admin, "Passed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn aggregation_has_an_api_service_for_each_local_group() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let (_, list) = admin.get(SERVICES).await;
    let items = list["items"].as_array().unwrap();
    for name in ["v1.", "v1.apps", "v2.autoscaling", "v1.rbac.authorization.k8s.io"] {
        let api = items.iter().find(|api| api["metadata"]["name"] == name).unwrap();
        assert_eq!(
            api["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"],
            "onstart"
        );
        let condition = &api["status"]["conditions"][0];
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("Local")));
    }
    assert_eq!(admin.get("/apis/autoscaling").await.1["preferredVersion"]["version"], "v2");
    let accept = "Accept: application/json;as=Table;v=v1;g=meta.k8s.io";
    let (_, table) = cluster.admin_curl(&format!("{SERVICES}/v1.apps"), &["-H", accept]);
    let cells = table["rows"][0]["cells"].as_array().unwrap();
    assert_eq!(cells[..3], [json!("v1.apps"), json!("Local"), json!("True")]);
    let bad = json!({
        "metadata": {"name": "v1.other"},
        "spec": {"group": "example.com", "version": "V1", "groupPriorityMinimum": 0, "versionPriority": 2000},
    });
    let (code, status) = admin.call("POST", SERVICES, Some(bad)).await;
    assert_eq!(code, 422);
    let message = status["message"].as_str().unwrap();
    for part in [
        "must be `spec.version+\".\"+spec.group`: \"V1.example.com\"",
        "spec.version: Invalid value: \"V1\": a DNS-1035 label",
        "spec.groupPriorityMinimum: Invalid value: 0: must be positive and less than 20000",
        "spec.versionPriority: Invalid value: 2000: must be positive and less than 1000",
    ] {
        assert!(message.contains(part), "{message}");
    }
    // One's own status, as the lifecycle test of the conformance suite writes it.
    let own = json!({
        "metadata": {"name": "v1.example.com"},
        "spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 10, "versionPriority": 10},
    });
    admin.create(SERVICES, own).await;
    let path = format!("{SERVICES}/v1.example.com");
    let condition =
        json!({"type": "StatusPatched", "status": "True", "reason": "E2E", "message": "x"});
    let status = json!({"status": {"conditions": [condition]}});
    let (code, patched) = admin.call("PATCH", &format!("{path}/status"), Some(status)).await;
    assert_eq!((code, &patched["status"]["conditions"][0]["type"]), (200, &json!("StatusPatched")));
    assert_eq!(admin.call("DELETE", &path, None).await.0, 200);
}
