//! TLS of a port: its certificates and the CA of its clients, all reloaded when their files change.

mod names;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use longshore_tls::{ClientCa, User, Verdict, certificates, private_key};
use parking_lot::Mutex;
use rustls::crypto::{CryptoProvider, SupportedKxGroup, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion};
use tracing::{info, warn};

pub use self::names::{InvalidSniCertificate, SniCertificate};
use self::names::{NamedCertificates, certificate_names};

/// How often the files are checked for changes.
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

static TLS13_ALONE: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file holds no usable certificate or key.
    #[error(transparent)]
    Content(#[from] longshore_tls::Error),
    /// Cipher suites and versions do not go together.
    #[error("cipher suites and minimum version: {0}")]
    Protocol(#[from] rustls::Error),
    /// A name is of no cipher suite.
    #[error("cipher suite {0} not supported or doesn't exist")]
    CipherSuite(String),
    /// CAs that are not in a file cannot be used.
    #[error("the CAs of clients: {0}")]
    Authorities(String),
    /// No key exchange is left.
    #[error("curve preferences: none of {0:?} is supported")]
    Curves(Vec<i32>),
}

/// Where the serving certificate comes from.
#[derive(Clone, Debug)]
pub enum ServingCertificate {
    /// Certificate and key: the first existing pair of files.
    Files {
        /// The pairs.
        pairs: Vec<(PathBuf, PathBuf)>,
        /// Whether none needs to exist yet: until then handshakes fail.
        awaits_signing: bool,
        /// Whether the pair is reloaded.
        reload: bool,
    },
    /// A certificate that no file has.
    Fixed(Arc<CertifiedKey>),
}

/// Where the CA of clients comes from.
#[derive(Clone, Debug)]
pub struct ClientCaFile {
    /// The file; its certificates are the roots.
    pub path: PathBuf,
    /// Whether it is reloaded.
    pub reload: bool,
}

/// The settings of TLS.
#[derive(Clone, Debug)]
pub struct TlsSettings {
    /// The serving certificate.
    pub certificate: ServingCertificate,
    /// The CA of clients; `None`: their certificates are not used.
    pub client_ca: Option<ClientCaFile>,
    /// Cipher suites and key exchanges; see [`provider`].
    pub provider: Arc<CryptoProvider>,
    /// Protocol versions; see [`versions`].
    pub versions: &'static [&'static SupportedProtocolVersion],
    /// Certificates for clients that ask for certain names (`--tls-sni-cert-key`).
    pub sni: Vec<SniCertificate>,
    /// Whether HTTP/1.1 alone is offered (`--disable-http2-serving`).
    pub http1_alone: bool,
}

/// CAs of clients that are not in files, but are found while the port is open.
#[derive(Clone, Debug, Default)]
pub struct Authorities {
    /// The CAs of users' certificates, where the settings name no file.
    pub clients: Option<RootCertStore>,
    /// Further CAs that are named in the handshake: see [`Tls::with_further_clients`].
    pub further: Option<RootCertStore>,
}

/// The protocol versions for a minimum, such as `VersionTLS13`; nothing older than TLS 1.2 is supported.
#[must_use]
pub fn versions(minimum: &str) -> &'static [&'static SupportedProtocolVersion] {
    if minimum == "VersionTLS13" { TLS13_ALONE } else { rustls::ALL_VERSIONS }
}

/// The allowed cipher suites of TLS 1.2 by name (all of TLS 1.3 are allowed), and the allowed key
/// exchanges by their protocol numbers. Empty lists allow all.
///
/// # Errors
/// A name is unknown, or no key exchange is left.
pub fn provider(names: &[String], curves: &[i32]) -> Result<CryptoProvider, TlsError> {
    let mut provider = ring::default_provider();
    let allowed = |group: &&dyn SupportedKxGroup| curves.contains(&u16::from(group.name()).into());
    provider.kx_groups.retain(|group| curves.is_empty() || allowed(group));
    if provider.kx_groups.is_empty() {
        return Err(TlsError::Curves(curves.to_owned()));
    }
    if let Some(unknown) = names.iter().find(|name| !longshore_tls::is_known_suite(name)) {
        return Err(TlsError::CipherSuite(unknown.clone()));
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
        warn!(?names, "no supported cipher suite of TLS 1.2: only TLS 1.3 is available");
    }
    Ok(provider)
}

/// The TLS configuration, reloaded when files change.
pub struct Tls {
    settings: TlsSettings,
    /// See [`Tls::with_further_clients`].
    further_clients: Vec<PathBuf>,
    current: Mutex<Current>,
}

#[derive(Clone)]
struct Built {
    config: Arc<ServerConfig>,
    /// Configurations of connections to addresses that have certificates of their own.
    by_address: HashMap<IpAddr, Arc<ServerConfig>>,
    /// Whether there is a serving certificate; without one handshakes fail.
    certified: bool,
    clients: Clients,
}

