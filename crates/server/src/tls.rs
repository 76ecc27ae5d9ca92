//! TLS: the serving certificate, and verification of client certificates.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use longshore_client::certificates;
use longshore_config::Config;
use longshore_tls::{ClientCa, certificates, private_key};
use parking_lot::Mutex;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tracing::{info, warn};

/// How often the files are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

static TLS13_ALONE: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file holds no usable certificate or key.
    #[error(transparent)]
    Content(#[from] longshore_tls::Error),
    /// Invalid TLS settings.
    #[error("{0}")]
    Settings(String),
}

/// The TLS configuration, reloaded when files change.
pub(super) struct Tls {
    sources: Sources,
    current: Mutex<Current>,
}

/// The sources of the configuration.
struct Sources {
    /// Certificate and key: the first existing pair of files.
    pairs: Vec<(PathBuf, PathBuf)>,
    /// Whether to wait for a certificate that is signed by the cluster.
    awaits_signing: bool,
    /// Whether to reload the pair, and the client CA.
    reload: (bool, bool),
    client_ca: Option<PathBuf>,
    provider: Arc<CryptoProvider>,
    versions: &'static [&'static rustls::SupportedProtocolVersion],
}

#[derive(Clone)]
struct Built {
    config: Arc<ServerConfig>,
    /// Whether there is a serving certificate; without one handshakes fail.
    certified: bool,
    clients: Clients,
}

/// The client CA.
#[derive(Clone)]
pub(super) struct Clients {
    /// `None`: client certificates are not used.
    pub(super) authority: Option<ClientCa>,
    /// Incremented with each reload.
    pub(super) generation: u64,
}

struct Current {
    built: Built,
    changed: Vec<Option<SystemTime>>,
    last_checked: Instant,
}

impl Tls {
    /// Reads the configured files; creates a self-signed certificate if there are none.
    pub(super) fn new(config: &Config, ips: &[IpAddr]) -> Result<Self, TlsError> {
        let settings = &config.kubelet;
        let named = (!settings.tls_cert_file.is_empty()).then(|| {
            (PathBuf::from(&settings.tls_cert_file), PathBuf::from(&settings.tls_private_key_file))
        });
        let pairs = match (settings.server_tls_bootstrap, named) {
            (true, named) => {
                let signed = certificates::serving_pair_path(&config.cert_dir);
                [(signed.clone(), signed)].into_iter().chain(named).collect()
            }
            (false, Some(named)) => vec![named],
            (false, None) => vec![own_certificate(&config.cert_dir, &config.node_name, ips)?],
        };
        let ca = &settings.authentication.x509.client_ca_file;
        let sources = Sources {
            pairs,
            awaits_signing: settings.server_tls_bootstrap,
            reload: (
                settings.server_tls_bootstrap
                    || config.gates.enabled("ReloadKubeletServerCertificateFile"),
                config.gates.enabled("ReloadKubeletClientCAFile"),
            ),
            client_ca: (!ca.is_empty()).then(|| PathBuf::from(ca)),
            provider: Arc::new(provider(
                &settings.tls_cipher_suites,
                &settings.tls_curve_preferences,
            )?),
            versions: match settings.tls_min_version.as_str() {
                "VersionTLS13" => TLS13_ALONE,
                // nothing older than 1.2 is supported
                _ => rustls::ALL_VERSIONS,
            },
        };
        let changed = sources.changed();
        let current = Current { built: sources.build(0)?, changed, last_checked: Instant::now() };
        Ok(Self { sources, current: Mutex::new(current) })
    }

    /// The configuration for a new connection.
    pub(super) fn server_config(&self) -> Arc<ServerConfig> {
        self.current().config
    }

    /// The current client CA.
    pub(super) fn clients(&self) -> Clients {
        self.current().clients
    }

    /// Makes the next access reload the files.
    #[cfg(test)]
    pub(super) fn expire(&self) {
        let mut current = self.current.lock();
        current.last_checked =
            current.last_checked.checked_sub(RELOAD_INTERVAL).unwrap_or(current.last_checked);
    }

