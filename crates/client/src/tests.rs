use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use axum::Router;
use axum::http::HeaderMap;
use axum::http::Request;
use axum::routing::get;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::WatchParams;
use kube::client::Body;
use kube::config::Kubeconfig;

use super::kubeconfig::servers;
use super::transport::RELOAD_INTERVAL;
use super::*;

fn metrics() -> RestClient {
    RestClient::new(&longshore_metrics::Registry::default())
}

const LIMITS: Limits =
    Limits { component: "kubelet", qps: 0, burst: 0, timeout: Duration::from_millis(300) };

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
async fn requests_have_a_user_agent_and_are_rate_limited() {
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
        connect(&Credentials::of(file.path()), Limits { qps: 20, burst: 2, ..LIMITS }, metrics())
            .await
            .unwrap();
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
async fn metrics_of_request_and_response_sizes_exclude_watches() {
    let event = format!(r#"{{"type":"ADDED","object":{NODE}}}"#);
    let router = Router::new()
        .route("/api/v1/nodes/n", get(async || NODE).put(async || NODE))
        .route("/api/v1/nodes", get(async move || event));
    let server = serve(router).await;
    let file = kubeconfig(&server, "t");
    let registry = longshore_metrics::Registry::default();
    let metrics = RestClient::new(&registry);
    let client = connect(&Credentials::of(file.path()), LIMITS, metrics).await.unwrap();
    let api = Api::<Node>::all(client);
    let node = api.get("n").await.unwrap();
    api.replace("n", &Default::default(), &node).await.unwrap();
    let watch = api.watch(&WatchParams::default(), "0").await.unwrap();
    assert_eq!(watch.count().await, 1);
    let page = longshore_metrics::parse::parse(&registry.text()).unwrap();
    let sizes = |side: &str, verb: &str| {
        let name = |part| format!("rest_client_{side}_size_bytes_{part}");
        ["count", "sum"].map(|part| page.sum(&name(part), &[("verb", verb)]).unwrap_or(0.0))
    };
    let size = NODE.len() as f64;
    assert_eq!(sizes("request", "GET"), [1.0, 0.0]);
    assert_eq!(sizes("response", "GET"), [1.0, size]);
    assert_eq!(sizes("response", "PUT"), [1.0, size]);
    let [count, sum] = sizes("request", "PUT");
    assert!(count == 1.0 && sum > 20.0, "{sum}");
}

#[tokio::test]
async fn request_to_a_silent_server_times_out() {
    let silent = Router::new()
        .route("/api/v1/nodes/n", get(|| async { std::future::pending::<&str>().await }));
    let file = kubeconfig(&serve(silent).await, "t");
    let nodes: Api<Node> =
        Api::all(connect(&Credentials::of(file.path()), LIMITS, metrics()).await.unwrap());
    let error = nodes.get("n").await.unwrap_err();
    assert!(error.to_string().contains("no answer"), "{error}");
}

#[tokio::test]
async fn kubeconfig_is_reloaded_when_edited() {
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
    let shared = Shared::open(Credentials::of(file.path()), LIMITS, metrics()).await.unwrap();
    let send = || shared.send(Request::get("/api/v1/nodes/n").body(Body::empty()).unwrap());
    write(file.path(), &server, "much-longer");
    send().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), "Bearer short".len(), "checked periodically");

    let Some(past) = Instant::now().checked_sub(RELOAD_INTERVAL) else { return };
    shared.current.lock().checked = past;
    send().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), "Bearer much-longer".len());

    std::fs::write(file.path(), "half a fi").unwrap();
    shared.current.lock().checked = past;
    send().await.unwrap();
    assert_eq!(seen.load(Ordering::SeqCst), "Bearer much-longer".len(), "the old one stays");
}

