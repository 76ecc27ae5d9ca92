//! PodCertificateRequests.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair, SanType};

use super::rules::complaints;
use super::*;
use crate::kinds::validate::pod_certificates::status_at;

const PLURAL: &str = "podcertificaterequests";
/// Keys, proofs of the UID `pod-uid` and requests of OpenSSL.
const KEYS: &str = include_str!("../../../../csr/src/testdata/pod-keys.tsv");

/// Key, proof and request of this name.
fn key(name: &str) -> [&'static str; 3] {
    let fields = KEYS.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| fields[0] == name).unwrap();
    [found[1], found[2], found[3]]
}

fn request() -> Value {
    json!({
        "metadata": {"name": "r"},
        "spec": {
            "signerName": "example.com/s", "podName": "p", "podUID": "pod-uid",
            "serviceAccountName": "sa", "serviceAccountUID": "sa-uid", "nodeName": "n1",
            "nodeUID": "node-uid", "stubPKCS10Request": key("ed25519")[2],
        },
    })
}

/// The request with these fields of its spec; null removes one.
fn with(spec: Value) -> Value {
    let mut request = request();
    json_patch::merge(&mut request["spec"], &spec);
    request
}

#[test]
fn pod_certificate_requests_are_prepared() {
    let mut given = request();
    given["status"] = json!({"certificateChain": "x"});
    let made = made(PLURAL, given);
    assert_eq!(made["status"], json!({}));
    assert_eq!(made["spec"]["maxExpirationSeconds"], 86400);
    assert!(made["metadata"].get("generation").is_none());

    let old = stored(PLURAL, request());
    let (new, result) = updated(PLURAL, &old, |new| {
        new["metadata"]["labels"] = json!({"a": "b"});
        new["status"] = json!({"certificateChain": "x"});
    });
    result.unwrap();
    assert_eq!((&new["status"], &new["metadata"]["labels"]["a"]), (&json!({}), &json!("b")));
    let (_, result) = updated(PLURAL, &old, |new| new["spec"]["podName"] = "q".into());
    let message = result.unwrap_err().message;
    assert!(message.contains("spec: Invalid value") && message.contains("field is immutable"));

    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    new["metadata"]["finalizers"] = json!(["example.com/f"]);
    new["spec"]["signerName"] = "example.com/other".into();
    new["status"] = json!({"certificateChain": "x"});
    crate::kinds::prepare_status_update(resource(PLURAL), &mut new, &old);
    assert_eq!((&new["spec"], &new["metadata"]), (&old["spec"], &old["metadata"]));
    assert_eq!(new["status"]["certificateChain"], "x");
}

