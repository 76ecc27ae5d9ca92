//! Rules for PodCertificateRequests: what a node asks for, and what a signer answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use x509_parser::pem::Pem;

use super::certificates::{is_kubernetes_signer, signer_name};
use super::meta;
use crate::csr::{Curve, KeyFault, PodCertificate, PodRequest, PublicKey, is_mail_address};
use crate::object;
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::value::{entries, items, same, text};

/// The longest UID.
const UID: usize = 128;
/// The longest key, proof and request.
const KEY: usize = 10 * 1024;
/// The longest certificate chain.
const CHAIN: usize = 100 * 1024;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// The longest lifetime of certificates of signers of others.
pub(in crate::kinds) const LONGEST: i64 = 91 * DAY;
/// How far the begin of a certificate may be from now.
const SKEW: SignedDuration = SignedDuration::from_mins(5);
/// So long before and after its refresh a certificate is valid.
const MARGIN: SignedDuration = SignedDuration::from_mins(10);

const ISSUED: &str = "Issued";
const DENIED: &str = "Denied";
const FAILED: &str = "Failed";
/// What ends a request.
const VERDICTS: [&str; 3] = [ISSUED, DENIED, FAILED];

const KEY_TYPE: &str = "unknown public key type; supported types are Ed25519, ECDSA, and RSA";
const KEY_SIZE: &str = "RSA keys must have modulus size 3072 or 4096";
const OTHER_KEY: &str = "leaf certificate was not issued to the requested public key";
const NOT_CERTIFICATES: &str =
    "issued certificate chain must consist entirely of CERTIFICATE PEM blocks";

/// The longest lifetime of a certificate of the signer, in seconds.
pub(in crate::kinds) fn longest(signer: &str) -> i64 {
    if is_kubernetes_signer(signer) { DAY } else { LONGEST }
}

/// A new request.
pub(in crate::kinds) fn create(request: &Value, causes: &mut Causes) {
    let (spec, path) = (&request["spec"], Path::root("spec"));
    let signer = text(&spec["signerName"]);
    signer_name(&path.child("signerName"), signer, causes);
    let annotations = "unverifiedUserAnnotations";
    user_annotations(&path.child(annotations), &spec[annotations], causes);
    for object in ["pod", "serviceAccount", "node"] {
        let [name, uid] = ["Name", "UID"].map(|field| format!("{object}{field}"));
        let given = text(&spec[&name]);
        causes.each(&path.child(&name), given, names::dns_subdomain(given));
        let (path, given) = (path.child(&uid), text(&spec[&uid]));
        if given.is_empty() {
            causes.invalid(&path, given, "must not be empty");
        }
        if given.len() > UID {
            causes.too_long(&path, UID);
        }
    }
    let lifetime = path.child("maxExpirationSeconds");
    let Some(seconds) = spec["maxExpirationSeconds"].as_i64() else {
        return causes.required(&lifetime, "must be set");
    };
    if !(HOUR..=longest(signer)).contains(&seconds) {
        let why = format!("must be in the range [{HOUR}, {}]", longest(signer));
        causes.invalid(&lifetime, &seconds, why);
    }
    let has = |field: &str| !text(&spec[field]).is_empty();
    match (has("stubPKCS10Request"), has("pkixPublicKey"), has("proofOfPossession")) {
        (true, false, false) => pkcs10_request(&path, spec, causes),
        (false, true, true) => public_key(&path, spec, causes),
        _ => causes.invalid_whole(
            &path,
            "exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set",
        ),
    }
}

/// What is told to the signer, by names with domains.
pub(in crate::kinds) fn user_annotations(
    path: &Path<'_>,
    annotations: &Value,
    causes: &mut Causes,
) {
    for (key, _) in entries(annotations) {
        let key = key.to_lowercase();
        match names::qualified(&key) {
            _ if key.is_empty() => causes.required(path, ""),
            wrong if !wrong.is_empty() => causes.each(path, &key, wrong),
            _ if !key.contains('/') => {
                let why = "must be a domain-prefixed key (such as \"acme.io/foo\")";
                causes.invalid(path, &key, why);
            }
            _ => {}
        }
    }
    meta::annotations_size(path, annotations, causes);
}

