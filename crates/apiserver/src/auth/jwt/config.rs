//! `--authentication-config`: the issuers of tokens and who is anonymous, as a file of
//! apiserver.config.k8s.io. Expressions are compiled as the file is checked.

use std::collections::BTreeSet;

use hyper::Uri;
use serde::Deserialize;
use serde_json::{Value, json};

use super::claims::{ClaimRule, Expression, Mapping, Source, UserRule};
use crate::config_file;
use crate::schema::field::{Causes, Path};
use crate::schema::names;

const VERSIONS: [&str; 3] = ["v1", "v1beta1", "v1alpha1"];
/// The most issuers.
const MAX_ISSUERS: usize = 64;

/// What the file says.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AuthenticationFile {
    api_version: String,
    kind: String,
    #[serde(default)]
    pub(crate) jwt: Vec<JwtAuthenticator>,
    #[serde(default)]
    pub(crate) anonymous: Option<Anonymous>,
}

/// Who is served without credentials.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Anonymous {
    /// Whether anybody is.
    pub enabled: bool,
    /// Only on these paths; empty: on all.
    #[serde(default)]
    pub conditions: Vec<AnonymousCondition>,
}

/// A path that is served without credentials.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AnonymousCondition {
    /// The path, such as `/livez`.
    pub path: String,
}

impl Anonymous {
    /// Whether a request of that path is served without credentials.
    pub(crate) fn allows(&self, path: &str) -> bool {
        let is_open = || self.conditions.iter().any(|condition| condition.path == path);
        self.enabled && (self.conditions.is_empty() || is_open())
    }
}

/// An issuer, and what users its tokens are of.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct JwtAuthenticator {
    pub(crate) issuer: Issuer,
    #[serde(default)]
    pub(crate) claim_validation_rules: Vec<ClaimValidationRule>,
    pub(crate) claim_mappings: ClaimMappings,
    #[serde(default)]
    pub(crate) user_validation_rules: Vec<UserValidationRule>,
}

/// An issuer.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Issuer {
    #[serde(default)]
    pub(crate) url: String,
    #[serde(default, rename = "discoveryURL")]
    pub(crate) discovery_url: String,
    #[serde(default)]
    pub(crate) certificate_authority: String,
    #[serde(default)]
    pub(crate) audiences: Vec<String>,
    #[serde(default)]
    pub(crate) audience_match_policy: String,
    #[serde(default)]
    pub(crate) egress_selector_type: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ClaimValidationRule {
    #[serde(default)]
    pub(crate) claim: String,
    #[serde(default)]
    pub(crate) required_value: String,
    #[serde(default)]
    pub(crate) expression: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct UserValidationRule {
    #[serde(default)]
    pub(crate) expression: String,
    #[serde(default)]
    pub(crate) message: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ClaimMappings {
    pub(crate) username: ClaimOrExpression,
    #[serde(default)]
    pub(crate) groups: ClaimOrExpression,
    #[serde(default)]
    pub(crate) uid: ClaimOrExpression,
    #[serde(default)]
    pub(crate) extra: Vec<ExtraMapping>,
}

/// A claim with a prefix, or an expression.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ClaimOrExpression {
    #[serde(default)]
    pub(crate) claim: String,
    #[serde(default)]
    pub(crate) prefix: Option<String>,
    #[serde(default)]
    pub(crate) expression: String,
}

#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ExtraMapping {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value_expression: String,
}

/// A checked issuer.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) issuer: Issuer,
    pub(crate) mapping: Mapping,
}

impl AuthenticationFile {
    /// Reads a file, strictly.
    pub(crate) fn parse(text: &str) -> Result<AuthenticationFile, String> {
        let file: AuthenticationFile = config_file::parse(text)?;
        let version = file.api_version.strip_prefix("apiserver.config.k8s.io/");
        let is_known = version.is_some_and(|version| VERSIONS.contains(&version));
        match is_known && file.kind == "AuthenticationConfiguration" {
            true => Ok(file),
            false => Err(format!(
                "expected AuthenticationConfiguration, got {}, Kind={}",
                file.api_version, file.kind
            )),
        }
    }

    /// A file with that issuer alone, as flags say it.
    pub(crate) fn of_flags(jwt: JwtAuthenticator) -> AuthenticationFile {
        AuthenticationFile { jwt: vec![jwt], ..AuthenticationFile::default() }
    }

