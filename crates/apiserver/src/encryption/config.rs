//! The EncryptionConfiguration (apiserver.config.k8s.io/v1): which resources are encrypted, by what. It is
//! checked as upstream checks it; no message has a key.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use crate::config_file;

const DEFAULT_KMS_TIMEOUT: Duration = Duration::from_secs(3);
const AES_KEY_SIZES: &[usize] = &[16, 24, 32];
const SECRETBOX_KEY_SIZES: &[usize] = &[32];

/// A checked configuration.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) resources: Vec<Resources>,
}

/// Resources with their providers, of which the first writes.
#[derive(Debug)]
pub(super) struct Resources {
    pub(super) resources: Vec<GroupResource>,
    pub(super) providers: Vec<Provider>,
}

/// A resource of a group; both may be `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct GroupResource {
    pub(super) group: String,
    pub(super) resource: String,
}

/// A way to store values.
#[derive(Debug)]
pub(super) enum Provider {
    Identity,
    AesGcm(Vec<Key>),
    AesCbc(Vec<Key>),
    Secretbox(Vec<Key>),
    Kms { name: String, endpoint: String, timeout: Duration },
}

/// A named key.
pub(super) struct Key {
    pub(super) name: String,
    pub(super) secret: Vec<u8>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Key").field("name", &self.name).finish_non_exhaustive()
    }
}

impl GroupResource {
    /// `secrets`, `deployments.apps`, `*.` (the core group), `*.apps` or `*.*`.
    pub(super) fn parse(text: &str) -> GroupResource {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        GroupResource { group: group.to_owned(), resource: resource.to_owned() }
    }
}

