//! Policies of a file (`--authorization-policy-file`): one JSON object a line, read once, at start.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::rule::Rule;
use super::{Access, Decision, Rules, Target};
use crate::pki::{Error, Result};
use crate::user::{AUTHENTICATED, User};

const VERSION: &str = "abac.authorization.kubernetes.io/v1beta1";

/// What a subject may do. Empty texts match nothing, `*` matches all.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    #[serde(rename = "apiGroup")]
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(rename = "nonResourcePath")]
    path: String,
}

/// The policies, of which one that matches is enough.
#[derive(Debug, Default)]
pub(super) struct Policies(Vec<Policy>);

impl Policies {
    pub(super) fn load(path: &Path) -> Result<Policies> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Io {
            action: "read",
            path: path.to_owned(),
            source,
        })?;
        Policies::parse(&text).map_err(|reason| Error::Invalid { path: path.to_owned(), reason })
    }

    fn parse(text: &str) -> std::result::Result<Policies, String> {
        let mut policies = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let policy = Policy::read(line);
            let number = number.saturating_add(1);
            policies.push(policy.map_err(|why| format!("line {number}: {why}"))?);
        }
        Ok(Policies(policies))
    }

    pub(super) fn decide(&self, access: &Access<'_>) -> Decision {
        match self.0.iter().any(|policy| policy.matches(access)) {
            true => Decision::allow(),
            false => Decision::deny("No policy matched."),
        }
    }

    /// What a user may do in a namespace.
    pub(super) fn collect(&self, user: &User, namespace: &str, rules: &mut Rules) {
        for policy in self.0.iter().filter(|policy| policy.is_of(user)) {
            if policy.namespace != "*" && policy.namespace != namespace {
                continue;
            }
            let verbs: &[&str] = if policy.readonly { &["get", "list", "watch"] } else { &["*"] };
            if !policy.resource.is_empty() {
                rules.rules.push(Rule::of_resource(verbs, &policy.api_group, &policy.resource));
            }
            if !policy.path.is_empty() {
                rules.rules.push(Rule::of_path(verbs, &policy.path));
            }
        }
    }
}

impl Policy {
    fn read(line: &str) -> std::result::Result<Policy, String> {
        let object: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        if !object.is_object() {
            return Err("it is not an object".to_owned());
        }
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        match (text("apiVersion"), text("kind")) {
            (VERSION, "Policy") => serde_json::from_value::<Policy>(object["spec"].clone())
                .map(Policy::of_authenticated)
                .map_err(|error| error.to_string()),
            ("", "") => Policy::of_old(object),
            (version, kind) => Err(format!("unrecognized object: {version}, {kind}")),
        }
    }

    /// A policy without a version: what it leaves empty matches everything.
    fn of_old(object: Value) -> std::result::Result<Policy, String> {
        let old: Policy = serde_json::from_value(object).map_err(|error| error.to_string())?;
        let all = || "*".to_owned();
        let or_all = |text: &str| if text.is_empty() { all() } else { text.to_owned() };
        let of_anybody = old.user.is_empty() && old.group.is_empty();
        let of_paths = old.namespace.is_empty() && old.resource.is_empty();
        let policy = Policy {
            group: if of_anybody { all() } else { old.group },
            user: old.user,
            readonly: old.readonly,
            api_group: all(),
            resource: or_all(&old.resource),
            namespace: or_all(&old.namespace),
            path: if of_paths { all() } else { String::new() },
        };
        Ok(policy.of_authenticated())
    }

    /// `*` as a subject is everybody with credentials, and nobody without.
    fn of_authenticated(mut self) -> Policy {
        if self.user == "*" || self.group == "*" {
            self.user.clear();
            self.group = AUTHENTICATED.to_owned();
        }
        self
    }

    /// Whether it is about the user: by name and by group, where it names them.
    fn is_of(&self, user: &User) -> bool {
        let by_name = self.user.is_empty() || self.user == user.name;
        let by_group = self.group.is_empty() || user.is_in(&self.group);
        !(self.user.is_empty() && self.group.is_empty()) && by_name && by_group
    }

