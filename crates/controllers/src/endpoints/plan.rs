//! PURE: the Endpoints object of a service.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Pod, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use crate::endpointslice::plan::{
    LABEL_HEADLESS, TRIGGER_TIME, find_port, has_endpoint, hostname, is_headless, target,
};
use crate::workload::is_ready;

pub(crate) const LABEL_MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const MANAGED_BY: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// The most addresses of one object.
const CAPACITY: usize = 1000;

type PortKey = (String, i32, String, Option<String>);

fn port_key(port: &EndpointPort) -> PortKey {
    (
        port.name.clone().unwrap_or_default(),
        port.port,
        port.protocol.clone().unwrap_or_else(|| "TCP".into()),
        port.app_protocol.clone(),
    )
}

/// The address by IP and pod.
type AddressKey = (String, Option<String>);

/// Each address once, with all its ports; of one that is both, the ready one counts.
#[derive(Debug, Default)]
struct Addresses(BTreeMap<AddressKey, (EndpointAddress, Ports)>);

/// Ports, and whether the address is ready there.
type Ports = BTreeMap<PortKey, (EndpointPort, bool)>;

impl Addresses {
    fn add(&mut self, address: &EndpointAddress, ready: bool, port: Option<&EndpointPort>) {
        let uid = address.target_ref.as_ref().and_then(|target| target.uid.clone());
        let (_, ports) = self
            .0
            .entry((address.ip.clone(), uid))
            .or_insert_with(|| (address.clone(), BTreeMap::new()));
        // -1 stands for no port
        let none = EndpointPort { port: -1, ..EndpointPort::default() };
        let port = port.unwrap_or(&none);
        let (_, is_ready) = ports.entry(port_key(port)).or_insert_with(|| (port.clone(), ready));
        *is_ready |= ready;
    }

    fn subsets(self) -> Vec<EndpointSubset> {
        let mut by_ports: BTreeMap<Vec<PortKey>, EndpointSubset> = BTreeMap::new();
        for (address, ports) in self.0.into_values() {
            for ready in [true, false] {
                let ports = ports.iter().filter(|(_, (_, is_ready))| *is_ready == ready);
                let (keys, ports): (Vec<PortKey>, Vec<EndpointPort>) =
                    ports.map(|(key, (port, _))| (key.clone(), port.clone())).unzip();
                if keys.is_empty() {
                    continue;
                }
                let subset = by_ports.entry(keys).or_default();
                let ports: Vec<EndpointPort> =
                    ports.into_iter().filter(|port| port.port >= 0).collect();
                subset.ports = Some(ports).filter(|ports| !ports.is_empty());
                match ready {
                    true => subset.addresses.get_or_insert_default().push(address.clone()),
                    false => {
                        subset.not_ready_addresses.get_or_insert_default().push(address.clone())
                    }
                }
            }
        }
        by_ports.into_values().collect()
    }
}

/// The canonical form of subsets: addresses of the same ports are together, each once.
pub(crate) fn repack(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    let mut addresses = Addresses::default();
    for subset in subsets {
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let not = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, ready) in ready.chain(not) {
            match subset.ports.as_deref() {
                None | Some([]) => addresses.add(address, ready, None),
                Some(ports) => {
                    ports.iter().for_each(|port| addresses.add(address, ready, Some(port)));
                }
            }
        }
    }
    addresses.subsets()
}

/// The address of the pod in the service's first family.
fn address(service: &Service, pod: &Pod) -> Option<EndpointAddress> {
    let spec = service.spec.as_ref()?;
    let status = pod.status.as_ref()?;
    let family = spec.ip_families.as_ref().and_then(|families| families.first());
    let cluster_ip = spec.cluster_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok());
    let pod_ip = status.pod_ip.as_deref().and_then(|ip| ip.parse::<IpAddr>().ok());
    let wants_v6 = match (family, cluster_ip) {
        (Some(family), _) => family == "IPv6",
        (None, Some(ip)) => ip.is_ipv6(),
        (None, None) => pod_ip.is_some_and(|ip| ip.is_ipv6()),
    };
    let ips = status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse::<IpAddr>().ok());
    let ip = ips.chain(pod_ip).find(|ip| ip.is_ipv6() == wants_v6)?;
    Some(EndpointAddress {
        ip: ip.to_string(),
        node_name: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        target_ref: Some(target(pod)),
        hostname: hostname(pod, service),
    })
}