    /// Checks it. Tokens of the `disallowed` issuers are others' to verify.
    pub(crate) fn check(&self, disallowed: &[String]) -> Result<Vec<Checked>, String> {
        let mut causes = Causes::default();
        let mut checked = Vec::new();
        let root = Path::root("jwt");
        if self.jwt.len() > MAX_ISSUERS {
            causes.too_many(&root, self.jwt.len(), MAX_ISSUERS);
            return Err(joined(&causes));
        }
        let (mut urls, mut discovery_urls) = (BTreeSet::new(), BTreeSet::new());
        for (i, jwt) in self.jwt.iter().enumerate() {
            let path = root.index(i);
            let issuer = path.child("issuer");
            jwt.issuer.check(&issuer, disallowed, &mut causes);
            let mapping = jwt.mapping(&path, &mut causes);
            if !urls.insert(&jwt.issuer.url) {
                causes.duplicate(&issuer.child("url"), &jwt.issuer.url, "");
            }
            let discovery = &jwt.issuer.discovery_url;
            if !discovery.is_empty() && !discovery_urls.insert(discovery) {
                causes.duplicate(&issuer.child("discoveryURL"), discovery, "");
            }
            checked.extend(mapping.map(|mapping| Checked { issuer: jwt.issuer.clone(), mapping }));
        }
        if let Some(anonymous) = &self.anonymous
            && !anonymous.enabled
            && !anonymous.conditions.is_empty()
        {
            let path = |condition: &AnonymousCondition| json!({"Path": condition.path});
            let paths: Vec<Value> = anonymous.conditions.iter().map(path).collect();
            causes.invalid(
                &Path::root("anonymous").child("conditions"),
                &paths,
                "enabled should be set to true when conditions are defined",
            );
        }
        match causes.0.is_empty() {
            true => Ok(checked),
            false => Err(joined(&causes)),
        }
    }
}

/// All complaints in one text.
pub(crate) fn joined(causes: &Causes) -> String {
    let all: Vec<String> =
        causes.0.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
    match all.as_slice() {
        [one] => one.clone(),
        all => format!("[{}]", all.join(", ")),
    }
}

impl Issuer {
    fn check(&self, path: &Path<'_>, disallowed: &[String], causes: &mut Causes) {
        let url = path.child("url");
        if self.url.is_empty() {
            causes.required(&url, "");
        } else {
            if disallowed.contains(&self.url) {
                let mut sorted: Vec<&str> = disallowed.iter().map(String::as_str).collect();
                sorted.sort_unstable();
                let why =
                    format!("URL must not overlap with disallowed issuers: [{}]", sorted.join(" "));
                causes.invalid(&url, &self.url, why);
            }
            check_url(&self.url, &url, causes);
        }
        if !self.discovery_url.is_empty() {
            let path = path.child("discoveryURL");
            if self.url.trim_end_matches('/') == self.discovery_url.trim_end_matches('/') {
                let why = "discoveryURL must be different from URL";
                causes.invalid(&path, &self.discovery_url, why);
            }
            check_url(&self.discovery_url, &path, causes);
        }
        let audiences = path.child("audiences");
        if self.audiences.is_empty() {
            causes.required(&audiences, &format!("at least one {audiences} is required"));
        }
        for (i, audience) in self.audiences.iter().enumerate() {
            let path = audiences.index(i);
            if audience.is_empty() {
                causes.required(&path, "");
            }
            if self.audiences.iter().take(i).any(|other| other == audience) {
                causes.duplicate(&path, audience, "");
            }
        }
        let policy = path.child("audienceMatchPolicy");
        let matches_any = self.audience_match_policy == "MatchAny";
        if self.audiences.len() > 1 && !matches_any {
            let why = "audienceMatchPolicy must be MatchAny for multiple audiences";
            causes.invalid(&policy, &self.audience_match_policy, why);
        }
        if self.audiences.len() == 1 && !self.audience_match_policy.is_empty() && !matches_any {
            let why = "audienceMatchPolicy must be empty or MatchAny for single audience";
            causes.invalid(&policy, &self.audience_match_policy, why);
        }
        let authority = &self.certificate_authority;
        if !authority.is_empty() && longshore_tls::roots_of(authority).is_err() {
            let why = "data does not contain any valid RSA or ECDSA certificates";
            causes.invalid(&path.child("certificateAuthority"), "<omitted>", why);
        }
        if !self.egress_selector_type.is_empty() {
            let is_known = matches!(self.egress_selector_type.as_str(), "controlplane" | "cluster");
            let why = match is_known {
                true => "egress selector is not supported: connections are made directly",
                false => "egress selector must be either controlplane or cluster",
            };
            causes.invalid(&path.child("egressSelectorType"), &self.egress_selector_type, why);
        }
    }
}

