use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestCondition, CertificateSigningRequestStatus,
};
use k8s_openapi::api::core::v1::NodeAddress;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::config::Kubeconfig;
use proptest::prelude::*;
use rcgen::{CertificateParams, DnType, KeyPair};

use super::client::{Credential, Files, kubeconfig};
use super::pair::{Leaf, leaf, pair};
use super::request::{RequestError, Template, issued_certificate};
use super::rotation::{lacks, rotation};
use super::serving::template;
use super::store::{Store, StoreError};

mod cluster;
mod flow;

const HOUR: i64 = 3600;

/// A certificate of the node `n1` with its key, from and until so many seconds from now.
fn issued(from: i64, until: i64) -> (String, String) {
    let mut params = CertificateParams::new(["n1".to_owned(), "10.0.0.1".to_owned()]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:n1");
    let at = |seconds: i64| {
        let time = std::time::SystemTime::from(Timestamp::now());
        match u64::try_from(seconds) {
            Ok(later) => time + std::time::Duration::from_secs(later),
            Err(_) => time - std::time::Duration::from_secs(seconds.unsigned_abs()),
        }
    };
    (params.not_before, params.not_after) = (at(from).into(), at(until).into());
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

fn read(from: i64, until: i64) -> Leaf {
    leaf(issued(from, until).0.as_bytes()).unwrap()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

proptest! {
/// For any lifetime and jitter: never before 70 % of it, never after 90 %.
    #[test]
    fn certificate_rotation_falls_between_70_and_90_percent(
        from in -4_000_000_000_i64..4_000_000_000, life in 0_i64..4_000_000_000, jitter in 0.0_f64..=1.0,
    ) {
        let (from, until) =
            (Timestamp::from_second(from).unwrap(), Timestamp::from_second(from + life).unwrap());
let age = rotation(from, until, jitter).duration_since(from).as_secs_f64();
        prop_assert!(age >= 0.7 * life as f64 - 1.0 && age <= 0.9 * life as f64 + 1.0);
    }
}

#[test]
fn certificate_rotation_jitter_covers_the_whole_range() {
    let (from, until) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(1000).unwrap());
    let due = |jitter| rotation(from, until, jitter).as_second();
    assert_eq!([due(0.0), due(0.5), due(1.0), due(7.0)], [700, 800, 900, 900]);
    let backwards = rotation(until, from, 0.5);
    assert_eq!(backwards, until, "a life of less than nothing is over at once");
}

#[test]
fn certificate_is_parsed() {
    let (certificate, key) = issued(-HOUR, HOUR);
    let read = pair(format!("{certificate}{key}").as_bytes()).unwrap();
    assert_eq!(read.name, "system:node:n1");
    assert_eq!(read.dns, ["n1".to_owned()].into());
    assert_eq!(read.ips, ["10.0.0.1".parse().unwrap()].into());
    assert!(!read.is_expired(Timestamp::now()));
    let later = Timestamp::now() + SignedDuration::from_hours(2);
    assert!(read.is_expired(later));
    let other = issued(-HOUR, HOUR).1;
    for (text, fault) in [
        (String::new(), "key"),
        (key.clone(), "no certificate"),
        (certificate.clone(), "its key"),
        (format!("{certificate}{other}"), "not that of the certificate"),
    ] {
        let error = pair(text.as_bytes()).unwrap_err();
        assert!(error.contains(fault), "{error}");
    }
}

#[test]
fn certificate_missing_names_are_reported() {
    let leaf = read(-HOUR, HOUR);
    let exact = Template { dns: leaf.dns.clone(), ips: leaf.ips.clone(), ..Template::node("n1") };
    assert_eq!(lacks(&leaf, &exact), None);
    assert_eq!(lacks(&leaf, &Template::node("n1")), None);
    let moved = Template { ips: ["10.0.0.2".parse().unwrap()].into(), ..exact.clone() };
    assert!(lacks(&leaf, &moved).unwrap().contains("10.0.0.2"));
    assert!(lacks(&leaf, &Template::node("n2")).unwrap().contains("system:node:n2"));
    let group = Template { groups: ["masters".to_owned()].into(), ..exact };
    assert!(lacks(&leaf, &group).unwrap().contains("masters"));
}

#[test]
fn certificate_store_keeps_each_pair_and_links_to_the_last() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("pki");
    let store = Store::open(&dir, "kubelet-client").unwrap();
    assert!(store.current().unwrap().is_none());
    let start = Timestamp::UNIX_EPOCH;
    for hour in 0..2 {
        let (certificate, key) = issued(-HOUR, HOUR * (hour + 1));
        let now = start + SignedDuration::from_hours(hour);
        let kept = store.update(&certificate, &key, now).unwrap();
        assert_eq!(store.current().unwrap(), Some(kept));
    }
    let expected = ["1970-01-01-00-00-00", "1970-01-01-01-00-00", "current"];
    assert_eq!(names(&dir), expected.map(|name| format!("kubelet-client-{name}.pem")).into());
    assert!(
        fs::read_link(store.current_path())
            .unwrap()
            .ends_with("kubelet-client-1970-01-01-01-00-00.pem")
    );
    assert_eq!(fs::metadata(store.current_path()).unwrap().permissions().mode() & 0o777, 0o600);
    let (certificate, _) = issued(-HOUR, HOUR);
    let error = store.update(&certificate, &issued(0, HOUR).1, start).unwrap_err();
    assert!(matches!(error, StoreError::Pair { .. }), "{error}");
    assert!(store.current().unwrap().is_some(), "the old one stays");
}

/// A signer may give those that vouch for it along: they are kept, and a change of them is one of the pair.
#[test]
fn certificate_store_keeps_a_chain_whole() {
    let root = tempfile::tempdir().unwrap();
    let store = Store::open(root.path(), "kubelet-client").unwrap();
    let ((certificate, key), issuer) = (issued(-HOUR, HOUR), issued(-HOUR, HOUR).0);
    let whole = store.update(&format!("{certificate}{issuer}"), &key, Timestamp::UNIX_EPOCH);
    let text = fs::read_to_string(store.current_path()).unwrap();
    let places = [&certificate, &issuer, &key].map(|part| text.find(part.trim()).unwrap());
    assert!(places.is_sorted(), "{text}");
    let later = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
    let alone = store.update(&certificate, &key, later);
    assert_ne!(alone.unwrap(), whole.unwrap());
}

/// Each state after a kill within an update; the next start has a whole pair.
#[test]
fn certificate_store_survives_an_interrupted_update() {
    let (certificate, key) = issued(-HOUR, HOUR);
    let whole = format!("{certificate}{key}");
    let old = format!("{}{}", issued(-HOUR, 2 * HOUR).0, "");
    for (step, has_old) in (0..4).flat_map(|step| [(step, false), (step, true)]) {
        let dir = tempfile::tempdir().unwrap();
        let at = |what: &str| dir.path().join(format!("kubelet-client-{what}.pem"));
        if has_old {
            let (certificate, key) = issued(-HOUR, 2 * HOUR);
            let store = Store::open(dir.path(), "kubelet-client").unwrap();
            store.update(&certificate, &key, Timestamp::UNIX_EPOCH).unwrap();
        }
        match step {
            0 => fs::write(dir.path().join("kubelet-client-2030.tmp"), &old).unwrap(),
            1 => fs::write(at("2030"), &whole).unwrap(),
            2 => {
                fs::write(at("2030"), &whole).unwrap();
                symlink(at("2030"), at("updated")).unwrap();
            }
            // upstream takes the old link away before it renames the new one
            _ => {
                fs::write(at("2030"), &whole).unwrap();
                symlink(at("2030"), at("updated")).unwrap();
                let _ = fs::remove_file(at("current"));
            }
        }
        let store = Store::open(dir.path(), "kubelet-client").unwrap();
        let found = store.current().unwrap_or_else(|error| panic!("step {step}: {error}"));
        assert_eq!(found.is_some(), has_old || step >= 2, "step {step}");
        store.update(&certificate, &key, Timestamp::now()).unwrap();
        assert!(store.current().unwrap().is_some());
        assert!(!names(dir.path()).contains("kubelet-client-updated.pem"));
    }
}

#[test]
fn certificate_store_does_not_overwrite_a_regular_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path(), "kubelet-client").unwrap();
    fs::write(store.current_path(), "mine").unwrap();
    let (certificate, key) = issued(-HOUR, HOUR);
    let error = store.update(&certificate, &key, Timestamp::now()).unwrap_err();
    assert!(error.to_string().contains("expected a symbolic link"), "{error}");
    assert_eq!(fs::read_to_string(store.current_path()).unwrap(), "mine");
}

