//! Rules for certificate requests, and which part of one each subresource may change.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::csr::{self, APPROVED, DENIED, FAILED, USAGES};
use crate::schema::field::{Causes, Path};
use crate::schema::names;
use crate::schema::value::{items, same, text};

const SHORTEST_SECONDS: i64 = 600;
const BUNDLE_SIZE: usize = 1 << 20;
const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";

/// What an update is allowed to change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::kinds) enum Part {
    /// Neither a decision nor a certificate.
    Rest,
    /// The certificate, and conditions that are no decision.
    Status,
    /// The decision.
    Approval,
}

pub(in crate::kinds) fn create(request: &Value, causes: &mut Causes) {
    spec(&request["spec"], causes);
    status(request, causes);
}

pub(in crate::kinds) fn update(request: &Value, old: &Value, part: Part, causes: &mut Causes) {
    status(request, causes);
    let path = Path::root("status");
    let conditions = path.child("conditions");
    let of = |object: &'_ Value, kind: &str| -> Vec<Value> {
        let all = items(&object["status"]["conditions"]).iter();
        all.filter(|condition| condition["type"] == kind).cloned().collect()
    };
    for kind in [APPROVED, DENIED, FAILED] {
        let (new, had) = (of(request, kind), of(old, kind));
        let forbidden = match () {
            () if new.len() < had.len() => "remove",
            () if part == Part::Approval || kind == FAILED => continue,
            () if new.len() > had.len() => "add",
            () if new != had => "modify",
            () => continue,
        };
        let why = format!("updates may not {forbidden} a condition of type {kind:?}");
        causes.forbidden(&conditions, why);
    }
    let certificate = |object: &Value| text(&object["status"]["certificate"]).to_owned();
    if certificate(request) != certificate(old) {
        let path = path.child("certificate");
        if part != Part::Status {
            causes.forbidden(&path, "updates may not set certificate content");
        } else if !certificate(old).is_empty() {
            causes.forbidden(&path, "updates may not modify existing certificate content");
        }
    }
    if !same(&request["spec"], &old["spec"]) {
        causes.forbidden(&Path::root("spec"), "updates may not change the request");
    }
}

fn spec(spec: &Value, causes: &mut Causes) {
    let path = Path::root("spec");
    if let Err(error) = csr::Request::parse(text(&spec["request"])) {
        causes.invalid(&path.child("request"), &spec["request"], error);
    }
    let usages = path.child("usages");
    if items(&spec["usages"]).is_empty() {
        causes.required(&usages, "");
    }
    let mut seen = BTreeSet::new();
    for (i, usage) in items(&spec["usages"]).iter().map(text).enumerate() {
        if !USAGES.contains(&usage) {
            causes.not_supported(&usages.index(i), usage, &USAGES);
        }
        if !seen.insert(usage) {
            causes.duplicate(&usages.index(i), usage, "");
        }
    }
    let (signer, signer_path) = (text(&spec["signerName"]), path.child("signerName"));
    signer_name(&signer_path, signer, causes);
    if signer == LEGACY_SIGNER {
        let why = "the legacy signerName is not allowed via this API version";
        causes.invalid(&signer_path, signer, why);
    }
    if let Some(seconds) = spec["expirationSeconds"].as_i64()
        && seconds < SHORTEST_SECONDS
    {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        causes.invalid(&path.child("expirationSeconds"), &seconds, why);
    }
}

/// `domain/path`, where the domain has at least two parts.
pub(super) fn signer_name(path: &Path<'_>, name: &str, causes: &mut Causes) {
    if name.is_empty() {
        return causes.required(path, "");
    }
    let Some((domain, rest)) = name.split_once('/').filter(|(_, rest)| !rest.contains('/')) else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return causes.invalid(path, name, why);
    };
    causes.each(path, domain, names::dns_subdomain(domain));
    if !domain.contains('.') {
        causes.invalid(
            path,
            domain,
            "should be a domain with at least two segments separated by dots",
        );
    }
    causes.each(path, rest, names::dns_subdomain(rest));
}