fn check_url(text: &str, path: &Path<'_>, causes: &mut Causes) {
    let url: Uri = match text.parse() {
        Ok(url) => url,
        Err(error) => return causes.invalid(path, text, error),
    };
    if url.scheme_str() != Some("https") {
        causes.invalid(path, text, "URL scheme must be https");
    }
    if url.authority().is_none_or(|authority| authority.host().is_empty()) {
        causes.invalid(path, text, "URL must have a host");
    }
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        causes.invalid(path, text, "URL must not contain a username or password");
    }
    if url.query().is_some_and(|query| !query.is_empty()) {
        causes.invalid(path, text, "URL must not contain a query");
    }
    // `Uri` drops fragments
    if text.split_once('#').is_some_and(|(_, fragment)| !fragment.is_empty()) {
        causes.invalid(path, text, "URL must not contain a fragment");
    }
}

/// Compiles, or complains.
fn compiled(
    compile: impl FnOnce(&str) -> Result<Expression, String>,
    source: &str,
    path: &Path<'_>,
    causes: &mut Causes,
) -> Option<Expression> {
    compile(source).map_err(|why| causes.invalid(path, source, why)).ok()
}

impl ClaimOrExpression {
    /// Where a value comes from, if from anywhere.
    fn source(
        &self,
        path: &Path<'_>,
        (is_required, has_prefix): (bool, bool),
        causes: &mut Causes,
    ) -> Option<Source> {
        match (self.claim.as_str(), self.expression.as_str()) {
            ("", "") => {
                if is_required {
                    causes.required(path, "claim or expression is required");
                }
                None
            }
            (claim, "") => {
                if self.prefix.is_none() && has_prefix {
                    let why = "prefix is required when claim is set. It can be set to an empty \
                               string to disable prefixing";
                    causes.required(&path.child("prefix"), why);
                }
                let prefix = self.prefix.clone().unwrap_or_default();
                Some(Source::Claim { name: claim.to_owned(), prefix })
            }
            ("", expression) => {
                if let Some(prefix) = &self.prefix {
                    let why = "may not be specified when expression is set";
                    causes.invalid(&path.child("prefix"), prefix, why);
                }
                let path = path.child("expression");
                compiled(Expression::of_claims, expression, &path, causes).map(Source::Expression)
            }
            _ => {
                causes.invalid(path, "", "claim and expression can't both be set");
                None
            }
        }
    }
}

