//! Calls to a node's port 10250, for what only the node has: the output of its containers, and ways
//! into them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use longshore_tls::roots;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::pki::{self, Identity};
use crate::server::{load, provider};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_PORT: u16 = 10250;

/// Why a node could not be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("node {0:?} has no address")]
    NoAddress(String),
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("no answer from {0} in time")]
    Timeout(String),
    #[error("request to {address}: {source}")]
    Http { address: String, source: hyper::Error },
    #[error("the path {0:?} cannot be sent: {1}")]
    Path(String, hyper::http::Error),
}

/// A client for the nodes, known to them by its certificate.
pub(crate) struct KubeletClient {
    verifying: TlsConnector,
    trusting: TlsConnector,
}

/// Where a node listens.
pub(crate) struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// Reads it from a Node's status.
    pub(crate) fn of(node: &Value) -> Result<Endpoint, Error> {
        let addresses = || node["status"]["addresses"].as_array().into_iter().flatten();
        let host = ["InternalIP", "Hostname", "ExternalIP"]
            .iter()
            .find_map(|kind| {
                addresses().find(|address| address["type"] == *kind)?["address"].as_str()
            })
            .ok_or_else(|| Error::NoAddress(crate::object::name(node).to_owned()))?;
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        Ok(Endpoint { host: host.to_owned(), port: port.unwrap_or(DEFAULT_PORT) })
    }

    /// Host and port.
    pub(crate) fn authority(&self) -> String {
        match self.host.parse() {
            Ok(IpAddr::V6(host)) => format!("[{host}]:{}", self.port),
            _ => format!("{}:{}", self.host, self.port),
        }
    }
}

impl KubeletClient {
    /// Shows `identity` to the nodes. Without the CA of their serving certificates these are taken as they are.
    pub(crate) fn new(identity: &Identity, ca: Option<&Path>) -> pki::Result<KubeletClient> {
        let trusting = connector(identity, Arc::new(TakeAny(provider())))?;
        let verifying = match ca {
            None => trusting.clone(),
            Some(ca) => {
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots(ca)?.into(), provider());
                connector(identity, verifier.build().map_err(|error| invalid(ca, error))?)?
            }
        };
        Ok(KubeletClient { verifying, trusting })
    }

    /// `GET` a path with its query. Redirects are handed back, not followed.
    pub(crate) async fn get(
        &self,
        endpoint: &Endpoint,
        path: &str,
        skip_verification: bool,
    ) -> Result<Response<Incoming>, Error> {
        let address = endpoint.authority();
        let late = |_| Error::Timeout(address.clone());
        let stream = self.connect(endpoint, skip_verification).await?;
        let http = |source| Error::Http { address: address.clone(), source };
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
        // Ends when the answer's body has been read or dropped.
        tokio::spawn(connection);
        let request = Request::get(path)
            .header(header::HOST, &address)
            .body(Empty::<Bytes>::new())
            .map_err(|error| Error::Path(path.to_owned(), error))?;
        timeout(ANSWER_TIMEOUT, sender.send_request(request)).await.map_err(late)?.map_err(http)
    }

    /// A connection to a node's port.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        skip_verification: bool,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let address = endpoint.authority();
        let failed = |source| Error::Connect { address: address.clone(), source };
        let name = ServerName::try_from(endpoint.host.clone())
            .map_err(|error| failed(std::io::Error::other(error)))?;
        let connector = if skip_verification { &self.trusting } else { &self.verifying };
        let connecting = async {
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            connector.connect(name, stream).await
        };
        let late = |_| Error::Timeout(address.clone());
        timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?.map_err(failed)
    }
}

fn invalid(path: &Path, error: impl std::fmt::Display) -> pki::Error {
    pki::Error::Invalid { path: PathBuf::from(path), reason: error.to_string() }
}

fn connector(
    identity: &Identity,
    verifier: Arc<dyn ServerCertVerifier>,
) -> pki::Result<TlsConnector> {
    let (chain, key) = load(identity)?;
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(&identity.certificate, error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(chain, key)
        .map_err(|error| invalid(&identity.certificate, error))?;
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Nodes without a certificate authority make their own serving certificates, which nobody can verify.
#[derive(Debug)]
struct TakeAny(Arc<CryptoProvider>);

impl ServerCertVerifier for TakeAny {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
