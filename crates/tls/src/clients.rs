//! Authentication by client certificate, as upstream.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use crate::handshake::PossessionVerifier;
use crate::{Error, at, roots};

/// Key of a user's `extra` for the credential in use.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// Subject attribute with the UID of the user.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// A Kubernetes user, as a certificate's subject names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The common name.
    pub name: String,
    /// The UID; usually empty.
    pub uid: String,
    /// The organizations.
    pub groups: Vec<String>,
    /// The credential id.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Result of the verification of a client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No certificate, or one without a user.
    Nothing,
    /// An authenticated user.
    User {
        /// The user.
        user: User,
        /// Expiry of the certificate.
        until: UnixTime,
    },
    /// The certificate is not trusted, with the reason.
    Untrusted(String),
}

impl Verdict {
    /// The authenticated user, if any.
    ///
    /// # Errors
    /// The reason why the certificate is not trusted.
    pub fn user(&self) -> Result<Option<&User>, &str> {
        self.user_at(UnixTime::now())
    }

    /// How long the certificate of an authenticated user is valid from now on.
    pub fn remaining(&self) -> Option<Duration> {
        let Self::User { until, .. } = self else { return None };
        Some(Duration::from_secs(until.as_secs().saturating_sub(UnixTime::now().as_secs())))
    }

    /// The same at another time: a connection may outlive its client's certificate.
    ///
    /// # Errors
    /// The reason why the certificate is not trusted.
    pub fn user_at(&self, now: UnixTime) -> Result<Option<&User>, &str> {
        match self {
            Self::Nothing => Ok(None),
            Self::User { user, until } if now <= *until => Ok(Some(user)),
            Self::User { .. } => Err("its certificate has expired"),
            Self::Untrusted(why) => Err(why),
        }
    }
}

/// The certificate authority of clients.
#[derive(Clone, Debug)]
pub struct ClientCa(Arc<dyn ClientCertVerifier>);

impl ClientCa {
    /// The authority whose certificates are in a PEM file.
    pub fn load(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        Self::of(roots(path)?, provider).map_err(|error| at(path, error))
    }

    /// The authority that has these roots.
    ///
    /// # Errors
    /// There is no root.
    pub fn of(roots: RootCertStore, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider))
            .allow_unauthenticated()
            .build()
            .map(Self)
            .map_err(|error| error.to_string())
    }

    /// The verifier for the handshake: requests a certificate, and verifies the possession of its key.
    pub fn handshake_verifier(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(PossessionVerifier(Arc::clone(&self.0)))
    }

    /// Verifies a certificate chain, the leaf first.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> Verdict {
        let Some((leaf, intermediates)) = chain.split_first() else { return Verdict::Nothing };
        self.verified(leaf, intermediates).unwrap_or_else(Verdict::Untrusted)
    }

    fn verified(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<Verdict, String> {
        self.0
            .verify_client_cert(leaf, intermediates, UnixTime::now())
            .map_err(|error| error.to_string())?;
        let (_, certificate) =
            X509Certificate::from_der(leaf).map_err(|error| error.to_string())?;
        let (name, groups) = subject_of(&certificate);
        // trusted, but without a user name
        let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(Verdict::Nothing) };
        let uid = uid_of(&certificate)?;
        let digest: String =
            Sha256::digest(leaf).iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = (CREDENTIAL_ID.to_owned(), vec![format!("X509SHA256={digest}")]);
        let user = User { name, uid, groups, extra: BTreeMap::from([shown]) };
        let until = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
        Ok(Verdict::User { user, until: UnixTime::since_unix_epoch(Duration::from_secs(until)) })
    }
}

/// The common name and the organizations of a certificate. Of several names the last counts, as
/// for every Kubernetes program.
pub fn subject_of(certificate: &X509Certificate<'_>) -> (Option<String>, Vec<String>) {
    let subject = certificate.subject();
    let text = |attribute: &AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let name = subject.iter_common_name().last().and_then(text);
    (name, subject.iter_organization().filter_map(text).collect())
}

/// The UID in a certificate's subject, empty when there is none.
fn uid_of(certificate: &X509Certificate<'_>) -> Result<String, String> {
    let mut found = String::new();
    for attribute in certificate.subject().iter_attributes() {
        if attribute.attr_type().to_id_string() != UID {
            continue;
        }
        let uid = attribute.as_str().map_err(|error| format!("the UID of its subject: {error}"))?;
        if uid.is_empty() || !found.is_empty() {
            return Err("the certificate must have one UID in its subject, or none".to_owned());
        }
        uid.clone_into(&mut found);
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
