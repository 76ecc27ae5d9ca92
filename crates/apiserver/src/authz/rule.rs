//! One rule of a role: what it allows, and what it covers of another.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};

use super::Target;
use crate::schema::value::{items, text};

pub(crate) type Names = Box<[Box<str>]>;

pub(crate) const ALL: &str = "*";

/// A `PolicyRule`: these verbs on these resources, or on these paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    pub(crate) verbs: Names,
    pub(crate) groups: Names,
    pub(crate) resources: Names,
    /// Names of objects; none stands for all.
    pub(crate) names: Names,
    pub(crate) urls: Names,
}

impl Rule {
    /// From an object that conforms to its type.
    pub(crate) fn from_value(rule: &Value) -> Rule {
        let list = |field: &str| items(&rule[field]).iter().map(|name| text(name).into()).collect();
        Rule {
            verbs: list("verbs"),
            groups: list("apiGroups"),
            resources: list("resources"),
            names: list("resourceNames"),
            urls: list("nonResourceURLs"),
        }
    }

    /// The rules of a role.
    pub(crate) fn all_of(role: &Value) -> Vec<Rule> {
        items(&role["rules"]).iter().map(Rule::from_value).collect()
    }

    /// From a line of `data/rbac.json`: verbs, groups, resources and names, or verbs, `url` and paths.
    pub(crate) fn from_line(line: &str) -> Option<Rule> {
        fn list(word: &str) -> Names {
            word.split(',').map(|name| if name == "core" { "" } else { name }.into()).collect()
        }
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            [verbs, "url", paths] => {
                Some(Rule { verbs: list(verbs), urls: list(paths), ..Rule::default() })
            }
            [verbs, groups, resources, names @ ..] if names.len() < 2 => Some(Rule {
                verbs: list(verbs),
                groups: list(groups),
                resources: list(resources),
                names: names.first().map(|names| list(names)).unwrap_or_default(),
                urls: Names::default(),
            }),
            _ => None,
        }
    }

    /// These verbs on a resource.
    pub(crate) fn of_resource(verbs: &[&str], group: &str, resource: &str) -> Rule {
        let verbs = verbs.iter().map(|verb| Box::from(*verb)).collect();
        let (groups, resources) = ([group.into()].into(), [resource.into()].into());
        Rule { verbs, groups, resources, ..Rule::default() }
    }

    /// These verbs on a path.
    pub(crate) fn of_path(verbs: &[&str], path: &str) -> Rule {
        let verbs = verbs.iter().map(|verb| Box::from(*verb)).collect();
        Rule { verbs, urls: [path.into()].into(), ..Rule::default() }
    }

    /// The two rules that allow everything.
    pub(crate) fn everything() -> [Rule; 2] {
        let all = || Names::from([ALL.into()]);
        [
            Rule { verbs: all(), groups: all(), resources: all(), ..Rule::default() },
            Rule { verbs: all(), urls: all(), ..Rule::default() },
        ]
    }

    /// As the API shows it.
    pub(crate) fn to_value(&self) -> Value {
        let mut rule = Map::new();
        for (field, names) in self.fields() {
            if !names.is_empty() {
                rule.insert(field.1.into(), json!(names));
            }
        }
        Value::Object(rule)
    }

    /// Each list with its names in messages and in the API.
    fn fields(&self) -> [((&'static str, &'static str), &Names); 5] {
        [
            (("APIGroups", "apiGroups"), &self.groups),
            (("Resources", "resources"), &self.resources),
            (("NonResourceURLs", "nonResourceURLs"), &self.urls),
            (("ResourceNames", "resourceNames"), &self.names),
            (("Verbs", "verbs"), &self.verbs),
        ]
    }

    /// How many names its lists have together.
    pub(crate) fn name_count(&self) -> usize {
        self.fields().iter().map(|(_, names)| names.len()).sum()
    }

    /// Whether it is about resources, and not about paths.
    pub(crate) fn is_of_resources(&self) -> bool {
        !self.resources.is_empty()
    }

    /// Whether it allows this.
    pub(crate) fn allows(&self, verb: &str, target: &Target<'_>) -> bool {
        has(&self.verbs, verb)
            && match target {
                Target::Path(path) => self.urls.iter().any(|url| url_covers(url, path)),
                Target::Resource(target) => {
                    has(&self.groups, target.group)
                        && self
                            .resources
                            .iter()
                            .any(|own| resource_matches(own, target.resource, target.subresource))
                        && (self.names.is_empty() || contains(&self.names, target.name))
                }
            }
    }

    /// Fewer rules that say the same: those that differ in their verb alone become one.
    pub(crate) fn compact(rules: Vec<Rule>) -> Vec<Rule> {
        let mut compact: Vec<Rule> = Vec::new();
        let mut places: BTreeMap<Rule, usize> = BTreeMap::new();
        for mut rule in rules {
            let verbs = std::mem::take(&mut rule.verbs);
            let place = rule.is_of_resources().then(|| places.get(&rule).copied()).flatten();
            match place.and_then(|place| compact.get_mut(place)) {
                Some(other) => {
                    let own = std::mem::take(&mut other.verbs).into_vec();
                    other.verbs = own.into_iter().chain(verbs).collect();
                }
                None => {
                    places.insert(rule.clone(), compact.len());
                    compact.push(Rule { verbs, ..rule });
                }
            }
        }
        compact
    }
}

/// `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`, as messages show a rule.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let filled = self.fields().into_iter().filter(|(_, names)| !names.is_empty());
        let parts: Vec<String> = filled
            .map(|(field, names)| {
                let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
                format!("{}:[{}]", field.0, quoted.join(" "))
            })
            .collect();
        write!(f, "{{{}}}", parts.join(", "))
    }
}

pub(crate) fn contains(names: &Names, name: &str) -> bool {
    names.iter().any(|own| **own == *name)
}

fn has(names: &Names, name: &str) -> bool {
    names.iter().any(|own| **own == *ALL || **own == *name)
}

/// `*`, `pods`, `pods/log` or `*/log`.
fn resource_matches(own: &str, resource: &str, subresource: &str) -> bool {
    match own.split_once('/') {
        None => own == ALL || (own == resource && subresource.is_empty()),
        Some((parent, sub)) => {
            !subresource.is_empty() && sub == subresource && (parent == ALL || parent == resource)
        }
    }
}

/// A path, or the beginning of paths and `*`.
pub(crate) fn url_covers(own: &str, path: &str) -> bool {
    own == path || (own.ends_with('*') && path.starts_with(own.trim_end_matches('*')))
}
