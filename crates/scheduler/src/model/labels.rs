//! Labels and selectors of labels, and of nodes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    NodeSelector as ApiNodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Atom;

/// Labels of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Atom, Atom)]>);

impl Labels {
    /// From the API's map.
    pub fn new(map: Option<&BTreeMap<String, String>>) -> Self {
        Self(map.into_iter().flatten().map(|(key, value)| (key.into(), value.into())).collect())
    }

    /// The value of a label.
    pub fn get(&self, key: &Atom) -> Option<&Atom> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, value)| value)
    }

    /// Keys and values.
    pub fn iter(&self) -> impl Iterator<Item = &(Atom, Atom)> {
        self.0.iter()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// A condition on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requirement {
    /// The label has one of the values.
    In(Atom, Box<[Atom]>),
    /// The label is absent or has none of the values.
    NotIn(Atom, Box<[Atom]>),
    /// The label is present.
    Exists(Atom),
    /// The label is absent.
    DoesNotExist(Atom),
    /// The label is a number above this.
    Gt(Atom, i64),
    /// The label is a number below this.
    Lt(Atom, i64),
}

impl Requirement {
    /// From operator and values; `None` if it is invalid.
    fn new(key: &str, operator: &str, values: &[String]) -> Option<Self> {
        let key = Atom::new(key);
        let atoms = || values.iter().map(Atom::from).collect();
        let number = || match values {
            [value] => value.parse().ok(),
            _ => None,
        };
        match operator {
            "In" if !values.is_empty() => Some(Self::In(key, atoms())),
            "NotIn" if !values.is_empty() => Some(Self::NotIn(key, atoms())),
            "Exists" if values.is_empty() => Some(Self::Exists(key)),
            "DoesNotExist" if values.is_empty() => Some(Self::DoesNotExist(key)),
            "Gt" => Some(Self::Gt(key, number()?)),
            "Lt" => Some(Self::Lt(key, number()?)),
            _ => None,
        }
    }

    /// Whether the labels meet it.
    pub fn matches(&self, labels: &Labels) -> bool {
        let number = |key| labels.get(key).and_then(|value| value.parse::<i64>().ok());
        match self {
            Self::In(key, values) => labels.get(key).is_some_and(|value| values.contains(value)),
            Self::NotIn(key, values) => labels.get(key).is_none_or(|value| !values.contains(value)),
            Self::Exists(key) => labels.get(key).is_some(),
            Self::DoesNotExist(key) => labels.get(key).is_none(),
            Self::Gt(key, bound) => number(key).is_some_and(|value| value > *bound),
            Self::Lt(key, bound) => number(key).is_some_and(|value| value < *bound),
        }
    }
}

/// A selector of labels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Selector {
    /// Nothing: an absent selector.
    #[default]
    Nothing,
    /// All that meet all requirements; without any, everything.
    All(Vec<Requirement>),
}

impl Selector {
    /// From the API's selector; `None` if it is invalid.
    pub fn new(selector: Option<&LabelSelector>) -> Option<Self> {
        let Some(selector) = selector else { return Some(Self::Nothing) };
        let mut all = Self::equalities(selector.match_labels.as_ref());
        for expression in selector.match_expressions.iter().flatten() {
            let values = expression.values.as_deref().unwrap_or_default();
            if matches!(expression.operator.as_str(), "Gt" | "Lt") {
                return None;
            }
            all.push(Requirement::new(&expression.key, &expression.operator, values)?);
        }
        Some(Self::All(all))
    }

    /// From labels that must all be there.
    pub fn of_map(map: Option<&BTreeMap<String, String>>) -> Self {
        Self::All(Self::equalities(map))
    }

    fn equalities(map: Option<&BTreeMap<String, String>>) -> Vec<Requirement> {
        let map = map.into_iter().flatten();
        map.map(|(key, value)| Requirement::In(key.into(), [value.into()].into())).collect()
    }

    /// Adds a requirement. Nothing stays nothing.
    pub fn and(&mut self, requirement: Requirement) {
        if let Self::All(all) = self {
            all.push(requirement);
        }
    }

    /// Whether the labels are selected.
    pub fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(all) => all.iter().all(|requirement| requirement.matches(labels)),
        }
    }

    /// Whether it has no requirement, so that it selects everything.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::All(all) => all.is_empty(),
        }
    }
}

/// A term of a selector of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTerm {
    expressions: Box<[Requirement]>,
    /// `metadata.name`: whether it must be (or must not be) this name.
    fields: Box<[(bool, Atom)]>,
    /// One that is empty or invalid selects no node.
    is_valid: bool,
}

impl NodeTerm {
    /// From the API's term.
    pub fn new(term: &NodeSelectorTerm) -> Self {
        let api = term.match_expressions.as_deref().unwrap_or_default();
        let expressions: Option<Box<[_]>> = api.iter().map(requirement).collect();
        let api_fields = term.match_fields.as_deref().unwrap_or_default();
        let fields: Option<Box<[_]>> = api_fields.iter().map(field).collect();
        Self {
            is_valid: expressions.is_some()
                && fields.is_some()
                && !(api.is_empty() && api_fields.is_empty()),
            expressions: expressions.unwrap_or_default(),
            fields: fields.unwrap_or_default(),
        }
    }

    /// Whether the node of that name with those labels is selected.
    pub fn matches(&self, name: &Atom, labels: &Labels) -> bool {
        self.is_valid
            && self.fields.iter().all(|(is, value)| (value == name) == *is)
            && self.expressions.iter().all(|expression| expression.matches(labels))
    }

    /// The only names that it can select, where it says so: none if they contradict each other.
    fn names(&self) -> Option<Vec<Atom>> {
        let mut wanted = self.fields.iter().filter(|(is, _)| *is).map(|(_, name)| name);
        let first = wanted.next()?;
        Some(if wanted.all(|name| name == first) { vec![first.clone()] } else { Vec::new() })
    }
}

fn requirement(api: &NodeSelectorRequirement) -> Option<Requirement> {
    Requirement::new(&api.key, &api.operator, api.values.as_deref().unwrap_or_default())
}

fn field(api: &NodeSelectorRequirement) -> Option<(bool, Atom)> {
    let [value] = api.values.as_deref().unwrap_or_default() else { return None };
    match (api.key.as_str(), api.operator.as_str()) {
        ("metadata.name", "In") => Some((true, value.into())),
        ("metadata.name", "NotIn") => Some((false, value.into())),
        _ => None,
    }
}

/// A selector of nodes: those that any term selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSelector(Box<[NodeTerm]>);

impl NodeSelector {
    /// From the API's selector.
    pub fn new(selector: &ApiNodeSelector) -> Self {
        Self(selector.node_selector_terms.iter().map(NodeTerm::new).collect())
    }

    /// Whether the node of that name with those labels is selected.
    pub fn matches(&self, name: &Atom, labels: &Labels) -> bool {
        self.0.iter().any(|term| term.matches(name, labels))
    }

    /// The only names that it can select, where every term names its node.
    pub fn names(&self) -> Option<Vec<Atom>> {
        let mut names = Vec::new();
        for term in &self.0 {
            for name in term.names()? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        (!self.0.is_empty()).then_some(names)
    }
}
