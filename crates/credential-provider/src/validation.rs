//! Validation of the configuration, with the messages of upstream.

use std::collections::BTreeSet;

use longshore_config::GoDuration;

use crate::config::{Provider, TokenAttributes};
use crate::protocol::{API_VERSIONS, V1};
use crate::urls;

const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];
const TOKENS: &str = "providers.tokenAttributes";

/// Checks the plugins; `tokens`: whether they may have service account tokens. The error is one message,
/// or several in brackets.
pub(crate) fn check(providers: &[Provider], tokens: bool) -> Result<(), String> {
    let mut faults = Faults::default();
    if providers.is_empty() {
        faults.required("providers", "at least 1 item in plugins is required");
    }
    for provider in providers {
        check_provider(provider, &mut faults);
        if let Some(attributes) = &provider.token_attributes {
            if !tokens {
                faults.forbidden(
                    TOKENS,
                    "tokenAttributes is not supported when \
                     KubeletServiceAccountTokenForCredentialProviders feature gate is disabled",
                );
            }
            check_tokens(attributes, &provider.api_version, &mut faults);
        }
    }
    faults.result()
}

fn check_provider(provider: &Provider, faults: &mut Faults) {
    let Provider { name, match_images, default_cache_duration, api_version, .. } = provider;
    for (is_wrong, why) in [
        (name.contains('/'), "provider name cannot contain '/'"),
        (name.contains(' '), "provider name cannot contain spaces"),
        (name == ".", "provider name cannot be '.'"),
        (name == "..", "provider name cannot be '..'"),
    ] {
        if is_wrong {
            faults.invalid("providers.name", &format!("{name:?}"), why);
        }
    }
    let field = "providers.apiVersion";
    match api_version.as_str() {
        "" => faults.required(field, ""),
        known if API_VERSIONS.contains(&known) => {}
        other => faults.not_supported(field, other, &API_VERSIONS),
    }
    let field = "providers.matchImages";
    if match_images.is_empty() {
        faults.required(field, "at least 1 item in matchImages is required");
    }
    for pattern in match_images {
        if let Some(why) = urls::fault(pattern) {
            faults.invalid(
                field,
                &format!("{pattern:?}"),
                &format!("match image is invalid: {why}"),
            );
        }
    }
    let field = "providers.defaultCacheDuration";
    match default_cache_duration {
        None => faults.required(field, ""),
        Some(duration) if *duration < GoDuration::ZERO => {
            let value = format!("{:?}", duration.to_string());
            faults.invalid(field, &value, "must be greater than or equal to 0");
        }
        Some(_) => {}
    }
}

fn check_tokens(attributes: &TokenAttributes, api_version: &str, faults: &mut Faults) {
    let field = |name: &str| format!("{TOKENS}.{name}");
    if attributes.service_account_token_audience.is_empty() {
        faults.required(&field("serviceAccountTokenAudience"), "");
    }
    if attributes.require_service_account.is_none() {
        faults.required(&field("requireServiceAccount"), "");
    }
    if api_version != V1 {
        faults
            .forbidden(TOKENS, &format!("tokenAttributes is only supported for {V1} API version"));
    }
    let required = &attributes.required_service_account_annotation_keys;
    let optional = &attributes.optional_service_account_annotation_keys;
    let required_field = field("requiredServiceAccountAnnotationKeys");
    if attributes.require_service_account == Some(false) && !required.is_empty() {
        faults.forbidden(
            &required_field,
            "requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
        );
    }
    check_keys(&required_field, required, faults);
    check_keys(&field("optionalServiceAccountAnnotationKeys"), optional, faults);
    let required: BTreeSet<&String> = required.iter().collect();
    let both: BTreeSet<&String> = optional.iter().filter(|key| required.contains(key)).collect();
    if !both.is_empty() {
        let value = serde_json::to_string(&both).unwrap_or_default();
        faults.invalid(TOKENS, &value, "annotation keys cannot be both required and optional");
    }
    match attributes.cache_type.as_str() {
        "" => faults.required(
            &field("cacheType"),
            &format!(
                "cacheType is required to be set when tokenAttributes is specified. Supported values \
                 are: {}",
                CACHE_TYPES.join(", ")
            ),
        ),
        known if CACHE_TYPES.contains(&known) => {}
        other => faults.not_supported(&field("cacheType"), other, &CACHE_TYPES),
    }
}

