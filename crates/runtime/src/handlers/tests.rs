mod grpc;
mod hooks;
mod requests;
mod server;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod, Probe};
use longshore_cri::{Options, Runtime};
use serde_json::{Value, json};

use super::{Error, Fallback, Handlers, HookError, Outcome, Target};

/// Handlers without a runtime.
fn handlers() -> Handlers {
    Handlers::new(Runtime::new(Options::new("unix:///nowhere/at.sock")).unwrap())
}

fn container() -> Container {
    serde_json::from_value(json!({"name": "c", "ports": [{"name": "web", "containerPort": 1}]}))
        .unwrap()
}

/// Run a probe of a pod on this machine.
async fn probe(probe: Value) -> Result<Outcome, Error> {
    let probe: Probe = serde_json::from_value(probe).unwrap();
    let container = container();
    let target = Target { container: &container, id: "id", ip: "127.0.0.1" };
    handlers().probe(target, &probe).await
}

async fn failure(probe_: Value) -> String {
    match probe(probe_).await {
        Ok(Outcome::Failure(message)) => message,
        other => panic!("{other:?}"),
    }
}

/// Run a hook of a pod on this machine.
async fn hook(hook: Value) -> Result<Option<Fallback>, HookError> {
    let hook: LifecycleHandler = serde_json::from_value(hook).unwrap();
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}}))
            .unwrap();
    let container = container();
    let target = Target { container: &container, id: "id", ip: "127.0.0.1" };
    handlers().hook(&pod, target, &hook).await
}

/// A port at which no process listens.
async fn closed_port() -> u16 {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn tcp_probe() {
    let open = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = open.local_addr().unwrap().port();
    assert_eq!(probe(json!({"tcpSocket": {"port": port}})).await.unwrap(), Outcome::Success);
    let text = json!({"tcpSocket": {"port": port.to_string(), "host": "localhost"}});
    assert_eq!(probe(text).await.unwrap(), Outcome::Success);
    let port = closed_port().await;
    assert_eq!(
        failure(json!({"tcpSocket": {"port": port}})).await,
        format!("dial tcp 127.0.0.1:{port}: connect: connection refused")
    );
    assert_eq!(
        failure(json!({"tcpSocket": {"port": port, "host": "no.such.host.invalid"}})).await,
        "dial tcp: lookup no.such.host.invalid: no such host"
    );
}

#[tokio::test]
async fn probe_errors_have_no_result() {
    for (probe_spec, state, message) in [
        (
            json!({"tcpSocket": {"port": "nope"}}),
            "unknown",
            "strconv.Atoi: parsing \"nope\": invalid syntax",
        ),
        (json!({"tcpSocket": {"port": 0}}), "unknown", "invalid port number: 0"),
        (json!({"httpGet": {"port": 65536}}), "unknown", "invalid port number: 65536"),
        (json!({"grpc": {"port": -1}}), "unknown", "invalid port number: -1"),
        (json!({}), "unknown", "missing probe handler for c"),
    ] {
        let error = probe(probe_spec).await.unwrap_err();
        assert_eq!((error.state(), error.to_string().as_str()), (state, message));
    }
    let error = probe(json!({"exec": {"command": ["true"]}})).await.unwrap_err().to_string();
    assert!(error.starts_with("rpc error: code = Unavailable desc = "), "{error}");
}
