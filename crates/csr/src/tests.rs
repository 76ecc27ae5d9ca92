use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use longshore_tls::subject_of;
use longshore_tls::testing::certificate_request;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::*;

/// An authority with its certificate in PEM.
fn authority(name: &str, algorithm: &'static rcgen::SignatureAlgorithm) -> (Authority, String) {
    let key = KeyPair::generate_for(algorithm).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_after = rcgen::date_time_ymd(2051, 1, 1);
    let pem = params.self_signed(&key).unwrap().pem();
    let authority = Authority::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    (authority, pem)
}

/// `spec.request` of a user in a group, for these names.
fn asked(user: &str, group: &str, names: &[&str]) -> String {
    STANDARD.encode(certificate_request(user, group, names).1)
}

fn request(user: &str, group: &str, names: &[&str]) -> Request {
    Request::parse(&asked(user, group, names)).unwrap()
}

#[test]
fn csr_is_parsed() {
    let request = request("jane", "team", &["a.example", "10.0.0.1", "fd00::1"]);
    assert_eq!(
        (request.common_name.as_str(), request.organizations.as_slice()),
        ("jane", &["team".to_owned()][..])
    );
    assert_eq!(request.dns_names, ["a.example"]);
    let addresses: Vec<String> = request.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(addresses, ["10.0.0.1", "fd00::1"]);
}

#[test]
fn csr_invalid_is_rejected() {
    for text in [
        "",
        "x",
        "%",
        &STANDARD.encode("-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"),
    ] {
        assert_eq!(Request::parse(text).unwrap_err(), RequestError::NotPem, "{text}");
    }
    // A request that was changed after it was signed.
    let pem = String::from_utf8(STANDARD.decode(asked("jane", "", &[])).unwrap()).unwrap();
    let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
    let mut der = STANDARD.decode(body).unwrap();
    let at = der.windows(4).position(|bytes| bytes == b"jane").unwrap();
    der[at] = b'w';
    let forged = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        STANDARD.encode(&der)
    );
    assert!(matches!(Request::parse(&STANDARD.encode(forged)), Err(RequestError::Signature(_))));
    for cut in [1, 10, der.len() - 1] {
        let cut = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
            STANDARD.encode(&der[..cut])
        );
        assert!(Request::parse(&STANDARD.encode(cut)).is_err());
    }
}

#[test]
fn csr_signer_checks_are_upstreams() {
    const CLIENT: &[&str] = &["digital signature", "client auth"];
    const SERVING: &[&str] = &["digital signature", "key encipherment", "server auth"];
    let node = "system:node:n1";
    for (signer, request, usages, refusal) in [
        (Signer::KubeletClient, request(node, "system:nodes", &[]), CLIENT, None),
        (
            Signer::KubeletClient,
            request(node, "system:nodes", &[]),
            &["key encipherment", "digital signature", "client auth"],
            None,
        ),
        (Signer::KubeletClient, request(node, "", &[]), CLIENT, Some(Refusal::Organization)),
        (
            Signer::KubeletClient,
            request(node, "system:masters", &[]),
            CLIENT,
            Some(Refusal::Organization),
        ),
        (
            Signer::KubeletClient,
            request("n1", "system:nodes", &[]),
            CLIENT,
            Some(Refusal::CommonName),
        ),
        (
            Signer::KubeletClient,
            request(node, "system:nodes", &["a.b"]),
            CLIENT,
            Some(Refusal::Name("DNS")),
        ),
        (
            Signer::KubeletClient,
            request(node, "system:nodes", &["10.0.0.1"]),
            CLIENT,
            Some(Refusal::Name("IP")),
        ),
        (
            Signer::KubeletClient,
            request(node, "system:nodes", &[]),
            &["client auth"],
            Some(Refusal::Usages(["client auth", "digital signature", "key encipherment"])),
        ),
        (
            Signer::KubeletClient,
            request(node, "system:nodes", &[]),
            &["digital signature", "client auth", "server auth"],
            Some(Refusal::Usages(["client auth", "digital signature", "key encipherment"])),
        ),
        (Signer::KubeletServing, request(node, "system:nodes", &["n1"]), SERVING, None),
        (Signer::KubeletServing, request(node, "system:nodes", &["10.0.0.1"]), SERVING, None),
        (
            Signer::KubeletServing,
            request(node, "system:nodes", &[]),
            SERVING,
            Some(Refusal::NoName),
        ),
        (
            Signer::KubeletServing,
            request("x", "system:nodes", &["n1"]),
            SERVING,
            Some(Refusal::CommonName),
        ),
        (
            Signer::KubeletServing,
            request(node, "system:nodes", &["n1"]),
            CLIENT,
            Some(Refusal::Usages(["digital signature", "key encipherment", "server auth"])),
        ),
        (Signer::Client, request("jane", "team", &["x.y"]), CLIENT, None),
        (
            Signer::Client,
            request("jane", "", &[]),
            &["digital signature"],
            Some(Refusal::NoClientAuth),
        ),
        (
            Signer::Client,
            request("jane", "", &[]),
            SERVING,
            Some(Refusal::Usage("server auth".into())),
        ),
    ] {
        let verdict = signer.check(&request, usages);
        assert_eq!(verdict.err(), refusal, "{signer:?} {request:?} {usages:?}");
    }
    assert_eq!(Signer::of("example.com/own"), None);
}

