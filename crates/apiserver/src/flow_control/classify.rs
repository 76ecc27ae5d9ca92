//! Which schema a request belongs to: the first, by precedence, with a rule for its caller and for what it
//! asks. Rules are indexed by subject, so that a request looks only at those of its user and groups.

use std::collections::HashMap;

use super::objects::{FlowSchema, PathRule, ResourceRule, Rule, Subject};
use crate::user::User;

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Digest<'a> {
    pub(crate) verb: &'a str,
    pub(crate) path: &'a str,
    /// Whether it is about a resource; the fields below are empty otherwise.
    pub(crate) is_resource: bool,
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) resource: &'a str,
    pub(crate) subresource: &'a str,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

/// A rule of a schema: their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    schema: usize,
    rule: usize,
}

/// The rules of all schemas, in the order of precedence.
#[derive(Debug, Default)]
pub(super) struct Classifier {
    rules: Vec<Vec<Rule>>,
    anybody: Vec<Place>,
    users: HashMap<String, Vec<Place>>,
    groups: HashMap<String, Vec<Place>>,
    /// Of all service accounts of a namespace.
    namespaces: HashMap<String, Vec<Place>>,
}

impl Classifier {
    /// Of schemas that are in the order of precedence.
    pub(super) fn new<'a>(schemas: impl IntoIterator<Item = &'a FlowSchema>) -> Classifier {
        let mut classifier = Classifier::default();
        for (schema, FlowSchema { rules, .. }) in schemas.into_iter().enumerate() {
            for (rule, Rule { subjects, .. }) in rules.iter().enumerate() {
                let place = Place { schema, rule };
                for subject in subjects {
                    let list = match subject {
                        Subject::Anybody => &mut classifier.anybody,
                        Subject::User(name) => classifier.users.entry(name.clone()).or_default(),
                        Subject::Group(name) => classifier.groups.entry(name.clone()).or_default(),
                        Subject::Namespace(name) => {
                            classifier.namespaces.entry(name.clone()).or_default()
                        }
                    };
                    if list.last() != Some(&place) {
                        list.push(place);
                    }
                }
            }
            // the subjects are in the index
            let bare = |rule: &Rule| Rule { subjects: Vec::new(), ..rule.clone() };
            classifier.rules.push(rules.iter().map(bare).collect());
        }
        classifier
    }

    /// The place of the first schema that matches.
    pub(super) fn find(&self, user: &User, digest: &Digest<'_>) -> Option<usize> {
        let account = user.name.strip_prefix("system:serviceaccount:");
        let namespace = account.and_then(|account| account.split_once(':'));
        let own = [
            Some(&self.anybody),
            self.users.get(user.name.as_str()),
            namespace.and_then(|(namespace, _)| self.namespaces.get(namespace)),
        ];
        let groups = user.groups.iter().map(|group| self.groups.get(group.as_str()));
        let mut best = None;
        for list in own.into_iter().chain(groups).flatten() {
            let better =
                list.iter().take_while(|place| best.is_none_or(|best| place.schema < best));
            let found = better.copied().find(|place| self.matches(*place, digest));
            best = found.map(|place| place.schema).or(best);
        }
        best
    }

    fn matches(&self, place: Place, digest: &Digest<'_>) -> bool {
        let rule = self.rules.get(place.schema).and_then(|rules| rules.get(place.rule));
        rule.is_some_and(|rule| match digest.is_resource {
            true => rule.resources.iter().any(|rule| has_resource(rule, digest)),
            false => rule.paths.iter().any(|rule| has_path(rule, digest)),
        })
    }
}

fn has_resource(rule: &ResourceRule, digest: &Digest<'_>) -> bool {
    let scope = match digest.namespace {
        "" => rule.is_cluster_scoped,
        namespace => rule.namespaces.has(namespace),
    };
    scope
        && rule.verbs.has(digest.verb)
        && rule.groups.has(digest.group)
        && rule.resources.has_path(digest.resource, digest.subresource)
}