fn csr(conditions: &[(&str, &str)], certificate: Option<String>) -> CertificateSigningRequest {
    let condition = |(type_, message): &(&str, &str)| CertificateSigningRequestCondition {
        type_: (*type_).to_owned(),
        message: Some((*message).to_owned()),
        ..CertificateSigningRequestCondition::default()
    };
    let mut csr = CertificateSigningRequest {
        status: Some(CertificateSigningRequestStatus {
            conditions: Some(conditions.iter().map(condition).collect()),
            certificate: certificate.map(|text| k8s_openapi::ByteString(text.into_bytes())),
        }),
        ..CertificateSigningRequest::default()
    };
    csr.metadata.uid = Some("u1".to_owned());
    csr
}

#[test]
fn certificate_request_result_follows_conditions() {
    let now = Timestamp::now();
    let issued_certificate = |conditions: &[(&str, &str)], certificate: Option<String>| {
        issued_certificate(&csr(conditions, certificate), Some("u1"), now)
    };
    let good = issued(-HOUR, HOUR).0;
    assert_eq!(issued_certificate(&[], None).unwrap(), None);
    assert_eq!(issued_certificate(&[("Approved", "")], None).unwrap(), None);
    assert_eq!(
        issued_certificate(&[], Some(good.clone())).unwrap(),
        None,
        "signed, but not approved"
    );
    assert_eq!(
        issued_certificate(&[("Approved", "")], Some(good.clone())).unwrap(),
        Some(good.clone())
    );
    let error = issued_certificate(&[("Denied", "not you")], None).unwrap_err();
    assert!(error.to_string().ends_with("was denied: not you"), "{error}");
    let error = issued_certificate(&[("Approved", ""), ("Failed", "bad names")], None).unwrap_err();
    assert!(matches!(error, RequestError::Rejected { verdict: "not signed", .. }), "{error}");
    let ended = issued(-2 * HOUR, -HOUR).0;
    let error = issued_certificate(&[("Approved", "")], Some(ended)).unwrap_err();
    assert!(matches!(error, RequestError::Unusable { .. }), "{error}");
    let other =
        super::request::issued_certificate(&csr(&[("Approved", "")], Some(good)), Some("u2"), now);
    assert!(matches!(other, Err(RequestError::Unusable { .. })));
}