#[test]
fn csr_certificate_matches_the_request() {
    for algorithm in
        [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
    {
        issued_by(algorithm);
    }
}

fn issued_by(algorithm: &'static rcgen::SignatureAlgorithm) {
    let (authority, ca_pem) = authority("kubernetes", algorithm);
    let wanted = request("system:node:n1", "system:nodes", &["n1", "10.0.0.1"]);
    let usages = ["digital signature", "key encipherment", "server auth"];
    let hour = Duration::from_secs(3600);
    let pem = authority.issue(&wanted, &usages, hour).unwrap();
    assert!(check_issued(&STANDARD.encode(&pem)).is_ok());
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let (rest, certificate) = X509Certificate::from_der(&der).unwrap();
    assert!(rest.is_empty());
    let ca = CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap();
    let (_, ca) = X509Certificate::from_der(&ca).unwrap();
    certificate.verify_signature(Some(ca.public_key())).unwrap();
    assert_eq!(certificate.issuer(), ca.subject());
    let (user, groups) = subject_of(&certificate);
    assert_eq!(
        (user.as_deref(), groups),
        (Some("system:node:n1"), vec!["system:nodes".to_owned()])
    );
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
    let purposes = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.server_auth && !purposes.client_auth);
    assert!(!certificate.basic_constraints().unwrap().unwrap().value.ca);
    assert_eq!(certificate.public_key().raw, wanted.public_key);
    assert_eq!(
        certificate.subject_alternative_name().unwrap().unwrap().value.general_names.len(),
        2
    );
    let validity = certificate.validity();
    let now = Timestamp::now().as_second();
    assert!((now - 330..=now - 300).contains(&validity.not_before.timestamp()));
    assert!((now + 3570..=now + 3600).contains(&validity.not_after.timestamp()));
    // Never longer than the CA, and each with its own number.
    let long = authority.issue(&wanted, &usages, Duration::from_secs(100 * 365 * 86400)).unwrap();
    let der = CertificateDer::from_pem_slice(long.as_bytes()).unwrap();
    let (_, long) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(long.validity().not_after, ca.validity().not_after);
    assert_ne!(long.raw_serial(), certificate.raw_serial());
    // Finding 13: no life is too long for the arithmetic.
    for life in [Duration::MAX, Duration::from_secs(u64::MAX), Duration::ZERO] {
        assert!(authority.issue(&wanted, &usages, life).is_ok(), "{life:?}");
    }
}

#[test]
fn csr_authority_needs_a_ca_and_its_key() {
    let pair = || {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    };
    let ((ca, key), (_, other)) = (pair(), pair());
    let read = |ca: &str, key: &str| Authority::from_pem(ca.as_bytes(), key.as_bytes()).err();
    assert!(read(&ca, &key).is_none());
    assert!(matches!(read(&ca, &other), Some(AuthorityError::Mismatch)));
    assert!(matches!(read(&key, &key), Some(AuthorityError::Certificate(_))));
    assert!(matches!(read(&ca, &ca), Some(AuthorityError::Key(_))));
    let leaf = CertificateParams::default().self_signed(&KeyPair::generate().unwrap()).unwrap();
    assert!(matches!(read(&leaf.pem(), &key), Some(AuthorityError::NoCa)));
}

