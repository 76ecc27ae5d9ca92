//! TLS of the serving side: our certificate, and who shows which client certificate.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use longshore_tls::{ClientCa, certificates, private_key};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};

use crate::auth::{CREDENTIAL_ID, User};
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
    /// Whose certificate was shown, if one was; why it proves nobody as of now.
    pub(crate) fn user(&self) -> Result<Option<User>, &str> {
        match self {
            Peer::Anonymous => Ok(None),
            Peer::Known { user, until } if seconds_now() < *until => Ok(Some(user.clone())),
            Peer::Known { .. } => Err("its certificate has expired"),
            Peer::Untrusted(why) => Err(why),
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
        let chain = chain.unwrap_or_default();
        match (self.clients.identify(chain), chain.first()) {
            (Ok(Some(subject)), Some(leaf)) => {
                let digest = Sha256::digest(leaf);
                let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                let mut user = User::authenticated(subject.name, subject.groups);
                user.uid = subject.uid;
                user.extra.insert(CREDENTIAL_ID.into(), vec![format!("X509SHA256={digest}")]);
                Peer::Known { user, until: subject.until }
            }
            (Ok(_), _) => Peer::Anonymous,
            (Err(reason), _) => Peer::Untrusted(reason),
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