    fn current(&self) -> Built {
        let mut current = self.current.lock();
        if current.last_checked.elapsed() >= RELOAD_INTERVAL || !current.built.certified {
            current.last_checked = Instant::now();
            let changed = self.sources.changed();
            if changed != current.changed {
                match self.sources.build(current.built.clients.generation.saturating_add(1)) {
                    Ok(built) => {
                        info!("serving certificates reloaded");
                        current.built = built;
                        current.changed = changed;
                    }
                    Err(error) => {
                        warn!("failed to reload certificates, using the old ones: {error}")
                    }
                }
            }
        }
        current.built.clone()
    }
}

impl Sources {
    fn changed(&self) -> Vec<Option<SystemTime>> {
        let (pair, ca) = self.reload;
        let pairs = self.pairs.iter().filter(|_| pair).flat_map(|(one, two)| [one, two]);
        let files = pairs.map(Some).chain([self.client_ca.as_ref().filter(|_| ca)]);
        let time = |path: &PathBuf| path.metadata().and_then(|file| file.modified()).ok();
        files.map(|path| path.and_then(time)).collect()
    }

    fn build(&self, generation: u64) -> Result<Built, TlsError> {
        let certified_key = self.certified()?;
        let load = |ca| ClientCa::load(ca, &self.provider);
        let authority = self.client_ca.as_deref().map(load).transpose()?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(self.versions)
            .map_err(|error| {
                TlsError::Settings(format!("tlsCipherSuites and tlsMinVersion: {error}"))
            })?;
        let builder = match &authority {
            Some(authority) => builder.with_client_cert_verifier(authority.handshake_verifier()),
            None => builder.with_no_client_auth(),
        };
        let certified = certified_key.is_some();
        let mut config = builder.with_cert_resolver(Arc::new(ServingCertResolver(certified_key)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let clients = Clients { authority, generation };
        Ok(Built { config: Arc::new(config), certified, clients })
    }

    /// Loads the serving certificate; `None` if it is not signed yet.
    fn certified(&self) -> Result<Option<Arc<CertifiedKey>>, TlsError> {
        let there = self.pairs.iter().find(|(certificate, _)| certificate.exists());
        let Some((certificate, key)) =
            there.or(self.pairs.first().filter(|_| !self.awaits_signing))
        else {
            return Ok(None);
        };
        let (chain, key) = (certificates(certificate)?, private_key(key)?);
        let certified = CertifiedKey::from_der(chain, key, &self.provider)
            .map_err(|error| content(certificate, error))?;
        Ok(Some(Arc::new(certified)))
    }
}

/// Resolves the serving certificate.
#[derive(Debug)]
struct ServingCertResolver(Option<Arc<CertifiedKey>>);

impl ResolvesServerCert for ServingCertResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if self.0.is_none() {
            warn!("no serving certificate available for the kubelet: the CSR is not approved yet");
        }
        self.0.clone()
    }
}

fn content(path: &Path, reason: impl ToString) -> longshore_tls::Error {
    longshore_tls::Error { path: path.to_owned(), reason: reason.to_string() }
}

/// The allowed cipher suites of TLS 1.2 by name (all of TLS 1.3 are allowed), and the allowed key
/// exchanges by their protocol numbers.
fn provider(names: &[String], curves: &[i32]) -> Result<CryptoProvider, TlsError> {
    let mut provider = ring::default_provider();
    let allowed = |group: &&dyn SupportedKxGroup| curves.contains(&u16::from(group.name()).into());
    provider.kx_groups.retain(|group| curves.is_empty() || allowed(group));
    if provider.kx_groups.is_empty() {
        let fault = format!("tlsCurvePreferences: none of {curves:?} is supported");
        return Err(TlsError::Settings(fault));
    }
    if names.is_empty() {
        return Ok(provider);
    }
    let allowed = |suite: &rustls::SupportedCipherSuite| {
        let name = format!("{:?}", suite.suite());
        // Go has shorter names for two of them
        suite.tls13().is_some()
            || names.iter().any(|wanted| {
                name == *wanted || name.strip_suffix("_SHA256") == Some(wanted.as_str())
            })
    };
    provider.cipher_suites.retain(allowed);
    if provider.cipher_suites.iter().all(|suite| suite.tls13().is_some()) {
        warn!(?names, "tlsCipherSuites: no supported suite of TLS 1.2, only TLS 1.3 is available");
    }
    Ok(provider)
}