impl JwtAuthenticator {
    /// How claims become a user; `None`, with complaints, where that cannot be said.
    fn mapping(&self, path: &Path<'_>, causes: &mut Causes) -> Option<Mapping> {
        let claims = &self.claim_mappings;
        let mappings = path.child("claimMappings");
        let (required, claim_rules) = self.claim_rules(&path.child("claimValidationRules"), causes);
        let username = mappings.child("username");
        let user = claims.username.source(&username, (true, true), causes);
        let groups = claims.groups.source(&mappings.child("groups"), (false, true), causes);
        let uid = &mappings.child("uid");
        if let Some(prefix) = &claims.uid.prefix {
            causes.invalid(&uid.child("prefix"), prefix, "a UID has no prefix");
        }
        let uid = claims.uid.source(uid, (false, false), causes);
        let extra = self.extra(&mappings.child("extra"), causes);
        let selects = |field: &'static str| {
            move |source: &str| longshore_cel::selects(source, "claims", field)
        };
        let (email, verified) = (selects("email"), selects("email_verified"));
        let own = claims.username.expression.as_str();
        let of_extra = claims.extra.iter().map(|mapping| mapping.value_expression.as_str());
        let of_rules = self.claim_validation_rules.iter().map(|rule| rule.expression.as_str());
        let mut all = std::iter::once(own).chain(of_extra).chain(of_rules);
        if email(own) && !all.any(verified) {
            let why = "claims.email_verified must be used in claimMappings.username.expression or \
                       claimMappings.extra[*].valueExpression or claimValidationRules[*].expression \
                       when claims.email is used in claimMappings.username.expression";
            causes.invalid(&username.child("expression"), own, why);
        }
        let user_rules = self.user_rules(&path.child("userValidationRules"), causes);
        Some(Mapping { username: user?, groups, uid, extra, required, claim_rules, user_rules })
    }

    /// Values that claims must have, and rules of expressions.
    fn claim_rules(
        &self,
        path: &Path<'_>,
        causes: &mut Causes,
    ) -> (Vec<(String, String)>, Vec<ClaimRule>) {
        let (mut required, mut rules): (Vec<(String, String)>, Vec<ClaimRule>) = Default::default();
        let mut seen = BTreeSet::new();
        for (i, rule) in self.claim_validation_rules.iter().enumerate() {
            let path = path.index(i);
            match (rule.claim.as_str(), rule.expression.as_str()) {
                ("", "") => causes.required(&path, "claim or expression is required"),
                (claim, "") => {
                    if !rule.message.is_empty() {
                        let why = "may not be specified when claim is set";
                        causes.invalid(&path.child("message"), &rule.message, why);
                    }
                    if required.iter().any(|(known, _)| known == claim) {
                        causes.duplicate(&path.child("claim"), claim, "");
                    }
                    required.push((claim.to_owned(), rule.required_value.clone()));
                }
                ("", source) => {
                    if !rule.required_value.is_empty() {
                        let why = "may not be specified when expression is set";
                        causes.invalid(&path.child("requiredValue"), &rule.required_value, why);
                    }
                    let path = path.child("expression");
                    if !seen.insert(source) {
                        causes.duplicate(&path, source, "");
                        continue;
                    }
                    let condition = compiled(Expression::of_claims_rule, source, &path, causes);
                    let message = rule.message.clone();
                    rules.extend(condition.map(|condition| ClaimRule { condition, message }));
                }
                (claim, _) => {
                    causes.invalid(&path, claim, "claim and expression can't both be set");
                }
            }
        }
        (required, rules)
    }

    fn extra(&self, path: &Path<'_>, causes: &mut Causes) -> Vec<(String, Expression)> {
        let mut extra: Vec<(String, Expression)> = Vec::new();
        let mut seen = BTreeSet::new();
        for (i, mapping) in self.claim_mappings.extra.iter().enumerate() {
            let (path, key) = (path.index(i), mapping.key.as_str());
            let of_key = path.child("key");
            let domain = match key.split_once('/') {
                Some((domain, rest)) if names::is_dns_subdomain(domain) && !rest.is_empty() => {
                    domain
                }
                _ if key.is_empty() => {
                    causes.required(&of_key, "");
                    ""
                }
                _ => {
                    let why = "must be a domain-prefixed path (such as \"acme.io/foo\")";
                    causes.invalid(&of_key, key, why);
                    ""
                }
            };
            if key != key.to_lowercase() {
                causes.invalid(&of_key, key, "must be lowercase");
            }
            let is_reserved = |of: &str| {
                domain == of || domain.strip_suffix(of).is_some_and(|d| d.ends_with('.'))
            };
            if is_reserved("k8s.io") || is_reserved("kubernetes.io") {
                let why =
                    "k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use";
                causes.invalid(&of_key, key, why);
            }
            if !seen.insert(key) {
                causes.duplicate(&of_key, key, "");
                continue;
            }
            let path = path.child("valueExpression");
            if mapping.value_expression.is_empty() {
                causes.required(&path, "");
                continue;
            }
            let value = compiled(Expression::of_claims, &mapping.value_expression, &path, causes);
            extra.extend(value.map(|value| (key.to_owned(), value)));
        }
        extra
    }

    fn user_rules(&self, path: &Path<'_>, causes: &mut Causes) -> Vec<UserRule> {
        let mut rules = Vec::new();
        let mut seen = BTreeSet::new();
        for (i, rule) in self.user_validation_rules.iter().enumerate() {
            let path = path.index(i);
            let path = path.child("expression");
            let source = rule.expression.as_str();
            if source.is_empty() {
                causes.required(&path, "");
                continue;
            }
            if !seen.insert(source) {
                causes.duplicate(&path, source, "");
                continue;
            }
            let condition = compiled(Expression::of_user_rule, source, &path, causes);
            let message = rule.message.clone();
            rules.extend(condition.map(|condition| UserRule { condition, message }));
        }
        rules
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HEAD: &str =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n";

    fn check(rest: &str) -> Result<Vec<Checked>, String> {
        let own = ["https://kubernetes.default.svc".to_owned()];
        AuthenticationFile::parse(&format!("{HEAD}{rest}"))?.check(&own)
    }

    fn jwt(issuer: &str, rest: &str) -> Result<Vec<Checked>, String> {
        check(&format!("jwt: [{{issuer: {{{issuer}}}, {rest}}}]"))
    }

    #[test]
    fn authentication_config_is_checked_in_upstreams_words() {
        let good = "url: 'https://i', audiences: [a]";
        let name = "claimMappings: {username: {claim: sub, prefix: ''}}";
        assert_eq!(jwt(good, name).unwrap().len(), 1);
        assert_eq!(check("").unwrap().len(), 0);
        for (issuer, why) in [
            ("audiences: [a]", "jwt[0].issuer.url: Required value"),
            ("url: 'http://i', audiences: [a]", "URL scheme must be https"),
            ("url: 'https://u@i', audiences: [a]", "username or password"),
            ("url: 'https://i?x=1', audiences: [a]", "must not contain a query"),
            ("url: 'https://i#x', audiences: [a]", "must not contain a fragment"),
            ("url: 'https://kubernetes.default.svc', audiences: [a]", "disallowed issuers: [https"),
            ("url: 'https://i'", "jwt[0].issuer.audiences: Required value: at least one"),
            ("url: 'https://i', audiences: [a, b]", "must be MatchAny for multiple"),
            ("url: 'https://i', audiences: [a], audienceMatchPolicy: X", "empty or MatchAny"),
            ("url: 'https://i', audiences: [a, a], audienceMatchPolicy: MatchAny", "Duplicate"),
            ("url: 'https://i', audiences: [a], discoveryURL: 'https://i/'", "different from URL"),
            ("url: 'https://i', audiences: [a], certificateAuthority: x", "<omitted>"),
            ("url: 'https://i', audiences: [a], egressSelectorType: cluster", "not supported"),
            (
                "url: 'https://i', audiences: [a], egressSelectorType: Cluster",
                "egress selector must be either controlplane or cluster",
            ),
            ("url: 'https://i', audiences: [a], urls: x", "urls"),
        ] {
            let error = jwt(issuer, name).unwrap_err();
            assert!(error.contains(why), "{issuer}: {error}");
        }
        for (rest, why) in [
            ("claimMappings: {username: {}}", "username: Required value: claim or expression"),
            ("claimMappings: {username: {claim: sub}}", "username.prefix: Required value"),
            ("claimMappings: {username: {claim: s, expression: claims.s}}", "can't both be set"),
            ("claimMappings: {username: {expression: 'claims.'}}", "compilation failed"),
            ("claimMappings: {username: {expression: 'nope.sub'}}", "undeclared reference"),
            ("claimMappings: {username: {expression: claims.email}}", "claims.email_verified must"),
            (
                &format!("{name}, claimValidationRules: [{{expression: '1'}}]"),
                "must evaluate to bool",
            ),
            (&format!("{name}, claimValidationRules: [{{claim: a, message: m}}]"), "message"),
            (&format!("{name}, claimValidationRules: [{{}}]"), "claim or expression is required"),
            (&format!("{name}, userValidationRules: [{{}}]"), "expression: Required value"),
            (
                &format!("{name}, userValidationRules: [{{expression: user.nope == ''}}]"),
                "undefined field",
            ),
        ] {
            let error = jwt(good, rest).unwrap_err();
            assert!(error.contains(why), "{rest}: {error}");
        }
        let verified = "claimMappings: {username: {expression: \
            \"claims.?email_verified.orValue(false) == true ? claims.email : claims.sub\"}}";
        assert!(jwt(good, verified).is_ok());
        for (key, why) in [
            ("foo", "domain-prefixed path"),
            ("example.org/Foo", "must be lowercase"),
            ("kubernetes.io/x", "reserved for Kubernetes"),
            ("a.k8s.io/x", "reserved for Kubernetes"),
            ("", "key: Required value"),
        ] {
            let rest = format!(
                "claimMappings: {{username: {{claim: s, prefix: ''}}, \
                 extra: [{{key: '{key}', valueExpression: claims.x}}]}}"
            );
            let error = jwt(good, &rest).unwrap_err();
            assert!(error.contains(why), "{key}: {error}");
        }
    }

    /// What kube-apiserver 1.36 says of the same files, but for positions in expressions.
    #[test]
    fn authentication_config_has_all_faults_in_upstreams_order() {
        let name = "claimMappings: {username: {claim: sub, prefix: ''}}";
        for (issuer, rest, expected) in [
            (
                "url: 'https://i?x=1#f', audiences: [a]",
                name,
                "[jwt[0].issuer.url: Invalid value: \"https://i?x=1#f\": URL must not contain a \
                 query, jwt[0].issuer.url: Invalid value: \"https://i?x=1#f\": URL must not \
                 contain a fragment]",
            ),
            (
                "url: 'https://i', audiences: [a, a], certificateAuthority: x",
                name,
                "[jwt[0].issuer.audiences[1]: Duplicate value: \"a\", \
                 jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must \
                 be MatchAny for multiple audiences, jwt[0].issuer.certificateAuthority: Invalid \
                 value: \"<omitted>\": data does not contain any valid RSA or ECDSA certificates]",
            ),
            (
                "url: 'https://i', audiences: [a]",
                "claimMappings: {username: {claim: s, prefix: ''}, extra: [{key: kubernetes.io/X, \
                 valueExpression: ''}]}, claimValidationRules: [{expression: '1'}, {}]",
                "[jwt[0].claimValidationRules[0].expression: Invalid value: \"1\": must evaluate to \
                 bool, jwt[0].claimValidationRules[1]: Required value: claim or expression is \
                 required, jwt[0].claimMappings.extra[0].key: Invalid value: \"kubernetes.io/X\": \
                 must be lowercase, jwt[0].claimMappings.extra[0].key: Invalid value: \
                 \"kubernetes.io/X\": k8s.io, kubernetes.io and their subdomains are reserved for \
                 Kubernetes use, jwt[0].claimMappings.extra[0].valueExpression: Required value]",
            ),
        ] {
            assert_eq!(jwt(issuer, rest).unwrap_err(), expected);
        }
        let closed = "anonymous: {enabled: false, conditions: [{path: /livez}]}";
        assert_eq!(
            check(closed).unwrap_err(),
            "anonymous.conditions: Invalid value: [{\"Path\":\"/livez\"}]: enabled should be set \
             to true when conditions are defined"
        );
    }

    #[test]
    fn authentication_config_of_other_kinds_is_an_error() {
        for text in [
            "",
            "apiVersion: v1\nkind: Pod",
            "apiVersion: apiserver.config.k8s.io/v9\nkind: AuthenticationConfiguration",
        ] {
            assert!(AuthenticationFile::parse(text).is_err(), "{text}");
        }
        let twice = "jwt: [{issuer: {url: 'https://i', audiences: [a]}, claimMappings: {username: {claim: s, prefix: ''}}}, \
            {issuer: {url: 'https://i', audiences: [a]}, claimMappings: {username: {claim: s, prefix: ''}}}]";
        assert!(check(twice).unwrap_err().contains("jwt[1].issuer.url: Duplicate value"));
        let closed = "anonymous: {enabled: false, conditions: [{path: /livez}]}";
        assert!(check(closed).unwrap_err().contains("enabled should be set to true"));
    }

    #[test]
    fn anonymous_users_are_served_on_the_paths_of_the_conditions() {
        let of = |enabled, paths: &[&str]| Anonymous {
            enabled,
            conditions: paths
                .iter()
                .map(|p| AnonymousCondition { path: (*p).to_owned() })
                .collect(),
        };
        assert!(of(true, &[]).allows("/api"));
        assert!(!of(false, &[]).allows("/livez"));
        let health = of(true, &["/livez", "/readyz"]);
        assert!(health.allows("/livez") && health.allows("/readyz"));
        for path in ["/livez/", "/livez/ping", "/LIVEZ", "/", "/api", "livez"] {
            assert!(!health.allows(path), "{path}");
        }
    }
}