/// The bytes of a field, or a complaint if they are too many.
fn bytes(path: &Path<'_>, value: &Value, causes: &mut Causes) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(text(value)).unwrap_or_default();
    if bytes.len() > KEY {
        causes.too_long(path, KEY);
        return None;
    }
    Some(bytes)
}

/// The deprecated way to prove a key: the pod's UID, signed.
fn public_key(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let key_path = path.child("pkixPublicKey");
    let proof_path = path.child("proofOfPossession");
    let Some(der) = bytes(&key_path, &spec["pkixPublicKey"], causes) else { return };
    let Some(proof) = bytes(&proof_path, &spec["proofOfPossession"], causes) else { return };
    let given = text(&spec["pkixPublicKey"]);
    let Some(key) = PublicKey::from_der(&der) else {
        return causes.invalid(&key_path, given, "must be a valid PKIX-serialized public key");
    };
    match key.fault() {
        None if key.has_proven(text(&spec["podUID"]).as_bytes(), &proof) => {}
        None => {
            causes.invalid_whole(&proof_path, "could not verify proof-of-possession signature");
        }
        Some(KeyFault::Type) => causes.invalid(&key_path, given, KEY_TYPE),
        Some(KeyFault::Curve(curve)) => {
            let why = "elliptic public keys must use curve P256 or P384";
            wrong_curve(&key_path, curve, why, causes);
        }
        Some(KeyFault::Bits(bits)) => wrong_size(&key_path, bits, causes),
    }
}

fn wrong_curve(path: &Path<'_>, curve: Curve, why: &str, causes: &mut Causes) {
    causes.invalid(path, &format!("curve {}", curve.name()), why);
}

fn wrong_size(path: &Path<'_>, bits: usize, causes: &mut Causes) {
    causes.invalid(path, &format!("{bits}-bit modulus"), KEY_SIZE);
}

/// What the request says beside its key is for the signer.
fn pkcs10_request(path: &Path<'_>, spec: &Value, causes: &mut Causes) {
    let path = path.child("stubPKCS10Request");
    let Some(der) = bytes(&path, &spec["stubPKCS10Request"], causes) else { return };
    let Some(request) = PodRequest::from_der(&der) else {
        return causes.invalid_whole(&path, "must be a valid PKCS#10 CSR");
    };
    match request.public_key.fault() {
        None if request.is_signed => {}
        None => causes.invalid_whole(&path, "invalid signature"),
        Some(KeyFault::Type) => causes.invalid_whole(&path, KEY_TYPE),
        Some(KeyFault::Curve(curve)) => {
            let why = "elliptic public keys must use curve P256, P384, or P521";
            wrong_curve(&path, curve, why, causes);
        }
        Some(KeyFault::Bits(bits)) => wrong_size(&path, bits, causes),
    }
}

/// An update of anything but the status, which is not changed by it.
pub(in crate::kinds) fn update(request: &Value, old: &Value, causes: &mut Causes) {
    super::immutable(&Path::root("spec"), &request["spec"], &old["spec"], causes);
}

/// A signer's answer, of which there is one.
pub(in crate::kinds) fn status(request: &Value, old: &Value, causes: &mut Causes) {
    if causes.0.is_empty() {
        status_at(request, old, object::now(), causes);
    }
}

