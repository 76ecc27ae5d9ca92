//! The request that a plugin reads and the response that it writes.

use std::collections::BTreeMap;

use longshore_config::GoDuration;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// The version with service account tokens.
pub(crate) const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
/// All versions that plugins may have.
pub(crate) const API_VERSIONS: [&str; 3] =
    [V1, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];
/// The longest word of a response that a message repeats: longer ones may be secrets.
const MAX_WORD: usize = 64;

/// What a plugin is asked for. No `Debug`: it holds a token.
#[derive(Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Request {
    /// Host and path.
    pub(crate) image: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(crate) service_account_token: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) service_account_annotations: BTreeMap<String, String>,
}

impl Request {
    /// The document for a plugin of that version.
    pub(crate) fn document(&self, api_version: &str) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Document<'a> {
            kind: &'a str,
            api_version: &'a str,
            #[serde(flatten)]
            request: &'a Request,
        }
        let document = Document { kind: "CredentialProviderRequest", api_version, request: self };
        // maps with texts as keys are always JSON
        let mut text = serde_json::to_vec(&document).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// User name and password. No `Debug`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    /// User name; may be empty.
    #[serde(default)]
    pub username: String,
    /// Password; may be empty.
    #[serde(default)]
    pub password: String,
}

/// Logins by pattern of images.
pub type Logins = BTreeMap<String, Login>;

/// For which images a response holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// What a plugin has answered. No `Debug`.
#[derive(Clone)]
pub(crate) struct Response {
    pub(crate) cache_key_type: CacheKeyType,
    /// `None`: the default of the configuration.
    pub(crate) cache_duration: Option<GoDuration>,
    pub(crate) auth: Logins,
}

impl Response {
    /// Reads a response. No error repeats what may be a secret.
    pub(crate) fn parse(text: &[u8], expected: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Header {
            api_version: Option<String>,
            kind: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Document {
            #[serde(rename = "kind")]
            _kind: serde::de::IgnoredAny,
            #[serde(rename = "apiVersion")]
            _api_version: serde::de::IgnoredAny,
            #[serde(default)]
            cache_key_type: Option<String>,
            #[serde(default)]
            cache_duration: Option<GoDuration>,
            #[serde(default)]
            auth: Option<Logins>,
        }
        let header: Header = serde_json::from_slice(text)
            .map_err(|error| Error::NoVersion { line: error.line(), column: error.column() })?;
        let actual = header.api_version.unwrap_or_default();
        if actual != expected {
            return Err(Error::Version { expected: expected.to_owned(), actual: word(actual) });
        }
        if header.kind.as_deref() != Some("CredentialProviderResponse") {
            return Err(Error::Decode);
        }
        let document: Document = serde_json::from_slice(text).map_err(|_| Error::Decode)?;
        let cache_key_type = match document.cache_key_type.unwrap_or_default().as_str() {
            "Image" => CacheKeyType::Image,
            "Registry" => CacheKeyType::Registry,
            "Global" => CacheKeyType::Global,
            other => return Err(Error::CacheKeyType(word(other.to_owned()))),
        };
        let (cache_duration, auth) = (document.cache_duration, document.auth.unwrap_or_default());
        Ok(Self { cache_key_type, cache_duration, auth })
    }
}

/// A word of a response for a message, if it looks like one.
fn word(text: String) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "./-".contains(c);
    match text.len() <= MAX_WORD && text.chars().all(is_plain) {
        true => text,
        false => "(not shown)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_provider_request_is_upstreams() {
        let request = Request { image: "reg.example/a".to_owned(), ..Request::default() };
        let text = String::from_utf8(request.document(V1)).unwrap();
        assert_eq!(
            text,
            "{\"kind\":\"CredentialProviderRequest\",\"apiVersion\":\"credentialprovider.kubelet.k8s.io/v1\",\"image\":\"reg.example/a\"}\n"
        );
        let request = Request {
            service_account_token: "t".to_owned(),
            service_account_annotations: [("a".to_owned(), "b".to_owned())].into(),
            ..request
        };
        let text = String::from_utf8(request.document(V1)).unwrap();
        let end = r#""serviceAccountToken":"t","serviceAccountAnnotations":{"a":"b"}}"#;
        assert!(text.trim_end().ends_with(end), "{text}");
    }

    #[test]
    fn credential_provider_response_errors_hold_no_secrets() {
        let parse = |text: &str| Response::parse(text.as_bytes(), V1);
        let good = r#"{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1",
            "cacheKeyType":"Registry","cacheDuration":"5m0s","auth":{"*.example":{"username":"u","password":"s3cret"}}}"#;
        let Ok(response) = parse(good) else { panic!() };
        assert_eq!(response.cache_key_type, CacheKeyType::Registry);
        assert_eq!(response.cache_duration.unwrap().to_string(), "5m0s");
        assert_eq!(response.auth["*.example"].password, "s3cret");
        let nulls = good.replace("\"5m0s\"", "null");
        assert!(parse(&nulls).is_ok_and(|own| own.cache_duration.is_none()));
        let decode = "error decoding credential provider plugin response from stdout";
        for (from, to, expected) in [
            ("\"username\"", "\"user\"", decode),
            ("\"s3cret\"", "7", decode),
            ("Response\"", "Request\"", decode),
            ("5m0s", "s3cret", decode),
            (
                "Registry",
                "s3cret!",
                "credential provider plugin did not return a valid cacheKeyType: (not shown)",
            ),
            (
                "Registry",
                "Host",
                "credential provider plugin did not return a valid cacheKeyType: Host",
            ),
            (
                "k8s.io/v1",
                "k8s.io/v2",
                "apiVersion from credential plugin response did not match expected apiVersion:credentialprovider.kubelet.k8s.io/v1, actual apiVersion:credentialprovider.kubelet.k8s.io/v2",
            ),
        ] {
            let error = parse(&good.replace(from, to)).err().unwrap().to_string();
            assert_eq!(error, expected, "{from} {to}");
        }
        for text in ["", "s3cret", "[\"s3cret\"]", "{\"apiVersion\": {\"s3cret\": 1}}"] {
            let error = parse(text).err().unwrap().to_string();
            assert!(error.starts_with("error reading GVK from response: "), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
