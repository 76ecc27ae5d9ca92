//! Resource requests and limits of a pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::{self, milli};
use crate::spec::{self, ContainerKind};

/// Amounts by the resource's name.
pub type List = BTreeMap<String, Quantity>;

/// CPU amounts up to this (millicores) are the same to the kernel.
const LEAST_CPU: i128 = 2;

/// The pod's requests: pod-level ones, or the peak of its containers' requests, and the pod's
/// overhead.
pub fn requests(pod_spec: &PodSpec) -> List {
    let mut total = net_requests(pod_spec);
    for (name, amount) in pod_spec.overhead.iter().flatten() {
        add(&mut total, name, amount);
    }
    total
}

/// The same without the overhead.
pub fn net_requests(pod_spec: &PodSpec) -> List {
    let mut total = container_requests(pod_spec);
    total.extend(own(pod_spec, |own| own.requests.as_ref()));
    total
}

/// The peak of the requests of the pod's containers.
pub(crate) fn container_requests(pod_spec: &PodSpec) -> List {
    peak(pod_spec, quantity::requests)
}

/// The pod's limits, summed up like [`requests`]. A limit that only some containers have is listed,
/// though it is not enforced for the pod: see [`is_limited`].
pub fn limits(pod_spec: &PodSpec) -> List {
    let mut total = net_limits(pod_spec);
    for (name, amount) in pod_spec.overhead.iter().flatten() {
        if total.get(name).and_then(milli).is_some_and(|limit| limit != 0) {
            add(&mut total, name, amount);
        }
    }
    total
}

/// The same without the overhead.
pub fn net_limits(pod_spec: &PodSpec) -> List {
    let mut total = peak(pod_spec, quantity::limits);
    total.extend(own(pod_spec, |own| own.limits.as_ref()));
    total
}

/// Whether the pod as a whole has a limit of that resource: a pod-level one, or because no
/// container without one runs at any time.
pub fn is_limited(pod_spec: &PodSpec, resource: &str) -> bool {
    let limit_of = |container| quantity::milli_of(quantity::limits(container), resource);
    let own_limits = pod_spec.resources.as_ref().and_then(|own| own.limits.as_ref());
    if quantity::milli_of(own_limits, resource) > 0 {
        return true;
    }
    // An init container runs together with the sidecars before it.
    let mut sidecars = 0;
    let init_limited = spec::init_containers(pod_spec).iter().all(|container| {
        let limit = limit_of(container);
        if spec::is_sidecar(container) {
            sidecars += limit;
        }
        limit > 0 || sidecars > 0
    });
    init_limited && pod_spec.containers.iter().all(|container| limit_of(container) > 0)
}

/// The `resources` of a pod's status: before it runs, all requests and limits; then what is
/// enforced.
pub fn status_resources(pod_spec: &PodSpec, runs: bool) -> ResourceRequirements {
    let (mut all_requests, mut all_limits) = (requests(pod_spec), limits(pod_spec));
    let own_resources = pod_spec.resources.clone().unwrap_or_default();
    if runs {
        let own = own_resources.requests.as_ref();
        all_requests.retain(|name, amount| match name.as_str() {
            "cpu" => {
                own.is_some_and(|own| own.contains_key(name)) || milli(amount) > Some(LEAST_CPU)
            }
            "memory" => true,
            _ => own.is_some_and(|own| own.contains_key(name)),
        });
        let own = own_resources.limits.as_ref();
        all_limits.retain(|name, _| {
            own.is_some_and(|own| own.contains_key(name))
                || (matches!(name.as_str(), "cpu" | "memory") && all_limit(pod_spec, name))
        });
    }
    let some = |list: List| (!list.is_empty()).then_some(list);
    ResourceRequirements { requests: some(all_requests), limits: some(all_limits), ..own_resources }
}

/// Whether every container has that limit, so that the pod as a whole has it too.
fn all_limit(pod_spec: &PodSpec, resource: &str) -> bool {
    spec::containers(pod_spec).all(|(_, c)| quantity::milli_of(quantity::limits(c), resource) > 0)
}

