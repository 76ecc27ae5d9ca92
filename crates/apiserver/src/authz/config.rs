//! The authorizers in order, as flags or a file of apiserver.config.k8s.io say (`--authorization-config`).

use std::collections::BTreeSet;
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::Mode;
use super::conditions;
use crate::config_file;
use crate::schema::field::{Causes, Path};
use crate::schema::names;

const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
const TYPES: [&str; 6] = ["ABAC", "AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];
/// The most conditions of a webhook.
const MAX_CONDITIONS: usize = 64;
/// The longest time for a webhook.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// The authorizers, in order; without any, everything is denied.
#[derive(Clone, Debug, Default)]
pub struct AuthorizationConfig {
    pub(crate) authorizers: Vec<AuthorizerConfig>,
    /// The policies of ABAC.
    pub(crate) policy_file: Option<PathBuf>,
    /// The file that the authorizers are read from again when it changes, with its text.
    pub(crate) file: Option<(PathBuf, String)>,
}

impl From<Vec<Mode>> for AuthorizationConfig {
    fn from(modes: Vec<Mode>) -> Self {
        let authorizers = modes.into_iter().map(AuthorizerConfig::Local).collect();
        AuthorizationConfig { authorizers, ..AuthorizationConfig::default() }
    }
}

impl AuthorizationConfig {
    /// The modes that are no webhooks.
    pub(crate) fn local(&self) -> Vec<Mode> {
        let local = self.authorizers.iter().filter_map(|authorizer| match authorizer {
            AuthorizerConfig::Local(mode) => Some(*mode),
            AuthorizerConfig::Webhook(_) => None,
        });
        local.collect()
    }
}

/// One authorizer.
#[derive(Clone, Debug)]
pub(crate) enum AuthorizerConfig {
    Local(Mode),
    Webhook(WebhookConfig),
}

/// A webhook that decides.
#[derive(Clone, Debug)]
pub(crate) struct WebhookConfig {
    pub(crate) name: String,
    /// How long it is cached that something is allowed; zero: not at all.
    pub(crate) authorized_ttl: Duration,
    /// The same for what is not allowed.
    pub(crate) unauthorized_ttl: Duration,
    /// How long it may take.
    pub(crate) timeout: Duration,
    /// The version of SubjectAccessReview: `v1` or `v1beta1`.
    pub(crate) version: String,
    /// Whether its failure denies; otherwise it has no opinion then.
    pub(crate) denies_on_failure: bool,
    pub(crate) connection: Connection,
    /// Expressions that must all hold, or it is not called.
    pub(crate) conditions: Vec<String>,
}

/// Where a webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    Kubeconfig(PathBuf),
    InCluster,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    authorizers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    webhook: Option<WebhookEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WebhookEntry {
    #[serde(default, rename = "authorizedTTL", deserialize_with = "duration")]
    authorized_ttl: Option<Span>,
    cache_authorized_requests: Option<bool>,
    #[serde(default, rename = "unauthorizedTTL", deserialize_with = "duration")]
    unauthorized_ttl: Option<Span>,
    cache_unauthorized_requests: Option<bool>,
    #[serde(default, deserialize_with = "duration")]
    timeout: Option<Span>,
    #[serde(default)]
    subject_access_review_version: String,
    #[serde(default)]
    match_condition_subject_access_review_version: String,
    #[serde(default)]
    failure_policy: String,
    #[serde(default)]
    connection_info: ConnectionInfo,
    #[serde(default)]
    match_conditions: Vec<MatchCondition>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ConnectionInfo {
    #[serde(default)]
    r#type: String,
    kube_config_file: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MatchCondition {
    #[serde(default)]
    expression: String,
}

/// A duration as it is written, which may be negative.
type Span = (String, jiff::SignedDuration);

fn duration<'de, D: Deserializer<'de>>(source: D) -> Result<Option<Span>, D::Error> {
    let Some(text) = Option::<String>::deserialize(source)? else { return Ok(None) };
    if text.is_empty() {
        return Ok(None);
    }
    let parsed = text.parse().map_err(|_| {
        serde::de::Error::custom(format!("{text:?} is not a duration such as 3s or 5m0s"))
    })?;
    Ok(Some((text, parsed)))
}

impl AuthorizationConfig {
    /// Reads a file and checks it.
    pub(crate) fn of_file(path: &FilePath) -> Result<AuthorizationConfig, String> {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
        let authorizers = parse(&text)?;
        let file = Some((path.to_owned(), text));
        Ok(AuthorizationConfig { authorizers, file, policy_file: None })
    }
}

/// The authorizers of a file's text.
pub(super) fn parse(text: &str) -> Result<Vec<AuthorizerConfig>, String> {
    let file: File = config_file::parse(text)
        .map_err(|error| format!("failed to load AuthorizationConfiguration from file: {error}"))?;
    let version = file.api_version.strip_prefix("apiserver.config.k8s.io/");
    if file.kind != "AuthorizationConfiguration" || !version.is_some_and(|v| VERSIONS.contains(&v))
    {
        return Err(format!(
            "{}, {} is not an AuthorizationConfiguration",
            file.api_version, file.kind
        ));
    }
    let mut causes = Causes::default();
    let authorizers = file.check(&mut causes);
    if !causes.0.is_empty() {
        let all: Vec<String> =
            causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        return Err(match all.as_slice() {
            [one] => one.clone(),
            all => format!("[{}]", all.join(", ")),
        });
    }
    for entry in file.authorizers.iter().filter(|entry| entry.r#type != "Webhook") {
        let expected = entry.r#type.to_ascii_lowercase();
        if entry.name != expected {
            return Err(format!(
                "expected name {expected} for authorizer {} instead of {}",
                entry.r#type, entry.name
            ));
        }
    }
    Ok(authorizers)
}

impl File {
    fn check(&self, causes: &mut Causes) -> Vec<AuthorizerConfig> {
        let root = Path::root("authorizers");
        if self.authorizers.is_empty() {
            causes.required(&root, "at least one authorization mode must be defined");
        }
        let mut authorizers = Vec::new();
        let (mut types, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for (i, entry) in self.authorizers.iter().enumerate() {
            let path = root.index(i);
            let (kind, name) = (entry.r#type.as_str(), entry.name.as_str());
            let of_type = path.child("type");
            if kind.is_empty() {
                causes.required(&of_type, "");
                continue;
            }
            if !TYPES.contains(&kind) {
                causes.not_supported(&of_type, kind, &TYPES);
                continue;
            }
            if !types.insert(kind) && kind != "Webhook" {
                causes.duplicate(&of_type, kind, "");
                continue;
            }
            let of_name = path.child("name");
            if name.is_empty() {
                causes.required(&of_name, "");
            } else if !seen.insert(name) {
                causes.duplicate(&of_name, name, "");
            } else {
                let complaints = names::dns_subdomain(name);
                if !complaints.is_empty() {
                    let why = format!("authorizer name is invalid: {}", complaints.join(", "));
                    causes.invalid(&of_name, name, why);
                }
            }
            let of_webhook = path.child("webhook");
            match (kind.parse::<Mode>(), &entry.webhook) {
                (Ok(mode), None) => authorizers.push(AuthorizerConfig::Local(mode)),
                (Ok(_), Some(_)) => {
                    let why = "may only be specified when type=Webhook";
                    causes.invalid(&of_webhook, "non-null", why);
                }
                (Err(_), None) => causes.required(&of_webhook, "required when type=Webhook"),
                (Err(_), Some(webhook)) => {
                    authorizers.push(AuthorizerConfig::Webhook(webhook.check(name, &path, causes)));
                }
            }
        }
        authorizers
    }
}

impl WebhookEntry {
    fn check(&self, name: &str, path: &Path<'_>, causes: &mut Causes) -> WebhookConfig {
        let of_timeout = path.child("timeout");
        let timeout = match &self.timeout {
            Some((text, span)) if !span.is_zero() => match Duration::try_from(*span) {
                Ok(timeout) if timeout <= MAX_TIMEOUT => timeout,
                _ => {
                    causes.invalid(&of_timeout, text, "must be > 0s and <= 30s");
                    MAX_TIMEOUT
                }
            },
            _ => {
                causes.required(&of_timeout, "");
                MAX_TIMEOUT
            }
        };
        let mut ttl = |field: &str, span: &Option<Span>, is_cached: Option<bool>, default| {
            let span = match span {
                Some((_, span)) if span.is_zero() => Duration::from_secs(default),
                None => Duration::from_secs(default),
                Some((text, span)) => Duration::try_from(*span).unwrap_or_else(|_| {
                    causes.invalid(&path.child(field), text, "must be > 0s");
                    Duration::ZERO
                }),
            };
            if is_cached == Some(false) { Duration::ZERO } else { span }
        };
        let authorized =
            ttl("authorizedTTL", &self.authorized_ttl, self.cache_authorized_requests, 300);
        let unauthorized =
            ttl("unauthorizedTTL", &self.unauthorized_ttl, self.cache_unauthorized_requests, 30);
        let version = self.subject_access_review_version.as_str();
        let of_version = path.child("subjectAccessReviewVersion");
        match version {
            "" => causes.required(&of_version, ""),
            "v1" | "v1beta1" => {}
            _ => causes.not_supported(&of_version, version, &["v1", "v1beta1"]),
        }
        let of_version = path.child("matchConditionSubjectAccessReviewVersion");
        match self.match_condition_subject_access_review_version.as_str() {
            "" if self.match_conditions.is_empty() => {}
            "" => causes.required(&of_version, "required if match conditions are specified"),
            "v1" => {}
            other => causes.not_supported(&of_version, other, &["v1"]),
        }
        let policy = path.child("failurePolicy");
        match self.failure_policy.as_str() {
            "" => causes.required(&policy, ""),
            "NoOpinion" | "Deny" => {}
            other => causes.not_supported(&policy, other, &["NoOpinion", "Deny"]),
        }
        check_conditions(&self.match_conditions, causes);
        WebhookConfig {
            name: name.to_owned(),
            authorized_ttl: authorized,
            unauthorized_ttl: unauthorized,
            timeout,
            version: version.to_owned(),
            denies_on_failure: self.failure_policy == "Deny",
            connection: self.connection_info.check(&path.child("connectionInfo"), causes),
            conditions: self.match_conditions.iter().map(|one| one.expression.clone()).collect(),
        }
    }
}

impl ConnectionInfo {
    fn check(&self, path: &Path<'_>, causes: &mut Causes) -> Connection {
        let of_file = path.child("kubeConfigFile");
        let file = self.kube_config_file.as_deref();
        match self.r#type.as_str() {
            "InClusterConfig" => {
                if let Some(file) = file {
                    causes.invalid(&of_file, file, "can only be set when type=KubeConfigFile");
                }
            }
            "KubeConfigFile" => {
                let Some(file) = file.filter(|file| !file.is_empty()) else {
                    causes.required(&of_file, "");
                    return Connection::InCluster;
                };
                match std::fs::metadata(file) {
                    _ if !FilePath::new(file).is_absolute() => {
                        causes.invalid(&of_file, file, "must be an absolute path");
                    }
                    Err(error) => {
                        causes.invalid(&of_file, file, format!("error loading file: {error}"));
                    }
                    Ok(found) if !found.is_file() => {
                        causes.invalid(&of_file, file, "must be a regular file");
                    }
                    Ok(_) => {}
                }
                return Connection::Kubeconfig(file.into());
            }
            "" => causes.required(&path.child("type"), ""),
            other => {
                let known = ["InClusterConfig", "KubeConfigFile"];
                causes.not_supported(&path.child("type"), other, &known);
            }
        }
        Connection::InCluster
    }
}

fn check_conditions(conditions: &[MatchCondition], causes: &mut Causes) {
    let root = Path::root("matchConditions");
    if conditions.len() > MAX_CONDITIONS {
        causes.too_many(&root, conditions.len(), MAX_CONDITIONS);
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = root.index(i);
        let path = path.child("expression");
        let source = condition.expression.trim();
        if source.is_empty() {
            causes.required(&path, "");
        } else if !seen.insert(source) {
            causes.duplicate(&path, source, "");
        } else if let Err(why) = conditions::compile(&condition.expression) {
            causes.invalid(&path, &condition.expression, why);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";

    fn with(rest: &str) -> Result<Vec<AuthorizerConfig>, String> {
        parse(&format!("{HEAD}{rest}"))
    }

    fn webhook(change: &[(&str, &str)]) -> Result<Vec<AuthorizerConfig>, String> {
        let mut fields = vec![
            ("timeout", "3s"),
            ("subjectAccessReviewVersion", "v1"),
            ("failurePolicy", "Deny"),
            ("connectionInfo", "{type: InClusterConfig}"),
        ];
        for (name, value) in change {
            fields.retain(|(known, _)| known != name);
            fields.push((name, value));
        }
        let fields: Vec<String> = fields
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        with(&format!(
            "authorizers: [{{type: Webhook, name: w.example, webhook: {{{}}}}}]",
            fields.join(", ")
        ))
    }

    #[test]
    fn authorization_config_names_the_authorizers_in_order() {
        let both = "authorizers: [{type: Node, name: node}, {type: RBAC, name: rbac}]";
        let local = |config: Vec<AuthorizerConfig>| {
            AuthorizationConfig { authorizers: config, ..Default::default() }.local()
        };
        assert_eq!(local(with(both).unwrap()), [Mode::Node, Mode::Rbac]);
        let found = webhook(&[("authorizedTTL", "1m"), ("cacheUnauthorizedRequests", "false")]);
        let [AuthorizerConfig::Webhook(found)] = found.as_deref().unwrap() else { panic!() };
        assert_eq!(found.authorized_ttl, Duration::from_secs(60));
        assert_eq!(found.unauthorized_ttl, Duration::ZERO);
        assert_eq!((found.timeout, found.denies_on_failure), (Duration::from_secs(3), true));
        assert_eq!(found.connection, Connection::InCluster);
        let default = webhook(&[]).unwrap();
        let [AuthorizerConfig::Webhook(default)] = default.as_slice() else { panic!() };
        assert_eq!(default.authorized_ttl, Duration::from_secs(300));
        assert_eq!(default.unauthorized_ttl, Duration::from_secs(30));
    }

    #[test]
    fn authorization_config_is_checked_in_upstreams_words() {
        for (rest, expected) in [
            ("authorizers: []", "authorizers: Required value: at least one authorization mode"),
            ("", "at least one"),
            ("modes: []", "modes"),
            ("authorizers: [{name: a}]", "authorizers[0].type: Required value"),
            (
                "authorizers: [{type: Magic, name: a}]",
                "authorizers[0].type: Unsupported value: \"Magic\"",
            ),
            (
                "authorizers: [{type: RBAC, name: a}, {type: RBAC, name: b}]",
                "authorizers[1].type: Duplicate value",
            ),
            ("authorizers: [{type: RBAC}]", "authorizers[0].name: Required value"),
            ("authorizers: [{type: RBAC, name: A_}]", "authorizer name is invalid"),
            (
                "authorizers: [{type: RBAC, name: other}]",
                "expected name rbac for authorizer RBAC instead of other",
            ),
            (
                "authorizers: [{type: Webhook, name: a}]",
                "webhook: Required value: required when type=Webhook",
            ),
            (
                "authorizers: [{type: RBAC, name: rbac, webhook: {}}]",
                "may only be specified when type=Webhook",
            ),
        ] {
            let error = with(rest).unwrap_err();
            assert!(error.contains(expected), "{rest}: {error}");
        }
        for (field, value, expected) in [
            ("timeout", "", "timeout: Required value"),
            ("timeout", "31s", "must be > 0s and <= 30s"),
            ("timeout", "-1s", "must be > 0s and <= 30s"),
            ("timeout", "soon", "not a duration"),
            ("authorizedTTL", "-1s", "must be > 0s"),
            ("subjectAccessReviewVersion", "", "subjectAccessReviewVersion: Required value"),
            ("subjectAccessReviewVersion", "v2", "supported values: \"v1\", \"v1beta1\""),
            ("failurePolicy", "", "failurePolicy: Required value"),
            ("failurePolicy", "Ignore", "supported values: \"NoOpinion\", \"Deny\""),
            ("connectionInfo", "{}", "connectionInfo.type: Required value"),
            ("connectionInfo", "{type: KubeConfigFile}", "kubeConfigFile: Required value"),
            ("connectionInfo", "{type: KubeConfigFile, kubeConfigFile: a}", "absolute path"),
            ("connectionInfo", "{type: KubeConfigFile, kubeConfigFile: /no/such}", "error loading"),
            ("connectionInfo", "{type: KubeConfigFile, kubeConfigFile: /}", "a regular file"),
            ("connectionInfo", "{type: InClusterConfig, kubeConfigFile: /a}", "can only be set"),
            (
                "matchConditions",
                "[{expression: 'true'}]",
                "required if match conditions are specified",
            ),
            ("extra", "1", "extra"),
        ] {
            let error = webhook(&[(field, value)]).unwrap_err();
            assert!(error.contains(expected), "{field}: {value}: {error}");
        }
        let version = ("matchConditionSubjectAccessReviewVersion", "v1");
        for (conditions, expected) in [
            ("[{expression: ''}]", "matchConditions[0].expression: Required value"),
            (
                "[{expression: 'true'}, {expression: 'true'}]",
                "matchConditions[1].expression: Duplicate",
            ),
            ("[{expression: 'request.nope'}]", "undefined field 'nope'"),
            ("[{expression: '1'}]", "must evaluate to bool"),
        ] {
            let error = webhook(&[version, ("matchConditions", conditions)]).unwrap_err();
            assert!(error.contains(expected), "{conditions}: {error}");
        }
        let good = "[{expression: \"request.user != 'a' && has(request.resourceAttributes)\"}]";
        assert!(webhook(&[version, ("matchConditions", good)]).is_ok());
        assert!(parse("apiVersion: v1\nkind: Pod").unwrap_err().contains("v1, Pod"));
        assert!(AuthorizationConfig::of_file(FilePath::new("/nowhere/at/all")).is_err());
    }
}
