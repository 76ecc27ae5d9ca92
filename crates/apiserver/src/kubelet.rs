//! Requests to the kubelet's port 10250 (logs, exec, attach, port-forward, proxy), and connections to
//! ports of pods.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::{Body, Incoming};
use hyper::header::HeaderValue;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use longshore_tls::{NoVerifier, roots};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::pki::{self, Identity, load, provider};
use crate::schema::value::text;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const DEFAULT_PORT: u16 = 10250;

/// Why a request to a node failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// With the addresses that the node has, of types that are not wanted.
    #[error("no preferred addresses found; known addresses: [{0}]")]
    NoAddress(String),
    #[error("connect to {address}: {source}")]
    Connect { address: String, source: std::io::Error },
    #[error("timed out waiting for a response from {0}")]
    Timeout(String),
    #[error("request to {address}: {source}")]
    Http { address: String, source: hyper::Error },
    #[error("the address {0} is not allowed for a node")]
    Forbidden(String),
    #[error("the path {0:?} cannot be sent: {1}")]
    Path(String, hyper::http::Error),
}

/// A client for the nodes, known to them by its certificate.
pub(crate) struct KubeletClient {
    verifying: TlsConnector,
    trusting: TlsConnector,
    /// For pods, without the client certificate for kubelets.
    unknown: TlsConnector,
    own: SocketAddr,
    /// Types of addresses of nodes, the best first.
    address_types: Vec<String>,
}

/// The endpoint of a node or a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// Reads it from a Node's status: the first address of the first type that it has.
    pub(crate) fn of(node: &Value, types: &[String]) -> Result<Endpoint, Error> {
        let addresses = || node["status"]["addresses"].as_array().into_iter().flatten();
        let host = types
            .iter()
            .find_map(|kind| {
                addresses().find(|address| address["type"] == kind.as_str())?["address"].as_str()
            })
            .ok_or_else(|| {
                let shown = |address: &Value| {
                    format!("{{{} {}}}", text(&address["type"]), text(&address["address"]))
                };
                let known: Vec<String> = addresses().map(shown).collect();
                Error::NoAddress(known.join(" "))
            })?;
        let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64();
        let port = port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
        Ok(Endpoint { host: host.to_owned(), port: port.unwrap_or(DEFAULT_PORT) })
    }

    /// A port of a pod.
    pub(crate) fn of_pod(address: IpAddr, port: u16) -> Endpoint {
        Endpoint { host: address.to_string(), port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
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
    /// `identity` is the client certificate. Serving certificates of nodes must be of one of these CAs;
    /// without any they are not verified. `own` is this server's address.
    pub(crate) fn new(
        identity: &Identity,
        authorities: &[PathBuf],
        own: SocketAddr,
        address_types: Vec<String>,
    ) -> pki::Result<KubeletClient> {
        // Nodes without a certificate authority have self-signed serving certificates, which cannot be
        // verified.
        let trusting = connector(Some(identity), Arc::new(NoVerifier(provider())))?;
        let unknown = connector(None, Arc::new(NoVerifier(provider())))?;
        let verifying = match authorities {
            [] => trusting.clone(),
            [first, ..] => {
                let mut trusted = RootCertStore::empty();
                for path in authorities {
                    trusted.extend(roots(path)?.roots);
                }
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(trusted.into(), provider());
                connector(Some(identity), verifier.build().map_err(|error| invalid(first, error))?)?
            }
        };
        Ok(KubeletClient { verifying, trusting, unknown, own, address_types })
    }

    /// The endpoint of a node.
    pub(crate) fn endpoint(&self, node: &Value) -> Result<Endpoint, Error> {
        Endpoint::of(node, &self.address_types)
    }

    /// `GET` a path with its query. Redirects are handed back, not followed.
    pub(crate) async fn get(
        &self,
        endpoint: &Endpoint,
        path: &str,
        skip_verification: bool,
    ) -> Result<Response<Incoming>, Error> {
        let request = Request::get(path)
            .body(Empty::<Bytes>::new())
            .map_err(|error| Error::Path(path.to_owned(), error))?;
        self.send(endpoint, request, skip_verification).await
    }

    /// `GET` a path of a component on this machine, whose certificate is its own.
    pub(crate) async fn get_local(
        &self,
        port: u16,
        path: &str,
    ) -> Result<Response<Incoming>, Error> {
        let endpoint = Endpoint { host: Ipv4Addr::LOCALHOST.to_string(), port };
        let request = Request::get(path)
            .body(Empty::<Bytes>::new())
            .map_err(|error| Error::Path(path.to_owned(), error))?;
        let failed = |source| Error::Connect { address: endpoint.authority(), source };
        let stream = in_time(&endpoint, async {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.map_err(failed)?;
            secure(&self.unknown, &endpoint, stream).await
        })
        .await?;
        exchange(stream, &endpoint.authority(), request).await
    }

    /// Sends a request, of whose URI only path and query count, on a connection of its own.
    /// Redirects are handed back, not followed.
    pub(crate) async fn send<B>(
        &self,
        endpoint: &Endpoint,
        request: Request<B>,
        skip_verification: bool,
    ) -> Result<Response<Incoming>, Error>
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.connect(endpoint, skip_verification).await?;
        exchange(stream, &endpoint.authority(), request).await
    }

    /// A connection to a node's port.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        skip_verification: bool,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let connector = if skip_verification { &self.trusting } else { &self.verifying };
        in_time(endpoint, async {
            let stream = self.dial(endpoint).await?;
            secure(connector, endpoint, stream).await
        })
        .await
    }

    /// A connection to a pod's port, without a client certificate.
    pub(crate) async fn connect_to_pod(
        &self,
        endpoint: &Endpoint,
        is_tls: bool,
    ) -> Result<Either<TcpStream, TlsStream<TcpStream>>, Error> {
        in_time(endpoint, async {
            let stream = self.dial(endpoint).await?;
            match is_tls {
                true => secure(&self.unknown, endpoint, stream).await.map(Either::Right),
                false => Ok(Either::Left(stream)),
            }
        })
        .await
    }

    async fn dial(&self, endpoint: &Endpoint) -> Result<TcpStream, Error> {
        let failed = |source| Error::Connect { address: endpoint.authority(), source };
        let target = self.resolve(endpoint).await?;
        let stream = TcpStream::connect(target).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        Ok(stream)
    }

    /// The address to dial. It is looked up once, so that what was checked is what is dialled.
    async fn resolve(&self, endpoint: &Endpoint) -> Result<SocketAddr, Error> {
        let address = endpoint.authority();
        let found = lookup_host(&address).await;
        let mut found =
            found.map_err(|source| Error::Connect { address: address.clone(), source })?;
        let target = found.find(|target| may_be_a_node(*target, self.own));
        target.ok_or_else(|| Error::Forbidden(address.clone()))
    }
}

