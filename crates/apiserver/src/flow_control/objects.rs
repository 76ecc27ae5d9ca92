//! FlowSchemas and PriorityLevelConfigurations as far as they decide about requests, read from objects that
//! may have been stored by anybody.

use serde_json::Value;

use super::allocation::Shares;
use super::queue_set::Queuing;
use super::shuffle::Dealer;
use crate::kinds::flow_control::EXEMPT;
use crate::object;
use crate::schema::value::{items, text};

/// What tells the flows of a schema apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinguisher {
    User,
    Namespace,
}

/// A FlowSchema.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FlowSchema {
    pub(super) name: String,
    pub(super) uid: String,
    /// Schemas with lower ones come first.
    pub(super) precedence: i64,
    /// The name of its priority level.
    pub(super) level: String,
    /// `None`: all of its requests are one flow.
    pub(super) distinguisher: Option<Distinguisher>,
    pub(super) rules: Vec<Rule>,
}

/// Which requests of which subjects a schema is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rule {
    pub(super) subjects: Vec<Subject>,
    pub(super) resources: Vec<ResourceRule>,
    pub(super) paths: Vec<PathRule>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Subject {
    Anybody,
    /// By name; a service account by its user name.
    User(String),
    Group(String),
    /// All service accounts of a namespace.
    Namespace(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct ResourceRule {
    pub(super) verbs: Names,
    pub(super) groups: Names,
    /// With subresources: `pods/status`.
    pub(super) resources: Names,
    pub(super) namespaces: Names,
    /// Whether it is for requests without a namespace.
    pub(super) is_cluster_scoped: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct PathRule {
    pub(super) verbs: Names,
    /// `None`: all paths.
    pub(super) paths: Option<Vec<String>>,
}

/// A list of names, or all names.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Names {
    All,
    /// Sorted.
    Of(Vec<String>),
}

impl Names {
    /// A star stands for all when it stands alone.
    fn read(list: &Value) -> Names {
        let list = items(list);
        if let [only] = list
            && *only == "*"
        {
            return Names::All;
        }
        let mut names: Vec<String> = list.iter().map(|name| text(name).to_owned()).collect();
        names.sort_unstable();
        Names::Of(names)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Names::All => true,
            Names::Of(names) => names.binary_search_by(|own| own.as_str().cmp(name)).is_ok(),
        }
    }

    /// Whether it has `name/below`, or `name` where nothing is below.
    pub(super) fn has_path(&self, name: &str, below: &str) -> bool {
        match self {
            Names::All => true,
            Names::Of(_) if below.is_empty() => self.has(name),
            Names::Of(names) => {
                let parts = name.bytes().chain(std::iter::once(b'/')).chain(below.bytes());
                names.binary_search_by(|own| own.bytes().cmp(parts.clone())).is_ok()
            }
        }
    }
}

impl FlowSchema {
    pub(crate) fn read(schema: &Value) -> FlowSchema {
        let spec = &schema["spec"];
        FlowSchema {
            name: object::name(schema).to_owned(),
            uid: text(&schema["metadata"]["uid"]).to_owned(),
            precedence: spec["matchingPrecedence"].as_i64().unwrap_or(i64::MAX),
            level: text(&spec["priorityLevelConfiguration"]["name"]).to_owned(),
            distinguisher: match text(&spec["distinguisherMethod"]["type"]) {
                "ByUser" => Some(Distinguisher::User),
                "ByNamespace" => Some(Distinguisher::Namespace),
                _ => None,
            },
            rules: items(&spec["rules"]).iter().map(Rule::read).collect(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn level(&self) -> &str {
        &self.level
    }
}

impl Rule {
    fn read(rule: &Value) -> Rule {
        Rule {
            subjects: items(&rule["subjects"]).iter().filter_map(Subject::read).collect(),
            resources: items(&rule["resourceRules"])
                .iter()
                .map(|rule| ResourceRule {
                    verbs: Names::read(&rule["verbs"]),
                    groups: Names::read(&rule["apiGroups"]),
                    resources: Names::read(&rule["resources"]),
                    namespaces: Names::read(&rule["namespaces"]),
                    is_cluster_scoped: rule["clusterScope"] == true,
                })
                .collect(),
            paths: items(&rule["nonResourceRules"])
                .iter()
                .map(|rule| {
                    let paths = items(&rule["nonResourceURLs"]).iter().map(text);
                    let is_all = paths.clone().any(|path| path == "*");
                    PathRule {
                        verbs: Names::read(&rule["verbs"]),
                        paths: (!is_all).then(|| paths.map(str::to_owned).collect()),
                    }
                })
                .collect(),
        }
    }
}

impl Subject {
    fn read(subject: &Value) -> Option<Subject> {
        match text(&subject["kind"]) {
            "User" => match text(subject["user"].get("name")?) {
                "*" => Some(Subject::Anybody),
                name => Some(Subject::User(name.to_owned())),
            },
            "Group" => match text(subject["group"].get("name")?) {
                "*" => Some(Subject::Anybody),
                name => Some(Subject::Group(name.to_owned())),
            },
            "ServiceAccount" => {
                let account = &subject["serviceAccount"];
                let namespace = text(account.get("namespace")?);
                Some(match text(account.get("name")?) {
                    "*" => Subject::Namespace(namespace.to_owned()),
                    name => Subject::User(format!("system:serviceaccount:{namespace}:{name}")),
                })
            }
            _ => None,
        }
    }
}

/// A PriorityLevelConfiguration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PriorityLevel {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) shares: Shares,
    pub(super) queuing: Queuing,
    /// How many queues a flow may use; 0 where there are none.
    pub(super) hand: u32,
}

impl PriorityLevel {
    /// `None` for one that is broken: it is treated as if it did not exist.
    pub(crate) fn read(level: &Value) -> Option<PriorityLevel> {
        let (name, spec) = (object::name(level), &level["spec"]);
        let is_exempt = text(&spec["type"]) == "Exempt";
        if is_exempt != (name == EXEMPT) {
            return None;
        }
        let (settings, other) = match is_exempt {
            true => (&spec["exempt"], &spec["limited"]),
            false => (&spec["limited"], &spec["exempt"]),
        };
        if settings.is_null() || !other.is_null() {
            return None;
        }
        let number = |value: &Value, absent: u32| match value {
            Value::Null => absent,
            value => value.as_i64().map_or(0, |number| number.clamp(0, i32::MAX.into()) as u32),
        };
        let shares = Shares {
            nominal: number(&settings["nominalConcurrencyShares"], if is_exempt { 0 } else { 30 }),
            lendable: number(&settings["lendablePercent"], 0),
            borrowing: settings.get("borrowingLimitPercent").map(|percent| number(percent, 0)),
        };
        let response = &settings["limitResponse"];
        let queues = &response["queuing"];
        let hand = number(&queues["handSize"], 8);
        let (queuing, hand) = match (is_exempt, text(&response["type"]), queues.is_null()) {
            (true, ..) => (Queuing::Exempt, 0),
            (false, "Reject", true) => (Queuing::Reject, 0),
            (false, "Queue", false) => {
                let dealer = Dealer::new(number(&queues["queues"], 64), hand)?;
                let length = number(&queues["queueLengthLimit"], 50) as usize;
                (Queuing::Queues { dealer, length }, hand)
            }
            _ => return None,
        };
        let (name, uid) = (name.to_owned(), text(&level["metadata"]["uid"]).to_owned());
        Some(PriorityLevel { name, uid, shares, queuing, hand })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn level(name: &str, spec: Value) -> Option<PriorityLevel> {
        PriorityLevel::read(&json!({"metadata": {"name": name, "uid": "u"}, "spec": spec}))
    }

    #[test]
    fn flow_control_broken_levels_do_not_exist() {
        let queue = |queuing| {
            json!({"type": "Limited", "limited": {
                "nominalConcurrencyShares": 1, "limitResponse": {"type": "Queue", "queuing": queuing}}})
        };
        let good = level("own", queue(json!({"queues": 16, "handSize": 4, "queueLengthLimit": 9})));
        let queuing = Queuing::Queues { dealer: Dealer::new(16, 4).unwrap(), length: 9 };
        assert_eq!(good.unwrap().queuing, queuing);
        let exempt = level(EXEMPT, json!({"type": "Exempt", "exempt": {}})).unwrap();
        assert_eq!((exempt.queuing, exempt.shares.nominal), (Queuing::Exempt, 0));
        for (name, spec) in [
            ("own", json!({})),
            ("own", json!({"type": "Exempt", "exempt": {}})),
            (EXEMPT, queue(json!({}))),
            ("own", json!({"type": "Limited"})),
            ("own", queue(Value::Null)),
            ("own", queue(json!({"queues": 0}))),
            ("own", queue(json!({"queues": -1}))),
            ("own", queue(json!({"queues": 1e99, "handSize": 1}))),
            ("own", queue(json!({"queues": 4, "handSize": 5}))),
            ("own", queue(json!({"queues": 10_000_000, "handSize": 8}))),
            (
                "own",
                json!({"type": "Limited", "limited": {"limitResponse": {"type": "Reject", "queuing": {}}}}),
            ),
        ] {
            assert_eq!(level(name, spec.clone()), None, "{name} {spec}");
        }
        let huge = json!({"nominalConcurrencyShares": i64::MAX, "lendablePercent": -5,
                          "borrowingLimitPercent": i64::MIN, "limitResponse": {"type": "Reject"}});
        let huge = level("own", json!({"type": "Limited", "limited": huge})).unwrap();
        let shares = Shares { nominal: i32::MAX as u32, lendable: 0, borrowing: Some(0) };
        assert_eq!(huge.shares, shares);
    }

    #[test]
    fn flow_control_names_with_a_star() {
        assert_eq!(Names::read(&json!(["*"])), Names::All);
        let both = Names::read(&json!(["pods/status", "*"]));
        assert!(both.has("*") && !both.has("pods"), "among others it is a name");
        assert!(both.has_path("pods", "status") && !both.has_path("pods", ""));
        assert!(!Names::read(&Value::Null).has(""));
    }
}
