//! The health of kube-proxy, as upstream: `/healthz` and `/livez` of the proxy itself, and, at the
//! health-check port of a service, whether a load balancer should send to this node. Pure: the
//! caller reports when changes arrive and when they are in the kernel, and sends the
//! [`HealthResponse`]s.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde::Serialize;

use crate::Family;
use crate::model::{HealthCheck, ServiceName};
use crate::render::{NodePorts, Settings};

/// The taint of a node that the cluster autoscaler is about to delete.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// A point in time on both clocks: durations must not depend on a clock that can be set.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// The monotonic clock.
    pub instant: Instant,
    /// The wall clock.
    pub time: Timestamp,
}

impl Time {
    /// The current time.
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: Timestamp::now() }
    }
}

/// Whether the rules of all families are up to date, and whether the node is eligible.
#[derive(Clone, Debug)]
pub struct Health {
    timeout: Duration,
    families: BTreeMap<Family, Syncs>,
    eligible: bool,
}

#[derive(Clone, Copy, Debug)]
struct Syncs {
    updated: Timestamp,
    /// When the oldest change arrived that is not in the kernel yet.
    queued: Option<Instant>,
}

/// A response to a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthResponse {
    /// 200 or 503.
    pub status: u16,
    /// Names and values.
    pub headers: Vec<(&'static str, String)>,
    /// JSON.
    pub body: String,
}

/// The body of `/healthz` and `/livez`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    last_updated: Timestamp,
    current_time: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyReport>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyReport {
    last_updated: Timestamp,
    healthy: bool,
}

impl Health {
    /// Of the proxiers of these families, which begin now. One is unhealthy when a change is not in
    /// the kernel within `timeout`: upstream takes twice the longest period between syncs.
    pub fn new(timeout: Duration, families: impl IntoIterator<Item = Family>, now: Time) -> Self {
        let begin = |family| (family, Syncs { updated: now.time, queued: None });
        Self { timeout, families: families.into_iter().map(begin).collect(), eligible: false }
    }

    /// A change requires a sync.
    pub fn queued(&mut self, family: Family, now: Time) {
        if let Some(syncs) = self.families.get_mut(&family) {
            syncs.queued.get_or_insert(now.instant);
        }
    }

    /// A sync succeeded that `began` at a moment: changes that came later are not in it. (Upstream
    /// takes them for done.)
    pub fn updated(&mut self, family: Family, began: Instant, now: Time) {
        if let Some(syncs) = self.families.get_mut(&family) {
            syncs.updated = now.time;
            syncs.queued = syncs.queued.filter(|queued| *queued > began);
        }
    }

    /// The node's object as it is now; none when there is none. Until then nothing is sent here.
    pub fn set_node(&mut self, node: Option<&Node>) {
        self.eligible = node.is_some_and(|node| {
            let mut taints = node.spec.iter().filter_map(|spec| spec.taints.as_ref()).flatten();
            node.metadata.deletion_timestamp.is_none()
                && !taints.any(|taint| taint.key == TO_BE_DELETED)
        });
    }

    /// Whether the rules of all families are up to date.
    pub fn is_healthy(&self, now: Time) -> bool {
        self.families.values().all(|syncs| self.is_in_time(syncs, now))
    }

    /// `/healthz`: whether load balancers should send to this node. Not to one that goes, though
    /// the proxy works on.
    pub fn healthz(&self, now: Time) -> HealthResponse {
        self.answer(now, Some(self.eligible))
    }

    /// `/livez`: whether the proxy works.
    pub fn livez(&self, now: Time) -> HealthResponse {
        self.answer(now, None)
    }

    /// At the health-check port of a service: whether a load balancer should send to this node for
    /// it, and how much (the header `X-Load-Balancing-Endpoint-Weight`).
    pub fn service(&self, name: &ServiceName, check: HealthCheck, now: Time) -> HealthResponse {
        let (healthy, count) = (self.is_healthy(now), check.local_endpoints);
        let report = ServiceReport {
            service: ServiceReference { namespace: &name.namespace, name: &name.name },
            local_endpoints: count,
            service_proxy_healthy: healthy,
        };
        let mut body = Vec::new();
        let tabs = serde_json::ser::PrettyFormatter::with_indent(b"\t");
        let mut serializer = serde_json::Serializer::with_formatter(&mut body, tabs);
        let written = report.serialize(&mut serializer);
        let mut answer = HealthResponse::of(healthy && count > 0, written.map(|()| body));
        answer.headers.push(("X-Load-Balancing-Endpoint-Weight", count.to_string()));
        answer
    }

    fn is_in_time(&self, syncs: &Syncs, now: Time) -> bool {
        let late = |queued| now.instant.saturating_duration_since(queued) >= self.timeout;
        !syncs.queued.is_some_and(late)
    }

    fn answer(&self, now: Time, node_eligible: Option<bool>) -> HealthResponse {
        let healthy = self.is_healthy(now);
        let good = healthy && node_eligible.unwrap_or(true);
        let latest = self.families.values().map(|syncs| syncs.updated).max();
        let of_family = |(family, syncs): (&Family, &Syncs)| {
            let healthy = self.is_in_time(syncs, now);
            (family.as_str(), FamilyReport { last_updated: syncs.updated, healthy })
        };
        let report = Report {
            // A recent time is reported: nothing to sync is healthy.
            last_updated: latest.filter(|_| !good).unwrap_or(now.time),
            current_time: now.time,
            node_eligible,
            healthy,
            status: self.families.iter().map(of_family).collect(),
        };
        HealthResponse::of(good, serde_json::to_vec(&report))
    }
}

/// The body at a service's health-check port.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceReport<'a> {
    service: ServiceReference<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceReference<'a> {
    namespace: &'a str,
    name: &'a str,
}

/// Where the health-check ports are served, and for which service: at the addresses of node ports.
/// Of two services with one port the first by name has it.
pub fn listeners<'a>(
    checks: &'a BTreeMap<ServiceName, HealthCheck>,
    settings: &Settings,
) -> BTreeMap<SocketAddr, &'a ServiceName> {
    let any = match settings.family {
        Family::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let addresses: Vec<IpAddr> = match &settings.node_ports {
        NodePorts::All => vec![any],
        NodePorts::Addresses(addresses) => addresses.iter().copied().collect(),
    };
    let mut listeners = BTreeMap::new();
    for (name, check) in checks {
        for ip in &addresses {
            listeners.entry(SocketAddr::new(*ip, check.port)).or_insert(name);
        }
    }
    listeners
}

impl HealthResponse {
    /// JSON; to write plain data into memory does not fail.
    fn of(good: bool, body: serde_json::Result<Vec<u8>>) -> Self {
        let body = body.ok().and_then(|body| String::from_utf8(body).ok()).unwrap_or_default();
        Self {
            status: if good { 200 } else { 503 },
            headers: vec![
                ("Content-Type", "application/json".to_owned()),
                ("X-Content-Type-Options", "nosniff".to_owned()),
            ],
            body,
        }
    }
}
