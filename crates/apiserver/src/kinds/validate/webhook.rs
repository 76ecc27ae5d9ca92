//! Rules of webhooks, whatever they are called for.

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use x509_parser::parse_x509_certificate;

use crate::schema::value::text;
use crate::schema::{Causes, Path, names};

/// The `clientConfig` of a webhook.
pub(in crate::kinds) fn client(path: &Path<'_>, client: &Value, causes: &mut Causes) {
    let (url, service) = (&client["url"], &client["service"]);
    if url.is_null() == service.is_null() {
        return causes.required(path, "exactly one of url or service is required");
    }
    if let Some(url) = url.as_str() {
        return webhook_url(&path.child("url"), url, causes);
    }
    let path = path.child("service");
    for field in ["name", "namespace"] {
        if text(&service[field]).is_empty() {
            causes.required(&path.child(field), "");
        }
    }
    let port = service["port"].as_i64().unwrap_or(443);
    if !names::port_number(port).is_empty() {
        let detail = format!("port is not valid: {}", names::port_number(port).join(","));
        causes.invalid(&path.child("port"), &port, detail);
    }
    let Some(given) = service["path"].as_str() else { return };
    let path = path.child("path");
    if matches!(given, "" | "/") {
        return;
    }
    if !given.starts_with('/') {
        causes.invalid(&path, given, "must start with a '/'");
    }
    // as upstream: the first letter goes, whatever it is
    let below = given.get(1..).unwrap_or_default();
    let steps = below.strip_suffix('/').unwrap_or(below).split('/');
    for (i, step) in steps.enumerate() {
        if step.is_empty() {
            causes.invalid(&path, given, format!("segment[{i}] may not be empty"));
            continue;
        }
        for message in names::dns_subdomain(step) {
            causes.invalid(&path, given, format!("segment[{i}]: {message}"));
        }
    }
}

fn webhook_url(path: &Path<'_>, url: &str, causes: &mut Causes) {
    const FORM: &str = "desired format: https://host[/path]";
    let no_scheme = format!("'https' is the only allowed URL scheme; {FORM}");
    let no_host = format!("host must be specified; {FORM}");
    if !url.contains("//") {
        // a path to Go, and a host to others
        causes.invalid(path, "", no_scheme);
        return causes.invalid(path, "", no_host);
    }
    let Ok(parsed) = url.parse::<hyper::Uri>() else {
        return causes
            .required(path, &format!("url must be a valid URL: it cannot be read; {FORM}"));
    };
    if parsed.scheme_str() != Some("https") {
        causes.invalid(path, parsed.scheme_str().unwrap_or_default(), no_scheme);
    }
    if parsed.host().is_none_or(str::is_empty) {
        causes.invalid(path, "", no_host);
    }
    let user = parsed.authority().and_then(|authority| authority.as_str().rsplit_once('@'));
    if let Some((user, _)) = user {
        causes.invalid(path, user, "user information is not permitted in the URL");
    }
    if let Some((_, fragment)) = url.split_once('#') {
        causes.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if let Some(query) = parsed.query() {
        causes.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

/// What is wrong with the certificates (PEM) of the authorities that a webhook's certificate may be of.
pub(crate) fn ca_bundle_error(bundle: &[u8]) -> Option<String> {
    let is_certificate = |found: Result<CertificateDer<'_>, _>| {
        found.is_ok_and(|der| parse_x509_certificate(&der).is_ok())
    };
    if bundle.is_empty() || CertificateDer::pem_slice_iter(bundle).any(is_certificate) {
        return None;
    }
    let has_block = bundle.windows(11).any(|part| part == b"-----BEGIN ");
    let why = match has_block {
        true => "no valid certificate authority data seen",
        false => "unable to parse bytes as PEM block",
    };
    Some(format!("unable to load root certificates: {why}"))
}
