//! Relays and their rules as a tracker has it: what [`crate::proxier`] is for the iptables mode.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tracing::warn;

use super::{Portal, Protocol, ServicePort, Settings, Userspace};
use crate::Family;
use crate::apply::Iptables;
use crate::model::{self, Cidr, Endpoint, PortView, State, Tracker};
use crate::proxier::{Failed, Rules, Synced};

/// The services of one family and the relays that follow them.
#[derive(Debug)]
pub struct Relays {
    iptables: Iptables,
    tracker: Mutex<Tracker>,
    relays: tokio::sync::Mutex<Userspace>,
    changes: Notify,
}

impl Relays {
    /// Relays for the family of `tracker`, which `iptables` and `settings` must be for too.
    pub fn new(tracker: Tracker, iptables: Iptables, settings: Settings) -> Self {
        Self {
            iptables,
            tracker: Mutex::new(tracker),
            relays: tokio::sync::Mutex::new(Userspace::new(settings)),
            changes: Notify::new(),
        }
    }

    /// Whose rules.
    pub fn family(&self) -> Family {
        self.iptables.family()
    }

    /// Notified whenever there is something to sync.
    pub fn changes(&self) -> &Notify {
        &self.changes
    }

    /// Applies an event to the tracker; returns whether there is something to sync.
    pub fn update(&self, event: impl FnOnce(&mut Tracker) -> bool) -> bool {
        let changed = event(&mut self.tracker());
        if changed {
            self.changes.notify_one();
        }
        changed
    }

    /// Syncs relays and rules with the tracker. All rules are written each time. A relay that cannot
    /// be opened is logged, and tried again with the next sync.
    pub async fn sync(&self) -> Result<Synced, Failed> {
        let (family, began) = (self.family(), Instant::now());
        let mut relays = self.relays.lock().await;
        let (changes, ports) = {
            let mut tracker = self.tracker();
            let changes = tracker.take_changes();
            (changes, service_ports(tracker.state()))
        };
        for error in relays.set(ports) {
            warn!(%family, %error, "cannot open a relay for a service");
        }
        let failed = |source| Failed { family, full: true, duration: began.elapsed(), source };
        relays.apply(&self.iptables).await.map_err(failed)?;
        Ok(Synced {
            family,
            full: true,
            began,
            duration: began.elapsed(),
            at: Timestamp::now(),
            filter: Rules::default(),
            nat: Rules::default(),
            services: changes.services.len(),
            endpoints: changes.services.len(),
            no_local_endpoints: self.tracker().state().no_local_endpoints(),
            triggers: changes.triggers.into_iter().collect(),
            warnings: changes.warnings,
            stale_flows: 0,
            flows_duration: None,
        })
    }

    fn tracker(&self) -> MutexGuard<'_, Tracker> {
        self.tracker.lock()
    }
}

/// The ports of all services that a relay can carry: SCTP is none of this mode.
pub(super) fn service_ports(state: &State) -> Vec<ServicePort> {
    let ports = state.services().flat_map(|service| service.ports());
    ports.filter_map(|port| service_port(&port)).collect()
}

fn service_port(view: &PortView<'_>) -> Option<ServicePort> {
    let protocol = match view.port.protocol {
        model::Protocol::Tcp => Protocol::Tcp,
        model::Protocol::Udp => Protocol::Udp,
        model::Protocol::Sctp => return None,
    };
    let spec = view.spec;
    let portal = |address: &IpAddr, external, sources: &[Cidr]| Portal {
        address: *address,
        external,
        sources: sources.to_vec(),
    };
    let own = [portal(&spec.cluster_ip, false, &[])];
    let balanced = spec.load_balancer_ips.iter().map(|ip| portal(ip, false, &spec.source_ranges));
    let external = spec.external_ips.iter().map(|ip| portal(ip, true, &[]));
    let portals = own.into_iter().chain(balanced).chain(external).collect();
    let socket = |endpoint: &Endpoint| SocketAddr::new(endpoint.address.ip, endpoint.address.port);
    Some(ServicePort {
        name: view.to_string(),
        protocol,
        portals,
        port: view.port.port,
        node_port: view.port.node_port,
        affinity: spec.affinity.map(|seconds| Duration::from_secs(seconds.into())),
        endpoints: view.endpoints.iter().filter(|it| it.is_reachable()).map(socket).collect(),
    })
}