fn has_path(rule: &PathRule, digest: &Digest<'_>) -> bool {
    let is_below = |known: &String| {
        let prefix = known.strip_suffix('*').unwrap_or(known);
        let below = digest.path.strip_prefix(prefix);
        *known == digest.path
            || below.is_some_and(|below| prefix.ends_with('/') || below.starts_with('/'))
    };
    rule.verbs.has(digest.verb)
        && rule.paths.as_ref().is_none_or(|paths| paths.iter().any(is_below))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn schema(precedence: i64, rule: &Value) -> FlowSchema {
        FlowSchema::read(&json!({
            "metadata": {"name": format!("s{precedence}")},
            "spec": {
                "matchingPrecedence": precedence,
                "priorityLevelConfiguration": {"name": "low"},
                "rules": [rule],
            },
        }))
    }

    fn user(name: &str, groups: &[&str]) -> User {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        User { name: name.into(), groups, ..User::default() }
    }

    const PODS: Digest<'static> = Digest {
        verb: "list",
        path: "/api/v1/namespaces/a/pods",
        is_resource: true,
        group: "",
        version: "v1",
        resource: "pods",
        subresource: "",
        namespace: "a",
        name: "",
    };

    #[test]
    fn flow_control_subjects_of_schemas() {
        let all = json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                          "namespaces": ["*"], "clusterScope": true}]);
        for (subject, name, groups, expected) in [
            (json!({"kind": "User", "user": {"name": "ann"}}), "ann", &[][..], true),
            (json!({"kind": "User", "user": {"name": "ann"}}), "bob", &["ann"], false),
            (json!({"kind": "User", "user": {"name": "*"}}), "bob", &[], true),
            (json!({"kind": "User"}), "", &[], false),
            (json!({"kind": "Group", "group": {"name": "dev"}}), "bob", &["ops", "dev"], true),
            (json!({"kind": "Group", "group": {"name": "dev"}}), "dev", &["ops"], false),
            (json!({"kind": "Group", "group": {"name": "*"}}), "bob", &[], true),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "a", "name": "x"}}),
                "system:serviceaccount:a:x",
                &[],
                true,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "a", "name": "x"}}),
                "system:serviceaccount:a:y",
                &[],
                false,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "a", "name": "*"}}),
                "system:serviceaccount:a:y",
                &[],
                true,
            ),
            (
                json!({"kind": "ServiceAccount", "serviceAccount": {"namespace": "a", "name": "*"}}),
                "system:serviceaccount:ab:y",
                &[],
                false,
            ),
            (json!({"kind": "Robot", "user": {"name": "*"}}), "ann", &[], false),
        ] {
            let schemas = [schema(1, &json!({"subjects": [subject], "resourceRules": all}))];
            let found = Classifier::new(&schemas).find(&user(name, groups), &PODS);
            assert_eq!(found.is_some(), expected, "{subject} {name}");
        }
    }

    #[test]
    fn flow_control_resources_of_schemas() {
        for (verbs, group, resource, namespaces, cluster, request, expected) in [
            ("list", "", "pods", json!(["a"]), false, PODS, true),
            ("get", "", "pods", json!(["a"]), false, PODS, false),
            ("*", "apps", "pods", json!(["a"]), false, PODS, false),
            ("*", "*", "*", json!(["*"]), false, PODS, true),
            ("*", "*", "*", json!(["b"]), true, PODS, false),
            ("*", "*", "*", json!([]), true, Digest { namespace: "", ..PODS }, true),
            ("*", "*", "*", json!(["*"]), false, Digest { namespace: "", ..PODS }, false),
            (
                "*",
                "*",
                "pods",
                json!(["*"]),
                false,
                Digest { subresource: "status", ..PODS },
                false,
            ),
            (
                "*",
                "*",
                "pods/log",
                json!(["*"]),
                false,
                Digest { subresource: "log", ..PODS },
                true,
            ),
            ("*", "*", "*", json!(["*"]), true, Digest { is_resource: false, ..PODS }, false),
        ] {
            let rule = json!({
                "subjects": [{"kind": "Group", "group": {"name": "*"}}],
                "resourceRules": [{"verbs": [verbs], "apiGroups": [group], "resources": [resource],
                                   "namespaces": namespaces, "clusterScope": cluster}],
            });
            let schemas = [schema(1, &rule)];
            let found = Classifier::new(&schemas).find(&user("ann", &[]), &request);
            assert_eq!(found.is_some(), expected, "{rule} {request:?}");
        }
    }

    #[test]
    fn flow_control_paths_of_schemas() {
        for (known, path, expected) in [
            ("*", "/anything", true),
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/etcd", true),
            ("/healthz", "/healthzz", false),
            ("/healthz*", "/healthz", false),
            ("/healthz*", "/healthz/etcd", true),
            ("/healthz/*", "/healthz/etcd", true),
            ("/healthz/*", "/healthz", false),
            ("/", "/version", true),
        ] {
            let rule = json!({
                "subjects": [{"kind": "Group", "group": {"name": "*"}}],
                "nonResourceRules": [{"verbs": ["get"], "nonResourceURLs": [known]}],
            });
            let digest = Digest { verb: "get", path, ..Digest::default() };
            let schemas = [schema(1, &rule)];
            let classifier = Classifier::new(&schemas);
            let ann = user("ann", &[]);
            assert_eq!(classifier.find(&ann, &digest).is_some(), expected, "{known} {path}");
            let digest = Digest { verb: "post", ..digest };
            assert_eq!(classifier.find(&ann, &digest), None);
        }
    }

    #[test]
    fn flow_control_first_schema_matches_whatever_the_subject() {
        let rule = |subject: Value, verb: &str| {
            json!({"subjects": [subject], "resourceRules": [{
                "verbs": [verb], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"]}]})
        };
        let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
        let schemas = [
            schema(1, &rule(group("g2"), "get")),
            schema(2, &rule(group("g1"), "*")),
            schema(3, &rule(json!({"kind": "User", "user": {"name": "ann"}}), "list")),
            schema(4, &rule(group("*"), "*")),
        ];
        let classifier = Classifier::new(&schemas);
        let get = Digest { verb: "get", ..PODS };
        for (groups, digest, expected) in [
            (&["g1", "g2"][..], get, 0),
            (&["g1", "g2"], PODS, 1),
            (&["g2"], PODS, 2),
            (&["g2"], Digest { verb: "patch", ..PODS }, 3),
        ] {
            assert_eq!(classifier.find(&user("ann", groups), &digest), Some(expected));
        }
    }
}