#[test]
fn csr_authority_takes_keys_in_their_older_forms() {
    // `EC PRIVATE KEY` is what the octet string of PKCS #8 holds, with the curve inside.
    let (ca, key) = (include_str!("testdata/ec-ca.crt"), include_str!("testdata/ec-ca.key"));
    assert!(key.contains("BEGIN EC PRIVATE KEY"));
    assert!(Authority::from_pem(ca.as_bytes(), key.as_bytes()).is_ok());
    let (ca, key) = (include_str!("testdata/rsa-ca.crt"), include_str!("testdata/rsa-ca.key"));
    assert!(key.contains("BEGIN RSA PRIVATE KEY"));
    let rsa = Authority::from_pem(ca.as_bytes(), key.as_bytes()).unwrap();
    let pem = rsa.issue(&request("jane", "", &[]), &["client auth"], Duration::from_secs(3600));
    let der = CertificateDer::from_pem_slice(pem.unwrap().as_bytes()).unwrap();
    let (_, issued) = X509Certificate::from_der(&der).unwrap();
    let ca = CertificateDer::from_pem_slice(ca.as_bytes()).unwrap();
    let (_, ca) = X509Certificate::from_der(&ca).unwrap();
    issued.verify_signature(Some(ca.public_key())).unwrap();
}

#[test]
fn csr_usages_become_bits_and_purposes() {
    let (authority, _) = authority("kubernetes", &rcgen::PKCS_ECDSA_P256_SHA256);
    let wanted = request("jane", "", &[]);
    let issued = |usages: &[&str]| {
        let pem = authority.issue(&wanted, usages, Duration::from_secs(3600)).unwrap();
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    };
    let der =
        issued(&["decipher only", "key agreement", "timestamping", "s/mime", "email protection"]);
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.decipher_only() && usage.key_agreement() && !usage.digital_signature());
    let purposes = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(purposes.time_stamping && purposes.email_protection && !purposes.client_auth);
    let none = issued(&[]);
    let (_, none) = X509Certificate::from_der(&none).unwrap();
    assert!(none.key_usage().unwrap().is_none() && none.extended_key_usage().unwrap().is_none());
}

#[test]
fn csr_multiple_organizations_are_groups() {
    // Written by hand, since rcgen cannot: CN=jane, O=a, O=b.
    let key = KeyPair::generate().unwrap();
    let name = |oid: &[u64], text: &str| {
        yasna::construct_der(|writer| {
            writer.write_set(|writer| {
                writer.next().write_sequence(|writer| {
                    writer.next().write_oid(&yasna::models::ObjectIdentifier::from_slice(oid));
                    writer.next().write_utf8_string(text);
                });
            });
        })
    };
    let make = |names: &[Vec<u8>]| {
        let info = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_u8(0);
                writer.next().write_sequence(|writer| {
                    names.iter().for_each(|name| writer.next().write_der(name));
                });
                writer.next().write_der(&rcgen::PublicKeyData::subject_public_key_info(&key));
                writer.next().write_tagged_implicit(yasna::Tag::context(0), |writer| {
                    writer.write_set(|_| ());
                });
            });
        });
        let signature = rcgen::SigningKey::sign(&key, &info).unwrap();
        let der = yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_der(&info);
                writer.next().write_sequence(|writer| {
                    let oid = [1, 2, 840, 10045, 4, 3, 2];
                    writer.next().write_oid(&yasna::models::ObjectIdentifier::from_slice(&oid));
                });
                writer.next().write_bitvec_bytes(&signature, signature.len() * 8);
            });
        });
        let pem = format!(
            "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
            STANDARD.encode(der)
        );
        Request::parse(&STANDARD.encode(pem))
    };
    let (user, group): (&[u64], &[u64]) = (&[2, 5, 4, 3], &[2, 5, 4, 10]);
    let wanted = make(&[name(user, "jane"), name(group, "a"), name(group, "b")]).unwrap();
    assert_eq!(wanted.organizations, ["a", "b"]);
    let (authority, _) = authority("kubernetes", &rcgen::PKCS_ECDSA_P256_SHA256);
    let pem = authority.issue(&wanted, &["client auth"], Duration::from_secs(86400)).unwrap();
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let (_, certificate) = X509Certificate::from_der(&der).unwrap();
    assert_eq!(subject_of(&certificate).1, ["a", "b"]);
    // Whose name would it be?
    let two = make(&[name(user, "jane"), name(user, "system:node:n1")]);
    assert_eq!(two.unwrap_err(), RequestError::CommonNames);
}

