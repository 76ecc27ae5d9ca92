//! Who a client is by the certificate that it shows: upstream's rule, for every port.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::x509::AttributeTypeAndValue;

use crate::ask::AskOnly;
use crate::{Error, at, roots};

/// Under which key a user's `extra` says which credential was shown.
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// The attribute of a subject by which Kubernetes tells users of one name apart.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// A Kubernetes user, as a certificate's subject names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The common name.
    pub name: String,
    /// What tells this holder of the name from others; empty for most.
    pub uid: String,
    /// The organizations.
    pub groups: Vec<String>,
    /// Which certificate was shown.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What the certificates of a client prove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: none was shown, or one that names nobody.
    Nothing,
    /// Who the client is.
    User {
        /// The holder of the certificate.
        user: User,
        /// Until when it is good.
        until: UnixTime,
    },
    /// The certificate is not to be trusted, and why.
    Untrusted(String),
}

impl Verdict {
    /// Who is known by it as of now, if anybody.
    ///
    /// # Errors
    /// Why what was shown is not to be trusted.
    pub fn user(&self) -> Result<Option<&User>, &str> {
        self.user_at(UnixTime::now())
    }

    /// The same at another time: a connection may outlive its client's certificate.
    ///
    /// # Errors
    /// Why what was shown is not to be trusted then.
    pub fn user_at(&self, now: UnixTime) -> Result<Option<&User>, &str> {
        match self {
            Self::Nothing => Ok(None),
            Self::User { user, until } if now <= *until => Ok(Some(user)),
            Self::User { .. } => Err("its certificate has expired"),
            Self::Untrusted(why) => Err(why),
        }
    }
}

/// The authority that gives clients their certificates.
#[derive(Clone, Debug)]
pub struct ClientCa(Arc<dyn ClientCertVerifier>);

impl ClientCa {
    /// The authority whose certificates are in a PEM file.
    pub fn load(path: &Path, provider: &Arc<CryptoProvider>) -> Result<Self, Error> {
        let roots = Arc::new(roots(path)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider))
            .allow_unauthenticated()
            .build()
            .map_err(|error| at(path, error))?;
        Ok(Self(verifier))
    }

    /// For the handshake: asks for a certificate, and sees to it that who shows one has its key.
    pub fn ask(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(AskOnly(Arc::clone(&self.0)))
    }

    /// What a chain proves, the client's own certificate first.
    pub fn judge(&self, chain: &[CertificateDer<'_>]) -> Verdict {
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
        // trusted, but in nobody's name
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