impl std::fmt::Display for GroupResource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.resource.as_str(), self.group.as_str()) {
            ("*", "") => formatter.write_str("*."),
            (resource, "") => formatter.write_str(resource),
            (resource, group) => write!(formatter, "{resource}.{group}"),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    resources: Vec<FileResources>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileResources {
    #[serde(default)]
    resources: Vec<String>,
    #[serde(default)]
    providers: Vec<FileProvider>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileProvider {
    aesgcm: Option<FileKeys>,
    aescbc: Option<FileKeys>,
    secretbox: Option<FileKeys>,
    identity: Option<Empty>,
    kms: Option<FileKms>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKeys {
    #[serde(default)]
    keys: Vec<FileKey>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileKey {
    #[serde(default)]
    name: String,
    #[serde(default)]
    secret: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileKms {
    api_version: Option<String>,
    #[serde(default)]
    name: String,
    cachesize: Option<i32>,
    #[serde(default)]
    endpoint: String,
    timeout: Option<String>,
}

/// The text of a configuration file.
pub(super) fn read(path: &Path) -> Result<String, String> {
    let named = |what: &str, why: String| {
        format!(
            "error while loading file: {what} encryption provider configuration file {path:?}{why}"
        )
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| named("error reading", format!(": {error}")))?;
    if text.is_empty() {
        return Err(named("", " is empty".to_owned()));
    }
    Ok(text)
}

impl Configuration {
    /// Parses and checks the text of a file.
    pub(super) fn parse(text: &str) -> Result<Configuration, String> {
        let file: File = config_file::parse(text).map_err(|_| {
            // the reason may quote a value of a wrong type, which may be a key
            "error decoding encryption provider configuration: it is no EncryptionConfiguration, or has unknown fields"
                .to_owned()
        })?;
        if file.api_version != "apiserver.config.k8s.io/v1"
            || file.kind != "EncryptionConfiguration"
        {
            return Err(format!(
                "got unexpected config type: {}, Kind={}",
                file.api_version, file.kind
            ));
        }
        let mut faults = Vec::new();
        if file.resources.is_empty() {
            faults.push("resources: Required value: at least one resources is required".to_owned());
        }
        let mut kms_names = BTreeSet::new();
        let mut resources = Vec::new();
        for (i, entry) in file.resources.into_iter().enumerate() {
            let path = format!("resources[{i}]");
            resource_faults(&entry.resources, &format!("{path}.resources"), &mut faults);
            let place = format!("{path}.providers");
            if entry.providers.is_empty() {
                faults.push(format!("{place}: Required value: at least one {place} is required"));
            }
            let mut providers = Vec::new();
            for (j, provider) in entry.providers.into_iter().enumerate() {
                providers.extend(provider.check(
                    &format!("{place}[{j}]"),
                    &mut kms_names,
                    &mut faults,
                ));
            }
            let parsed = entry.resources.iter().map(|resource| GroupResource::parse(resource));
            resources.push(Resources { resources: parsed.collect(), providers });
        }
        match faults.as_slice() {
            [] => Ok(Configuration { resources }),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }
}

impl FileProvider {
    fn check(
        self,
        path: &str,
        kms_names: &mut BTreeSet<String>,
        faults: &mut Vec<String>,
    ) -> Option<Provider> {
        let keys = |name: &str, keys: FileKeys, sizes, faults: &mut Vec<String>| {
            check_keys(keys.keys, &format!("{path}.{name}.keys"), sizes, faults)
        };
        match (self.aesgcm, self.aescbc, self.secretbox, self.identity, self.kms) {
            (Some(found), None, None, None, None) => {
                Some(Provider::AesGcm(keys("aesgcm", found, AES_KEY_SIZES, faults)))
            }
            (None, Some(found), None, None, None) => {
                Some(Provider::AesCbc(keys("aescbc", found, AES_KEY_SIZES, faults)))
            }
            (None, None, Some(found), None, None) => {
                Some(Provider::Secretbox(keys("secretbox", found, SECRETBOX_KEY_SIZES, faults)))
            }
            (None, None, None, Some(Empty {}), None) => Some(Provider::Identity),
            (None, None, None, None, Some(kms)) => {
                kms.check(&format!("{path}.kms"), kms_names, faults)
            }
            (None, None, None, None, None) => {
                faults.push(format!(
                    "{path}: Invalid value: provider does not contain any of the expected providers: KMS, \
                     AESGCM, AESCBC, Secretbox, Identity"
                ));
                None
            }
            _ => {
                faults.push(format!(
                    "{path}: Invalid value: more than one provider specified in a single element, should \
                     split into different list elements"
                ));
                None
            }
        }
    }
}

fn check_keys(
    keys: Vec<FileKey>,
    path: &str,
    sizes: &[usize],
    faults: &mut Vec<String>,
) -> Vec<Key> {
    if keys.is_empty() {
        faults.push(format!("{path}: Required value: at least one keys is required"));
    }
    let mut checked = Vec::new();
    for (i, FileKey { name, secret }) in keys.into_iter().enumerate() {
        if name.is_empty() {
            faults.push(format!(
                "{path}[{i}].name: Required value: name is a mandatory field for a key"
            ));
        }
        if secret.is_empty() {
            faults.push(format!(
                "{path}[{i}].secret: Required value: secret is a mandatory field for a key"
            ));
            continue;
        }
        let invalid =
            |why: String| format!("{path}[{i}].secret: Invalid value: \"REDACTED\": {why}");
        match STANDARD.decode(&secret) {
            Err(_) => faults.push(invalid("secrets must be base64 encoded".to_owned())),
            Ok(secret) if !sizes.contains(&secret.len()) => {
                let sizes: Vec<String> = sizes.iter().map(ToString::to_string).collect();
                faults.push(invalid(format!(
                    "secret is not of the expected length, got {}, expected one of [{}]",
                    secret.len(),
                    sizes.join(" ")
                )));
            }
            Ok(secret) => checked.push(Key { name, secret }),
        }
    }
    checked
}

impl FileKms {
    fn check(
        self,
        path: &str,
        names: &mut BTreeSet<String>,
        faults: &mut Vec<String>,
    ) -> Option<Provider> {
        let before = faults.len();
        let FileKms { api_version, name, cachesize, endpoint, timeout } = self;
        match name.as_str() {
            "" => faults.push(format!(
                "{path}.name: Required value: name is a mandatory field for a kms"
            )),
            name if name.contains(':') => faults.push(format!(
                "{path}.name: Invalid value: {name:?}: invalid KMS provider name {name}, must not contain ':'"
            )),
            name if !names.insert(name.to_owned()) => faults.push(format!(
                "{path}.name: Invalid value: {name:?}: duplicate KMS provider name {name}, names must be unique"
            )),
            _ => {}
        }
        let parsed = match timeout.as_deref() {
            None => Some(DEFAULT_KMS_TIMEOUT),
            Some(text) => text
                .parse::<jiff::SignedDuration>()
                .ok()
                .and_then(|timeout| Duration::try_from(timeout).ok())
                .filter(|timeout| !timeout.is_zero()),
        };
        if parsed.is_none() {
            let timeout = timeout.unwrap_or_default();
            faults.push(format!(
                "{path}.timeout: Invalid value: {timeout:?}: timeout should be a positive value"
            ));
        }
        match endpoint.split_once(':') {
            _ if endpoint.is_empty() => faults.push(format!(
                "{path}.endpoint: Invalid value: \"\": endpoint is a mandatory field for a kms"
            )),
            Some(("unix", _)) => {}
            other => {
                let scheme = other.map_or("", |(scheme, _)| scheme);
                faults.push(format!(
                    "{path}.endpoint: Invalid value: {endpoint:?}: unsupported scheme {scheme:?} for KMS provider, \
                     only unix is supported"
                ));
            }
        }
        match api_version.as_deref() {
            Some("v2") => {
                if let Some(size) = cachesize {
                    faults.push(format!(
                        "{path}.cachesize: Invalid value: {size}: cachesize is not supported in v2"
                    ));
                }
            }
            // the default
            None | Some("v1") => faults.push(
                "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead."
                    .to_owned(),
            ),
            Some(other) => faults.push(format!(
                "{path}.apiVersion: Invalid value: {other:?}: unsupported apiVersion apiVersion for KMS provider, \
                 only v1 and v2 are supported"
            )),
        }
        let timeout = parsed.filter(|_| faults.len() == before)?;
        Some(Provider::Kms { name, endpoint, timeout })
    }
}

fn resource_faults(resources: &[String], path: &str, faults: &mut Vec<String>) {
    if resources.is_empty() {
        faults.push(format!("{path}: Required value: at least one {path} is required"));
    }
    let parsed: Vec<_> = resources.iter().map(|resource| GroupResource::parse(resource)).collect();
    let pairs = || {
        let indexed = parsed.iter().enumerate();
        indexed.flat_map(|(i, one)| parsed.iter().skip(i + 1).map(move |other| (one, other)))
    };
    let is_any = |one: &GroupResource| (one.group.as_str(), one.resource.as_str()) == ("*", "*");
    let overlaps = |(one, other): (&GroupResource, &GroupResource)| {
        one != other
            && (is_any(one)
                || is_any(other)
                || one.group == other.group && (one.resource == "*" || other.resource == "*"))
    };
    if pairs().any(|(one, other)| one == other) {
        faults.push(format!(
            "{path}: Invalid value: {resources:?}: the same resource cannot be specified multiple times"
        ));
    }
    if pairs().any(overlaps) {
        faults.push(format!(
            "{path}: Invalid value: {resources:?}: using overlapping resources such as 'secrets' and '*.' in the \
             same resource list is not allowed as they will be masked"
        ));
    }
    for (i, (resource, parsed)) in resources.iter().zip(&parsed).enumerate() {
        let why = match (resource.as_str(), parsed.group.as_str()) {
            (resource, _) if resource.chars().any(char::is_uppercase) => {
                "resource name should not contain capital letters"
            }
            ("*", _) => {
                "use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources"
            }
            ("apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations", _) => {
                "resources which do not have REST API/s cannot be encrypted"
            }
            (_, "events.k8s.io") => {
                "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in \
                 the config file"
            }
            (_, "extensions") => {
                "'extensions' group has been removed and cannot be used for encryption"
            }
            (_, "*") if parsed.resource != "*" => {
                "encrypting the same resource across groups is not supported"
            }
            _ => continue,
        };
        faults.push(format!("{path}[{i}]: Invalid value: {resource:?}: {why}"));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(resources: &str) -> Result<Configuration, String> {
        Configuration::parse(&format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n{resources}"
        ))
    }

    #[test]
    fn encryption_configuration_faults_are_named() {
        const KEY: &str = "MDEyMzQ1Njc4OWFiY2RlZg==";
        for (resources, fault) in [
            (
                "- {resources: [], providers: [{identity: {}}]}",
                "resources[0].resources: Required value",
            ),
            ("- {resources: [a], providers: []}", "resources[0].providers: Required value"),
            (
                "- {resources: [a], providers: [{}]}",
                "provider does not contain any of the expected providers",
            ),
            (
                "- {resources: [a], providers: [{identity: {}, aesgcm: {}}]}",
                "more than one provider specified",
            ),
            ("- {resources: [a], providers: [{aesgcm: {}}]}", "aesgcm.keys: Required value"),
            (
                "- {resources: [a], providers: [{aesgcm: {keys: [{secret: KEY}]}}]}",
                "keys[0].name: Required",
            ),
            (
                "- {resources: [a], providers: [{aesgcm: {keys: [{name: k}]}}]}",
                "keys[0].secret: Required",
            ),
            (
                "- {resources: [a], providers: [{aesgcm: {keys: [{name: k, secret: '%%'}]}}]}",
                "\"REDACTED\": secrets must be base64 encoded",
            ),
            (
                "- {resources: [a], providers: [{secretbox: {keys: [{name: k, secret: KEY}]}}]}",
                "got 16, expected one of [32]",
            ),
            ("- {resources: ['*'], providers: [{identity: {}}]}", "use '*.' to encrypt"),
            (
                "- {resources: [a, a], providers: [{identity: {}}]}",
                "cannot be specified multiple times",
            ),
            ("- {resources: [a, '*.'], providers: [{identity: {}}]}", "overlapping resources"),
            ("- {resources: [a.b, '*.*'], providers: [{identity: {}}]}", "overlapping resources"),
            ("- {resources: [Secrets], providers: [{identity: {}}]}", "capital letters"),
            (
                "- {resources: [a.events.k8s.io], providers: [{identity: {}}]}",
                "Use 'events' instead",
            ),
            ("- {resources: [a.extensions], providers: [{identity: {}}]}", "has been removed"),
            ("- {resources: ['a.*'], providers: [{identity: {}}]}", "across groups"),
            ("- {resources: [serviceipallocations], providers: [{identity: {}}]}", "REST API/s"),
            (
                "- {resources: [a], providers: [{kms: {name: k, endpoint: 'unix:///a'}}]}",
                "KMSv1 is deprecated",
            ),
            (
                "- {resources: [a], providers: [{kms: {apiVersion: v2, name: 'k:', endpoint: 'unix:///a'}}]}",
                "must not contain ':'",
            ),
            (
                "- {resources: [a], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'tcp:///a'}}]}",
                "unsupported scheme \"tcp\"",
            ),
            (
                "- {resources: [a], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///a', timeout: 0s}}]}",
                "timeout should be a positive value",
            ),
            (
                "- {resources: [a], providers: [{kms: {apiVersion: v2, name: k, endpoint: 'unix:///a', cachesize: 1}}]}",
                "cachesize is not supported in v2",
            ),
            (" []", "resources: Required value"),
            (
                "- {resources: [a], providers: [{aescbc: {keys: [{nam: k, secret: KEY}]}}]}",
                "unknown fields",
            ),
        ] {
            let error = parse(&resources.replace("KEY", KEY)).unwrap_err();
            assert!(error.contains(fault), "{resources}: {error}");
            assert!(!error.contains(KEY));
        }
        let two = "- {resources: [a], providers: [KMS]}\n- {resources: [b], providers: [KMS]}";
        let two = two.replace("KMS", "{kms: {apiVersion: v2, name: k, endpoint: 'unix:///a'}}");
        assert!(parse(&two).unwrap_err().contains("names must be unique"));
    }

    #[test]
    fn encryption_configuration_is_read() {
        let config = parse(
            "- resources: [secrets, '*.apps']\n  providers:\n  - aescbc: {keys: [{name: k1, secret: \
             MDEyMzQ1Njc4OWFiY2RlZg==}]}\n  - kms: {apiVersion: v2, name: k, endpoint: 'unix:///a', timeout: \
             1500ms}\n  - identity: {}",
        )
        .unwrap();
        let entry = &config.resources[0];
        assert_eq!(
            entry.resources[1],
            GroupResource { group: "apps".into(), resource: "*".into() }
        );
        let [Provider::AesCbc(keys), Provider::Kms { timeout, .. }, Provider::Identity] =
            entry.providers.as_slice()
        else {
            unreachable!()
        };
        assert_eq!(
            (keys[0].name.as_str(), keys[0].secret.as_slice()),
            ("k1", &b"0123456789abcdef"[..])
        );
        assert_eq!(*timeout, Duration::from_millis(1500));
        assert!(!format!("{config:?}").contains("0123"));
    }
}