fn check_keys(field: &str, keys: &[String], faults: &mut Faults) {
    let mut seen = BTreeSet::new();
    for key in keys {
        for why in name_faults(&key.to_lowercase()) {
            faults.invalid(field, &format!("{key:?}"), &why);
        }
        if !seen.insert(key) {
            faults.add(field, &format!("Duplicate value: {key:?}"));
        }
    }
}

const NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
     an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation \
     is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const PREFIX_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
     '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
     validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// What is wrong with a qualified name.
fn name_faults(key: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let name = match key.split_once('/') {
        None => key,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a qualified name {NAME_RULE} with an optional DNS subdomain prefix and '/' (e.g. \
                 'example.com/MyName')"
            )];
        }
        Some((prefix, name)) => {
            let label = |label: &str| {
                let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
                edge(label.chars().next())
                    && edge(label.chars().next_back())
                    && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            };
            match prefix {
                "" => faults.push("prefix part must be non-empty".to_owned()),
                _ if prefix.len() > 253 => {
                    faults.push("prefix part must be no more than 253 characters".to_owned());
                }
                _ if !prefix.split('.').all(label) => {
                    faults.push(format!("prefix part {PREFIX_RULE}"));
                }
                _ => {}
            }
            name
        }
    };
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if name.is_empty() {
        faults.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        faults.push("name part must be no more than 63 characters".to_owned());
    }
    let is_name = edge(name.chars().next())
        && edge(name.chars().next_back())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !is_name {
        faults.push(format!("name part {NAME_RULE}"));
    }
    faults
}