#[test]
fn serving_certificate_template_has_the_node_addresses() {
    let template = |addresses: &[(&str, &str)], dns_only| {
        let address = |(type_, address): &(&str, &str)| NodeAddress {
            type_: (*type_).to_owned(),
            address: (*address).to_owned(),
        };
        let addresses: Vec<_> = addresses.iter().map(address).collect();
        template("n1", &addresses, dns_only)
    };
    let wanted = template(
        &[
            ("InternalIP", "10.0.0.1"),
            ("ExternalIP", "fd00::1"),
            ("InternalIP", "no address"),
            ("Hostname", "n1"),
            ("Hostname", "10.0.0.2"),
            ("ExternalDNS", "n1.example.com"),
            ("InternalDNS", ""),
            ("Other", "x"),
        ],
        false,
    )
    .unwrap();
    assert_eq!(wanted.dns, ["n1".to_owned(), "n1.example.com".to_owned()].into());
    assert_eq!(wanted.ips.len(), 3);
    assert_eq!((wanted.name.as_str(), wanted.groups.len()), ("system:node:n1", 1));
    assert_eq!(template(&[("Hostname", "n1")], false), None, "an address is needed");
    assert!(template(&[("Hostname", "n1")], true).is_some());
    assert_eq!(template(&[], true), None);
}

const BOOTSTRAP: &str = "\
apiVersion: v1
kind: Config
current-context: b
clusters:
- name: k
  cluster:
    server: https://10.0.0.1:6443
    certificate-authority: ca.crt
    tls-server-name: api
    extensions: [{name: longshore/servers, extension: ['https://10.0.0.2:6443']}]