/// The self-signed pair in the certificate directory, created if it does not exist.
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
    info!(certificate = %certificate.display(), "created a self-signed serving certificate");
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

/// A self-signed certificate for the node's name and addresses, valid for one year, and its key.
fn self_signed(node: &str, ips: &[IpAddr]) -> Result<(String, String), rcgen::Error> {
    let names: Vec<String> =
        [node.to_owned()].into_iter().chain(ips.iter().map(ToString::to_string)).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, node);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let after_1970 = |since: Duration| {
        let since = since.try_into().unwrap_or_default();
        rcgen::date_time_ymd(1970, 1, 1).saturating_add(since)
    };
    // an hour ago, for clock skew
    params.not_before = after_1970(since_1970.saturating_sub(Duration::from_secs(3600)));
    params.not_after = after_1970(since_1970.saturating_add(Duration::from_secs(365 * 24 * 3600)));
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    use longshore_config::{Command, from_args};
    use rustls::RootCertStore;
    use rustls::pki_types::ServerName;
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    /// A handshake of a client that trusts only that certificate.
    async fn handshake(tls: &Tls, trusted: &Path) -> io::Result<()> {
        let mut roots = RootCertStore::empty();
        roots.add(certificates(trusted).unwrap().remove(0)).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let (near, far) = tokio::io::duplex(1 << 16);
        let accept = TlsAcceptor::from(tls.server_config()).accept(far);
        let connector = TlsConnector::from(Arc::new(config));
        let connect = connector.connect(ServerName::try_from("n1").unwrap(), near);
        let (connected, accepted) = tokio::join!(connect, accept);
        accepted?;
        connected.map(drop)
    }

    #[test]
    fn tls_key_exchange_curves() {
        let spoken = |curves: &[i32]| {
            let provider = provider(&[], curves).map_err(|error| error.to_string())?;
            let groups = provider.kx_groups.iter().map(|group| u16::from(group.name()));
            Ok::<Vec<u16>, String>(groups.collect())
        };
        assert_eq!(spoken(&[]), Ok(vec![29, 23, 24]));
        assert_eq!(spoken(&[24, 29]), Ok(vec![29, 24]), "in the order of our own");
        assert_eq!(spoken(&[25, 23]), Ok(vec![23]));
        let none = "tlsCurvePreferences: none of [25] is supported".to_owned();
        assert_eq!(spoken(&[25]), Err(none));
    }

    #[tokio::test]
    async fn tls_handshake_needs_a_signed_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let args = [
            "kubelet".to_owned(),
            "--fail-cgroupv1=false".to_owned(),
            "--hostname-override=n1".to_owned(),
            format!("--cert-dir={}", dir.path().display()),
            "--rotate-server-certificates".to_owned(),
        ];
        let Ok(Command::Kubelet(config)) = from_args(args) else { panic!("no config") };
        let tls = Tls::new(&config, &[]).unwrap();
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "none of its own making");
        let pair = longshore_client::certificates::serving_pair_path(dir.path());
        let (certificate, key) = self_signed("n1", &[]).unwrap();
        let trusted = dir.path().join("trusted.crt");
        std::fs::write(&trusted, &certificate).unwrap();
        assert!(handshake(&tls, &trusted).await.is_err());
        std::fs::write(&pair, format!("{certificate}{key}")).unwrap();
        handshake(&tls, &trusted).await.unwrap();
    }
}
