//! A cluster of one apiserver, in this process or as the real binary, and a client for it.
#![allow(unreachable_pub)]

pub mod history;
pub mod hook;
pub mod kubectl;
pub mod node;
pub mod tokens;
pub mod upstream;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use http_body_util::BodyExt;
use hyper::Request;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use longshore_apiserver::{
    AuthenticationConfig, Config, ConnectionLimits, FeatureGates, Mode, RequestLimits, Server,
    StorageMediaType, pki,
};
use longshore_store::EmbeddedStore;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An apiserver in this process.
pub struct Cluster {
    pub dir: TempDir,
    pub admin: Client,
    pub address: std::net::SocketAddr,
    pub stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

/// Requests as one user.
#[derive(Clone)]
pub struct Client(pub kube::Client);

pub async fn client(kubeconfig: &Path) -> Client {
    Client(kube::Client::try_from(config(kubeconfig).await).unwrap())
}

pub async fn config(kubeconfig: &Path) -> kube::Config {
    let config = Kubeconfig::read_from(kubeconfig).unwrap();
    kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await.unwrap()
}

/// `STORAGE_MEDIA_TYPE` has all tests store objects in that form.
pub fn storage_media_type() -> StorageMediaType {
    let name = std::env::var("STORAGE_MEDIA_TYPE").ok();
    name.map_or_else(StorageMediaType::default, |name| StorageMediaType::parse(&name).unwrap())
}

impl Cluster {
    pub async fn start() -> Cluster {
        Cluster::start_with(|_| {}).await
    }

    pub async fn start_with(adapt: impl FnOnce(&mut Config)) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(EmbeddedStore::open(dir.path().join("store")).await.unwrap());
        let mut config = Config {
            store,
            storage_media_type: storage_media_type(),
            snapshots: None,
            bind: "127.0.0.1:0".parse().unwrap(),
            advertise: "127.0.0.1".parse().unwrap(),
            cert_dir: dir.path().join("pki"),
            service_ranges: "10.96.0.0/24".parse().unwrap(),
            node_ports: longshore_apiserver::NodePorts::default(),
            endpoint_reconciler: longshore_apiserver::EndpointReconciler::default(),
            client_ca: None,
            serving: None,
            tls: longshore_apiserver::TlsOptions::default(),
            kubelet_client: None,
            kubelet_ca: None,
            kubelet_address_types: vec!["InternalIP".into(), "Hostname".into()],
            event_ttl: Duration::from_secs(3600),
            compaction_interval: Duration::from_secs(300),
            node_names: vec!["n1".into()],
            authentication: AuthenticationConfig::default(),
            authorization: vec![Mode::Node, Mode::Rbac].into(),
            gates: FeatureGates::default(),
            runtime_config: longshore_apiserver::RuntimeConfig::default(),
            requests: RequestLimits::default(),
            request_timeout: Duration::from_secs(60),
            connections: ConnectionLimits::DEFAULT,
            plugins: longshore_apiserver::Plugins::default(),
            admission: longshore_apiserver::AdmissionConfig::default(),
            aggregation: longshore_apiserver::AggregationConfig::default(),
            audit: longshore_apiserver::AuditConfig::default(),
            encryption: None,
            pages: longshore_apiserver::PagesConfig::default(),
            tracing: None,
        };
        adapt(&mut config);
        let server = Server::start(config).await.unwrap();
        let address = server.address();
        let admin = client(server.admin_kubeconfig()).await;
        let stop = CancellationToken::new();
        let task = tokio::spawn(server.run(stop.clone()));
        admin.ensure_default_account("default").await;
        Cluster { dir, admin, address, stop, task: Some(task) }
    }

    pub fn pki(&self) -> PathBuf {
        self.dir.path().join("pki")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.pki().join("admin.conf")
    }

    /// As `system:node:n1`.
    pub async fn node(&self) -> Client {
        client(&self.pki().join("kubelet-n1.conf")).await
    }

