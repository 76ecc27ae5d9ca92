//! The audit policy (audit.k8s.io/v1): which requests are recorded, in which stages, and how much of
//! them. The first rule that matches decides; without one nothing is recorded.

use serde::Deserialize;
use serde_json::Value;

use super::event::{Level, Stage};
use crate::authz::Target;
use crate::config_file;
use crate::schema::is_dns_subdomain;
use crate::user::User;

/// The policy file is read as a whole.
const API_VERSION: &str = "audit.k8s.io/v1";

/// A checked policy.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Policy {
    api_version: String,
    kind: String,
    rules: Vec<Rule>,
    omit_stages: Vec<String>,
    omit_managed_fields: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    level: String,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<GroupResources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    non_resource_urls: Vec<String>,
    omit_stages: Vec<String>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupResources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// What a policy says about one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    pub(super) level: Level,
    pub(super) omitted: Stages,
    pub(super) omit_managed_fields: bool,
}

/// A set of stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stages(u8);

impl Stages {
    fn of(names: &[String]) -> Stages {
        let bit = |name: &String| Stage::parse(name).map_or(0, |stage| 1 << stage as u8);
        Stages(names.iter().fold(0, |bits, name| bits | bit(name)))
    }

    pub(super) fn contains(self, stage: Stage) -> bool {
        self.0 & (1 << stage as u8) != 0
    }

    fn with(self, other: Stages) -> Stages {
        Stages(self.0 | other.0)
    }
}

impl Policy {
    /// Parses and checks the text of a policy file. Returns warnings beside it: fields that are not known have no
    /// effect.
    pub(crate) fn parse(text: &str) -> Result<(Policy, Vec<String>), String> {
        let failed = |error: &dyn std::fmt::Display| format!("failed decoding: {error}");
        let value: Value = config_file::parse(text).map_err(|error| failed(&error))?;
        let mut warnings = Vec::new();
        unknown_fields(&value, &mut warnings);
        let policy: Policy = serde_json::from_value(value).map_err(|error| failed(&error))?;
        if policy.api_version != API_VERSION || policy.kind != "Policy" {
            return Err(format!(
                "unknown group version field {}, Kind={} in policy",
                policy.api_version, policy.kind
            ));
        }
        let faults = policy.faults();
        match faults.as_slice() {
            [] if policy.rules.is_empty() => Err("loaded illegal policy with 0 rules".to_owned()),
            [] => Ok((policy, warnings)),
            [one] => Err(one.clone()),
            many => Err(format!("[{}]", many.join(", "))),
        }
    }

    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        stage_faults("omitStages", &self.omit_stages, &mut faults);
        for (i, rule) in self.rules.iter().enumerate() {
            rule.faults(&format!("rules[{i}]"), &mut faults);
        }
        faults
    }

    /// What is recorded of a request. `user`: `None` when it could not be authenticated.
    pub(super) fn evaluate(
        &self,
        user: Option<&User>,
        verb: &str,
        target: &Target<'_>,
    ) -> Decision {
        let omitted = Stages::of(&self.omit_stages);
        match self.rules.iter().find(|rule| rule.matches(user, verb, target)) {
            Some(rule) => Decision {
                level: Level::parse(&rule.level).unwrap_or(Level::None),
                omitted: omitted.with(Stages::of(&rule.omit_stages)),
                omit_managed_fields: rule.omit_managed_fields.unwrap_or(self.omit_managed_fields),
            },
            None => Decision {
                level: Level::None,
                omitted,
                omit_managed_fields: self.omit_managed_fields,
            },
        }
    }
}