#[tokio::test]
async fn kubeconfig_users_of_every_kind_authenticate() {
    let router = Router::new().route(
        "/api/v1/nodes/n",
        get(|headers: HeaderMap| async move {
            let shown = headers["authorization"].to_str().unwrap().replace(' ', "-");
            NODE.replace(r#""name":"n""#, &format!(r#""name":"{shown}""#))
        }),
    );
    let server = serve(router).await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("token"), "from-a-file\n").unwrap();
    let answer = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"from-a-program"}}"#;
    let program = format!("#!/bin/sh\necho '{answer}'\n");
    let plugin = dir.path().join("plugin");
    std::fs::write(&plugin, program).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&plugin, mode).unwrap();
    for (user, shown) in [
        ("token: plain", "Bearer-plain"),
        ("tokenFile: token", "Bearer-from-a-file"),
        (
            "exec: {apiVersion: client.authentication.k8s.io/v1, command: ./plugin, interactiveMode: Never}",
            "Bearer-from-a-program",
        ),
        ("username: u, password: p", "Basic-dTpw"),
    ] {
        let file = dir.path().join("kubeconfig");
        let text = format!(
            "current-context: c\nclusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n\
             users: [{{name: u, user: {{{user}}}}}]\n\
             contexts: [{{name: other, context: {{cluster: none, user: none}}}}, \
             {{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        std::fs::write(&file, text).unwrap();
        let client = connect(&Credentials::of(&file), LIMITS, metrics()).await.unwrap();
        let nodes: Api<Node> = Api::all(client);
        let node = nodes.get("n").await.unwrap();
        assert_eq!(node.metadata.name.as_deref(), Some(shown), "{user}");
    }
}

/// A plugin whose token has the number of its call, and which fails while there is a file `broken`.
#[tokio::test]
async fn kubeconfig_plugins_are_called_again_when_their_credential_is_refused() {
    let answer = get(|headers: HeaderMap| async move {
        match headers["authorization"] == "Bearer t1" {
            true => (axum::http::StatusCode::UNAUTHORIZED, ""),
            false => (axum::http::StatusCode::OK, NODE),
        }
    });
    let server = serve(Router::new().route("/api/v1/nodes/n", answer)).await;
    let dir = tempfile::tempdir().unwrap();
    let script = r#"test -e "$DIR/broken" && exit 1; echo >>"$DIR/runs"
        echo "{\"kind\": \"ExecCredential\", \"apiVersion\": \"client.authentication.k8s.io/v1beta1\",
        \"status\": {\"token\": \"t$(wc -l <"$DIR/runs" | tr -d ' ')\"}}""#;
    let config = serde_json::json!({
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"exec": {
            "apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/bin/sh",
            "args": ["-c", script], "env": [{"name": "DIR", "value": dir.path()}],
        }}}],
    });
    let file = dir.path().join("kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    std::fs::write(dir.path().join("broken"), "").unwrap();
    let shared = Shared::open(Credentials::of(&file), LIMITS, metrics()).await.unwrap();
    let send =
        async || shared.send(Request::get("/api/v1/nodes/n").body(Body::empty()).unwrap()).await;
    let error = send().await.err().unwrap().to_string();
    assert!(error.contains("getting credentials: exec: executable /bin/sh failed"), "{error}");
    std::fs::remove_file(dir.path().join("broken")).unwrap();
    let Some(past) = Instant::now().checked_sub(RELOAD_INTERVAL) else { return };
    let statuses = async || {
        shared.current.lock().checked = past;
        send().await.unwrap().status().as_u16()
    };
    assert_eq!((statuses().await, statuses().await, statuses().await), (401, 200, 200));
    assert_eq!(std::fs::read(dir.path().join("runs")).unwrap().len(), 2);
}

#[tokio::test]
async fn kubeconfig_errors_name_the_file() {
    let error = connect(&Credentials::of(Path::new("/nonexistent/kubeconfig")), LIMITS, metrics())
        .await
        .err()
        .unwrap();
    assert!(error.to_string().contains("/nonexistent/kubeconfig"), "{error}");
}

/// A pod of the answers below; never inspected.
const EVENT: &str = concat!(
    r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Node","#,
    r#""metadata":{"resourceVersion":"7"}}}"#,
    "\n"
);

/// A server that says its name with each node, and holds its watches open; and a handle to stop it.
async fn named_server(name: &'static str, port: u16) -> (String, tokio::task::JoinHandle<()>) {
    let node = NODE.replace(r#""name":"n""#, &format!(r#""name":"{name}""#));
    let watch = || async {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(EVENT)]);
        axum::body::Body::from_stream(first.chain(futures::stream::pending()))
    };
    let router = Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/api/v1/nodes", get(watch))
        .route("/api/v1/nodes/n", get(move || async move { node }));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // by hand, as connections must end with the task
    let serving = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((socket, _)) = listener.accept().await {
            let service = hyper_util::service::TowerToHyperService::new(router.clone());
            connections.spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(hyper_util::rt::TokioIo::new(socket), service),
            );
        }
    });
    (url, serving)
}