/// What the subsets of the service should be.
fn subsets(service: &Service, pods: &[impl AsRef<Pod>]) -> Vec<EndpointSubset> {
    let spec = service.spec.as_ref();
    let publishes = spec.and_then(|spec| spec.publish_not_ready_addresses).unwrap_or_default();
    let ports: &[_] = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let mut addresses = Addresses::default();
    for pod in pods.iter().map(AsRef::as_ref).filter(|pod| has_endpoint(pod, publishes)) {
        let Some(address) = address(service, pod) else { continue };
        let ready = publishes || is_ready(pod);
        if ports.is_empty() && is_headless(service) {
            addresses.add(&address, ready, None);
        }
        for port in ports {
            let Some(number) = find_port(pod, port) else { continue };
            let port = EndpointPort {
                name: port.name.clone().filter(|name| !name.is_empty()),
                port: number,
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
                app_protocol: port.app_protocol.clone(),
            };
            addresses.add(&address, ready, Some(&port));
        }
    }
    addresses.subsets()
}

fn count(addresses: &Option<Vec<EndpointAddress>>) -> usize {
    addresses.as_ref().map_or(0, Vec::len)
}

fn is_over_capacity(subsets: &[EndpointSubset]) -> bool {
    let counts =
        subsets.iter().map(|subset| count(&subset.addresses) + count(&subset.not_ready_addresses));
    counts.sum::<usize>() > CAPACITY
}

/// Cuts to the capacity: addresses that are not ready go first.
fn truncate(subsets: &mut Vec<EndpointSubset>) {
    let mut left = CAPACITY;
    let mut cut = |addresses: &mut Option<Vec<EndpointAddress>>| {
        if let Some(addresses) = addresses {
            addresses.truncate(left);
            left -= addresses.len();
        }
    };
    subsets.iter_mut().for_each(|subset| cut(&mut subset.addresses));
    subsets.iter_mut().for_each(|subset| cut(&mut subset.not_ready_addresses));
    subsets.retain(|subset| count(&subset.addresses) + count(&subset.not_ready_addresses) > 0);
}

/// Sorted, and without the versions of what is referred to.
fn comparable(subsets: &[EndpointSubset]) -> Vec<EndpointSubset> {
    let mut subsets = repack(subsets);
    for subset in &mut subsets {
        let ready = subset.addresses.iter_mut().flatten();
        for address in ready.chain(subset.not_ready_addresses.iter_mut().flatten()) {
            address.node_name = address.node_name.take().filter(|name| !name.is_empty());
            if let Some(target) = &mut address.target_ref {
                target.resource_version = None;
            }
        }
    }
    subsets
}