    fn matches(&self, access: &Access<'_>) -> bool {
        let reads = matches!(access.verb, "get" | "list" | "watch");
        if !self.is_of(access.user) || (self.readonly && !reads) {
            return false;
        }
        let is = |own: &str, other: &str| own == "*" || own == other;
        match &access.target {
            Target::Resource(target) => {
                is(&self.namespace, target.namespace)
                    && is(&self.resource, target.resource)
                    && is(&self.api_group, target.group)
            }
            Target::Path(path) => {
                is(&self.path, path)
                    || (self.path.ends_with('*')
                        && path.starts_with(self.path.trim_end_matches('*')))
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::authz::ResourceTarget;

    fn user(name: &str, group: &str) -> User {
        match name {
            "" => User::anonymous(),
            name => User::authenticated(name.to_owned(), vec![group.to_owned()]),
        }
    }

    /// `verb group/resource namespace` or `verb /path`.
    fn allows(policies: &Policies, user: &User, line: &str) -> bool {
        let words: Vec<&str> = line.split(' ').collect();
        let target = match words[1].strip_prefix('/') {
            Some(_) => Target::Path(words[1]),
            None => {
                let (group, resource) = words[1].split_once('/').unwrap();
                let group = if group == "core" { "" } else { group };
                let namespace = words.get(2).copied().unwrap_or_default();
                Target::Resource(ResourceTarget {
                    group,
                    resource,
                    namespace,
                    ..Default::default()
                })
            }
        };
        policies.decide(&Access { user, verb: words[0], target }).is_allowed()
    }

    fn policy(spec: &str) -> Policies {
        let head = format!("{{\"apiVersion\":\"{VERSION}\",\"kind\":\"Policy\",\"spec\":");
        Policies::parse(&format!("# a comment\n\n{head}{spec}}}\n")).unwrap()
    }

    #[test]
    fn abac_policies_match_subjects_verbs_and_targets() {
        let (ann, bob, nobody) = (user("ann", "dev"), user("bob", "ops"), user("", ""));
        let pods = policy(r#"{"user":"ann","namespace":"n","resource":"pods","readonly":true}"#);
        assert!(allows(&pods, &ann, "get core/pods n") && allows(&pods, &ann, "watch core/pods n"));
        for (user, line) in [
            (&ann, "create core/pods n"),
            (&ann, "get core/pods m"),
            (&ann, "get apps/pods n"),
            (&ann, "get core/secrets n"),
            (&ann, "get /version"),
            (&bob, "get core/pods n"),
        ] {
            assert!(!allows(&pods, user, line), "{line}");
        }
        let all = policy(
            r#"{"user":"*","namespace":"*","resource":"*","apiGroup":"*","nonResourcePath":"*"}"#,
        );
        assert!(allows(&all, &bob, "delete apps/deployments n") && allows(&all, &bob, "get /x"));
        assert!(!allows(&all, &nobody, "get apps/deployments n"), "not those without credentials");
        let paths = policy(r#"{"group":"dev","nonResourcePath":"/logs/*"}"#);
        assert!(allows(&paths, &ann, "get /logs/a") && !allows(&paths, &ann, "get /log"));
        assert!(!allows(&paths, &bob, "get /logs/a"));
        let both =
            policy(r#"{"user":"ann","group":"ops","namespace":"*","resource":"*","apiGroup":"*"}"#);
        assert!(!allows(&both, &ann, "get apps/x n") && !allows(&both, &bob, "get apps/x n"));
        assert!(!allows(&policy("{}"), &ann, "get apps/x n"));
        let open = policy(
            r#"{"group":"system:unauthenticated","nonResourcePath":"/version","readonly":true}"#,
        );
        assert!(allows(&open, &nobody, "get /version"));
    }

    #[test]
    fn abac_policies_without_a_version_match_what_they_leave_out() {
        let old = |line: &str| Policies::parse(line).unwrap();
        let ann = user("ann", "dev");
        assert!(allows(&old(r#"{"user":"ann"}"#), &ann, "delete apps/x n"));
        assert!(allows(&old(r#"{"user":"ann"}"#), &ann, "get /version"));
        let pods = old(r#"{"user":"ann","resource":"pods"}"#);
        assert!(!allows(&pods, &ann, "get /version") && !allows(&pods, &ann, "get apps/x n"));
        for line in ["{}", r#"{"user":"*"}"#, r#"{"group":"*"}"#] {
            assert!(allows(&old(line), &ann, "get apps/x n"), "{line}");
            assert!(!allows(&old(line), &user("", ""), "get apps/x n"), "{line}");
        }
    }

    #[test]
    fn abac_lines_that_are_no_policies_are_errors() {
        for line in [
            "x",
            "[]",
            "{\"kind\":\"Policy\"}",
            "{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}",
            "{\"user\":1}",
        ] {
            let error = Policies::parse(&format!("\n{line}\n")).unwrap_err();
            assert!(error.contains("line 2"), "{line}: {error}");
        }
    }
}
