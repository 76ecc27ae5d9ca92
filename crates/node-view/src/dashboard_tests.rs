use std::process::Command;

use axum::body::{Body, to_bytes};
use longshore_cri::v1::runtime_service_server::RuntimeService;
use longshore_cri::v1::{
    Container, ContainerMetadata, ContainerState, ContainerStatus, ContainerStatusRequest,
    ContainerStatusResponse, ImageSpec, ListContainerStatsRequest, ListContainerStatsResponse,
    ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse,
    PodSandbox, VersionRequest, VersionResponse, image_service_server::ImageService,
};
use serde_json::Value;
use tokio::net::{TcpListener, UnixListener};
use tonic::{Response as Answer, Status};
use tower::ServiceExt;

use super::*;

/// What would be run, were it not text.
const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"></td><script>1</script>&amp;";

/// A runtime with one pod, whose names and log are hostile.
struct Hostile {
    log: std::path::PathBuf,
}

type Result<T> = std::result::Result<Answer<T>, Status>;

fn labels() -> std::collections::BTreeMap<String, String> {
    [
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.name", HOSTILE),
        ("io.kubernetes.container.name", "web"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

#[tonic::async_trait]
impl RuntimeService for Hostile {
    async fn version(&self, _: tonic::Request<VersionRequest>) -> Result<VersionResponse> {
        Ok(Answer::new(VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "fake".into(),
            runtime_version: "1".into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        _: tonic::Request<ListPodSandboxRequest>,
    ) -> Result<ListPodSandboxResponse> {
        let sandbox = PodSandbox { id: "s1".into(), labels: labels(), ..PodSandbox::default() };
        Ok(Answer::new(ListPodSandboxResponse { items: vec![sandbox] }))
    }

    async fn list_containers(
        &self,
        _: tonic::Request<ListContainersRequest>,
    ) -> Result<ListContainersResponse> {
        let container = Container {
            id: "c1".into(),
            pod_sandbox_id: "s1".into(),
            labels: labels(),
            state: ContainerState::ContainerRunning.into(),
            metadata: Some(ContainerMetadata { name: "web".into(), attempt: 0 }),
            ..Container::default()
        };
        Ok(Answer::new(ListContainersResponse { containers: vec![container] }))
    }

    async fn list_container_stats(
        &self,
        _: tonic::Request<ListContainerStatsRequest>,
    ) -> Result<ListContainerStatsResponse> {
        Ok(Answer::new(ListContainerStatsResponse::default()))
    }

    async fn container_status(
        &self,
        _: tonic::Request<ContainerStatusRequest>,
    ) -> Result<ContainerStatusResponse> {
        let log_path = self.log.display().to_string();
        let metadata = Some(ContainerMetadata { name: "web".into(), attempt: 0 });
        let status = ContainerStatus {
            id: "c1".into(),
            metadata,
            log_path,
            created_at: 1,
            image: Some(ImageSpec { image: "web".into(), ..ImageSpec::default() }),
            image_ref: "web".into(),
            ..ContainerStatus::default()
        };
        Ok(Answer::new(ContainerStatusResponse {
            status: Some(status),
            ..ContainerStatusResponse::default()
        }))
    }
}

struct NoImages;

#[tonic::async_trait]
impl ImageService for NoImages {}

/// The page of a node on that runtime, which ends with what is returned beside it.
fn hostile() -> (Router, tempfile::TempDir, longshore_cri::Server) {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    std::fs::write(&log, format!("2026-01-02T00:00:00.000000000Z stdout F {HOSTILE} a line\n"))
        .unwrap();
    let socket = dir.path().join("cri.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = longshore_cri::serve(listener, Hostile { log }, NoImages);
    let endpoint = format!("unix://{}", socket.display());
    (dashboard(Inspector::new(HOSTILE).with_runtime(&endpoint)), dir, server)
}

async fn ask(
    router: &Router,
    method: &str,
    hosts: &[&str],
    path: &str,
) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    for host in hosts {
        request = request.header(HOST, *host);
    }
    let response = router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, 1 << 20).await.unwrap();
    (parts.status, parts.headers, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn dashboard_is_for_names_of_this_machine_and_for_reading() {
    let router = dashboard(Inspector::new("n"));
    for (method, hosts, status) in [
        ("GET", &["localhost"][..], 200),
        ("HEAD", &["LOCALHOST:8080"], 200),
        ("GET", &["127.0.0.1:10247"], 200),
        ("GET", &["127.3.2.1"], 200),
        ("GET", &["[::1]:10247"], 200),
        ("POST", &["localhost"], 405),
        ("DELETE", &["localhost"], 405),
        ("OPTIONS", &["localhost"], 405),
        ("GET", &[], 421),
        ("GET", &[""], 421),
        ("GET", &["localhost", "localhost"], 421),
        ("GET", &["localhost.example.org"], 421),
        ("GET", &["rebound.example.org:10247"], 421),
        ("GET", &["user@localhost"], 421),
        ("GET", &["192.0.2.1:10247"], 421),
        ("GET", &["0.0.0.0"], 421),
        ("GET", &["[fe80::1]"], 421),
        ("POST", &["rebound.example.org"], 421),
    ] {
        for path in ["/", "/dashboard.js", "/dashboard.css", "/snapshot.json"] {
            let (found, headers, body) = ask(&router, method, hosts, path).await;
            assert_eq!(found, status, "{method} {path} of {hosts:?}: {body}");
            assert_eq!(headers[CONTENT_SECURITY_POLICY], POLICY);
            assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(headers[CACHE_CONTROL], "no-store");
            assert!(headers.get("access-control-allow-origin").is_none());
            assert_eq!(found == StatusCode::OK, !body.contains("this page"), "{body}");
        }
    }
    assert_eq!(ask(&router, "GET", &["localhost"], "/other").await.0, 404);
}

#[test]
fn dashboard_loads_nothing_and_writes_no_html() {
    for (file, text) in [("page", PAGE), ("style", STYLE), ("script", SCRIPT)] {
        for word in [
            "http:",
            "https:",
            "//www",
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "url(",
            "@import",
            "style=",
            "onclick",
        ] {
            assert!(!text.contains(word), "{word} is in the {file}");
        }
    }
}

#[tokio::test]
async fn dashboard_has_the_snapshot_and_logs_of_what_it_shows() {
    let (router, _dir, server) = hostile();
    let (status, headers, body) = ask(&router, "GET", &["localhost"], "/snapshot.json").await;
    assert_eq!(
        (status, &headers[CONTENT_TYPE]),
        (StatusCode::OK, &"application/json".parse().unwrap())
    );
    let snapshot: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(snapshot["node"]["name"], HOSTILE);
    assert_eq!(snapshot["pods"][0]["name"], format!("default/{HOSTILE}"));
    assert_eq!(snapshot["pods"][0]["containers"][0]["id"], "c1");
    assert_eq!(snapshot["errors"], json!([]));
    for (query, status, part) in [
        ("?container=c1", 200, "a line"),
        ("?container=c2", 404, "no such container"),
        ("?container=", 404, "no such container"),
        ("?container=../../etc/shadow", 404, "no such container"),
        ("", 400, "missing field"),
    ] {
        let path = format!("/log.json{query}");
        let (found, headers, body) = ask(&router, "GET", &["localhost"], &path).await;
        assert_eq!(found, status, "{path}: {body}");
        assert!(body.contains(part), "{path}: {body}");
        assert!(!headers[CONTENT_TYPE].to_str().unwrap().contains("html"), "{path}");
    }
    server.stop().await;
}

/// The page in a browser: names and log lines are text, and nothing of them runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dashboard_in_a_browser_shows_hostile_names_as_text() {
    if !Command::new("chromium").arg("--version").output().is_ok_and(|one| one.status.success()) {
        eprintln!("SKIPPED: no chromium");
        return;
    }
    let (router, dir, server) = hostile();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let served = tokio::spawn(async move { axum::serve(listener, router).await });
    let mut browser = tokio::process::Command::new("chromium");
    browser
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("http://{address}/#c1"))
        .kill_on_drop(true);
    let output = tokio::time::timeout(Duration::from_secs(120), browser.output()).await.unwrap();
    let page = String::from_utf8_lossy(&output.unwrap().stdout).into_owned();
    served.abort();
    server.stop().await;
    let escaped = HOSTILE.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    for text in [
        format!("<h1 id=\"node\">Longshore {escaped}</h1>"),
        format!("default/{escaped}"),
        format!("{escaped} a line"),
        "<a href=\"#c1\">web</a>".to_owned(),
        "Running".to_owned(),
    ] {
        assert!(page.contains(&text), "{text}: {page}");
    }
    assert!(!page.contains("<img") && !page.contains("<title>owned"), "{page}");
}