/// Keys, proofs and requests of OpenSSL: name, SubjectPublicKeyInfo, signature of `pod-uid`, PKCS #10.
const POD_KEYS: &str = include_str!("testdata/pod-keys.tsv");

fn pod_keys() -> Vec<(&'static str, [Vec<u8>; 3])> {
    let read = |line: &'static str| {
        let (name, rest) = line.split_once('\t').unwrap();
        let fields: Vec<_> = rest.split('\t').map(|text| STANDARD.decode(text).unwrap()).collect();
        (name, fields.try_into().unwrap())
    };
    POD_KEYS.lines().map(read).collect()
}

#[test]
fn keys_of_pods_prove_their_possession() {
    for (name, [key, proof, request]) in pod_keys() {
        let read = PublicKey::from_der(&key).unwrap();
        let fault = match name {
            "p224" => Some(KeyFault::Curve(Curve::P224)),
            "rsa2048" => Some(KeyFault::Bits(2048)),
            "x25519" => Some(KeyFault::Type),
            _ => None,
        };
        assert_eq!(read.fault(), fault, "{name}");
        assert_eq!(read.has_proven(b"pod-uid", &proof), fault.is_none(), "{name}");
        assert!(!read.has_proven(b"pod-uie", &proof), "{name}");
        for at in [0, proof.len() / 2, proof.len() - 1] {
            let mut changed = proof.clone();
            changed[at] ^= 1;
            assert!(!read.has_proven(b"pod-uid", &changed), "{name} {at}");
        }
        for part in [&proof[..proof.len() - 1], &[proof.clone(), vec![0]].concat(), &[]] {
            assert!(!read.has_proven(b"pod-uid", part), "{name}");
        }
        if name == "x25519" {
            continue;
        }
        let asked = PodRequest::from_der(&request).unwrap();
        assert_eq!(asked.public_key, read, "{name}");
        // signatures of a curve that no pod may have are not checked
        assert_eq!(asked.is_signed, name != "p224", "{name}");
        let mut changed = request.clone();
        *changed.last_mut().unwrap() ^= 1;
        let changed = PodRequest::from_der(&changed);
        assert!(changed.is_none_or(|request| !request.is_signed), "{name}");
        assert!(PodRequest::from_der(&[&request[..], &[0]].concat()).is_none(), "{name}");
    }
}

#[test]
fn keys_of_pods_that_cannot_be_read() {
    let (_, [key, ..]) = pod_keys().remove(0);
    assert!(PublicKey::from_der(&[&key[..], &[0]].concat()).is_none());
    assert!(PublicKey::from_der(&key[..key.len() - 1]).is_none());
    for bytes in [&[][..], b"key", &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]] {
        assert!(PublicKey::from_der(bytes).is_none());
        assert!(PodRequest::from_der(bytes).is_none());
        assert!(PodCertificate::from_der(bytes).is_none());
    }
}

#[test]
fn certificates_of_pods_are_read() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
    let email = rcgen::SanType::Rfc822Name("a@example.com".try_into().unwrap());
    params.subject_alt_names.push(email);
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params.not_after = rcgen::date_time_ymd(2026, 1, 2);
    let certificate = params.self_signed(&key).unwrap();
    let expected = PodCertificate {
        public_key: PublicKey::from_der(&rcgen::PublicKeyData::subject_public_key_info(&key)),
        not_before: 1_767_225_600,
        not_after: 1_767_312_000,
        dns_names: vec!["a.example".to_owned()],
        emails: vec!["a@example.com".to_owned()],
    };
    assert!(expected.public_key.is_some());
    assert_eq!(PodCertificate::from_der(certificate.der()), Some(expected));
}

#[test]
fn mail_addresses() {
    for (text, expected) in [
        ("a@example.com", true),
        ("a.b+c@example", true),
        ("A B <a@example.com>", true),
        ("<a@example.com>", true),
        ("\"a b\"@example.com", true),
        ("a@[192.0.2.1]", true),
        ("", false),
        ("a", false),
        ("@example.com", false),
        ("a@", false),
        ("a b@example.com", false),
        (".a@example.com", false),
        ("a..b@example.com", false),
        ("a@example..com", false),
        ("a@b@example.com", false),
        ("<a@example.com", false),
        ("<<a@example.com>", false),
    ] {
        assert_eq!(is_mail_address(text), expected, "{text}");
    }
}
