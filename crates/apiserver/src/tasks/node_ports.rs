//! Repairs the bitmap of node ports from the stored services, as upstream's
//! `registry/core/service/portallocator/controller` does: what a service has and the bitmap lacks
//! is added; what no service has is released after three rounds, since a write may be under way.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::events::Recorder;
use crate::admission::services::ports::{self, PortSet};
use crate::admission::services::{NodePorts, node_ports_of};
use crate::kinds::core;
use crate::operations::Api;
use crate::status::StatusError;

/// How often the bitmap is looked at.
const INTERVAL: Duration = Duration::from_secs(180);
/// How many rounds a port that no service has stays taken.
const ROUNDS: u32 = 3;
/// How often a round is begun anew because the bitmap changes meanwhile.
const MAX_ATTEMPTS: usize = 16;

const CONTROLLER: &str = "portallocator-repair-controller";
const ACTION: &str = "PortAllocation";

/// Repairs the bitmap of ports, round by round.
pub(crate) struct Repair {
    recorder: Recorder,
    /// The rounds that are left to ports that no service has.
    leaks: BTreeMap<u16, u32>,
}

/// What is wrong with a service.
#[derive(Debug, PartialEq, Eq)]
struct Finding<'a> {
    service: &'a Value,
    reason: &'static str,
    note: String,
}

impl Repair {
    pub(crate) fn new() -> Repair {
        Repair { recorder: Recorder::new(CONTROLLER), leaks: BTreeMap::new() }
    }

    /// One round. Before the first of them no ports are given out.
    pub(crate) async fn round(&mut self, api: &Api) -> Result<(), StatusError> {
        let range = api.services.node_ports();
        for _ in 0..MAX_ATTEMPTS {
            // Read before the services: what changes after that is a conflict.
            let read = ports::read_any(&api.registry, range).await?;
            let services = core("services")?;
            let services = api.registry.select(services, "", |service| {
                (!node_ports_of(&service).is_empty()).then_some(service)
            });
            let services = services.await?;
            let mut leaks = self.leaks.clone();
            let (ports, findings) = rebuilt(range, &read.ports, &services, &mut leaks);
            if !ports::replace(&api.registry, range, &read, &ports).await? {
                continue;
            }
            self.leaks = leaks;
            for Finding { service, reason, note } in findings {
                self.recorder.warn(api, service, reason, ACTION, note).await;
            }
            return Ok(());
        }
        Err(StatusError::internal("the node port allocations change all the time"))
    }

    /// Repairs it until `stop`.
    pub(crate) async fn run(mut self, api: &Api, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(INTERVAL) => {}
            }
            if let Err(error) = self.round(api).await {
                tracing::warn!(%error, "cannot repair the node port allocations");
            }
        }
    }
}

/// The ports as the services have them, with those that may have been taken for writes under way.
/// `leaks` counts the rounds of these.
fn rebuilt<'a>(
    range: NodePorts,
    stored: &PortSet,
    services: &'a [Value],
    leaks: &mut BTreeMap<u16, u32>,
) -> (PortSet, Vec<Finding<'a>>) {
    let (mut ports, mut findings) = (PortSet::new(range), Vec::new());
    for service in services {
        for port in node_ports_of(service) {
            let (reason, note) = if !range.contains(port) {
                (
                    "PortOutOfRange",
                    format!(
                        "Port {port} is not within the port range {range}; please recreate service"
                    ),
                )
            } else if !ports.insert(port) {
                (
                    "PortAlreadyAllocated",
                    format!(
                        "Port {port} was assigned to multiple services; please recreate service"
                    ),
                )
            } else if !stored.contains(port) {
                ("PortNotAllocated", format!("Port {port} is not allocated; repairing"))
            } else {
                continue;
            };
            findings.push(Finding { service, reason, note });
        }
    }
    let lost: BTreeSet<u16> = stored.iter().filter(|port| !ports.contains(*port)).collect();
    leaks.retain(|port, _| lost.contains(port));
    for port in lost {
        let left = leaks.entry(port).or_insert(ROUNDS);
        match left.checked_sub(1) {
            Some(fewer) => {
                *left = fewer;
                ports.insert(port);
            }
            None => {
                tracing::warn!(port, "the node port appears to have leaked: cleaning up");
                leaks.remove(&port);
            }
        }
    }
    (ports, findings)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn service(name: &str, ports: &[u16]) -> Value {
        let ports: Vec<Value> =
            ports.iter().map(|port| json!({"port": 1, "nodePort": port})).collect();
        json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "ports": ports}})
    }

    #[test]
    fn node_port_repair_adds_what_services_have() {
        let range: NodePorts = "30000-30010".parse().unwrap();
        let mut stored = PortSet::new(range);
        stored.insert(30001);
        let services = [
            service("right", &[30001]),
            service("lost", &[30002]),
            service("double", &[30002]),
            service("outside", &[31000]),
            json!({"metadata": {"name": "health"}, "spec": {"type": "LoadBalancer",
                "externalTrafficPolicy": "Local", "healthCheckNodePort": 30003}}),
        ];
        let mut leaks = BTreeMap::new();
        let (ports, findings) = rebuilt(range, &stored, &services, &mut leaks);
        assert_eq!(ports.iter().collect::<Vec<_>>(), [30001, 30002, 30003]);
        let said: Vec<_> = findings.iter().map(|f| (f.reason, f.note.as_str())).collect();
        assert_eq!(
            said,
            [
                ("PortNotAllocated", "Port 30002 is not allocated; repairing"),
                (
                    "PortAlreadyAllocated",
                    "Port 30002 was assigned to multiple services; please recreate service"
                ),
                (
                    "PortOutOfRange",
                    "Port 31000 is not within the port range 30000-30010; please recreate service"
                ),
                ("PortNotAllocated", "Port 30003 is not allocated; repairing"),
            ]
        );
        assert!(leaks.is_empty());
    }

    #[test]
    fn node_port_repair_releases_after_three_rounds() {
        let range = NodePorts::default();
        let mut stored = PortSet::new(range);
        stored.insert(30005);
        stored.insert(30006);
        let mut leaks = BTreeMap::new();
        for round in 0..3 {
            let (ports, _) = rebuilt(range, &stored, &[], &mut leaks);
            assert!(ports.contains(30005), "{round}");
            stored = ports;
        }
        // One that a service has by now was never lost.
        let late = [service("late", &[30006])];
        let (ports, findings) = rebuilt(range, &stored, &late, &mut leaks);
        assert!(!ports.contains(30005) && ports.contains(30006) && findings.is_empty());
        assert!(leaks.is_empty());
    }
}