users: [{name: t, user: {token: abcdef.0123456789abcdef}}]
contexts: [{name: b, context: {cluster: k, user: t}}]
";

fn files(dir: &Path, bootstrap: bool) -> Files {
    let store = Store::open(&dir.join("pki"), "kubelet-client").unwrap();
    let bootstrap = bootstrap.then(|| dir.join("bootstrap.conf"));
    Files { kubeconfig: dir.join("etc/kubelet.conf"), bootstrap, store }
}

fn write_kubeconfig(files: &Files, user: &str) {
    fs::create_dir_all(files.kubeconfig.parent().unwrap()).unwrap();
    let text = format!(
        "current-context: c\nclusters: [{{name: k, cluster: {{server: 'https://x'}}}}]\n\
         users: [{{name: u, user: {{{user}}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
    );
    fs::write(&files.kubeconfig, text).unwrap();
}

#[test]
fn kubeconfig_is_written_from_the_bootstrap_kubeconfig() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(dir.path(), true);
    let missing = files.adopt_bootstrap().unwrap_err();
    assert!(missing.contains("bootstrap.conf does not exist"), "{missing}");
    assert!(!files.kubeconfig.exists());
    fs::write(dir.path().join("bootstrap.conf"), BOOTSTRAP).unwrap();
    files.adopt_bootstrap().unwrap();
    assert_eq!(files.credential(Timestamp::now()), Credential::Store);
    assert_eq!(fs::metadata(&files.kubeconfig).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&files.kubeconfig).unwrap();
    assert!(!text.contains("abcdef"), "no token in it: {text}");
    let written = Kubeconfig::read_from(&files.kubeconfig).unwrap();
    let cluster = crate::current_cluster(&written).unwrap();
    assert_eq!(cluster.server.as_deref(), Some("https://10.0.0.1:6443"));
    assert_eq!(cluster.tls_server_name.as_deref(), Some("api"));
    assert_eq!(
        cluster.certificate_authority,
        Some(dir.path().join("ca.crt").display().to_string())
    );
    assert!(cluster.extensions.is_some(), "further servers are kept");
    let user = crate::current_user(&written).unwrap();
    assert_eq!(user.client_certificate, Some(files.store.current_path().display().to_string()));
    assert_eq!(user.client_certificate, user.client_key);
    assert!(kubeconfig(&Kubeconfig::default(), Path::new("/x")).is_err());
}

#[test]
fn kubeconfig_credential_is_classified() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(dir.path(), false);
    let now = Timestamp::now();
    let unusable = |text: &str| match files.credential(now) {
        Credential::Unusable(reason) => assert!(reason.contains(text), "{reason}"),
        other => panic!("{other:?}"),
    };
    unusable("does not exist");
    write_kubeconfig(&files, "token: t");
    assert_eq!(files.credential(now), Credential::Own);
    write_kubeconfig(&files, "exec: {apiVersion: client.authentication.k8s.io/v1, command: x}");
    assert_eq!(files.credential(now), Credential::Own);
    let certificate = dir.path().join("c.pem");
    for (until, usable) in [(HOUR, true), (-HOUR, false)] {
        use base64::Engine;
        let (pem, _) = issued(-2 * HOUR, until);
        fs::write(&certificate, &pem).unwrap();
        let data = base64::engine::general_purpose::STANDARD.encode(pem);
        for user in [
            format!("client-certificate: {0}, client-key: {0}", certificate.display()),
            format!("client-certificate-data: {data}, client-key-data: {data}"),
        ] {
            write_kubeconfig(&files, &user);
            match usable {
                true => assert_eq!(files.credential(now), Credential::Own, "{user}"),
                false => unusable("expired at"),
            }
        }
    }
    write_kubeconfig(&files, "client-certificate: /nonexistent.pem");
    unusable("/nonexistent.pem");
    write_kubeconfig(
        &files,
        &format!("client-certificate: {}", files.store.current_path().display()),
    );
    assert_eq!(files.credential(now), Credential::Store);
    fs::write(&files.kubeconfig, "half a fi").unwrap();
    assert!(matches!(files.credential(now), Credential::Unusable(_)));
    let missing = files.adopt_bootstrap().unwrap_err();
    assert!(missing.contains("no --bootstrap-kubeconfig is given"), "{missing}");
}