/// The object to be written; `None`: the existing one is right. A new one has no resource version.
pub(crate) fn plan(
    service: &Service,
    pods: &[impl AsRef<Pod>],
    existing: Option<&Endpoints>,
    trigger_time: Option<Timestamp>,
) -> Option<Endpoints> {
    let mut subsets = subsets(service, pods);
    let is_truncated = is_over_capacity(&subsets);
    if is_truncated {
        truncate(&mut subsets);
    }
    let mut labels: BTreeMap<String, String> = service.metadata.labels.clone().unwrap_or_default();
    if is_headless(service) {
        labels.insert(LABEL_HEADLESS.into(), String::new());
    } else {
        labels.remove(LABEL_HEADLESS);
    }
    labels.insert(LABEL_MANAGED_BY.into(), MANAGED_BY.into());
    if let Some(existing) = existing {
        let annotations = existing.metadata.annotations.as_ref();
        let is_marked = annotations.and_then(|annotations| annotations.get(OVER_CAPACITY));
        if comparable(existing.subsets.as_deref().unwrap_or_default()) == comparable(&subsets)
            && existing.metadata.labels.as_ref() == Some(&labels)
            && (is_marked.is_some_and(|mark| mark == "truncated") == is_truncated)
        {
            return None;
        }
    }
    let mut endpoints = existing.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            ..ObjectMeta::default()
        },
        subsets: None,
    });
    endpoints.subsets = Some(subsets).filter(|subsets| !subsets.is_empty());
    endpoints.metadata.labels = Some(labels);
    let annotations = endpoints.metadata.annotations.get_or_insert_default();
    match trigger_time {
        Some(time) => annotations.insert(TRIGGER_TIME.into(), time.to_string()),
        None => annotations.remove(TRIGGER_TIME),
    };
    match is_truncated {
        true => annotations.insert(OVER_CAPACITY.into(), "truncated".into()),
        false => annotations.remove(OVER_CAPACITY),
    };
    Some(endpoints)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::{EndpointSubset, Pod, Service};
    use serde_json::{Value, json};

    use super::{plan, repack};

    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "web", "labels": {"team": "a"}},
            "spec": spec,
        }))
        .unwrap()
    }

    fn pod(name: &str, ip: &str, ready: bool, port: u16) -> Arc<Pod> {
        let pod = serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": name, "uid": name},
            "spec": {"nodeName": "n1", "containers": [
                {"name": "c", "ports": [{"name": "http", "containerPort": port}]},
            ]},
            "status": {
                "podIP": ip,
                "podIPs": [{"ip": ip}],
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
            },
        }))
        .unwrap();
        Arc::new(pod)
    }

    fn web() -> Service {
        service(json!({
            "clusterIP": "10.96.0.9",
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        }))
    }

    #[test]
    fn endpoints_group_addresses_by_ports_and_readiness() {
        let pods = [
            pod("a", "10.0.0.1", true, 80),
            pod("b", "10.0.0.2", false, 80),
            pod("c", "10.0.0.3", true, 90),
        ];
        let made =
            plan(&web(), &pods, None, Some("2026-01-01T00:00:00Z".parse().unwrap())).unwrap();
        let value = serde_json::to_value(&made).unwrap();
        let address = |ip: &str, name: &str| {
            json!({"ip": ip, "nodeName": "n1", "targetRef":
                {"kind": "Pod", "namespace": "ns", "name": name, "uid": name}})
        };
        assert_eq!(
            value["subsets"],
            json!([
                {
                    "addresses": [address("10.0.0.1", "a")],
                    "notReadyAddresses": [address("10.0.0.2", "b")],
                    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                },
                {
                    "addresses": [address("10.0.0.3", "c")],
                    "ports": [{"name": "http", "port": 90, "protocol": "TCP"}],
                },
            ])
        );
        assert_eq!(
            value["metadata"]["labels"],
            json!({"team": "a", "endpoints.kubernetes.io/managed-by": "endpoint-controller"})
        );
        assert_eq!(
            value["metadata"]["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"],
            "2026-01-01T00:00:00Z"
        );
        assert_eq!(plan(&web(), &pods, Some(&made), None), None, "nothing to be written");
        assert!(plan(&web(), &pods[1..], Some(&made), None).is_some());
    }

    #[test]
    fn endpoints_of_a_headless_service_need_no_ports() {
        let headless = service(json!({"clusterIP": "None"}));
        let made = plan(&headless, &[pod("a", "10.0.0.1", true, 80)], None, None).unwrap();
        let subset = &made.subsets.as_ref().unwrap()[0];
        assert_eq!((subset.addresses.as_ref().unwrap().len(), subset.ports.as_ref()), (1, None));
        assert_eq!(made.metadata.labels.unwrap()["service.kubernetes.io/headless"], "");
        let made = plan(&web(), &[] as &[Arc<Pod>], None, None).unwrap();
        assert_eq!(made.subsets, None);
    }

    #[test]
    fn endpoints_hold_at_most_a_thousand_addresses() {
        let pods: Vec<_> = (0..1100)
            .map(|n| pod(&format!("p{n}"), &format!("10.0.{}.{}", n / 250, n % 250), n < 900, 80))
            .collect();
        let made = plan(&web(), &pods, None, None).unwrap();
        let subset = &made.subsets.as_ref().unwrap()[0];
        assert_eq!(subset.addresses.as_ref().unwrap().len(), 900);
        assert_eq!(subset.not_ready_addresses.as_ref().unwrap().len(), 100);
        let annotations = made.metadata.annotations.as_ref().unwrap();
        assert_eq!(annotations["endpoints.kubernetes.io/over-capacity"], "truncated");
        assert_eq!(plan(&web(), &pods, Some(&made), None), None);
    }

    #[test]
    fn endpoints_subsets_have_one_form() {
        let subsets: Vec<EndpointSubset> = serde_json::from_value(json!([
            {"addresses": [{"ip": "1.1.1.1"}], "ports": [{"port": 1}]},
            {"notReadyAddresses": [{"ip": "1.1.1.1"}], "ports": [{"port": 1}, {"port": 2}]},
            {"addresses": [{"ip": "2.2.2.2"}], "ports": [{"port": 2}]},
        ]))
        .unwrap();
        let packed = serde_json::to_value(repack(&subsets)).unwrap();
        assert_eq!(
            packed,
            json!([
                {"addresses": [{"ip": "1.1.1.1"}], "ports": [{"port": 1}]},
                {"addresses": [{"ip": "2.2.2.2"}], "notReadyAddresses": [{"ip": "1.1.1.1"}],
                    "ports": [{"port": 2}]},
            ])
        );
    }
}
