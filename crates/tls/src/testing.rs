//! A certificate authority for tests.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa};
use rcgen::{ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;

/// An authority, whose certificate is in a file.
pub struct Authority {
    dir: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Default for Authority {
    fn default() -> Self {
        let (dir, key) = (tempfile::tempdir().unwrap(), KeyPair::generate().unwrap());
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        std::fs::write(dir.path().join("ca.crt"), ca.self_signed(&key).unwrap().pem()).unwrap();
        Self { dir, issuer: Issuer::new(ca, key) }
    }
}

impl Authority {
    /// The file with its certificate.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// A certificate for a subject of these attributes, and its key.
    pub fn issue(
        &self,
        subject: &[(DnType, &str)],
        usage: ExtendedKeyUsagePurpose,
    ) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![usage];
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    /// The certificate of a client of this name and group, and its key.
    pub fn client(
        &self,
        name: &str,
        group: &str,
    ) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let subject = [(DnType::OrganizationName, group), (DnType::CommonName, name)];
        self.issue(&subject, ExtendedKeyUsagePurpose::ClientAuth)
    }
}

/// The PEM of a certificate request of a user in a group (empty: in none), for these names, and its key.
pub fn certificate_request(user: &str, group: &str, names: &[&str]) -> (KeyPair, String) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if !group.is_empty() {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    let key = KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    (key, pem)
}