/// The client CA.
#[derive(Clone)]
struct Clients {
    /// `None`: client certificates are not used.
    authority: Option<ClientCa>,
    /// Incremented with each reload.
    generation: u64,
}

struct Current {
    built: Built,
    authorities: Authorities,
    changed: Vec<Option<SystemTime>>,
    last_checked: Instant,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be used, or the settings do not go together.
    pub fn new(settings: TlsSettings) -> Result<Self, TlsError> {
        Self::with_further_clients(settings, Vec::new())
    }

    /// The same, with further files of CAs that are named in the handshake: clients of them show their
    /// certificates, which [`crate::Peer::verify`] verifies.
    ///
    /// # Errors
    /// A file cannot be used, or the settings do not go together.
    pub fn with_further_clients(
        settings: TlsSettings,
        further_clients: Vec<PathBuf>,
    ) -> Result<Self, TlsError> {
        let changed = settings.changed();
        let authorities = Authorities::default();
        let built = settings.build(0, &further_clients, &authorities)?;
        let current = Current { built, authorities, changed, last_checked: Instant::now() };
        Ok(Self { settings, further_clients, current: Mutex::new(current) })
    }

    /// Takes these CAs in place of those given before; connections that are open are held to them too.
    ///
    /// # Errors
    /// They cannot be used, and those before stay in use.
    pub fn set_authorities(&self, authorities: Authorities) -> Result<(), TlsError> {
        let mut current = self.current.lock();
        let generation = current.built.clients.generation.saturating_add(1);
        current.built = self.settings.build(generation, &self.further_clients, &authorities)?;
        current.authorities = authorities;
        Ok(())
    }

    /// The configuration for a new connection, to that address of this machine if it is known: its
    /// certificate is shown to clients that name no server.
    pub fn server_config(&self, local: Option<IpAddr>) -> Arc<ServerConfig> {
        let Built { config, by_address, .. } = self.current();
        local.and_then(|address| by_address.get(&address.to_canonical()).cloned()).unwrap_or(config)
    }

    /// Makes the next access reload the files.
    #[cfg(test)]
    pub(crate) fn expire(&self) {
        let mut current = self.current.lock();
        current.last_checked =
            current.last_checked.checked_sub(RELOAD_INTERVAL).unwrap_or(current.last_checked);
    }

