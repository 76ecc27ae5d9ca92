//! TLS of the serving side: our certificate, and what those of clients prove.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use longshore_tls::{ClientCa, Verdict, certificates, private_key};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::version::{TLS12, TLS13};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::pki::{self, Identity};

/// How clients may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The oldest version.
    pub min_version: TlsVersion,
    /// The suites of TLS 1.2, by their IANA names; empty: all that are secure.
    pub cipher_suites: Vec<String>,
    /// HTTP/1.1 alone.
    pub without_http2: bool,
}

/// A version of TLS, in the words of `--tls-min-version`. Older ones than 1.2 are not spoken, so they
/// mean 1.2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl FromStr for TlsVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<TlsVersion, String> {
        match text {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => Ok(TlsVersion::Tls12),
            "VersionTLS13" => Ok(TlsVersion::Tls13),
            other => Err(format!(
                "unknown tls version {other:?}: VersionTLS10, VersionTLS11, VersionTLS12 or VersionTLS13"
            )),
        }
    }
}

/// The serving side's settings.
pub(crate) struct Tls {
    pub(crate) config: Arc<ServerConfig>,
    clients: ClientCa,
    front_proxies: Option<ClientCa>,
}

impl Tls {
    /// Serves with `identity`; clients are to show certificates of the CAs in the file `client_ca`, and
    /// front proxies such of `front_proxy_ca`.
    pub(crate) fn new(
        identity: &Identity,
        settings: &TlsSettings,
        client_ca: &Path,
        front_proxy_ca: Option<&Path>,
    ) -> pki::Result<Tls> {
        let invalid = |error: rustls::Error| pki::Error::Invalid {
            path: identity.certificate.clone(),
            reason: error.to_string(),
        };
        let provider = provider();
        let authorities: Vec<&Path> = [client_ca].into_iter().chain(front_proxy_ca).collect();
        let all = ClientCa::load_all(&authorities, &provider)?;
        let clients = ClientCa::load(client_ca, &provider)?;
        let front_proxies = front_proxy_ca.map(|ca| ClientCa::load(ca, &provider)).transpose()?;
        let (chain, key) = load(identity)?;
        let versions = match settings.min_version {
            TlsVersion::Tls12 => &[&TLS12, &TLS13][..],
            TlsVersion::Tls13 => &[&TLS13],
        };
        let mut config = ServerConfig::builder_with_provider(restricted(provider, settings))
            .with_protocol_versions(versions)
            .map_err(invalid)?
            .with_client_cert_verifier(all.handshake_verifier())
            .with_single_cert(chain, key)
            .map_err(invalid)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        if settings.without_http2 {
            config.alpn_protocols.remove(0);
        }
        Ok(Tls { config: Arc::new(config), clients, front_proxies })
    }

    /// Verifies the certificates of a client.
    pub(crate) fn verify(&self, chain: Option<&[CertificateDer<'_>]>) -> Verdict {
        self.clients.verify(chain.unwrap_or_default())
    }

    /// Verifies them as those of a front proxy.
    pub(crate) fn verify_front_proxy(&self, chain: Option<&[CertificateDer<'_>]>) -> Verdict {
        match &self.front_proxies {
            Some(authority) => authority.verify(chain.unwrap_or_default()),
            None => Verdict::Nothing,
        }
    }
}

/// The suites of TLS 1.2 that are named; those of TLS 1.3 cannot be chosen, as in Go.
fn restricted(provider: Arc<CryptoProvider>, settings: &TlsSettings) -> Arc<CryptoProvider> {
    if settings.cipher_suites.is_empty() {
        return provider;
    }
    let mut provider = (*provider).clone();
    provider.cipher_suites.retain(|suite| {
        let name = format!("{:?}", suite.suite());
        suite.tls13().is_some() || settings.cipher_suites.contains(&name)
    });
    Arc::new(provider)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_suites_are_those_that_are_named() {
        let with = |names: &[&str]| {
            let cipher_suites = names.iter().map(|name| (*name).to_owned()).collect();
            let settings = TlsSettings { cipher_suites, ..TlsSettings::default() };
            restricted(provider(), &settings).cipher_suites.clone()
        };
        let all = with(&[]);
        let chosen = with(&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]);
        assert_eq!(chosen.iter().filter(|suite| suite.tls13().is_none()).count(), 1);
        let newest = |suites: &[rustls::SupportedCipherSuite]| {
            suites.iter().filter(|suite| suite.tls13().is_some()).count()
        };
        assert_eq!(newest(&chosen), newest(&all));
        assert!(with(&["none"]).iter().all(|suite| suite.tls13().is_some()));
    }
}