pub(in crate::kinds) fn status_at(
    request: &Value,
    old: &Value,
    now: Timestamp,
    causes: &mut Causes,
) {
    let path = Path::root("status");
    let status = &request["status"];
    verdict_conditions(&path.child("conditions"), &status["conditions"], causes);
    if !causes.0.is_empty() {
        return;
    }
    let changed = !same(status, &old["status"]);
    let has = |request: &Value, verdicts: &[&str]| {
        let mut all = items(&request["status"]["conditions"]).iter();
        all.any(|one| one["status"] == "True" && verdicts.contains(&text(&one["type"])))
    };
    match () {
        () if has(old, &VERDICTS) => {
            if changed {
                let why = "immutable after PodCertificateRequest is issued, denied, or failed";
                causes.invalid_whole(&path, why);
            }
        }
        () if has(request, &[DENIED, FAILED]) => {
            let alone = json!({"conditions": status["conditions"]});
            if !same(status, &alone) {
                let why = "non-condition status fields must be empty when denying or failing the \
                           PodCertificateRequest";
                causes.invalid_whole(&path, why);
            }
        }
        () if has(request, &[ISSUED]) => issued(&path, request, old, now, causes),
        () if changed => {
            let why =
                "status is immutable unless transitioning to \"Issued\", \"Denied\", or \"Failed\"";
            causes.invalid_whole(&path, why);
        }
        () => {}
    }
}

/// One condition at most, that ends the request.
fn verdict_conditions(path: &Path<'_>, conditions: &Value, causes: &mut Causes) {
    let mut known = 0_usize;
    for (i, condition) in items(conditions).iter().enumerate() {
        // so upstream names them here
        let index = format!("[{i}]");
        let path = path.child(&index);
        let (kind, kind_path) = (text(&condition["type"]), path.child("type"));
        if !VERDICTS.contains(&kind) {
            causes.not_supported(&kind_path, kind, &VERDICTS);
            continue;
        }
        known = known.saturating_add(1);
        if known > 1 {
            let why = "There may be at most one condition with type \"Issued\", \"Denied\", or \"Failed\"";
            causes.invalid(&kind_path, kind, why);
        }
        super::supported(&path.child("status"), &condition["status"], &["True"], causes);
    }
    super::conditions(path, conditions, causes);
}

/// A certificate for the key, valid from now on, and when to ask for the next.
fn issued(path: &Path<'_>, request: &Value, old: &Value, now: Timestamp, causes: &mut Causes) {
    let status = &request["status"];
    let chain_path = path.child("certificateChain");
    let chain = text(&status["certificateChain"]);
    if chain.len() > CHAIN {
        return causes.too_long(&chain_path, CHAIN);
    }
    let mut blocks = Pem::iter_from_buffer(chain.as_bytes());
    let leaf = match blocks.next() {
        Some(Ok(block)) if block.label != CERTIFICATE => Err(NOT_CERTIFICATES),
        Some(Ok(block)) => PodCertificate::from_der(&block.contents)
            .ok_or("leaf certificate does not parse as valid X.509"),
        _ => Err("issued certificate chain must contain at least one certificate"),
    };
    let leaf = match leaf {
        Ok(leaf) => leaf,
        Err(why) => return causes.invalid(&chain_path, chain, why),
    };
    leaf_names(&chain_path, &leaf, causes);
    match requested_key(&old["spec"]) {
        Err((field, why)) => return causes.invalid_whole(&Path::root("spec").child(field), why),
        Ok(key) if leaf.public_key.as_ref() != Some(&key) => {
            return causes.invalid(&chain_path, chain, OTHER_KEY);
        }
        Ok(_) => {}
    }
    if !lifetime(path, request, &leaf, now, causes) {
        return;
    }
    for block in blocks {
        let why = match block {
            Ok(block) if block.label != CERTIFICATE => NOT_CERTIFICATES,
            Ok(block) if PodCertificate::from_der(&block.contents).is_some() => continue,
            Ok(_) => "intermediate certificate does not parse as valid X.509",
            Err(_) => NOT_CERTIFICATES,
        };
        return causes.invalid(&chain_path, chain, why);
    }
}

const CERTIFICATE: &str = "CERTIFICATE";

