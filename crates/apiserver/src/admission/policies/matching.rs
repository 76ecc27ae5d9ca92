//! Which requests a policy or a binding is about.

use serde_json::Value;

use crate::admission::attributes::Attributes;
use crate::admission::webhooks::hook::{Invocation, Rule, equivalents, selects_namespace, texts};
use crate::registry::Registry;
use crate::schema::value::items;
use crate::selector::LabelSelector;
use crate::status::StatusError;

/// `matchConstraints` and `matchResources`.
#[derive(Debug)]
pub(super) struct Matcher {
    rules: Vec<NamedRule>,
    excluded: Vec<NamedRule>,
    is_equivalent: bool,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
}

#[derive(Debug)]
struct NamedRule {
    rule: Rule,
    /// Empty for all.
    names: Vec<String>,
}

impl NamedRule {
    fn list(rules: &Value) -> Vec<NamedRule> {
        let of = |rule| NamedRule { rule: Rule::of(rule), names: texts(&rule["resourceNames"]) };
        items(rules).iter().map(of).collect()
    }

    fn is_about(&self, attributes: &Attributes<'_>) -> bool {
        self.names.is_empty() || self.names.iter().any(|name| name == attributes.name)
    }
}

impl Matcher {
    pub(super) fn of(resources: &Value) -> Matcher {
        Matcher {
            rules: NamedRule::list(&resources["resourceRules"]),
            excluded: NamedRule::list(&resources["excludeResourceRules"]),
            is_equivalent: resources["matchPolicy"] != "Exact",
            namespaces: LabelSelector::of(&resources["namespaceSelector"]),
            objects: LabelSelector::of(&resources["objectSelector"]),
        }
    }

    /// Whether the rules match a request, and as what it is seen.
    pub(super) fn invocation<'a>(&self, attributes: &Attributes<'a>) -> Option<Invocation<'a>> {
        if self.find(&self.excluded, attributes).is_some() {
            return None;
        }
        let own = Invocation { resource: attributes.resource, kind: attributes.kind };
        match self.rules.is_empty() {
            true => Some(own),
            false => self.find(&self.rules, attributes),
        }
    }

    fn find<'a>(&self, rules: &[NamedRule], attributes: &Attributes<'a>) -> Option<Invocation<'a>> {
        let matches = |invocation: &Invocation<'_>| {
            let mut rules = rules.iter().filter(|rule| rule.is_about(attributes));
            rules.any(|rule| rule.rule.matches(attributes, invocation.resource))
        };
        let own = Invocation { resource: attributes.resource, kind: attributes.kind };
        match matches(&own) {
            true => Some(own),
            false if self.is_equivalent => equivalents(attributes).find(matches),
            false => None,
        }
    }

    /// Whether the selectors select a request that the rules match.
    pub(super) async fn selects(
        &self,
        registry: &Registry,
        attributes: &Attributes<'_>,
        object: Option<&Value>,
        old: Option<&Value>,
    ) -> Result<bool, StatusError> {
        let objects = self.objects.as_ref().map_err(StatusError::internal)?;
        let is_selected = |object: Option<&Value>| object.is_some_and(|o| objects.matches(o));
        if !objects.is_empty() && !is_selected(object) && !is_selected(old) {
            return Ok(false);
        }
        let namespaces = self.namespaces.as_ref().map_err(StatusError::internal)?;
        selects_namespace(namespaces, registry, attributes, object).await
    }
}