/// The supported resources in the pod-level `resources`.
fn own(pod_spec: &PodSpec, list: fn(&ResourceRequirements) -> Option<&List>) -> List {
    let list = pod_spec.resources.as_ref().and_then(list);
    let supported = |name: &str| matches!(name, "cpu" | "memory") || name.starts_with("hugepages-");
    let own = list.into_iter().flatten().filter(|(name, _)| supported(name));
    own.map(|(name, amount)| (name.clone(), amount.clone())).collect()
}

/// The maximum that containers need at one time: sidecars and regular containers together, or an
/// init container with the sidecars before it.
fn peak(pod_spec: &PodSpec, list: fn(&Container) -> Option<&List>) -> List {
    let (mut together, mut sidecars, mut init) = (List::new(), List::new(), List::new());
    // Regular containers first: sums take the format of their first term.
    for container in &pod_spec.containers {
        add_all(&mut together, list(container));
    }
    for container in spec::init_containers(pod_spec) {
        let mut now = match spec::kind_of_init(container) {
            ContainerKind::Sidecar => {
                add_all(&mut together, list(container));
                add_all(&mut sidecars, list(container));
                sidecars.clone()
            }
            _ => {
                let mut now = list(container).cloned().unwrap_or_default();
                add_all(&mut now, Some(&sidecars));
                now
            }
        };
        raise(&mut init, &mut now);
    }
    raise(&mut together, &mut init);
    together
}

fn add_all(total: &mut List, list: Option<&List>) {
    for (name, amount) in list.into_iter().flatten() {
        add(total, name, amount);
    }
}

fn add(total: &mut List, name: &str, amount: &Quantity) {
    let sum = match total.get(name) {
        None => amount.clone(),
        Some(before) => sum(before, amount),
    };
    total.insert(name.to_owned(), sum);
}

fn raise(total: &mut List, other: &mut List) {
    for (name, amount) in std::mem::take(other) {
        if total.get(&name).is_none_or(|before| milli(before) < milli(&amount)) {
            total.insert(name, amount);
        }
    }
}

/// The sum in the format of the first term that is not zero.
fn sum(a: &Quantity, b: &Quantity) -> Quantity {
    match (milli(a), milli(b)) {
        (Some(0), _) => b.clone(),
        (Some(x), Some(y)) => Quantity(format(x.saturating_add(y), is_binary(a))),
        _ => a.clone(),
    }
}

/// A quantity in its canonical form, such as `1Gi` for `1024Mi`; unchanged if it is invalid.
pub fn canonical(quantity: &Quantity) -> String {
    milli(quantity).map_or_else(|| quantity.0.clone(), |milli| format(milli, is_binary(quantity)))
}

/// Whether a quantity is written with a binary suffix.
pub fn is_binary(quantity: &Quantity) -> bool {
    quantity.0.ends_with('i')
}