    fn current(&self) -> Built {
        let mut current = self.current.lock();
        if current.last_checked.elapsed() >= RELOAD_INTERVAL || !current.built.certified {
            current.last_checked = Instant::now();
            let changed = self.settings.changed();
            if changed != current.changed {
                let generation = current.built.clients.generation.saturating_add(1);
                let built =
                    self.settings.build(generation, &self.further_clients, &current.authorities);
                match built {
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

impl TlsSettings {
    /// The files that are reloaded.
    fn files(&self) -> impl Iterator<Item = &Path> {
        let pairs = match &self.certificate {
            ServingCertificate::Files { pairs, reload: true, .. } => pairs.as_slice(),
            _ => &[],
        };
        let ca = self.client_ca.as_ref().filter(|ca| ca.reload).map(|ca| ca.path.as_path());
        let pairs = pairs.iter().flat_map(|(one, two)| [one.as_path(), two]);
        let sni = self.sni.iter().flat_map(|sni| [sni.certificate.as_path(), &sni.key]);
        pairs.chain(sni).chain(ca)
    }

    fn changed(&self) -> Vec<Option<SystemTime>> {
        self.files().map(|path| path.metadata().and_then(|file| file.modified()).ok()).collect()
    }

    fn build(
        &self,
        generation: u64,
        further_clients: &[PathBuf],
        given: &Authorities,
    ) -> Result<Built, TlsError> {
        let certified_key = self.certified()?;
        let clients = match &self.client_ca {
            Some(ca) => Some(longshore_tls::roots(&ca.path)?),
            None => given.clients.clone(),
        };
        // the handshake names all of them
        let mut all: RootCertStore = clients.clone().unwrap_or_else(RootCertStore::empty);
        for path in further_clients {
            all.extend(longshore_tls::roots(path)?.roots);
        }
        all.extend(given.further.iter().flat_map(|roots| roots.roots.iter().cloned()));
        let authority = |roots| ClientCa::of(roots, &self.provider).map_err(TlsError::Authorities);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(self.versions)?;
        let builder = match all.is_empty() {
            true => builder.with_no_client_auth(),
            false => builder.with_client_cert_verifier(authority(all)?.handshake_verifier()),
        };
        let authority = clients.map(authority).transpose()?;
        let certified = certified_key.is_some();
        let named = Arc::new(self.named()?);
        let resolver = |of_address| ServingCertResolver {
            default: certified_key.clone(),
            of_address,
            named: Arc::clone(&named),
        };
        let mut config = builder.with_cert_resolver(Arc::new(resolver(None)));
        config.alpn_protocols = match self.http1_alone {
            true => vec![b"http/1.1".to_vec()],
            false => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        let of_address = |(address, certificate): (IpAddr, &Arc<CertifiedKey>)| {
            let mut config = config.clone();
            config.cert_resolver = Arc::new(resolver(Some(Arc::clone(certificate))));
            (address, Arc::new(config))
        };
        let by_address = named.addresses().map(of_address).collect();
        let clients = Clients { authority, generation };
        Ok(Built { config: Arc::new(config), by_address, certified, clients })
    }

    /// The certificates for clients that ask for certain names.
    fn named(&self) -> Result<NamedCertificates, TlsError> {
        let loaded = self.sni.iter().map(|sni| {
            let certified = self.load(&sni.certificate, &sni.key)?;
            let own = certified.cert.first().map(|own| certificate_names(own)).unwrap_or_default();
            Ok((sni.names.as_slice(), own, certified))
        });
        Ok(NamedCertificates::new(loaded.collect::<Result<Vec<_>, TlsError>>()?))
    }

    fn load(&self, certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
        let (chain, key) = (certificates(certificate)?, private_key(key)?);
        let certified = CertifiedKey::from_der(chain, key, &self.provider).map_err(|error| {
            longshore_tls::Error { path: certificate.to_owned(), reason: error.to_string() }
        })?;
        Ok(Arc::new(certified))
    }

    /// Loads the serving certificate; `None` if it is not signed yet.
    fn certified(&self) -> Result<Option<Arc<CertifiedKey>>, TlsError> {
        let (pairs, awaits_signing) = match &self.certificate {
            ServingCertificate::Fixed(certified) => return Ok(Some(Arc::clone(certified))),
            ServingCertificate::Files { pairs, awaits_signing, .. } => (pairs, *awaits_signing),
        };
        let there = pairs.iter().find(|(certificate, _)| certificate.exists());
        let Some((certificate, key)) = there.or(pairs.first().filter(|_| !awaits_signing)) else {
            return Ok(None);
        };
        self.load(certificate, key).map(Some)
    }
}

/// Resolves the serving certificate.
#[derive(Debug)]
struct ServingCertResolver {
    default: Option<Arc<CertifiedKey>>,
    /// For clients that name no server.
    of_address: Option<Arc<CertifiedKey>>,
    /// For clients that name one.
    named: Arc<NamedCertificates>,
}

impl ResolvesServerCert for ServingCertResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let chosen = match hello.server_name() {
            Some(name) => self.named.of(name),
            None => self.of_address.as_ref(),
        };
        let chosen = chosen.or(self.default.as_ref()).cloned();
        if chosen.is_none() {
            warn!("no serving certificate available: the CSR is not approved yet");
        }
        chosen
    }
}

/// The certificate chain of a client's handshake. It is checked with each request, as a connection may
/// outlive the certificate and the CA; the result is cached until the CA is reloaded.
pub(crate) struct ClientCertificate {
    tls: Arc<Tls>,
    chain: Vec<CertificateDer<'static>>,
    verified: Mutex<Verified>,
}

/// The result of a verification.
struct Verified {
    /// The generation of the CA: see [`Clients::generation`].
    generation: u64,
    verdict: Verdict,
}

impl ClientCertificate {
    pub(crate) fn new(tls: Arc<Tls>, chain: Option<&[CertificateDer<'_>]>) -> Self {
        let chain: Vec<_> =
            chain.into_iter().flatten().map(|link| link.clone().into_owned()).collect();
        let verified = Verified::new(&tls.current().clients, &chain);
        Self { tls, chain, verified: Mutex::new(verified) }
    }

    /// The user of the certificate, if there is one; an error if it is invalid now.
    pub(crate) fn user(&self) -> Result<Option<User>, String> {
        self.user_at(UnixTime::now())
    }

    /// How long it is valid from now on, if it has a user.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.verified.lock().verdict.remaining()
    }

    /// The verdict of another CA.
    pub(crate) fn verify(&self, authority: &ClientCa) -> Verdict {
        authority.verify(&self.chain)
    }

    fn user_at(&self, now: UnixTime) -> Result<Option<User>, String> {
        if self.chain.is_empty() {
            return Ok(None);
        }
        let clients = self.tls.current().clients;
        let mut verified = self.verified.lock();
        if verified.generation != clients.generation {
            *verified = Verified::new(&clients, &self.chain);
        }
        Ok(verified.verdict.user_at(now)?.cloned())
    }
}

impl Verified {
    fn new(clients: &Clients, chain: &[CertificateDer<'_>]) -> Self {
        let authority = clients.authority.as_ref();
        let verdict = authority.map_or(Verdict::Nothing, |authority| authority.verify(chain));
        Self { generation: clients.generation, verdict }
    }
}

#[cfg(test)]
mod tests;