async fn in_time<T>(
    endpoint: &Endpoint,
    connecting: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let late = |_| Error::Timeout(endpoint.authority());
    timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?
}

async fn secure(
    connector: &TlsConnector,
    endpoint: &Endpoint,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, Error> {
    let failed = |source| Error::Connect { address: endpoint.authority(), source };
    let name = ServerName::try_from(endpoint.host.clone())
        .map_err(|error| failed(std::io::Error::other(error)))?;
    connector.connect(name, stream).await.map_err(failed)
}

/// Sends a request, of whose URI only path and query count, on a connection that is its own.
pub(crate) async fn exchange<S, B>(
    stream: S,
    address: &str,
    mut request: Request<B>,
) -> Result<Response<Incoming>, Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let late = |_| Error::Timeout(address.to_owned());
    let http = |source| Error::Http { address: address.to_owned(), source };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(http)?;
    // Ends when the answer's body has been read or dropped.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    let host = HeaderValue::from_str(address)
        .map_err(|error| Error::Path(address.to_owned(), error.into()))?;
    request.headers_mut().insert(header::HOST, host);
    timeout(RESPONSE_TIMEOUT, sender.send_request(request)).await.map_err(late)?.map_err(http)
}

/// Whether that may be a node's port. Nodes write their addresses themselves: one that names this
/// server, or its machine's own loopback, would have it talk to itself as the nodes' master. In a
/// cluster that is advertised on the loopback all nodes are there.
fn may_be_a_node(target: SocketAddr, own: SocketAddr) -> bool {
    let ip = target.ip().to_canonical();
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let is_strange = is_link_local || ip.is_unspecified() || ip.is_multicast();
    let is_own = ip == own.ip().to_canonical() && target.port() == own.port();
    !is_strange && !is_own && (!ip.is_loopback() || own.ip().is_loopback())
}