/// Thousandths as a canonical quantity; `binary` selects the suffixes.
pub fn format(milli: i128, binary: bool) -> String {
    const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 8] = ["m", "", "k", "M", "G", "T", "P", "E"];
    let units = (milli + 999).div_euclid(1000);
    let (mut number, base, suffixes): (i128, i128, &[&str]) = match binary && units >= 1024 {
        true => (units, 1024, &BINARY),
        false => (milli, 1000, &DECIMAL),
    };
    if number == 0 {
        return "0".to_owned();
    }
    let mut power = 0;
    while number % base == 0 && power + 1 < suffixes.len() {
        number /= base;
        power += 1;
    }
    format!("{number}{}", suffixes[power])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: Value) -> PodSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn with_resources(requests: Value, limits: Value) -> Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    fn show(list: &List) -> String {
        let texts: Vec<_> =
            list.iter().map(|(name, amount)| format!("{name}={}", amount.0)).collect();
        texts.join(" ")
    }

    #[test]
    fn quantity_sums_are_formatted_as_upstream() {
        for (a, b, expected) in [
            ("100m", "150m", "250m"),
            ("500m", "1500m", "2"),
            ("1", "500m", "1500m"),
            ("0", "64Mi", "64Mi"),
            ("64Mi", "64Mi", "128Mi"),
            ("512Mi", "512Mi", "1Gi"),
            ("1Mi", "1", "1048577"),
            ("500", "500", "1k"),
            ("1M", "1Ki", "1001024"),
            ("100Ki", "1500m", "102402"),
        ] {
            assert_eq!(sum(&Quantity(a.into()), &Quantity(b.into())).0, expected, "{a} + {b}");
        }
    }

    #[test]
    fn pod_requests_are_the_peak_plus_overhead() {
        let mut sidecar = with_resources(json!({"cpu": "100m"}), json!({}));
        sidecar["restartPolicy"] = json!("Always");
        let pod_spec = pod(json!({
            "overhead": {"cpu": "10m"},
            "initContainers": [
                with_resources(json!({"cpu": "300m"}), json!({"memory": "1Gi"})),
                sidecar,
                with_resources(json!({"cpu": "500m", "memory": "10Mi"}), json!({})),
            ],
            "containers": [
                with_resources(json!({"cpu": "200m", "memory": "64Mi"}), json!({"cpu": "1"})),
                with_resources(json!({"cpu": "100m", "memory": "64Mi"}), json!({})),
            ],
        }));
        assert_eq!(show(&requests(&pod_spec)), "cpu=610m memory=128Mi");
        assert_eq!(show(&limits(&pod_spec)), "cpu=1010m memory=1Gi");
    }

    #[test]
    fn pod_level_resources_take_precedence() {
        let pod_spec = pod(json!({
            "resources": {"requests": {"cpu": "2", "example.com/x": "1"}, "limits": {"memory": "1Gi"}},
            "containers": [with_resources(json!({"cpu": "200m", "memory": "64Mi"}), json!({"cpu": "1"}))],
        }));
        assert_eq!(show(&requests(&pod_spec)), "cpu=2 memory=64Mi");
        assert_eq!(show(&limits(&pod_spec)), "cpu=1 memory=1Gi");
    }

    #[test]
    fn pod_is_limited_if_all_containers_have_limits() {
        let limited = |limits: Value| with_resources(json!({}), limits);
        let sidecar = |limits: Value| {
            let mut sidecar = limited(limits);
            sidecar["restartPolicy"] = json!("Always");
            sidecar
        };
        let one = || limited(json!({"cpu": "1"}));
        let none = || limited(json!({}));
        for (init, regular, own, expected) in [
            (vec![], vec![one()], json!({}), true),
            (vec![], vec![one(), none()], json!({}), false),
            (vec![], vec![one(), none()], json!({"limits": {"cpu": "2"}}), true),
            (vec![], vec![one(), none()], json!({"limits": {"memory": "2Gi"}}), false),
            (vec![none()], vec![one()], json!({}), false),
            (vec![sidecar(json!({"cpu": "1"})), none()], vec![one()], json!({}), true),
            (vec![none(), sidecar(json!({"cpu": "1"}))], vec![one()], json!({}), false),
        ] {
            let spec =
                pod(json!({"initContainers": init, "containers": regular, "resources": own}));
            assert_eq!(is_limited(&spec, "cpu"), expected, "{spec:?}");
        }
    }

    #[test]
    fn status_resources_of_a_running_pod_are_those_enforced() {
        let show_status = |pod_spec: &PodSpec, runs| {
            let resources = status_resources(pod_spec, runs);
            let list = |list: Option<List>| show(&list.unwrap_or_default());
            (list(resources.requests), list(resources.limits))
        };
        let half = pod(json!({"containers": [
            with_resources(json!({"cpu": "1m", "memory": "1Mi", "ephemeral-storage": "1Gi"}), json!({"cpu": "1", "memory": "2Mi"})),
            with_resources(json!({}), json!({"memory": "2Mi"})),
        ]}));
        let (requests, limits) = show_status(&half, false);
        assert_eq!(requests, "cpu=1m ephemeral-storage=1Gi memory=1Mi");
        assert_eq!(limits, "cpu=1 memory=4Mi");
        assert_eq!(show_status(&half, true), ("memory=1Mi".to_owned(), "memory=4Mi".to_owned()));
        let nothing = pod(json!({"containers": [{"name": "c"}]}));
        assert_eq!(status_resources(&nothing, true), ResourceRequirements::default());
    }
}
