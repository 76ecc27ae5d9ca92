//! Sums of resources: what a pod requests, and what it is limited to.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::schema::quantity::Quantity;
use crate::schema::value::{entries, items, text};

/// Quantities by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts(pub(crate) BTreeMap<String, Quantity>);

impl Amounts {
    /// Of a list of resources in an object; what is no quantity is left out.
    pub(crate) fn of(list: &Value) -> Amounts {
        let parsed = entries(list).filter_map(|(resource, amount)| {
            let amount = match amount {
                Value::Number(number) => Quantity::parse(&number.to_string()),
                amount => Quantity::parse(text(amount)),
            };
            amount.map(|amount| (resource.clone(), amount))
        });
        Amounts(parsed.collect())
    }

    pub(crate) fn get(&self, resource: &str) -> Option<Quantity> {
        self.0.get(resource).copied()
    }

    pub(crate) fn put(&mut self, resource: impl Into<String>, amount: Quantity) {
        self.0.insert(resource.into(), amount);
    }

    fn combine(&mut self, others: &Amounts, with: fn(Quantity, Quantity) -> Quantity) {
        for (resource, amount) in &others.0 {
            self.0
                .entry(resource.clone())
                .and_modify(|own| *own = with(*own, *amount))
                .or_insert(*amount);
        }
    }

    /// Adds others.
    pub(crate) fn add(&mut self, others: &Amounts) {
        self.combine(others, Quantity::plus);
    }

    fn raise(&mut self, others: &Amounts) {
        self.combine(others, |own, other| match other.amount() > own.amount() {
            true => other,
            false => own,
        });
    }

    /// Takes others away; nothing falls below zero.
    pub(crate) fn subtract(&mut self, others: &Amounts) {
        for (resource, amount) in &others.0 {
            if let Some(own) = self.0.get_mut(resource) {
                *own = own.minus(*amount);
            }
        }
    }

    /// Those of these resources only.
    pub(crate) fn only(&self, wanted: impl Fn(&str) -> bool) -> Amounts {
        let kept = self.0.iter().filter(|(resource, _)| wanted(resource));
        Amounts(kept.map(|(resource, amount)| (resource.clone(), *amount)).collect())
    }

    /// As an object has them.
    pub(crate) fn to_value(&self) -> Value {
        let pairs = self.0.iter();
        let map: Map<String, Value> =
            pairs.map(|(resource, amount)| (resource.clone(), amount.to_string().into())).collect();
        map.into()
    }

    /// As messages have them: `cpu=1,memory=1Gi`.
    pub(crate) fn to_text(&self) -> String {
        let all: Vec<String> =
            self.0.iter().map(|(resource, amount)| format!("{resource}={amount}")).collect();
        all.join(",")
    }
}

/// What a pod requests, without its overhead.
pub(crate) fn pod_requests(pod: &Value) -> Amounts {
    of_pod(pod, "requests")
}

/// What a pod is limited to, without its overhead.
pub(crate) fn pod_limits(pod: &Value) -> Amounts {
    of_pod(pod, "limits")
}

/// What its containers need at most at one time, or what the pod as a whole asks for.
fn of_pod(pod: &Value, field: &str) -> Amounts {
    let mut sum = of_containers(&pod["spec"], field);
    for (resource, amount) in Amounts::of(&pod["spec"]["resources"][field]).0 {
        if is_supported_for_pods(&resource) {
            sum.put(resource, amount);
        }
    }
    sum
}

/// The containers run together, the init containers before them one by one, and the restartable ones
/// of these from their turn on. `field` is `requests` or `limits`.
pub(crate) fn of_containers(spec: &Value, field: &str) -> Amounts {
    let of = |container: &Value| Amounts::of(&container["resources"][field]);
    let mut sum = Amounts::default();
    for container in items(&spec["containers"]) {
        sum.add(&of(container));
    }
    let (mut sidecars, mut largest) = (Amounts::default(), Amounts::default());
    for container in items(&spec["initContainers"]) {
        let own = of(container);
        let mut at_this_time = sidecars.clone();
        at_this_time.add(&own);
        if container["restartPolicy"] == "Always" {
            sum.add(&own);
            sidecars.add(&own);
        }
        largest.raise(&at_this_time);
    }
    sum.raise(&largest);
    sum
}

/// Whether a pod as a whole can ask for this resource.
pub(crate) fn is_supported_for_pods(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || is_huge_page(resource)
}

pub(crate) fn is_huge_page(resource: &str) -> bool {
    resource.starts_with("hugepages-")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn resources_of_a_pod_are_its_sum_or_its_largest_init_container() {
        let container = |cpu: &str| json!({"resources": {"requests": {"cpu": cpu}}});
        let mut pod = json!({"spec": {"containers": [container("100m"), container("200m")]}});
        assert_eq!(pod_requests(&pod).to_text(), "cpu=300m");
        pod["spec"]["initContainers"] = json!([container("1")]);
        assert_eq!(pod_requests(&pod).to_text(), "cpu=1");
        let mut sidecar = container("500m");
        sidecar["restartPolicy"] = "Always".into();
        pod["spec"]["initContainers"] = json!([sidecar, container("1")]);
        assert_eq!(pod_requests(&pod).to_text(), "cpu=1500m");
        pod["spec"]["resources"] = json!({"requests": {"cpu": "4"}});
        assert_eq!(pod_requests(&pod).to_text(), "cpu=4");
    }
}