/// Messages, each once.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, field: &str, why: &str) {
        let fault = format!("{field}: {why}");
        if !self.0.contains(&fault) {
            self.0.push(fault);
        }
    }

    fn required(&mut self, field: &str, detail: &str) {
        match detail {
            "" => self.add(field, "Required value"),
            detail => self.add(field, &format!("Required value: {detail}")),
        }
    }

    fn forbidden(&mut self, field: &str, detail: &str) {
        self.add(field, &format!("Forbidden: {detail}"));
    }

    /// `value`: as JSON.
    fn invalid(&mut self, field: &str, value: &str, detail: &str) {
        self.add(field, &format!("Invalid value: {value}: {detail}"));
    }

    fn not_supported(&mut self, field: &str, value: &str, supported: &[&str]) {
        let supported: Vec<String> = supported.iter().map(|known| format!("{known:?}")).collect();
        let supported = supported.join(", ");
        self.add(field, &format!("Unsupported value: {value:?}: supported values: {supported}"));
    }

    fn result(mut self) -> Result<(), String> {
        match &mut self.0[..] {
            [] => Ok(()),
            [only] => Err(std::mem::take(only)),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Provider {
        Provider {
            name: "one".to_owned(),
            match_images: vec!["*.example".to_owned()],
            default_cache_duration: Some(GoDuration::secs(60)),
            api_version: V1.to_owned(),
            token_attributes: Some(TokenAttributes {
                service_account_token_audience: "reg".to_owned(),
                cache_type: "Token".to_owned(),
                require_service_account: Some(true),
                required_service_account_annotation_keys: vec!["example.com/Role".to_owned()],
                ..TokenAttributes::default()
            }),
            ..Provider::default()
        }
    }

    fn tokens(provider: &mut Provider) -> &mut TokenAttributes {
        provider.token_attributes.as_mut().unwrap()
    }

    #[test]
    fn credential_provider_validation_has_upstreams_messages() {
        assert_eq!(check(&[good()], true), Ok(()));
        assert_eq!(
            check(&[], true).unwrap_err(),
            "providers: Required value: at least 1 item in plugins is required"
        );
        type Change = fn(&mut Provider);
        let cases: [(Change, &str); 16] = [
            (
                |own| own.name = "a/b".into(),
                r#"providers.name: Invalid value: "a/b": provider name cannot contain '/'"#,
            ),
            (
                |own| own.name = "a b".into(),
                r#"providers.name: Invalid value: "a b": provider name cannot contain spaces"#,
            ),
            (
                |own| own.name = "..".into(),
                r#"providers.name: Invalid value: "..": provider name cannot be '..'"#,
            ),
            (
                |own| own.default_cache_duration = None,
                "providers.defaultCacheDuration: Required value",
            ),
            (
                |own| own.default_cache_duration = Some(GoDuration::secs(-60)),
                r#"providers.defaultCacheDuration: Invalid value: "-1m0s": must be greater than or equal to 0"#,
            ),
            (
                |own| own.match_images.clear(),
                "providers.matchImages: Required value: at least 1 item in matchImages is required",
            ),
            (
                |own| own.match_images = vec!["%invalid%".into()],
                r#"providers.matchImages: Invalid value: "%invalid%": match image is invalid: parse "https://%invalid%": invalid URL escape "%in""#,
            ),
            (
                |own| {
                    own.api_version = "v9".into();
                    own.token_attributes = None;
                },
                r#"providers.apiVersion: Unsupported value: "v9": supported values: "credentialprovider.kubelet.k8s.io/v1", "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1""#,
            ),
            (
                |own| own.api_version = "credentialprovider.kubelet.k8s.io/v1beta1".into(),
                "providers.tokenAttributes: Forbidden: tokenAttributes is only supported for credentialprovider.kubelet.k8s.io/v1 API version",
            ),
            (
                |own| tokens(own).service_account_token_audience.clear(),
                "providers.tokenAttributes.serviceAccountTokenAudience: Required value",
            ),
            (
                |own| tokens(own).require_service_account = None,
                "providers.tokenAttributes.requireServiceAccount: Required value",
            ),
            (
                |own| tokens(own).require_service_account = Some(false),
                "providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set",
            ),
            (
                |own| tokens(own).cache_type.clear(),
                "providers.tokenAttributes.cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. Supported values are: ServiceAccount, Token",
            ),
            (
                |own| tokens(own).cache_type = "Pod".into(),
                r#"providers.tokenAttributes.cacheType: Unsupported value: "Pod": supported values: "ServiceAccount", "Token""#,
            ),
            (
                |own| {
                    tokens(own).optional_service_account_annotation_keys =
                        vec!["example.com/Role".into()]
                },
                r#"providers.tokenAttributes: Invalid value: ["example.com/Role"]: annotation keys cannot be both required and optional"#,
            ),
            (
                |own| {
                    tokens(own).optional_service_account_annotation_keys =
                        vec!["a".into(), "a".into()]
                },
                r#"providers.tokenAttributes.optionalServiceAccountAnnotationKeys: Duplicate value: "a""#,
            ),
        ];
        for (change, expected) in cases {
            let mut provider = good();
            change(&mut provider);
            assert_eq!(check(&[provider], true).unwrap_err(), expected);
        }
        let several = check(
            &[Provider {
                api_version: String::new(),
                match_images: Vec::new(),
                token_attributes: None,
                ..good()
            }],
            true,
        );
        assert_eq!(
            several.unwrap_err(),
            "[providers.apiVersion: Required value, providers.matchImages: Required value: at least 1 item in matchImages is required]"
        );
        assert!(check(&[good()], false).unwrap_err().contains("feature gate is disabled"));
    }

    #[test]
    fn annotation_keys_are_qualified_names() {
        for key in ["a", "example.com/role-arn", "a.b_c"] {
            assert!(name_faults(key).is_empty(), "{key}");
        }
        for (key, faults) in [
            ("", 2),
            ("/a", 1),
            ("a/", 2),
            ("a/b/c", 1),
            ("-a", 1),
            ("ex_ample.com/a", 1),
            ("a b", 1),
        ] {
            assert_eq!(name_faults(key).len(), faults, "{key} {:?}", name_faults(key));
        }
        assert_eq!(name_faults(&"a".repeat(64)), ["name part must be no more than 63 characters"]);
    }
}
