//! A real node's ports, and clients of them that do as they like.

use std::fs;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use longshore_testkit::wait_until;
use longshore_tls::NoVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::common::{Cluster, TIMEOUT};

pub(super) struct Target {
    pub(super) cluster: Cluster,
    pub(super) node: Ipv4Addr,
    pub(super) pid: u32,
}

impl Target {
    pub(super) async fn start() -> Self {
        let mut cluster = Cluster::start_with(json!({"readOnlyPort": 10255})).await;
        let (node, pid) = (cluster.host.node_ip(), cluster.node.daemon().pid());
        wait_until(TIMEOUT, "the node listens", async || {
            TcpStream::connect((node, 10250)).await.map(drop).map_err(|error| error.to_string())
        })
        .await
        .unwrap();
        Self { cluster, node, pid }
    }

    /// A TLS client; with `known`, one that shows the administrator's certificate.
    pub(super) fn tls(&self, known: bool, protocol: &str) -> TlsConnector {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            // The node makes its own certificate, which is not what these tests are about.
            .with_custom_certificate_verifier(Arc::new(NoVerifier(provider)));
        let file = |name: &str| self.cluster.apiserver.client_ca().with_file_name(name);
        let mut config = match known {
            true => builder
                .with_client_auth_cert(
                    vec![
                        CertificateDer::from_pem_file(file("client-kubernetes-admin.crt")).unwrap(),
                    ],
                    PrivateKeyDer::from_pem_file(file("client-kubernetes-admin.key")).unwrap(),
                )
                .unwrap(),
            false => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    pub(super) async fn connect(&self, tls: &TlsConnector) -> TlsStream<TcpStream> {
        let socket = TcpStream::connect((self.node, 10250)).await.unwrap();
        tls.connect(ServerName::try_from("node").unwrap(), socket).await.unwrap()
    }

    /// What comes back for these bytes until the connection ends, which it must do soon.
    pub(super) async fn send(&self, known: bool, bytes: &[u8]) -> String {
        let mut stream = self.connect(&self.tls(known, "http/1.1")).await;
        let _ = stream.write_all(bytes).await;
        let _ = stream.flush().await;
        let mut received = Vec::new();
        let reading = stream.read_to_end(&mut received);
        let _ = timeout(Duration::from_secs(30), reading).await.expect("the connection stays open");
        String::from_utf8_lossy(&received).into_owned()
    }

    pub(super) async fn get(&self, known: bool, path: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n");
        self.send(known, request.as_bytes()).await
    }

    /// Who is authorized is answered.
    pub(super) async fn serves(&self) {
        let answer = self.get(true, "/healthz").await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }

    pub(super) fn memory_kib(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub(super) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.pid)).unwrap().count()
    }

    pub(super) async fn until_few_files(&self, most: usize) {
        wait_until(TIMEOUT, "connections are closed", async || match self.open_files() {
            few if few <= most => Ok(()),
            many => Err(format!("{many} open files")),
        })
        .await
        .unwrap();
    }
}