    /// Fills aggregated cluster roles, as their controller does.
    pub async fn aggregate_roles(&self) {
        let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
        let (_, list) = self.admin.get(path).await;
        let mut roles = list["items"].as_array().unwrap().clone();
        // view, edit and admin contain each other in turn
        for _ in 0..3 {
            for i in 0..roles.len() {
                let selector = &roles[i]["aggregationRule"]["clusterRoleSelectors"][0];
                let Some(labels) = selector["matchLabels"].as_object() else { continue };
                let matches = |role: &&Value| {
                    labels.iter().all(|(name, value)| role["metadata"]["labels"][name] == *value)
                };
                let parts = roles.iter().filter(matches);
                let rules: Vec<Value> =
                    parts.filter_map(|role| role["rules"].as_array()).flatten().cloned().collect();
                roles[i]["rules"] = rules.into();
            }
        }
        for role in roles.iter().filter(|role| role["aggregationRule"].is_object()) {
            let path = format!("{path}/{}", role["metadata"]["name"].as_str().unwrap());
            let (code, status) =
                self.admin.call("PATCH", &path, Some(json!({"rules": role["rules"]}))).await;
            assert_eq!(code, 200, "{status}");
        }
    }

    pub async fn user(&self, user: &str, group: &str) -> Client {
        let pki = pki::Pki::open(&self.pki()).unwrap();
        let path = self.dir.path().join(format!("{user}.conf"));
        longshore_apiserver::kubeconfig(&pki, &format!("https://{}", self.address), user, group)
            .unwrap()
            .write(&path)
            .unwrap();
        client(&path).await
    }

    /// `curl` a path with the CA and these further arguments: code and body. By HTTP/1.1 unless they say
    /// otherwise: over HTTP/2, curl 7.88 loses an answer that comes before it has sent the body (a
    /// refusal may, RFC 9113 section 8.1).
    pub fn curl(&self, path: &str, arguments: &[&str]) -> (u16, String) {
        let mut command = Command::new("curl");
        command
            .args(["-s", "--http1.1", "--path-as-is", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.pki().join("ca.crt"))
            .args(arguments)
            .arg(format!("https://{}{path}", self.address));
        let output = outside(&mut command);
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, code) = text.rsplit_once('\n').unwrap();
        (code.parse().unwrap(), body.to_owned())
    }

    /// The same as the administrator. Unlike `kube`, `curl` does not try again on a 504.
    pub fn admin_curl(&self, path: &str, arguments: &[&str]) -> (u16, Value) {
        let (code, body) = self.admin_text(path, arguments);
        (code, serde_json::from_str(&body).unwrap_or(Value::Null))
    }

    /// The same with a body that is no object.
    pub fn admin_text(&self, path: &str, arguments: &[&str]) -> (u16, String) {
        let file = |name: &str| self.pki().join(name).display().to_string();
        let (certificate, key) =
            (file("client-kubernetes-admin.crt"), file("client-kubernetes-admin.key"));
        let arguments = [&["--cert", &certificate, "--key", &key], arguments].concat();
        self.curl(path, &arguments)
    }

