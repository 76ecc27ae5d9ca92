#![allow(clippy::unwrap_used)]

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::crypto::ring;

use super::*;

/// An authority in a file, and a client's certificate that it gave.
fn authority(dir: &Path, name: &str) -> (PathBuf, CertificateDer<'static>) {
    let key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, name);
    let path = dir.join(format!("{name}.crt"));
    std::fs::write(&path, ca.self_signed(&key).unwrap().pem()).unwrap();

    let mut client = CertificateParams::default();
    client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    client.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    client.distinguished_name.push(DnType::CommonName, "system:node:n1");
    let client_key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(ca, key);
    (path, client.signed_by(&client_key, &issuer).unwrap().der().clone())
}

#[test]
fn a_client_is_known_by_a_certificate_of_the_authority_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, friend) = authority(dir.path(), "ours");
    let (_, stranger) = authority(dir.path(), "theirs");
    let ca = ClientCa::load(&ours, &Arc::new(ring::default_provider())).unwrap();
    assert_eq!(ca.identify(&[]), Ok(None));
    let known = ca.identify(&[friend]).unwrap().unwrap();
    assert_eq!(known.name, "system:node:n1");
    assert_eq!(known.groups, ["system:nodes"]);
    assert!(known.until > 0);
    assert!(ca.identify(&[stranger]).is_err());
    assert!(ca.identify(&[CertificateDer::from(vec![1, 2, 3])]).is_err());
}

#[test]
fn a_uid_in_the_subject_tells_users_of_one_name_apart() {
    let key = KeyPair::generate().unwrap();
    for (uid, expected) in [(None, Ok("")), (Some("42"), Ok("42")), (Some(""), Err(()))] {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "jane");
        if let Some(uid) = uid {
            let kind = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
            params.distinguished_name.push(kind, uid);
        }
        let made = params.self_signed(&key).unwrap();
        let (_, certificate) = X509Certificate::from_der(made.der()).unwrap();
        let found = uid_of(&certificate).map_err(drop);
        assert_eq!(found.as_deref(), expected.as_ref().copied(), "{uid:?}");
    }
}

#[test]
fn a_file_without_certificates_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("empty.crt");
    std::fs::write(&path, "nothing").unwrap();
    let error = roots(&path).unwrap_err().to_string();
    assert!(error.contains("empty.crt") && error.contains("no certificate"), "{error}");
    assert!(private_key(&path).unwrap_err().to_string().contains("empty.crt"));
}
