#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::PermissionsExt;
use std::time::SystemTime;

use super::*;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| name.to_string()).collect()
}

#[test]
fn pki_certificates_are_kept_while_valid() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path()).unwrap();
    let serving = pki.serving(&names(&["localhost", "127.0.0.1"])).unwrap();
    let first = std::fs::read(&serving.certificate).unwrap();
    let ca = std::fs::read(pki.ca_file()).unwrap();

    let again = Pki::open(dir.path()).unwrap();
    assert_eq!(std::fs::read(again.ca_file()).unwrap(), ca);
    again.serving(&names(&["127.0.0.1"])).unwrap();
    assert_eq!(std::fs::read(&serving.certificate).unwrap(), first, "fewer names still fit");
    again.serving(&names(&["127.0.0.1", "10.96.0.1"])).unwrap();
    assert_ne!(std::fs::read(&serving.certificate).unwrap(), first, "a new address does not fit");
}

#[test]
fn pki_keys_have_mode_0600_and_no_temporary_files_remain() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(&dir.path().join("pki")).unwrap();
    pki.client("admin", "kubernetes-admin", Some("system:masters")).unwrap();
    for entry in std::fs::read_dir(dir.path().join("pki")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(!name.ends_with(".tmp"), "{name}");
        if name.ends_with(".key") {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
        }
    }
}

#[test]
fn pki_expired_certificates_are_recreated() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path()).unwrap();
    let admin = pki.client("admin", "a", Some("g")).unwrap();

    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.not_after = (SystemTime::now() - std::time::Duration::from_secs(60)).into();
    let expired = params.self_signed(&key).unwrap().pem();
    std::fs::write(&admin.certificate, &expired).unwrap();
    std::fs::write(&admin.key, key.serialize_pem()).unwrap();
    pki.client("admin", "a", Some("g")).unwrap();
    assert_ne!(std::fs::read_to_string(&admin.certificate).unwrap(), expired);

    let leaf = std::fs::read(&admin.certificate).unwrap();
    std::fs::write(pki.ca_file(), &expired).unwrap();
    let pki = Pki::open(dir.path()).unwrap();
    pki.client("admin", "a", Some("g")).unwrap();
    assert_ne!(std::fs::read(&admin.certificate).unwrap(), leaf, "signed by the CA that is gone");
}

#[test]
fn pki_ca_without_its_key_is_rejected() {
    let dir = tempfile::tempdir().unwrap();
    Pki::open(dir.path()).unwrap();
    std::fs::remove_file(dir.path().join("ca.key")).unwrap();
    let error = Pki::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("ca.key"), "{error}");
    std::fs::write(dir.path().join("ca.key"), "garbage").unwrap();
    let error = Pki::open(dir.path()).err().unwrap().to_string();
    assert!(error.contains("ca.key"), "{error}");
}

#[test]
fn pki_kubeconfig_is_yaml_with_mode_0600() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::open(dir.path()).unwrap();
    let identity = pki.client("n1", "system:node:n1", Some("system:nodes")).unwrap();
    let path = dir.path().join("n1.conf");
    let config =
        Kubeconfig::new(&pki, "https://127.0.0.1:6443", "system:node:n1", &identity).unwrap();
    config.write(&path).unwrap();
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let value: serde_json::Value = serde_saphyr::from_str(config.as_str()).unwrap();
    assert_eq!(value["users"][0]["name"], "system:node:n1");
    assert_eq!(value["contexts"][0]["name"], value["current-context"]);
}
