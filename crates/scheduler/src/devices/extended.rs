//! Requests for devices that serve the extended resources of a pod.

use k8s_openapi::api::core::v1::ContainerExtendedResourceRequest as Mapping;
use k8s_openapi::api::resource::v1::{DeviceRequest, ExactDeviceRequest};

use crate::model::{Atom, ContainerRequests};

/// Requests by name, and which of them each container uses. `resources` are ordered by name, with their
/// classes. Init containers that end use what containers behind them have, and share what they need
/// beyond that.
pub(crate) fn requests(
    containers: &[ContainerRequests],
    resources: &[(Atom, Atom)],
) -> (Vec<DeviceRequest>, Vec<Mapping>) {
    let (mut requests, mut mappings) = (Vec::new(), Vec::new());
    for (resource, class) in resources {
        let long_lived: Vec<Option<(String, i64)>> = containers
            .iter()
            .enumerate()
            .map(|(index, own)| {
                let (amount, place) = own.of(resource).filter(|_| !own.is_short_lived)?;
                Some((name(index, place), amount))
            })
            .collect();
        for (container, own) in containers.iter().zip(&long_lived) {
            mappings.extend(own.iter().map(|(name, _)| mapping(container, resource, name)));
        }
        // The largest of what short-lived containers need beyond others stands for all of them.
        let mut extra: Option<(String, i64)> = None;
        let mut short_lived = Vec::new();
        for (index, container) in
            containers.iter().enumerate().filter(|(_, own)| own.is_short_lived)
        {
            let Some((amount, place)) = container.of(resource) else { continue };
            let mut left = amount;
            for (name, amount) in long_lived.iter().skip(index).flatten() {
                if left > 0 {
                    short_lived.push((container, Some(name.clone())));
                    left = left.saturating_sub(*amount);
                }
            }
            if left > 0 {
                short_lived.push((container, None));
                if extra.as_ref().is_none_or(|(_, most)| *most < left) {
                    extra = Some((name(index, place), left));
                }
            }
        }
        mappings.extend(short_lived.into_iter().filter_map(|(container, known)| {
            let name = known.or_else(|| extra.as_ref().map(|(name, _)| name.clone()))?;
            Some(mapping(container, resource, &name))
        }));
        let all = extra.into_iter().chain(long_lived.into_iter().flatten());
        requests.extend(all.map(|(name, count)| request(name, class, count)));
    }
    requests.sort_by(|left, right| left.name.cmp(&right.name));
    (requests, mappings)
}

fn name(container: usize, request: usize) -> String {
    format!("container-{container}-request-{request}")
}

fn mapping(container: &ContainerRequests, resource: &Atom, request: &str) -> Mapping {
    Mapping {
        container_name: container.name.to_string(),
        resource_name: resource.to_string(),
        request_name: request.to_owned(),
    }
}

fn request(name: String, class: &Atom, count: i64) -> DeviceRequest {
    DeviceRequest {
        name,
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.to_string(),
            allocation_mode: Some("ExactCount".to_owned()),
            count: Some(count),
            ..ExactDeviceRequest::default()
        }),
        first_available: None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{atom, pod};

    /// Init containers and containers; requests and mappings.
    type Case<'a> = (&'a [(i64, bool)], &'a [i64], &'a [&'a str], &'a [&'a str]);

    /// Requests with their counts, and mappings, of containers that each request so many devices.
    fn lines(inits: &[(i64, bool)], containers: &[i64]) -> (Vec<String>, Vec<String>) {
        let container = |name: String, count: i64, more: Value| {
            let mut own = json!({"name": name, "resources": {"requests":
                {"cpu": "1", "example.com/gpu": count.to_string()}}});
            crate::testing::merge(&mut own, more);
            own
        };
        let inits: Vec<Value> = inits
            .iter()
            .enumerate()
            .map(|(index, (count, is_sidecar))| {
                let policy = json!({"restartPolicy": is_sidecar.then_some("Always")});
                container(format!("i{index}"), *count, policy)
            })
            .collect();
        let containers: Vec<Value> = containers
            .iter()
            .enumerate()
            .map(|(index, count)| container(format!("c{index}"), *count, json!({})))
            .collect();
        let pod =
            pod("p", "1", json!({"spec": {"initContainers": inits, "containers": containers}}));
        let resources = [(atom("example.com/gpu"), atom("gpu"))];
        let (requests, mappings) = requests(&pod.extended, &resources);
        let requests = requests
            .iter()
            .map(|own| format!("{} {}", own.name, own.exactly.as_ref().unwrap().count.unwrap()));
        let mappings =
            mappings.iter().map(|own| format!("{} {}", own.container_name, own.request_name));
        (requests.collect(), mappings.collect())
    }

    #[test]
    fn devices_for_extended_resources_are_shared_with_init_containers() {
        let table: [Case<'_>; 6] = [
            (&[], &[2], &["container-0-request-1 2"], &["c0 container-0-request-1"]),
            (
                &[],
                &[1, 0, 3],
                &["container-0-request-1 1", "container-2-request-1 3"],
                &["c0 container-0-request-1", "c2 container-2-request-1"],
            ),
            (
                &[(1, false)],
                &[2],
                &["container-1-request-1 2"],
                &["c0 container-1-request-1", "i0 container-1-request-1"],
            ),
            (
                &[(3, false)],
                &[2],
                &["container-0-request-1 1", "container-1-request-1 2"],
                &[
                    "c0 container-1-request-1",
                    "i0 container-1-request-1",
                    "i0 container-0-request-1",
                ],
            ),
            // The larger of two init containers stands for both.
            (
                &[(2, false), (4, false)],
                &[0],
                &["container-1-request-1 4"],
                &["i0 container-1-request-1", "i1 container-1-request-1"],
            ),
            // A sidecar before an init container keeps what it has.
            (
                &[(1, true), (1, false)],
                &[0],
                &["container-0-request-1 1", "container-1-request-1 1"],
                &["i0 container-0-request-1", "i1 container-1-request-1"],
            ),
        ];
        for (inits, containers, requests, mappings) in table {
            let (own, mapped) = lines(inits, containers);
            assert_eq!(own, requests, "{inits:?} {containers:?}");
            assert_eq!(mapped, mappings, "{inits:?} {containers:?}");
        }
    }
}