impl Rule {
    fn faults(&self, path: &str, faults: &mut Vec<String>) {
        match self.level.as_str() {
            "" => faults.push(format!("{path}.level: Required value")),
            level if Level::parse(level).is_none() => faults.push(format!(
                "{path}.level: Unsupported value: {level:?}: supported values: \"Metadata\", \"None\", \
                 \"Request\", \"RequestResponse\""
            )),
            _ => {}
        }
        for (i, url) in self.non_resource_urls.iter().enumerate().filter(|(_, url)| *url != "*") {
            let mut invalid = |why| {
                let place = format!("{path}.nonResourceURLs[{i}]");
                faults.push(format!("{place}: Invalid value: {url:?}: {why}"));
            };
            if !url.starts_with('/') {
                invalid("non-resource URL rules must begin with a '/' character");
            }
            if url.strip_suffix('*').unwrap_or(url).contains('*') {
                invalid("non-resource URL wildcards '*' must be the final character of the rule");
            }
        }
        for GroupResources { group, resources, resource_names } in &self.resources {
            if !matches!(group.as_str(), "" | "*") && !is_dns_subdomain(group) {
                faults.push(format!(
                    "{path}.resources.group: Invalid value: {group:?}: a lowercase RFC 1123 subdomain must \
                     consist of lower case alphanumeric characters, '-' or '.', and must start and end with \
                     an alphanumeric character"
                ));
            }
            if !resource_names.is_empty() && resources.is_empty() {
                faults.push(format!(
                    "{path}.resources.resourceNames: Invalid value: {resource_names:?}: using resourceNames \
                     requires at least one resource"
                ));
            }
        }
        stage_faults(&format!("{path}.omitStages"), &self.omit_stages, faults);
        let of_resources = !self.resources.is_empty() || !self.namespaces.is_empty();
        if !self.non_resource_urls.is_empty() && of_resources {
            faults.push(format!(
                "{path}.nonResourceURLs: Invalid value: {:?}: rules cannot apply to both regular resources \
                 and non-resource URLs",
                self.non_resource_urls
            ));
        }
    }

    fn matches(&self, user: Option<&User>, verb: &str, target: &Target<'_>) -> bool {
        let is_user = |user: &User| self.users.contains(&user.name);
        let is_member = |user: &User| user.groups.iter().any(|own| self.user_groups.contains(own));
        if !self.users.is_empty() && !user.is_some_and(is_user)
            || !self.user_groups.is_empty() && !user.is_some_and(is_member)
            || !self.verbs.is_empty() && !self.verbs.iter().any(|known| known == verb)
        {
            return false;
        }
        match target {
            _ if !self.namespaces.is_empty() || !self.resources.is_empty() => {
                self.matches_resource(target)
            }
            _ if self.non_resource_urls.is_empty() => true,
            Target::Path(path) => {
                self.non_resource_urls.iter().any(|spec| path_matches(path, spec))
            }
            Target::Resource(_) => false,
        }
    }

    fn matches_resource(&self, target: &Target<'_>) -> bool {
        let Target::Resource(target) = target else { return false };
        if !self.namespaces.is_empty() && !self.namespaces.iter().any(|n| n == target.namespace) {
            return false;
        }
        self.resources.is_empty()
            || self.resources.iter().any(|resources| {
                let names = &resources.resource_names;
                (resources.group == "*" || resources.group == target.group)
                    && (resources.resources.is_empty()
                        || (names.is_empty() || names.iter().any(|name| name == target.name))
                            && resources.resources.iter().any(|pattern| {
                                resource_matches(pattern, target.resource, target.subresource)
                            }))
            })
    }
}

/// `*`, `pods`, `pods/log`, `pods/*` (with `pods` itself) or `*/scale`.
fn resource_matches(pattern: &str, resource: &str, subresource: &str) -> bool {
    let is_whole = match subresource {
        "" => pattern == resource,
        _ => pattern
            .strip_prefix(resource)
            .and_then(|rest| rest.strip_prefix('/'))
            .is_some_and(|rest| rest == subresource),
    };
    let is_subresource = !subresource.is_empty() && pattern.strip_prefix("*/") == Some(subresource);
    pattern == "*" || is_whole || is_subresource || pattern.strip_suffix("/*") == Some(resource)
}

fn path_matches(path: &str, spec: &str) -> bool {
    spec == "*"
        || spec == path
        || spec.ends_with('*') && path.starts_with(spec.trim_end_matches('*'))
}

fn stage_faults(path: &str, stages: &[String], faults: &mut Vec<String>) {
    let unknown = stages.iter().enumerate().filter(|(_, stage)| Stage::parse(stage).is_none());
    faults.extend(unknown.map(|(i, stage)| {
        format!(
            "{path}[{i}]: Invalid value: {stage:?}: allowed stages are \
             RequestReceived,ResponseStarted,ResponseComplete,Panic"
        )
    }));
}

