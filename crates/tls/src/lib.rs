//! TLS for servers: certificates and keys from PEM files, and authentication by client certificates.
//!
//! Client certificates are optional, and an untrusted one does not fail the handshake: the client may
//! authenticate in another way, and otherwise gets an error response.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod clients;
mod handshake;
mod names;
mod no_verifier;
pub mod pem;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used)]
pub mod testing;

use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use clients::{CREDENTIAL_ID, ClientCa, User, Verdict, subject_of};
pub use names::{is_known_curve, is_known_suite, names_of};
pub use no_verifier::NoVerifier;

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
    roots_of_all(certificates(path)?).map_err(|error| at(path, error))
}

/// The certificates of a PEM text as roots of trust, at least one.
///
/// # Errors
/// The text has no certificate, or one that cannot be a root.
pub fn roots_of(pem: &str) -> Result<RootCertStore, String> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())?;
    match found.is_empty() {
        true => Err("there is no certificate in it".to_owned()),
        false => roots_of_all(found),
    }
}

fn roots_of_all(certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tls_file_without_certificates_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("empty.crt");
        std::fs::write(&path, "nothing").unwrap();
        let error = roots(&path).unwrap_err().to_string();
        assert!(error.contains("empty.crt") && error.contains("no certificate"), "{error}");
        assert!(private_key(&path).unwrap_err().to_string().contains("empty.crt"));
    }
}
