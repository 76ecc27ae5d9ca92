//! Servers that are called through the proxies that the environment names.

use crate::common;

use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::hook::*;
use common::*;
use hyper::{Method, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// A proxy with TLS that makes tunnels to that port whatever is asked for; what was asked for, and by whom.
async fn proxy(to: u16) -> (u16, String, Arc<Mutex<Vec<String>>>) {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let known = asked.clone();
    let (port, bundle) = serve(&["127.0.0.1"], move |request| {
        let known = known.clone();
        async move {
            assert_eq!(request.method(), Method::CONNECT);
            let user = request.headers().get("proxy-authorization").map(|v| v.to_str().unwrap());
            known.lock().unwrap().push(format!("{} {}", request.uri(), user.unwrap_or("-")));
            tokio::spawn(async move {
                let mut near = TokioIo::new(hyper::upgrade::on(request).await.unwrap());
                let mut far = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
            Response::new(whole(""))
        }
    })
    .await;
    (port, bundle, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proxies_of_the_environment_are_on_the_way_to_webhooks() {
    let hook = Hook::start().await;
    let (port, bundle, asked) = proxy(hook.port).await;
    let dir = tempfile::tempdir().unwrap();
    let roots = dir.path().join("roots.pem");
    std::fs::write(&roots, STANDARD.decode(bundle).unwrap()).unwrap();
    let url = format!("https://ann:s3cret@127.0.0.1:{port}");
    let environment = [
        ("HTTPS_PROXY", url.as_str()),
        ("NO_PROXY", "10.0.0.0/8,.direct.svc"),
        ("SSL_CERT_FILE", roots.to_str().unwrap()),
    ];
    let daemon = Daemon::start_in(&environment, &[]);
    let admin = daemon.client().await;
    let services = "/api/v1/namespaces/default/services";
    let service = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"port": 443}]}});
    admin.create(services, service).await;
    let through = json!({
        "service": {"namespace": "default", "name": "hook", "path": "/"},
        "caBundle": hook.ca_bundle,
    });
    for (name, config, expected) in [
        // an address of this machine is called directly
        ("direct", hook.url("/"), vec![]),
        ("through", through, vec!["hook.default.svc:443 Basic YW5uOnMzY3JldA=="]),
    ] {
        let mut webhook = hook.webhook("look.example.com", "/", &["CREATE"], &["configmaps"]);
        webhook["clientConfig"] = config;
        configure(&admin, "validating", name, &[webhook]).await;
        admin.create(MAPS, config_map(name, json!({}))).await;
        assert_eq!(*asked.lock().unwrap(), expected, "{name}");
        assert_eq!(hook.count(), 1, "{name}");
        forget(&admin, "validating", name).await;
    }
}

#[test]
fn proxies_that_are_not_valid_end_the_program() {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_longshore-apiserver"));
    let dir = tempfile::tempdir().unwrap();
    command.args(["--secure-port=0", "--bind-address=127.0.0.1"]);
    command.arg(format!("--cert-dir={}", dir.path().join("pki").display()));
    command.arg(format!("--data-dir={}", dir.path().join("data").display()));
    let output = command.env("HTTPS_PROXY", "ftp://u:s3cret@p").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("HTTPS_PROXY: "), "{text}");
    assert!(!text.contains("s3cret"), "{text}");
}
