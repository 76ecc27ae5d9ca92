//! A node with a server, and its clients.

use super::*;

/// A node with one pod, whose container `c` logs to a file.
pub(super) struct OnePod {
    pub(super) pod: Mutex<Arc<Pod>>,
    pub(super) log: PathBuf,
    pub(super) running: watch::Sender<bool>,
    pub(super) healthy: AtomicBool,
    pub(super) metrics: NodeMetrics,
}

impl Host for OnePod {
    fn pods(&self) -> Vec<Arc<Pod>> {
        vec![Arc::clone(&self.pod.lock())]
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pod = Arc::clone(&self.pod.lock());
        (namespace == "ns" && name == "p").then_some(pod)
    }

    fn observed(&self, _: &str) -> Option<Arc<ObservedPod>> {
        None
    }

    fn observed_pods(&self) -> Vec<Arc<ObservedPod>> {
        Vec::new()
    }

    fn log_path(&self, id: &str) -> Option<PathBuf> {
        assert_eq!(id, "abc");
        Some(self.log.clone())
    }

    fn until_ended(&self, _: &str, id: &str) -> BoxFuture<'static, ()> {
        assert_eq!(id, "abc");
        let mut running = self.running.subscribe();
        Box::pin(async move { drop(running.wait_for(|running| !*running).await) })
    }

    fn metrics(&self) -> &NodeMetrics {
        &self.metrics
    }

    fn healthy(&self) -> Result<(), String> {
        if self.healthy.load(Ordering::SeqCst) { Ok(()) } else { Err("stuck".to_owned()) }
    }
}

/// An apiserver that authenticates one token and authorizes some users.
#[derive(Default)]
pub(super) struct Reviews {
    pub(super) allowed: HashSet<(String, String)>,
    pub(super) asked: AtomicUsize,
    pub(super) failing: AtomicBool,
    pub(super) hangs: AtomicBool,
}

