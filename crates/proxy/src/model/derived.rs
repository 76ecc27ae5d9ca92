//! What else is derived from the state: stale flows, health checks, metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::{Address, Changes, Policy, PortView, Protocol, Service, ServiceName, State};

/// Where clients reach a UDP port, and where their flows may lead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frontends {
    /// Cluster IP, external and load balancers' addresses with the port.
    pub addresses: Vec<Address>,
    /// The port at the node's own addresses.
    pub node_port: Option<u16>,
    /// The endpoints that serve, whatever policies say: a change of policy ends no flow. Empty
    /// when there are none; then every flow is stale.
    pub endpoints: BTreeSet<Address>,
}

/// The response at a service's health-check port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port.
    pub port: u16,
    /// How many addresses of ready endpoints this node has.
    pub local_endpoints: usize,
}

/// How many ports of services have endpoints, but none that traffic of the policy `Local` may go
/// to here: the metric `sync_proxy_rules_no_local_endpoints_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NoLocalEndpoints {
    /// By the internal traffic policy.
    pub internal: usize,
    /// By the external traffic policy.
    pub external: usize,
}

impl State {
    /// All UDP ports, to reconcile the flows that the kernel keeps.
    pub fn udp(&self) -> Vec<Frontends> {
        self.services().flat_map(|service| udp_ports(service)).map(frontends).collect()
    }

    /// The services that have a health-check port.
    pub fn health_checks(&self) -> BTreeMap<ServiceName, HealthCheck> {
        let check = |service: &Service| {
            let port = service.spec.health_check_node_port?;
            let ready = service.ports().flat_map(|port| port.endpoints);
            // two ports of one pod are one endpoint
            let addresses: BTreeSet<IpAddr> =
                ready.filter(|e| e.ready && e.local).map(|e| e.address.ip).collect();
            Some((
                service.spec.name.clone(),
                HealthCheck { port, local_endpoints: addresses.len() },
            ))
        };
        self.services().filter_map(|service| check(service)).collect()
    }

    /// Counts ports that have endpoints elsewhere only.
    pub fn no_local_endpoints(&self) -> NoLocalEndpoints {
        let mut total = NoLocalEndpoints::default();
        for port in self.services().flat_map(|service| service.ports()) {
            let none_local = |policy| {
                policy == Policy::Local
                    && port.endpoints_for(policy).next().is_none()
                    && port.has_endpoints()
            };
            total.internal += usize::from(none_local(port.spec.internal_policy));
            let external = port.is_external() && none_local(port.spec.external_policy);
            total.external += usize::from(external);
        }
        total
    }
}

impl Changes {
    /// The UDP ports that were there and may be gone, without endpoints. What [`State::udp`] has
    /// of the same address counts more.
    pub fn old_udp(&self) -> Vec<Frontends> {
        let before = self.services.iter().filter_map(|change| change.before.as_ref());
        let ports = before.flat_map(|service| udp_ports(service));
        ports.map(|port| Frontends { endpoints: BTreeSet::new(), ..frontends(port) }).collect()
    }
}

fn udp_ports(service: &Service) -> impl Iterator<Item = PortView<'_>> {
    service.ports().filter(|port| port.port.protocol == Protocol::Udp)
}

fn frontends(view: PortView<'_>) -> Frontends {
    let spec = view.spec;
    let ips = [spec.cluster_ip].into_iter();
    let ips =
        ips.chain(spec.external_ips.iter().copied()).chain(spec.load_balancer_ips.iter().copied());
    let serving = view.endpoints.iter().filter(|endpoint| endpoint.serving);
    Frontends {
        addresses: ips.map(|ip| Address { ip, port: view.port.port }).collect(),
        node_port: view.port.node_port,
        endpoints: serving.map(|endpoint| endpoint.address).collect(),
    }
}