#[test]
fn pod_certificate_requests_keep_their_rules() {
    let long = "x".repeat(129);
    let large = STANDARD.encode(vec![0; 10 * 1024 + 1]);
    let [ed, ed_proof, ed_request] = key("ed25519");
    let mut changed = STANDARD.decode(ed_request).unwrap();
    *changed.last_mut().unwrap() ^= 1;
    let changed = STANDARD.encode(changed);
    let proven = |name: &str| {
        let [key, proof, _] = key(name);
        json!({"stubPKCS10Request": "", "pkixPublicKey": key, "proofOfPossession": proof})
    };
    let stub = |name: &str| json!({"stubPKCS10Request": key(name)[2]});
    let which = "spec: Invalid value: exactly one of (stubPKCS10Request) or (pkixPublicKey, \
                 proofOfPossession) must be set";
    let key_type = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";
    let table = [
        (json!({}), ""),
        (json!({"maxExpirationSeconds": 3600}), ""),
        (json!({"maxExpirationSeconds": 7_862_400}), ""),
        (
            json!({"maxExpirationSeconds": 3599}),
            "spec.maxExpirationSeconds: Invalid value: 3599: must be in the range [3600, 7862400]",
        ),
        (
            json!({"maxExpirationSeconds": 7_862_401}),
            "spec.maxExpirationSeconds: Invalid value: 7862401: must be in the range [3600, 7862400]",
        ),
        (json!({"signerName": "kubernetes.io/s", "maxExpirationSeconds": 86400}), ""),
        (
            json!({"signerName": "kubernetes.io/s", "maxExpirationSeconds": 86401}),
            "spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]",
        ),
        (
            json!({"signerName": "a.kubernetes.io/s", "maxExpirationSeconds": 86401}),
            "spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]",
        ),
        (json!({"signerName": "akubernetes.io/s", "maxExpirationSeconds": 86401}), ""),
        (json!({"signerName": ""}), "spec.signerName: Required value"),
        (
            json!({"signerName": "s"}),
            "spec.signerName: Invalid value: \"s\": must be a fully qualified domain and path of \
             the form 'example.com/signer-name'",
        ),
        (json!({"podName": "P"}), "spec.podName: Invalid value: \"P\": a lowercase RFC 1123"),
        (json!({"podUID": ""}), "spec.podUID: Invalid value: \"\": must not be empty"),
        (json!({"podUID": long}), "spec.podUID: Too long: may not be more than 128 bytes"),
        (json!({"serviceAccountName": ""}), "spec.serviceAccountName: Invalid value: \"\""),
        (
            json!({"serviceAccountUID": ""}),
            "spec.serviceAccountUID: Invalid value: \"\": must not be empty",
        ),
        (
            json!({"serviceAccountUID": long}),
            "spec.serviceAccountUID: Too long: may not be more than 128 bytes",
        ),
        (json!({"nodeName": "N"}), "spec.nodeName: Invalid value: \"N\""),
        (json!({"nodeUID": ""}), "spec.nodeUID: Invalid value: \"\": must not be empty"),
        (json!({"nodeUID": long}), "spec.nodeUID: Too long: may not be more than 128 bytes"),
        (json!({"unverifiedUserAnnotations": {"example.com/A": "b"}}), ""),
        (
            json!({"unverifiedUserAnnotations": {"a": "b"}}),
            "spec.unverifiedUserAnnotations: Invalid value: \"a\": must be a domain-prefixed key \
             (such as \"acme.io/foo\")",
        ),
        (
            json!({"unverifiedUserAnnotations": {"a.io/": "b"}}),
            "spec.unverifiedUserAnnotations: Invalid value: \"a.io/\": name part must be non-empty",
        ),
        (
            json!({"unverifiedUserAnnotations": {"a.io/b": "x".repeat(256 << 10)}}),
            "spec.unverifiedUserAnnotations: Too long: may not be more than 262144 bytes",
        ),
        (json!({"stubPKCS10Request": ""}), which),
        (json!({"pkixPublicKey": ed}), which),
        (json!({"proofOfPossession": ed_proof}), which),
        (json!({"stubPKCS10Request": "", "pkixPublicKey": ed}), which),
        (json!({"pkixPublicKey": ed, "proofOfPossession": ed_proof}), which),
        (
            json!({"stubPKCS10Request": large}),
            "spec.stubPKCS10Request: Too long: may not be more than 10240 bytes",
        ),
        (
            json!({"stubPKCS10Request": ed}),
            "spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR",
        ),
        (
            json!({"stubPKCS10Request": changed}),
            "spec.stubPKCS10Request: Invalid value: invalid signature",
        ),
        (stub("p256"), ""),
        (stub("p384"), ""),
        (stub("p521"), ""),
        (stub("rsa3072"), ""),
        (stub("rsa3072-pss"), ""),
        (stub("rsa4096"), ""),
        (
            stub("p224"),
            "spec.stubPKCS10Request: Invalid value: \"curve P-224\": elliptic public keys must use \
             curve P256, P384, or P521",
        ),
        (
            stub("rsa2048"),
            "spec.stubPKCS10Request: Invalid value: \"2048-bit modulus\": RSA keys must have modulus \
             size 3072 or 4096",
        ),
        (proven("ed25519"), ""),
        (proven("p256"), ""),
        (proven("p384"), ""),
        (proven("p521"), ""),
        (proven("rsa3072"), ""),
        (proven("rsa3072-nosalt"), ""),
        (proven("rsa4096"), ""),
        (
            proven("p224"),
            "spec.pkixPublicKey: Invalid value: \"curve P-224\": elliptic public keys must use \
             curve P256 or P384",
        ),
        (
            proven("rsa2048"),
            "spec.pkixPublicKey: Invalid value: \"2048-bit modulus\": RSA keys must have modulus \
             size 3072 or 4096",
        ),
        (proven("x25519"), key_type),
        (
            json!({"stubPKCS10Request": "", "pkixPublicKey": ed_proof, "proofOfPossession": ed_proof}),
            "must be a valid PKIX-serialized public key",
        ),
        (
            json!({"stubPKCS10Request": "", "pkixPublicKey": ed, "proofOfPossession": ed}),
            "spec.proofOfPossession: Invalid value: could not verify proof-of-possession signature",
        ),
        (
            json!({"stubPKCS10Request": "", "pkixPublicKey": large, "proofOfPossession": ed}),
            "spec.pkixPublicKey: Too long: may not be more than 10240 bytes",
        ),
        (
            json!({"stubPKCS10Request": "", "pkixPublicKey": ed, "proofOfPossession": large}),
            "spec.proofOfPossession: Too long: may not be more than 10240 bytes",
        ),
    ];
    for (spec, expected) in table {
        let shown = spec.to_string();
        let shown = &shown[..shown.len().min(80)];
        let said = complaints(PLURAL, with(spec.clone()));
        match expected {
            "" => assert_eq!(said, [""; 0], "{shown}"),
            _ => assert!(
                said.iter().any(|one| one.contains(expected)),
                "{shown}: {said:?}, not {expected}"
            ),
        }
    }
    let mut generated = request();
    generated["metadata"] = json!({"generateName": "req-", "name": "req-abc"});
    assert_eq!(complaints(PLURAL, generated), [""; 0]);
}

