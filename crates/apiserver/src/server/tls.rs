//! TLS of the serving side: our certificate, and who shows which client certificate.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use longshore_tls::{ClientCa, certificates, private_key};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::auth::User;
use crate::pki::{self, Identity};

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// Showed no certificate.
    Anonymous,
    /// Showed a certificate of the clients' CA, good until then (Unix seconds).
    Known { user: User, until: u64 },
    /// Showed a certificate that is not to be trusted, and why.
    Untrusted(String),
}

impl Peer {
    /// The caller as of now; `None` when what was shown is no good.
    pub(crate) fn user(&self) -> Option<User> {
        match self {
            Peer::Anonymous => Some(User::anonymous()),
            Peer::Known { user, until } => (seconds_now() < *until).then(|| user.clone()),
            Peer::Untrusted(_) => None,
        }
    }
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The serving side's settings.
pub(crate) struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    clients: ClientCa,
}

impl Tls {
    /// Serves with `identity`; clients are to show certificates of the CAs in the file `client_ca`.
    pub(crate) fn new(identity: &Identity, client_ca: &std::path::Path) -> pki::Result<Tls> {
        let invalid = |error: rustls::Error| pki::Error::Invalid {
            path: identity.certificate.clone(),
            reason: error.to_string(),
        };
        let provider = provider();
        let clients = ClientCa::load(client_ca, &provider)?;
        let (chain, key) = load(identity)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(invalid)?
            .with_client_cert_verifier(clients.ask())
            .with_single_cert(chain, key)
            .map_err(invalid)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), clients })
    }

    /// Who showed these certificates.
    pub(crate) fn identify(&self, chain: Option<&[CertificateDer<'_>]>) -> Peer {
        match self.clients.identify(chain.unwrap_or_default()) {
            Ok(None) => Peer::Anonymous,
            Ok(Some(subject)) => Peer::Known {
                user: User::authenticated(subject.name, subject.groups),
                until: subject.until,
            },
            Err(reason) => Peer::Untrusted(reason),
        }
    }
}

/// The chain and the key of an identity.
pub(crate) fn load(
    identity: &Identity,
) -> pki::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    Ok((certificates(&identity.certificate)?, private_key(&identity.key)?))
}

/// The cryptography used everywhere in this crate.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
