//! TLS of the serving side: our certificate, and who shows which client certificate.
//!
//! A client certificate is asked for, not demanded, and one that is not to be trusted is no TLS
//! error: its bearer gets a 401 that says what is wrong, as from every Kubernetes apiserver.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig, SignatureScheme,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};
use x509_parser::prelude::{FromDer, X509Certificate};

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
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Tls {
    /// Serves with `identity`; clients are to show certificates of the CAs in the file `client_ca`.
    pub(crate) fn new(identity: &Identity, client_ca: &std::path::Path) -> pki::Result<Tls> {
        let invalid = |path: &std::path::Path, reason: String| pki::Error::Invalid {
            path: path.to_owned(),
            reason,
        };
        let provider = provider();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots(client_ca)?.into(), provider.clone())
                .build()
                .map_err(|error| invalid(client_ca, error.to_string()))?;
        let (chain, key) = load(identity)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| invalid(&identity.certificate, error.to_string()))?
            .with_client_cert_verifier(Arc::new(AskOnly(verifier.clone())))
            .with_single_cert(chain, key)
            .map_err(|error| invalid(&identity.certificate, error.to_string()))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls { config: Arc::new(config), verifier })
    }

    /// Who showed these certificates.
    pub(crate) fn identify(&self, chain: Option<&[CertificateDer<'_>]>) -> Peer {
        let Some((leaf, intermediates)) = chain.and_then(|chain| chain.split_first()) else {
            return Peer::Anonymous;
        };
        if let Err(error) = self.verifier.verify_client_cert(leaf, intermediates, UnixTime::now()) {
            return Peer::Untrusted(error.to_string());
        }
        match X509Certificate::from_der(leaf) {
            Ok((_, certificate)) => match pki::subject_of(&certificate) {
                (Some(name), groups) => Peer::Known {
                    user: User::authenticated(name, groups),
                    until: certificate.validity().not_after.timestamp().try_into().unwrap_or(0),
                },
                (None, _) => Peer::Untrusted("the certificate has no common name".into()),
            },
            Err(error) => Peer::Untrusted(error.to_string()),
        }
    }
}

/// The certificates of a CA file.
pub(crate) fn roots(path: &std::path::Path) -> pki::Result<RootCertStore> {
    let invalid = |reason: String| pki::Error::Invalid { path: path.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in
        CertificateDer::pem_file_iter(path).map_err(|error| invalid(error.to_string()))?
    {
        let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
        roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(invalid("holds no certificate".into()));
    }
    Ok(roots)
}

/// The chain and the key of an identity.
pub(crate) fn load(
    identity: &Identity,
) -> pki::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let invalid = |path: &std::path::Path, reason: String| pki::Error::Invalid {
        path: path.to_owned(),
        reason,
    };
    let chain = CertificateDer::pem_file_iter(&identity.certificate)
        .and_then(Iterator::collect)
        .map_err(|error| invalid(&identity.certificate, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_file(&identity.key)
        .map_err(|error| invalid(&identity.key, error.to_string()))?;
    Ok((chain, key))
}

/// Accepts every certificate at the handshake (that its bearer has the key is still checked there);
/// what it is worth is judged by [`Tls::identify`].
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
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
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

/// The cryptography used everywhere in this crate.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}