/// An authority, and a certificate of it for the request of [`issued`].
struct Signer {
    key: KeyPair,
    params: CertificateParams,
}

fn signer() -> Signer {
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Signer { key: KeyPair::generate().unwrap(), params }
}

impl Signer {
    fn pem(&self) -> String {
        self.params.self_signed(&self.key).unwrap().pem()
    }

    /// For the key of a request, valid from one second to another.
    fn leaf(&self, request: &str, (from, to): (i64, i64), names: Vec<SanType>) -> String {
        let der = STANDARD.decode(request).unwrap();
        let mut asked = CertificateSigningRequestParams::from_der(&der.into()).unwrap();
        let time = |second| {
            let year = rcgen::date_time_ymd(1970, 1, 1);
            year + std::time::Duration::from_secs(u64::try_from(second).unwrap())
        };
        (asked.params.not_before, asked.params.not_after) = (time(from), time(to));
        asked.params.subject_alt_names = names;
        let issuer = rcgen::Issuer::from_params(&self.params, &self.key);
        asked.signed_by(&issuer).unwrap().pem()
    }
}

const NOW: i64 = 1_800_000_000;
const DAY: i64 = 86_400;

fn at(second: i64) -> String {
    Timestamp::from_second(second).unwrap().to_string()
}

fn condition(kind: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": at(NOW),
    })
}

fn answered(conditions: Value, more: Value) -> Value {
    let mut status = json!({"conditions": conditions});
    json_patch::merge(&mut status, &more);
    status
}

/// What is said of this answer to a request that had that one.
fn said(old: &Value, new: &Value) -> Vec<String> {
    let mut request = stored(PLURAL, request());
    let mut answered = request.clone();
    request["status"] = old.clone();
    answered["status"] = new.clone();
    let mut causes = Causes::default();
    status_at(&answered, &request, Timestamp::from_second(NOW).unwrap(), &mut causes);
    causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
}

