//! TLS to containers, whose certificates are not verified.

use std::sync::Arc;

use longshore_tls::NoVerifier;
use rustls::crypto::ring;
use rustls::{ClientConfig, Error};

/// A config that accepts every server certificate and offers these protocols.
pub(super) fn config(protocols: &[&str]) -> Result<Arc<ClientConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(NoVerifier(provider)))
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    // No session is resumed: a probe should show that the server can do a handshake.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}
