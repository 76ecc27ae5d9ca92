//! What every serving side needs of TLS: certificates and keys from PEM files, and clients that
//! are known by their certificate.
//!
//! A client certificate is asked for, not demanded, and one that is not to be trusted is no error
//! of the handshake: its holder may have another way to say who it is, and otherwise gets an answer
//! that says what is wrong.

mod ask;
mod believe;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use x509_parser::prelude::{FromDer, X509Certificate};

pub use believe::Believer;

/// The attribute of a subject by which Kubernetes tells users of one name apart.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// A file holds nothing usable.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct Error {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

fn at(path: &Path, reason: impl ToString) -> Error {
    Error { path: path.to_owned(), reason: reason.to_string() }
}

/// The certificates of a PEM file, at least one.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| at(path, error))?;
    if found.is_empty() { Err(at(path, "there is no certificate in it")) } else { Ok(found) }
}

/// The private key of a PEM file.
pub fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, Error> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| at(path, error))
}

/// The certificates of a PEM file as roots of trust.
pub fn roots(path: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| at(path, error))?;
    }
    Ok(roots)
}

/// Whom a certificate was given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The common name: a Kubernetes user.
    pub name: String,
    /// What tells this holder of the name from others; empty for most.
    pub uid: String,
    /// The organizations: the user's groups.
    pub groups: Vec<String>,
    /// Until when it is good (Unix seconds).
    pub until: u64,
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
        Arc::new(ask::AskOnly(Arc::clone(&self.0)))
    }

    /// Who shows this chain; `None` for no chain at all.
    ///
    /// # Errors
    /// Why the chain is not to be trusted.
    pub fn identify(&self, chain: &[CertificateDer<'_>]) -> Result<Option<Subject>, String> {
        let Some((leaf, intermediates)) = chain.split_first() else { return Ok(None) };
        self.0
            .verify_client_cert(leaf, intermediates, UnixTime::now())
            .map_err(|error| error.to_string())?;
        let (_, certificate) =
            X509Certificate::from_der(leaf).map_err(|error| error.to_string())?;
        let (name, groups) = subject_of(&certificate);
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| "the certificate has no common name".to_owned())?;
        let uid = uid_of(&certificate)?;
        let until = certificate.validity().not_after.timestamp();
        Ok(Some(Subject { name, uid, groups, until: until.try_into().unwrap_or(0) }))
    }
}

/// The common name and the organizations of a certificate. Of several names the last counts, as
/// for every Kubernetes program.
pub fn subject_of(certificate: &X509Certificate<'_>) -> (Option<String>, Vec<String>) {
    let subject = certificate.subject();
    let text = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
        attribute.as_str().ok().map(str::to_owned)
    };
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