fn leaf_names(path: &Path<'_>, leaf: &PodCertificate, causes: &mut Causes) {
    for name in &leaf.dns_names {
        if name.is_empty() {
            causes.invalid(path, name, "leaf certificate should not contain empty DNSName");
        }
        if name.contains("..") {
            causes.invalid(path, name, "leaf certificate's DNSName should not contain '..'");
        }
        if name.starts_with('.') || name.ends_with('.') {
            let why = "leaf certificate's DNSName should not start or end with '.'";
            causes.invalid(path, name, why);
        }
    }
    for address in leaf.emails.iter().filter(|address| !is_mail_address(address)) {
        let why = "leaf certificate should not contain invalid EmailAddress";
        causes.invalid(path, address, why);
    }
}

/// The key of a stored request, or which field has none.
fn requested_key(spec: &Value) -> Result<PublicKey, (&'static str, &'static str)> {
    let der = |field: &str| STANDARD.decode(text(&spec[field])).unwrap_or_default();
    let request = "stubPKCS10Request";
    if text(&spec[request]).is_empty() {
        let field = "pkixPublicKey";
        let key = PublicKey::from_der(&der(field));
        return key.ok_or((field, "must be a valid PKIX-serialized public key"));
    }
    let read = PodRequest::from_der(&der(request));
    Ok(read.ok_or((request, "must be a valid PKCS#10 CSR"))?.public_key)
}

/// The first rule that the times break; false if there is one.
fn lifetime(
    path: &Path<'_>,
    request: &Value,
    leaf: &PodCertificate,
    now: Timestamp,
    causes: &mut Causes,
) -> bool {
    let count = causes.0.len();
    let status = &request["status"];
    const TIMES: [(&str, &str); 3] = [
        ("notBefore", "must be present and consistent with the issued certificate"),
        ("notAfter", "must be present and consistent with the issued certificate"),
        ("beginRefreshAt", "must be present and in the range [notbefore+10min, notafter-10min]"),
    ];
    let times = TIMES.map(|(field, why)| {
        let time = text(&status[field]).parse::<Timestamp>().ok();
        if time.is_none() {
            causes.required(&path.child(field), why);
        }
        time
    });
    let [Some(not_before), Some(not_after), Some(refresh)] = times else { return false };
    if causes.0.len() > count || count > 0 {
        return false;
    }
    let seconds = leaf.not_after.saturating_sub(leaf.not_before);
    let longest = request["spec"]["maxExpirationSeconds"].as_i64().unwrap_or_default();
    let nanoseconds = seconds.saturating_mul(1_000_000_000);
    let mut invalid = |field: &str, value: &Value, why: &str| {
        causes.invalid(&path.child(field), value, why);
        false
    };
    let is = |time: Timestamp, seconds: i64| {
        time.as_second() == seconds && time.subsec_nanosecond() == 0
    };
    let after = |early: Timestamp, late: Timestamp| late.duration_since(early);
    match () {
        () if !is(not_before, leaf.not_before) => {
            let why = "must be set to the NotBefore time encoded in the leaf certificate";
            invalid("notBefore", &status["notBefore"], why)
        }
        () if after(not_before, now).abs() >= SKEW => {
            let why = "must be set to within 5 minutes of kube-apiserver's current time";
            invalid("notBefore", &status["notBefore"], why)
        }
        () if !is(not_after, leaf.not_after) => {
            let why = "must be set to the NotAfter time encoded in the leaf certificate";
            invalid("notAfter", &status["notAfter"], why)
        }
        () if seconds < HOUR => {
            let why = "leaf certificate lifetime must be >= 1 hour";
            invalid("certificateChain", &nanoseconds.into(), why)
        }
        () if seconds > longest => {
            let why = format!(
                "leaf certificate lifetime must be <= spec.maxExpirationSeconds ({longest})"
            );
            invalid("certificateChain", &nanoseconds.into(), &why)
        }
        () if after(not_before, refresh) < MARGIN => {
            let why = "must be at least 10 minutes after status.notBefore";
            invalid("beginRefreshAt", &status["beginRefreshAt"], why)
        }
        () if after(refresh, not_after) < MARGIN => {
            let why = "must be at least 10 minutes before status.notAfter";
            invalid("beginRefreshAt", &status["beginRefreshAt"], why)
        }
        () => true,
    }
}