async fn review(Extract(reviews): Extract<Arc<Reviews>>, body: Bytes) -> Response {
    reviews.asked.fetch_add(1, Ordering::SeqCst);
    if reviews.hangs.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
    if reviews.failing.load(Ordering::SeqCst) {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    review["status"] = if review["kind"] == "TokenReview" {
        match review["spec"]["token"].as_str() {
            Some("good") => {
                json!({"authenticated": true, "user": {"username": "robot", "groups": ["robots"]}})
            }
            _ => json!({"authenticated": false}),
        }
    } else {
        let attributes = &review["spec"]["resourceAttributes"];
        assert_eq!((&attributes["resource"], &attributes["name"]), (&json!("nodes"), &json!("n1")));
        let user = review["spec"]["user"].as_str().unwrap().to_owned();
        let permission = format!(
            "{} {}",
            attributes["verb"].as_str().unwrap(),
            attributes["subresource"].as_str().unwrap()
        );
        json!({"allowed": reviews.allowed.contains(&(user, permission))})
    };
    review.to_string().into_response()
}

pub(super) fn no_runtime() -> Runtime {
    Runtime::new(longshore_cri::Options::new("unix:///nonexistent/runtime.sock")).unwrap()
}

pub(crate) struct Pki {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Pki {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test CA");
        let key = KeyPair::generate().unwrap();
        fs::write(directory.path().join("ca.crt"), params.self_signed(&key).unwrap().pem())
            .unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    /// A certificate with its key, as files of that name.
    pub(crate) fn issue(&self, file: &str, name: &str, usage: ExtendedUse) {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, "team");
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.path(&format!("{file}.crt")), certificate.pem()).unwrap();
        fs::write(self.path(&format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

pub(crate) use rcgen::ExtendedKeyUsagePurpose as ExtendedUse;

pub(super) struct Setup {
    pub(super) pki: Pki,
    pub(super) host: Arc<OnePod>,
    pub(super) reviews: Arc<Reviews>,
    pub(super) addresses: Vec<SocketAddr>,
}

pub(crate) fn config(pki: &Pki, more: &[&str]) -> Box<Config> {
    let base = [
        "kubelet",
        "--fail-cgroupv1=false",
        "--hostname-override=n1",
        "--address=127.0.0.1",
        "--port=1",
        "--read-only-port=0",
        "--healthz-port=0",
        &format!("--cert-dir={}", pki.path("own").display()),
        &format!("--client-ca-file={}", pki.path("ca.crt").display()),
    ];
    match from_args(base.iter().chain(more).map(|arg| (*arg).to_owned())) {
        Ok(Command::Kubelet(config)) => config,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn setup(more: &[&str], allowed: &[(&str, &str)]) -> Setup {
    let pki = Pki::new();
    pki.issue("admin", "admin", ExtendedUse::ClientAuth);
    let mut config = config(&pki, more);
    // any free ports
    config.kubelet.port = 0;
    let reviews = Arc::new(Reviews {
        allowed: allowed
            .iter()
            .map(|(user, permission)| ((*user).to_owned(), (*permission).to_owned()))
            .collect(),
        ..Reviews::default()
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let apiserver = listener.local_addr().unwrap();
    let router = Router::new().fallback(review).with_state(Arc::clone(&reviews));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut client = kube::Config::new(format!("http://{apiserver}").parse().unwrap());
    client.default_retry = false;
    let client = Client::try_from(client).unwrap();
    let pod = json!({
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "c"}, {"name": "slow"}]},
        "status": {"containerStatuses": [{"name": "c", "state": {"running": {}}, "containerID": "containerd://abc",
                    "image": "", "imageID": "", "ready": true, "restartCount": 0}]},
    });
    let host = Arc::new(OnePod {
        pod: Mutex::new(Arc::new(serde_json::from_value(pod).unwrap())),
        log: pki.path("0.log"),
        running: watch::Sender::new(true),
        healthy: AtomicBool::new(true),
        metrics: NodeMetrics::new("node"),
    });
    fs::write(&host.log, "2024-01-01T00:00:00Z stdout F one\n2024-01-01T00:00:01Z stderr F two\n")
        .unwrap();
    let server = Server::bind(
        &config,
        &["127.0.0.1".parse().unwrap()],
        Some(&client),
        host.clone(),
        no_runtime(),
    )
    .await
    .unwrap();
    let addresses = server.addresses();
    tokio::spawn(server.run());
    Setup { pki, host, reviews, addresses }
}

impl Setup {
    pub(super) async fn connect(&self, certificate: Option<&str>) -> TlsStream<TcpStream> {
        // the self-signed certificate is the root
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_file(self.pki.path("own/kubelet.crt")).unwrap())
            .unwrap();
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots);
        let config = match certificate {
            Some(name) => {
                let chain =
                    CertificateDer::from_pem_file(self.pki.path(&format!("{name}.crt"))).unwrap();
                let key =
                    PrivateKeyDer::from_pem_file(self.pki.path(&format!("{name}.key"))).unwrap();
                builder.with_client_auth_cert(vec![chain], key).unwrap()
            }
            None => builder.with_no_client_auth(),
        };
        let socket = TcpStream::connect(self.addresses[0]).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
    }

    /// The status and body of the response to a GET.
    pub(super) async fn get(
        &self,
        certificate: Option<&str>,
        token: Option<&str>,
        path: &str,
    ) -> (u16, String) {
        exchange(self.connect(certificate).await, token, "GET", path).await
    }

    pub(super) fn log(&self) -> fs::File {
        fs::OpenOptions::new().append(true).open(&self.host.log).unwrap()
    }
}

pub(super) async fn exchange<S>(
    mut stream: S,
    token: Option<&str>,
    method: &str,
    path: &str,
) -> (u16, String)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    send(&mut stream, token, method, path).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or("0").parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if chunked { unchunk(body) } else { body.to_owned() })
}

pub(super) async fn send<S: tokio::io::AsyncWrite + Unpin>(
    stream: &mut S,
    token: Option<&str>,
    method: &str,
    path: &str,
) {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

pub(super) fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        text.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    text
}