fn invalid(path: &Path, error: impl std::fmt::Display) -> pki::Error {
    pki::Error::Invalid { path: PathBuf::from(path), reason: error.to_string() }
}

fn connector(
    identity: Option<&Identity>,
    verifier: Arc<dyn ServerCertVerifier>,
) -> pki::Result<TlsConnector> {
    let path = identity.map_or(Path::new(""), |identity| &identity.certificate);
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| invalid(path, error))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let (chain, key) = load(identity)?;
            config.with_client_auth_cert(chain, key).map_err(|error| invalid(path, error))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::ServerConfig;
    use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::pki::Pki;

    /// A CA, and its certificate in a file.
    fn authority(file: &Path) -> Issuer<'static, KeyPair> {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        std::fs::write(file, params.self_signed(&key).unwrap().pem()).unwrap();
        Issuer::new(params, key)
    }

    /// A TLS port with a certificate for that address, which accepts connections.
    async fn node(ca: &Issuer<'static, KeyPair>, address: &str) -> Endpoint {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![address.to_owned()]).unwrap();
        let chain = vec![params.signed_by(&key, ca).unwrap().der().clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                let _ = acceptor.accept(stream).await;
            }
        });
        Endpoint { host: "127.0.0.1".to_owned(), port }
    }

    /// Finding 10: requests for a node are not sent to another server.
    #[tokio::test]
    async fn kubelet_client_verifies_serving_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Pki::open(dir.path()).unwrap().client("kubelet", "k", None).unwrap();
        let file = |name: &str| dir.path().join(name);
        let (ours, other) = (authority(&file("ours.crt")), authority(&file("other.crt")));
        let own = "127.0.0.1:1".parse().unwrap();
        let client =
            |files: &[PathBuf]| KubeletClient::new(&identity, files, own, Vec::new()).unwrap();
        let verifying = client(&[file("ours.crt")]);
        let good = node(&ours, "127.0.0.1").await;
        assert!(verifying.connect(&good, false).await.is_ok());
        for bad in [node(&other, "127.0.0.1").await, node(&ours, "127.0.0.2").await] {
            let refused = verifying.connect(&bad, false).await.err().unwrap().to_string();
            assert!(refused.contains("certificate"), "{refused}");
            // as the parameter insecureSkipTLSVerifyBackend requests
            assert!(verifying.connect(&bad, true).await.is_ok());
            assert!(client(&[]).connect(&bad, false).await.is_ok(), "no CA is known");
        }
        let both = client(&[file("ours.crt"), file("other.crt")]);
        assert!(both.connect(&node(&other, "127.0.0.1").await, false).await.is_ok());
    }

    /// CVE-2022-3294, CVE-2020-8562.
    #[test]
    fn kubelet_client_dials_only_nodes() {
        let real = "10.0.0.1:6443";
        for (target, own, expected) in [
            ("10.0.0.2:10250", real, true),
            ("10.0.0.1:10250", real, true),
            ("[2001:db8::1]:10250", real, true),
            ("10.0.0.1:6443", real, false),
            ("[::ffff:10.0.0.1]:6443", real, false),
            ("127.0.0.1:10250", real, false),
            ("[::1]:10250", real, false),
            ("[::ffff:127.0.0.1]:10250", real, false),
            ("0.0.0.0:10250", real, false),
            ("[::]:10250", real, false),
            ("169.254.169.254:80", real, false),
            ("[fe80::1]:10250", real, false),
            ("224.0.0.1:10250", real, false),
            ("255.255.255.255:10250", real, false),
            ("127.0.0.1:10250", "127.0.0.1:6443", true),
            ("127.0.0.1:6443", "127.0.0.1:6443", false),
        ] {
            let answer = may_be_a_node(target.parse().unwrap(), own.parse().unwrap());
            assert_eq!(answer, expected, "{target} of {own}");
        }
    }
}
