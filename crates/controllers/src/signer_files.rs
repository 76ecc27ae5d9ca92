//! The files of the CAs that sign certificates.

use std::path::PathBuf;

use longshore_base::panics;
use longshore_csr::{Authority, AuthorityError, IssueError, Signer};

/// The files of a signer's CA, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerFiles {
    /// The signer.
    pub signer: Signer,
    /// The CA's certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Why a signer does not sign.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The pair cannot be used.
    #[error("{} and {}: {source}", certificate.display(), key.display())]
    Authority {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong.
        source: AuthorityError,
    },
    /// A certificate was not issued.
    #[error(transparent)]
    Issue(#[from] IssueError),
    /// The work on it ended.
    #[error(transparent)]
    Panicked(#[from] panics::Panicked),
}

impl SignerFiles {
    /// The CA as it is now.
    ///
    /// # Errors
    /// The files cannot be read, or are no CA with its key.
    pub(crate) fn read(&self) -> Result<Authority, SignerError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| SignerError::File { path: path.clone(), source })
        };
        Authority::from_pem(&read(&self.certificate)?, &read(&self.key)?).map_err(|source| {
            SignerError::Authority {
                certificate: self.certificate.clone(),
                key: self.key.clone(),
                source,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csr_signer_files_are_read_anew() {
        let dir = tempfile::tempdir().unwrap();
        let files = SignerFiles {
            signer: Signer::Client,
            certificate: dir.path().join("ca.crt"),
            key: dir.path().join("ca.key"),
        };
        let error = files.read().err().unwrap().to_string();
        assert!(error.contains("ca.crt"), "{error}");
        let write = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::default();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            std::fs::write(&files.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
            key.serialize_pem()
        };
        std::fs::write(&files.key, write()).unwrap();
        let first = files.read().unwrap().certificate().to_vec();
        // A half-written pair is not used.
        let key = write();
        assert!(matches!(files.read(), Err(SignerError::Authority { .. })));
        std::fs::write(&files.key, key).unwrap();
        assert_ne!(files.read().unwrap().certificate(), first);
    }
}