/// Whether the signer is one of Kubernetes' own.
pub(super) fn is_kubernetes_signer(name: &str) -> bool {
    let domain = name.split('/').next().unwrap_or_default();
    domain == "kubernetes.io" || domain.ends_with(".kubernetes.io")
}

fn status(request: &Value, causes: &mut Causes) {
    let path = Path::root("status");
    let conditions = path.child("conditions");
    let mut seen = BTreeSet::new();
    for (i, condition) in items(&request["status"]["conditions"]).iter().enumerate() {
        let path = conditions.index(i);
        let kind = text(&condition["type"]);
        if kind.is_empty() {
            causes.required(&path.child("type"), "");
        }
        let supported: &[&str] = match kind {
            APPROVED | DENIED | FAILED => &["True"],
            _ => &["True", "False", "Unknown"],
        };
        super::one_of(&path.child("status"), &condition["status"], supported, causes);
        if !seen.insert(kind) {
            causes.duplicate(&path.child("type"), kind, "");
        }
    }
    if seen.contains(APPROVED) && seen.contains(DENIED) {
        let why = "Approved and Denied conditions are mutually exclusive";
        causes.invalid(&conditions, DENIED, why);
    }
    let certificate = text(&request["status"]["certificate"]);
    if let Err(error) = csr::check_issued(certificate) {
        causes.invalid(&path.child("certificate"), "<certificate data>", error);
    }
}

/// Validates a ClusterTrustBundle: of a signer, whose name prefixes its own, or without one.
pub(in crate::kinds) fn trust_bundle(bundle: &Value, old: Option<&Value>, causes: &mut Causes) {
    let path = Path::root("spec");
    let signer = text(&bundle["spec"]["signerName"]);
    bundle_name(signer, text(&bundle["metadata"]["name"]), causes);
    if !signer.is_empty() {
        signer_name(&path.child("signerName"), signer, causes);
    }
    let certificates = &bundle["spec"]["trustBundle"];
    if old.is_none_or(|old| old["spec"]["trustBundle"] != *certificates) {
        trust_anchors(&path.child("trustBundle"), text(certificates), causes);
    }
    if let Some(old) = old {
        let (new, old) = (&bundle["spec"]["signerName"], &old["spec"]["signerName"]);
        super::immutable(&path.child("signerName"), new, old, causes);
    }
}

fn bundle_name(signer: &str, name: &str, causes: &mut Causes) {
    let path = Path::root("metadata");
    let path = path.child("name");
    let prefix = format!("{}:", signer.replace('/', ":"));
    match (signer, name.strip_prefix(&prefix)) {
        ("", _) if name.contains(':') => {
            let why = "ClusterTrustBundle without signer name must not have \":\" in its name";
            causes.invalid(&path, name, why);
        }
        ("", _) => causes.each(&path, name, names::dns_subdomain(name)),
        (_, Some(rest)) => causes.each(&path, name, names::dns_subdomain(rest)),
        (_, None) => {
            let why = format!(
                "ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}"
            );
            causes.invalid(&path, name, why);
        }
    }
}

fn trust_anchors(path: &Path<'_>, text: &str, causes: &mut Causes) {
    if text.len() > BUNDLE_SIZE {
        return causes.too_long(path, BUNDLE_SIZE);
    }
    let anchors = match csr::trust_anchors(text) {
        Ok(anchors) => anchors,
        Err(faults) => {
            return faults.iter().for_each(|why| causes.invalid(path, "<value omitted>", why));
        }
    };
    if anchors.is_empty() {
        causes.invalid(path, "<value omitted>", "at least one trust anchor must be provided");
    }
    let mut seen = BTreeMap::new();
    for (i, anchor) in anchors.iter().enumerate() {
        if let Some(first) = seen.insert(anchor, i) {
            let why = format!("duplicate trust anchor (indices [{first} {i}])");
            causes.invalid(path, "<value omitted>", why);
        }
    }
}