fn check(old: &Value, new: &Value, expected: &str) {
    let said = said(old, new);
    match expected {
        "" => assert_eq!(said, [""; 0], "{new}"),
        _ => assert!(said.iter().any(|one| one.contains(expected)), "{said:?}, not {expected}"),
    }
}

#[test]
fn pod_certificate_requests_have_one_verdict() {
    let none = json!({});
    let [denied, failed, issued] = ["Denied", "Failed", "Issued"].map(condition);
    let changed = |field: &str, value: Value| {
        let mut condition = condition("Denied");
        condition[field] = value;
        answered(json!([condition]), json!({}))
    };
    let ended =
        "status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed";
    let empty = "status: Invalid value: non-condition status fields must be empty when denying or \
                 failing the PodCertificateRequest";
    let refused = answered(json!([denied]), json!({}));
    let table = [
        (&none, none.clone(), ""),
        (&none, refused.clone(), ""),
        (&none, answered(json!([failed]), json!({})), ""),
        (&none, answered(json!([denied]), json!({"certificateChain": "x"})), empty),
        (&none, answered(json!([failed]), json!({"notAfter": at(NOW)})), empty),
        (
            &none,
            json!({"certificateChain": "x"}),
            "status: Invalid value: status is immutable unless transitioning to \"Issued\", \
             \"Denied\", or \"Failed\"",
        ),
        (&refused, refused.clone(), ""),
        (&refused, none.clone(), ended),
        (&refused, answered(json!([failed]), json!({})), ended),
        (
            &none,
            answered(json!([denied, issued]), json!({})),
            "status.conditions.[1].type: Invalid value: \"Issued\": There may be at most one \
             condition with type \"Issued\", \"Denied\", or \"Failed\"",
        ),
        (
            &none,
            answered(json!([denied, denied]), json!({})),
            "status.conditions[1].type: Duplicate value: \"Denied\"",
        ),
        (
            &none,
            changed("type", "Pending".into()),
            "status.conditions.[0].type: Unsupported value: \"Pending\": supported values: \
             \"Issued\", \"Denied\", \"Failed\"",
        ),
        (
            &none,
            changed("status", "False".into()),
            "status.conditions.[0].status: Unsupported value: \"False\": supported values: \"True\"",
        ),
        (
            &none,
            changed("status", "Maybe".into()),
            "status.conditions[0].status: Unsupported value: \"Maybe\": supported values: \
             \"False\", \"True\", \"Unknown\"",
        ),
        (
            &none,
            changed("lastTransitionTime", Value::Null),
            "status.conditions[0].lastTransitionTime: Required value",
        ),
        (&none, changed("reason", "".into()), "status.conditions[0].reason: Required value"),
        (
            &none,
            changed("reason", "a b".into()),
            "status.conditions[0].reason: Invalid value: \"a b\": a condition reason must start",
        ),
        (
            &none,
            changed("reason", "a".repeat(1025).into()),
            "status.conditions[0].reason: Too long: may not be more than 1024 bytes",
        ),
        (
            &none,
            changed("message", "a".repeat(32769).into()),
            "status.conditions[0].message: Too long: may not be more than 32768 bytes",
        ),
        (
            &none,
            changed("observedGeneration", (-1).into()),
            "status.conditions[0].observedGeneration: Invalid value: -1: must be greater than or \
             equal to zero",
        ),
    ];
    for (old, new, expected) in table {
        check(old, &new, expected);
    }
}

