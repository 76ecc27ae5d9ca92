//! TLS of the serving side: our certificate, and what those of clients prove.

use std::sync::Arc;

use longshore_tls::{ClientCa, Verdict, certificates, private_key};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::pki::{self, Identity};

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
            .with_client_cert_verifier(clients.handshake_verifier())
            .with_single_cert(chain, key)
            .map_err(invalid)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), clients })
    }

    /// Verifies the certificates of a client.
    pub(crate) fn verify(&self, chain: Option<&[CertificateDer<'_>]>) -> Verdict {
        self.clients.verify(chain.unwrap_or_default())
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
