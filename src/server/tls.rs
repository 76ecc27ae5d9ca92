//! The certificate of the server, and who holds the certificate that a client shows.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use tracing::{info, warn};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::auth::User;
use crate::config::Config;

/// How often the files are looked at for renewal.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

static TLS13_ALONE: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Why the port cannot be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file holds no usable certificate or key.
    #[error("{}: {reason}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Settings that no connection could satisfy.
    #[error("{0}")]
    Settings(String),
}

/// What the port needs for its connections; renewed files are taken up.
pub(super) struct Tls {
    sources: Sources,
    current: Mutex<Current>,
}

/// Where everything comes from.
struct Sources {
    certificate: PathBuf,
    key: PathBuf,
    client_ca: Option<PathBuf>,
    provider: Arc<CryptoProvider>,
    versions: &'static [&'static rustls::SupportedProtocolVersion],
}

#[derive(Clone)]
struct Built {
    config: Arc<ServerConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

struct Current {
    built: Built,
    changed: Vec<Option<SystemTime>>,
    looked: Instant,
}

impl Tls {
    /// Reads the files that `config` names; without any, makes a certificate of the node's own.
    pub(super) fn new(config: &Config, ips: &[IpAddr]) -> Result<Self, TlsError> {
        let settings = &config.kubelet;
        let (certificate, key) = match settings.tls_cert_file.as_str() {
            "" => own_certificate(&config.cert_dir, &config.node_name, ips)?,
            file => (PathBuf::from(file), PathBuf::from(&settings.tls_private_key_file)),
        };
        let ca = &settings.authentication.x509.client_ca_file;
        let sources = Sources {
            certificate,
            key,
            client_ca: (!ca.is_empty()).then(|| PathBuf::from(ca)),
            provider: Arc::new(provider(&settings.tls_cipher_suites)?),
            versions: match settings.tls_min_version.as_str() {
                "VersionTLS13" => TLS13_ALONE,
                // nothing older than 1.2 is spoken, whatever is allowed
                _ => rustls::ALL_VERSIONS,
            },
        };
        let changed = sources.changed();
        let current = Current { built: sources.build()?, changed, looked: Instant::now() };
        Ok(Self { sources, current: Mutex::new(current) })
    }

    /// For the handshake of a new connection.
    pub(super) fn server_config(&self) -> Arc<ServerConfig> {
        self.current().config
    }

    /// Who the certificate was given to by the client CA; anybody else's is nobody's.
    pub(super) fn identify(&self, chain: &[CertificateDer<'_>]) -> Option<User> {
        let (end, intermediates) = chain.split_first()?;
        let verified =
            self.current().clients?.verify_client_cert(end, intermediates, UnixTime::now());
        verified.ok().and_then(|_| user(end))
    }

    fn current(&self) -> Built {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= RELOAD_INTERVAL {
            current.looked = Instant::now();
            let changed = self.sources.changed();
            if changed != current.changed {
                match self.sources.build() {
                    Ok(built) => {
                        info!("certificates of the server reloaded");
                        current.built = built;
                        current.changed = changed;
                    }
                    Err(error) => warn!("the old certificates stay in use: {error}"),
                }
            }
        }
        current.built.clone()
    }
}

impl Sources {
    fn changed(&self) -> Vec<Option<SystemTime>> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        let time = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
        files.into_iter().map(|path| path.and_then(time)).collect()
    }

    fn build(&self) -> Result<Built, TlsError> {
        let chain = certificates(&self.certificate)?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| content(&self.key, error))?;
        let clients = self.client_ca.as_deref().map(|ca| self.clients(ca)).transpose()?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(self.versions)
            .map_err(|error| {
                TlsError::Settings(format!("tlsCipherSuites and tlsMinVersion: {error}"))
            })?;
        let builder = match &clients {
            Some(clients) => {
                builder.with_client_cert_verifier(Arc::new(AskOnly(Arc::clone(clients))))
            }
            None => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| content(&self.certificate, error))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Built { config: Arc::new(config), clients })
    }

    fn clients(&self, ca: &Path) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| content(ca, error))?;
        }
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| content(ca, error))
    }
}

fn content(path: &Path, reason: impl ToString) -> TlsError {
    TlsError::Content { path: path.to_owned(), reason: reason.to_string() }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| content(path, error))?;
    if found.is_empty() { Err(content(path, "there is no certificate in it")) } else { Ok(found) }
}

/// The cipher suites of TLS 1.2 that are allowed by name; those of TLS 1.3 are all good.
fn provider(names: &[String]) -> Result<CryptoProvider, TlsError> {
    let mut provider = ring::default_provider();
    if names.is_empty() {
        return Ok(provider);
    }
    let allowed = |suite: &rustls::SupportedCipherSuite| {
        let name = format!("{:?}", suite.suite());
        // Go knows two of them by shorter names too
        suite.tls13().is_some()
            || names.iter().any(|wanted| {
                name == *wanted || name.strip_suffix("_SHA256") == Some(wanted.as_str())
            })
    };
    provider.cipher_suites.retain(allowed);
    if provider.cipher_suites.iter().all(|suite| suite.tls13().is_some()) {
        warn!(?names, "tlsCipherSuites: none of these is spoken here, which leaves TLS 1.3 alone");
    }
    Ok(provider)
}

/// Makes sure that the client has the key to its certificate, and leaves the certificate's worth
/// for later: one that is of no worth must not keep its holder from showing a token instead.
#[derive(Debug)]
struct AskOnly(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for AskOnly {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The common name is the user, each organization a group.
fn user(certificate: &CertificateDer<'_>) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().find_map(|name| name.as_str().ok())?.to_owned();
    let groups =
        subject.iter_organization().filter_map(|group| group.as_str().ok().map(str::to_owned));
    (!name.is_empty()).then(|| User::authenticated(name, groups.collect()))
}

/// The pair in the certificate directory, made when it is not there.
fn own_certificate(
    directory: &Path,
    node: &str,
    ips: &[IpAddr],
) -> Result<(PathBuf, PathBuf), TlsError> {
    let (certificate, key) = (directory.join("kubelet.crt"), directory.join("kubelet.key"));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    let made = self_signed(node, ips).map_err(|error| content(&certificate, error))?;
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::File { path, source }
    };
    std::fs::create_dir_all(directory).map_err(file(directory))?;
    write_private(&key, &made.1).map_err(file(&key))?;
    std::fs::write(&certificate, made.0).map_err(file(&certificate))?;
    info!(certificate = %certificate.display(), "made a certificate for the server");
    Ok((certificate, key))
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?
        .write_all(text.as_bytes())
}

/// A certificate of one year for the node's name and addresses, and its key.
fn self_signed(node: &str, ips: &[IpAddr]) -> Result<(String, String), rcgen::Error> {
    let names: Vec<String> =
        [node.to_owned()].into_iter().chain(ips.iter().map(ToString::to_string)).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, node);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + since_1970;
    // an hour back, for clocks that are behind
    params.not_before = now - Duration::from_secs(3600);
    params.not_after = now + Duration::from_secs(365 * 24 * 3600);
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}