#[test]
fn pod_certificate_requests_are_issued_certificates() {
    let signer = signer();
    let [own, other] = [key("ed25519")[2], key("p256")[2]];
    let day = (NOW, NOW + DAY);
    let leaf = |times| signer.leaf(own, times, Vec::new());
    let named = |names| signer.leaf(own, day, names);
    let dns = |name: &str| vec![SanType::DnsName(name.try_into().unwrap())];
    let mail = |name: &str| vec![SanType::Rfc822Name(name.try_into().unwrap())];
    let good = leaf(day);
    let issued = |chain: &str, more: Value| {
        let mut status = answered(
            json!([condition("Issued")]),
            json!({
                "certificateChain": chain, "notBefore": at(NOW), "notAfter": at(NOW + DAY),
                "beginRefreshAt": at(NOW + DAY / 2),
            }),
        );
        json_patch::merge(&mut status, &more);
        status
    };
    let of = |times: (i64, i64)| {
        let more = json!({"notBefore": at(times.0), "notAfter": at(times.1)});
        issued(&leaf(times), more)
    };
    let refreshed = |second: i64| issued(&good, json!({"beginRefreshAt": at(second)}));
    let block = |label: &str, text: &str| {
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    };
    let chain = "status.certificateChain: Invalid value: ";
    let table = [
        (issued(&good, json!({})), ""),
        (issued(&format!("{good}{}", signer.pem()), json!({})), ""),
        (issued(&format!("a leaf\n{good}"), json!({})), ""),
        (
            issued(&"x".repeat(100 * 1024 + 1), json!({})),
            "status.certificateChain: Too long: may not be more than 102400 bytes",
        ),
        (issued("", json!({})), "must contain at least one certificate"),
        (issued("x", json!({})), "must contain at least one certificate"),
        (
            issued(&block("KEY", "AAAA"), json!({})),
            "must consist entirely of CERTIFICATE PEM blocks",
        ),
        (
            issued(&block("CERTIFICATE", "AAAA"), json!({})),
            "leaf certificate does not parse as valid X.509",
        ),
        (
            issued(&format!("{good}{}", block("KEY", "AAAA")), json!({})),
            "must consist entirely of CERTIFICATE PEM blocks",
        ),
        (
            issued(&format!("{good}{}", block("CERTIFICATE", "AAAA")), json!({})),
            "intermediate certificate does not parse as valid X.509",
        ),
        (
            issued(&signer.leaf(other, day, Vec::new()), json!({})),
            "leaf certificate was not issued to the requested public key",
        ),
        (issued(&named(dns("a.example")), json!({})), ""),
        (issued(&named(mail("a@example.com")), json!({})), ""),
        (issued(&named(dns("")), json!({})), "should not contain empty DNSName"),
        (issued(&named(dns("a..b")), json!({})), "DNSName should not contain '..'"),
        (issued(&named(dns(".a")), json!({})), "DNSName should not start or end with '.'"),
        (issued(&named(dns("a.")), json!({})), "DNSName should not start or end with '.'"),
        (issued(&named(mail("a")), json!({})), "should not contain invalid EmailAddress"),
        (
            issued(&good, json!({"notBefore": null})),
            "status.notBefore: Required value: must be present and consistent with the issued",
        ),
        (
            issued(&good, json!({"notAfter": null})),
            "status.notAfter: Required value: must be present and consistent with the issued",
        ),
        (
            issued(&good, json!({"beginRefreshAt": null})),
            "status.beginRefreshAt: Required value: must be present and in the range \
             [notbefore+10min, notafter-10min]",
        ),
        (
            issued(&good, json!({"notBefore": at(NOW + 1)})),
            "must be set to the NotBefore time encoded in the leaf certificate",
        ),
        (
            issued(&good, json!({"notAfter": at(NOW + 1)})),
            "must be set to the NotAfter time encoded in the leaf certificate",
        ),
        (of((NOW - 299, NOW + DAY - 299)), ""),
        (of((NOW + 299, NOW + DAY)), ""),
        (of((NOW - 300, NOW + DAY - 300)), "within 5 minutes of kube-apiserver's current time"),
        (of((NOW + 300, NOW + DAY)), "within 5 minutes of kube-apiserver's current time"),
        (of((NOW, NOW + 3599)), "3599000000000: leaf certificate lifetime must be >= 1 hour"),
        (
            of((NOW, NOW + DAY + 1)),
            "leaf certificate lifetime must be <= spec.maxExpirationSeconds (86400)",
        ),
        (refreshed(NOW + 600), ""),
        (refreshed(NOW + 599), "must be at least 10 minutes after status.notBefore"),
        (refreshed(NOW + DAY - 600), ""),
        (refreshed(NOW + DAY - 599), "must be at least 10 minutes before status.notAfter"),
    ];
    for (status, expected) in table {
        check(&json!({}), &status, expected);
    }
    let said = said(&json!({}), &issued(&named(dns(".a")), json!({"notBefore": at(NOW + 1)})));
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with(chain), "{said:?}");
}