    /// Ends the server and waits until it has ended.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.task.take().unwrap().await.unwrap();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Client {
    /// Status code and body (null when it is no JSON).
    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        self.send(
            method,
            path,
            content_type,
            body.map(|body| body.to_string().into_bytes()).unwrap_or_default(),
        )
        .await
    }

    pub async fn send(
        &self,
        method: &str,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> (u16, Value) {
        let request =
            Request::builder().method(method).uri(path).header("content-type", content_type);
        let response = self.0.send(request.body(Body::from(body)).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let text = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&text).unwrap_or(Value::Null))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.call("GET", path, None).await
    }

    /// Creates the service account that pods have, as a controller does.
    pub async fn ensure_default_account(&self, namespace: &str) {
        let account = json!({"metadata": {"name": "default"}});
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        let (code, status) = self.call("POST", &path, Some(account)).await;
        assert!(code == 201 || code == 409, "{status}");
    }

    /// Creates an object, which must succeed.
    pub async fn create(&self, path: &str, body: Value) -> Value {
        let (code, created) = self.call("POST", path, Some(body)).await;
        assert_eq!(code, 201, "{created}");
        created
    }

    /// The text of an answer.
    pub async fn text(&self, path: &str) -> (u16, String) {
        let response = self.0.send(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let code = response.status().as_u16();
        let text = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&text).into_owned())
    }

    /// Opens a watch, which must be granted.
    pub async fn watch(&self, path: &str) -> Watch {
        let response = self.0.send(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status().as_u16(), 200);
        Watch { body: Box::pin(response.into_body().into_data_stream()), buffer: Vec::new() }
    }
}

/// The lines of a watch.
pub struct Watch {
    body: std::pin::Pin<Box<dyn futures::Stream<Item = Result<bytes::Bytes, kube::Error>> + Send>>,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next event; `None` when the watch has ended.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let chunk = tokio::time::timeout(Duration::from_secs(20), self.body.next())
                .await
                .expect("no event came");
            self.buffer.extend_from_slice(&chunk?.ok()?);
        }
    }

    /// `ADDED web`, for the next event.
    pub async fn line(&mut self) -> String {
        let event = self.next().await.expect("the watch ended");
        format!(
            "{} {}",
            event["type"].as_str().unwrap(),
            event["object"]["metadata"]["name"].as_str().unwrap_or_default()
        )
    }
}

pub fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}

pub fn pod(name: &str, node: &str) -> Value {
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
    });
    if !node.is_empty() {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

pub fn revision(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

/// Runs a program that asks the server of this process. The thread that waits for it leaves its tasks to
/// others: the server's may be among them.
pub fn outside(command: &mut Command) -> Output {
    tokio::task::block_in_place(|| command.output()).unwrap()
}

/// Waits until something is so.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut test: impl FnMut() -> F) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !test().await {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The real binary.
pub struct Daemon {
    pub dir: TempDir,
    pub child: Child,
}

impl Daemon {
    pub fn start(flags: &[&str]) -> Daemon {
        Daemon::start_in(&[], flags)
    }

    /// The same with these variables in its environment.
    pub fn start_in(environment: &[(&str, &str)], flags: &[&str]) -> Daemon {
        let dir = tempfile::tempdir().unwrap();
        Daemon { child: spawn(dir.path(), environment, flags), dir }.ready()
    }

    /// Starts it again on the same data.
    pub fn restart(mut self, flags: &[&str]) -> Daemon {
        self.terminate();
        std::fs::remove_file(self.kubeconfig()).unwrap();
        self.child = spawn(self.dir.path(), &[], flags);
        self.ready()
    }

    fn ready(mut self) -> Daemon {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.kubeconfig().exists() {
            assert!(self.child.try_wait().unwrap().is_none(), "ended: {}", self.log());
            assert!(Instant::now() < deadline, "did not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        self
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("pki/admin.conf")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub async fn client(&self) -> Client {
        let client = client(&self.kubeconfig()).await;
        client.ensure_default_account("default").await;
        client
    }

    /// SIGTERM, and then the exit code.
    pub fn terminate(&mut self) -> Option<i32> {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        self.child.wait().unwrap().code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(dir: &Path, environment: &[(&str, &str)], flags: &[&str]) -> Child {
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore-apiserver"));
    command.args(["--bind-address=127.0.0.1", "--secure-port=0", "--node-name=n1"]);
    command.arg(format!("--cert-dir={}", dir.join("pki").display()));
    if !flags.iter().any(|flag| flag.starts_with("--etcd-servers")) {
        command.arg(format!("--data-dir={}", dir.join("data").display()));
    }
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        command.env_remove(name);
    }
    command.envs(environment.iter().copied());
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}