fn unknown_fields(policy: &Value, unknown: &mut Vec<String>) {
    const POLICY: &[&str] =
        &["apiVersion", "kind", "metadata", "rules", "omitStages", "omitManagedFields"];
    const RULE: &[&str] = &[
        "level",
        "users",
        "userGroups",
        "verbs",
        "resources",
        "namespaces",
        "nonResourceURLs",
        "omitStages",
        "omitManagedFields",
    ];
    const RESOURCES: &[&str] = &["group", "resources", "resourceNames"];
    let mut check = |value: &Value, path: &str, known: &[&str]| {
        let fields = value.as_object().into_iter().flat_map(|fields| fields.keys());
        let odd = fields.filter(|field| !known.contains(&field.as_str()));
        unknown.extend(odd.map(|field| format!("unknown field \"{path}{field}\"")));
    };
    check(policy, "", POLICY);
    for (i, rule) in policy["rules"].as_array().into_iter().flatten().enumerate() {
        check(rule, &format!("rules[{i}]."), RULE);
        for (j, resources) in rule["resources"].as_array().into_iter().flatten().enumerate() {
            check(resources, &format!("rules[{i}].resources[{j}]."), RESOURCES);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::authz::ResourceTarget;

    fn policy(rules: &str) -> Policy {
        let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n{rules}");
        Policy::parse(&text).unwrap().0
    }

    fn user(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        User { name: name.into(), groups, ..User::default() }
    }

    /// `group/resource/subresource namespace/name`.
    fn target(text: &'static str) -> Target<'static> {
        let (resource, key) = text.split_once(' ').unwrap();
        let mut parts = resource.split('/');
        let mut next = || parts.next().unwrap_or_default();
        let (group, resource, subresource) = (next(), next(), next());
        let (namespace, name) = key.split_once('/').unwrap();
        Target::Resource(ResourceTarget {
            version: "",
            group,
            resource,
            subresource,
            namespace,
            name,
            fields: &[],
        })
    }

    #[test]
    fn audit_policy_rules_match_like_upstreams() {
        let tim = user("tim@k8s.io", &["humans", "developers"]);
        let pods = target("/pods default/busybox");
        let logs = target("/pods/log default/busybox");
        let role = target("rbac.authorization.k8s.io/clusterroles /edit");
        let path = Target::Path("/logs/kubelet.log");
        for (rule, access, expected) in [
            ("{level: Request}", &pods, true),
            ("{level: Request, users: [tim@k8s.io, ann@k8s.io]}", &pods, true),
            ("{level: Request, users: [ann@k8s.io]}", &pods, false),
            ("{level: Request, userGroups: [developers]}", &path, true),
            ("{level: Request, userGroups: [admins]}", &path, false),
            ("{level: Request, verbs: [get]}", &path, true),
            ("{level: Request, verbs: [create, list]}", &pods, false),
            ("{level: Request, namespaces: [default]}", &pods, true),
            ("{level: Request, namespaces: [default]}", &role, false),
            ("{level: Request, namespaces: ['']}", &role, true),
            ("{level: Request, namespaces: ['']}", &path, false),
            ("{level: Request, resources: [{resources: [pods]}]}", &pods, true),
            ("{level: Request, resources: [{resources: [pods]}]}", &logs, false),
            ("{level: Request, resources: [{resources: [pods/log]}]}", &logs, true),
            ("{level: Request, resources: [{resources: [pods/log]}]}", &pods, false),
            ("{level: Request, resources: [{resources: ['pods/*']}]}", &logs, true),
            ("{level: Request, resources: [{resources: ['pods/*']}]}", &pods, true),
            ("{level: Request, resources: [{resources: ['*/log']}]}", &logs, true),
            ("{level: Request, resources: [{resources: ['*/log']}]}", &pods, false),
            ("{level: Request, resources: [{resources: ['*']}]}", &logs, true),
            ("{level: Request, resources: [{resources: ['*']}]}", &role, false),
            ("{level: Request, resources: [{group: '*', resources: ['*']}]}", &role, true),
            ("{level: Request, resources: [{group: rbac.authorization.k8s.io}]}", &role, true),
            (
                "{level: Request, resources: [{resources: [pods], resourceNames: [busybox]}]}",
                &pods,
                true,
            ),
            (
                "{level: Request, resources: [{resources: [pods], resourceNames: [other]}]}",
                &pods,
                false,
            ),
            ("{level: Request, nonResourceURLs: [/logs*]}", &path, true),
            ("{level: Request, nonResourceURLs: [/logs]}", &path, false),
            ("{level: Request, nonResourceURLs: ['*']}", &path, true),
            ("{level: Request, nonResourceURLs: ['*']}", &pods, false),
        ] {
            let decision = policy(&format!("- {rule}")).evaluate(Some(&tim), "get", access);
            let level = if expected { Level::Request } else { Level::None };
            assert_eq!(decision.level, level, "{rule} {access:?}");
        }
        let of_somebody = policy("- {level: Metadata, users: [tim@k8s.io]}\n- {level: Request}");
        assert_eq!(of_somebody.evaluate(None, "get", &pods).level, Level::Request);
        assert_eq!(of_somebody.evaluate(Some(&tim), "get", &pods).level, Level::Metadata);
    }

    #[test]
    fn audit_policy_stages_of_policy_and_rule_are_omitted() {
        let text = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n\
            omitManagedFields: true\nrules:\n\
            - {level: Request, verbs: [get], omitStages: [Panic], omitManagedFields: false}\n\
            - {level: Request}";
        let policy = Policy::parse(text).unwrap().0;
        let of = |verb| policy.evaluate(None, verb, &Target::Path("/"));
        for (verb, stages, managed) in [
            ("get", &[Stage::RequestReceived, Stage::Panic][..], false),
            ("post", &[Stage::RequestReceived], true),
        ] {
            let decision = of(verb);
            for stage in [
                Stage::RequestReceived,
                Stage::ResponseStarted,
                Stage::ResponseComplete,
                Stage::Panic,
            ] {
                assert_eq!(decision.omitted.contains(stage), stages.contains(&stage), "{verb}");
            }
            assert_eq!(decision.omit_managed_fields, managed, "{verb}");
        }
    }

    #[test]
    fn audit_policy_faults_are_named() {
        for (text, fault) in [
            ("rules: [{}]", "rules[0].level: Required value"),
            ("rules: [{level: Foo}]", "rules[0].level: Unsupported value: \"Foo\""),
            ("rules: []", "0 rules"),
            ("rules: [{level: None, omitStages: [Foo]}]", "rules[0].omitStages[0]: Invalid value"),
            (
                "omitStages: [foo]\nrules: [{level: None}]",
                "omitStages[0]: Invalid value: \"foo\": allowed stages",
            ),
            (
                "rules: [{level: None, nonResourceURLs: [logs]}]",
                "rules[0].nonResourceURLs[0]: Invalid value: \"logs\": non-resource URL rules must begin",
            ),
            (
                "rules: [{level: None, nonResourceURLs: [/a*/b]}]",
                "must be the final character of the rule",
            ),
            (
                "rules: [{level: None, nonResourceURLs: [/a], namespaces: [a]}]",
                "rules cannot apply to both regular resources and non-resource URLs",
            ),
            (
                "rules: [{level: None, resources: [{group: g.io/v1}]}]",
                "rules[0].resources.group: Invalid value: \"g.io/v1\"",
            ),
            (
                "rules: [{level: None, resources: [{resourceNames: [a]}]}]",
                "using resourceNames requires at least one resource",
            ),
            ("rules: 7", "failed decoding"),
        ] {
            let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{text}");
            let error = Policy::parse(&text).unwrap_err();
            assert!(error.contains(fault), "{text}: {error}");
        }
        let old = "apiVersion: audit.k8s.io/v1beta1\nkind: Policy\nrules: [{level: None}]";
        assert!(Policy::parse(old).unwrap_err().contains("unknown group version field"));
        let odd = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: None, verb: [get]}]";
        assert_eq!(Policy::parse(odd).unwrap().1, ["unknown field \"rules[0].verb\""]);
    }
}