fn with_servers(file: &Path, first: &str, more: &str) {
    let text = format!(
        "current-context: c\nclusters: [{{name: c, cluster: {{server: '{first}', extensions: \
         [{{name: longshore/servers, extension: ['{more}']}}]}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(file, text).unwrap();
}

#[tokio::test]
async fn server_failover_and_failback() {
    let (first, serving) = named_server("one", 0).await;
    let (second, _other) = named_server("two", 0).await;
    let port = first.rsplit(':').next().unwrap().parse().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    with_servers(file.path(), &first, &second);
    let client = connect(&Credentials::of(file.path()), LIMITS, metrics()).await.unwrap();
    let nodes: Api<Node> = Api::all(client);
    let asked = async || nodes.get("n").await.map(|node| node.metadata.name.unwrap());
    assert_eq!(asked().await.unwrap(), "one");
    let mut watch = nodes.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    assert!(watch.next().await.unwrap().is_ok());

    serving.abort();
    let _ = serving.await;
    // a request that a dying server may have seen is not sent again unless it only reads
    assert_eq!(asked().await.unwrap(), "two");
    let end = tokio::time::timeout(TIMEOUT, watch.next()).await.unwrap();
    assert!(end.is_none_or(|event| event.is_err()), "the watch goes to the other server");
    let mut watch = nodes.watch(&WatchParams::default(), "7").await.unwrap().boxed();
    assert!(watch.next().await.unwrap().is_ok());

    let (_, _serving) = named_server("one", port).await;
    let back = async {
        while asked().await.unwrap() != "one" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, back).await.unwrap();
    assert!(futures::poll!(watch.next()).is_pending(), "a good watch stays where it is");
}

#[tokio::test]
async fn requests_fail_fast_with_all_servers_down() {
    let file = tempfile::NamedTempFile::new().unwrap();
    with_servers(file.path(), "http://127.0.0.1:1", "http://127.0.0.1:2");
    let nodes: Api<Node> =
        Api::all(connect(&Credentials::of(file.path()), LIMITS, metrics()).await.unwrap());
    for _ in 0..3 {
        let asked = tokio::time::timeout(TIMEOUT, nodes.get("n")).await.unwrap();
        assert!(asked.is_err());
    }
}

const TIMEOUT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn requests_wait_for_a_credential_and_report_what_is_missing() {
    let reached = Arc::new(AtomicBool::new(false));
    let (seen, server) = (Arc::clone(&reached), Router::new());
    let router = server.route(
        "/api/v1/nodes/n",
        get(move || async move {
            seen.store(true, Ordering::SeqCst);
            NODE
        }),
    );
    let file = kubeconfig(&serve(router).await, "t");
    let (states, state) =
        watch::channel(CredentialState::Lacking("the moon is not full".to_owned()));
    let identity = Identity { path: "/nonexistent.pem".into(), state };
    let credentials = Credentials { identity: Some(identity), ..Credentials::of(file.path()) };
    let nodes: Api<Node> = Api::all(connect(&credentials, LIMITS, metrics()).await.unwrap());
    let error = nodes.get("n").await.unwrap_err();
    assert!(error.to_string().contains("the moon is not full"), "{error}");
    assert!(!reached.load(Ordering::SeqCst));
    let asked = tokio::spawn({
        let nodes = nodes.clone();
        async move { nodes.get("n").await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    states.send_replace(CredentialState::Kubeconfig);
    asked.await.unwrap().unwrap();
}

#[test]
fn kubeconfig_extension_names_further_servers() {
    let servers_of = |extension: &str| {
        let text = format!(
            "current-context: c\nclusters: [{{name: c, cluster: {{server: 'https://a', extensions: \
             [{{name: other, extension: {{}}}}, {{name: longshore/servers, extension: {extension}}}]}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
        );
        servers(&current_cluster(&Kubeconfig::from_yaml(&text).unwrap()).unwrap())
    };
    let urls = servers_of("['https://b', 'https://a', 'https://c']").unwrap();
    assert_eq!(urls, ["https://a", "https://b", "https://c"]);
    assert!(servers_of("{more: yes}").unwrap_err().contains("longshore/servers"));
}
