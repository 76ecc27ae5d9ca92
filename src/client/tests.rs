#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use super::*;

const LIMITS: Limits = Limits { qps: 0, burst: 0, timeout: Duration::from_millis(300) };

fn metrics() -> RestClient {
    RestClient::new(&longshore_metrics::Registry::default())
}

async fn serve(router: Router) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

fn kubeconfig(server: &str, token: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), server, token);
    file
}

fn write(path: &Path, server: &str, token: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
         users: [{{name: u, user: {{token: {token}}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(path, text).unwrap();
}

const NODE: &str = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;

#[tokio::test]
async fn says_who_it_is_and_waits_for_its_turn() {
    let router = Router::new().route(
        "/api/v1/nodes/n",
        get(|headers: HeaderMap| async move {
            let agent = headers["user-agent"].to_str().unwrap();
            assert!(agent.starts_with("kubelet/v1.36") && agent.contains("(linux/"), "{agent}");
            NODE
        }),
    );
    let file = kubeconfig(&serve(router).await, "t");
    let client =
        connect(file.path(), Limits { qps: 20, burst: 2, ..LIMITS }, metrics()).await.unwrap();
    let nodes: Api<Node> = Api::all(client);
    let start = Instant::now();
    for _ in 0..6 {
        nodes.get("n").await.unwrap();
    }
    assert!(
        start.elapsed() >= Duration::from_millis(190),
        "4 waits of 50 ms: {:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let silent = Router::new()
        .route("/api/v1/nodes/n", get(|| async { std::future::pending::<&str>().await }));
    let file = kubeconfig(&serve(silent).await, "t");
    let nodes: Api<Node> = Api::all(connect(file.path(), LIMITS, metrics()).await.unwrap());
    let error = nodes.get("n").await.unwrap_err();
    assert!(error.to_string().contains("no answer"), "{error}");
}

#[tokio::test]
async fn an_edited_kubeconfig_is_taken_up() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let server = serve(Router::new().route(
        "/api/v1/nodes/n",
        get(move |headers: HeaderMap| async move {
            count.store(headers["authorization"].len(), Ordering::SeqCst);
            NODE
        }),
    ))
    .await;
    let file = kubeconfig(&server, "short");
    let shared = Shared {
        kubeconfig: file.path().to_owned(),
        limits: LIMITS,
        bucket: None,
        metrics: metrics(),
        current: Mutex::new(Current {
            client: load(file.path(), LIMITS).await.unwrap().0,
            host: Arc::default(),
            stamp: Vec::from([(file.path().to_owned(), None)]),
            looked: Instant::now(),
        }),
    };
    let send = || shared.send(Request::get("/api/v1/nodes/n").body(Body::empty()).unwrap());
    write(file.path(), &server, "much-longer");
    send().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), "Bearer short".len(), "looked at only now and then");

    let Some(past) = Instant::now().checked_sub(RELOAD_INTERVAL) else { return };
    locked(&shared.current).looked = past;
    send().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), "Bearer much-longer".len());

    std::fs::write(file.path(), "half a fi").unwrap();
    locked(&shared.current).looked = past;
    send().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), "Bearer much-longer".len(), "the old one stays");
}

#[tokio::test]
async fn a_kubeconfig_at_fault_is_named() {
    let error =
        connect(Path::new("/nonexistent/kubeconfig"), LIMITS, metrics()).await.err().unwrap();
    assert!(error.to_string().contains("/nonexistent/kubeconfig"), "{error}");
}