#[test]
fn pod_certificate_requests_are_shown() {
    let printer = crate::kinds::strategy(resource(PLURAL)).printer;
    let mut request = made(PLURAL, request());
    let row = |request: &Value| (printer.cells)(request, Timestamp::UNIX_EPOCH);
    let cells = ["r", "p", "sa", "n1", "example.com/s", "Pending", "<none>"].map(Value::from);
    assert_eq!(row(&request), cells);
    assert_eq!(printer.columns.len(), cells.len());
    request["spec"]["unverifiedUserAnnotations"] = json!({"a.io/b": "c"});
    for kind in ["Issued", "Denied", "Failed"] {
        request["status"]["conditions"] = json!([condition(kind)]);
        assert_eq!(row(&request)[5..], [kind, "a.io/b=c"].map(Value::from));
    }
}

#[test]
fn pod_certificate_volumes_keep_their_rules() {
    let path = "spec.volumes[0].projected.sources[0].podCertificate";
    let source = |more: Value| {
        let mut source = json!({
            "signerName": "example.com/s", "keyType": "ED25519", "credentialBundlePath": "b.pem",
        });
        json_patch::merge(&mut source, &more);
        source
    };
    for (more, expected) in [
        (json!({}), String::new()),
        (json!({"keyPath": "k", "certificateChainPath": "c"}), String::new()),
        (json!({"maxExpirationSeconds": 3600, "userAnnotations": {"a.io/b": ""}}), String::new()),
        (json!({"signerName": ""}), format!("{path}.signerName: Required value")),
        (
            json!({"keyType": "RSA2048"}),
            format!(
                "{path}.keyType: Unsupported value: \"RSA2048\": supported values: \"RSA3072\""
            ),
        ),
        (
            json!({"maxExpirationSeconds": 3599}),
            format!("{path}.maxExpirationSeconds: Invalid value: 3599: if provided"),
        ),
        (
            json!({"maxExpirationSeconds": 7_862_401}),
            "if provided, maxExpirationSeconds must be <= 7862400".into(),
        ),
        (
            json!({"signerName": "kubernetes.io/s", "maxExpirationSeconds": 86401}),
            "if provided, maxExpirationSeconds must be <= 86400".into(),
        ),
        (
            json!({"userAnnotations": {"b": ""}}),
            format!("{path}.userAnnotations: Invalid value: \"b\": must be a domain-prefixed key"),
        ),
        (json!({"keyPath": "b.pem"}), "conflicting duplicate paths".into()),
        (json!({"keyPath": "../k"}), format!("{path}.keyPath: Invalid value: \"../k\"")),
        (
            json!({"credentialBundlePath": null}),
            format!("{path}: Required value: specify at least one of credentialBundlePath"),
        ),
    ] {
        let mut pod = pod();
        let sources = json!({"sources": [{"podCertificate": source(more)}]});
        pod["spec"]["volumes"] = json!([{"name": "v", "projected": sources}]);
        let said = complaints("pods", pod);
        match expected.as_str() {
            "" => assert_eq!(said, [""; 0]),
            _ => assert!(said.iter().any(|one| one.contains(&expected)), "{said:?}: {expected}"),
        }
    }
}
