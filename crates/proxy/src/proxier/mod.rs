//! kube-proxy in iptables mode for one family: services and endpoints go in ([`Proxier::update`]),
//! and [`Proxier::sync`] writes the rules. `bounded_frequency` says when, the flush detection
//! ([`crate::apply::watch`]) requests a full sync ([`Proxier::resync`]). What a sync did is reported
//! as data ([`Synced`]): metrics, events and health checks are the daemon's.

mod pending;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tracing::{debug, warn};

use crate::Family;
use crate::apply::{self, Iptables};
use crate::bounded_frequency::Reason;
use crate::conntrack::{self, StaleFlows, UdpPort};
use crate::model::{
    Address, Change, Frontends, HealthCheck, NoLocalEndpoints, Service, ServiceName, State,
    Tracker, Warning,
};
use crate::render::{Existing, Full, NodePorts, Partial, Settings, Stale, Totals, partial};
use pending::PendingWork;

/// After this long everything is compared even while changes keep coming, but for large clusters.
const FULL_PERIOD: Duration = Duration::from_secs(3600);
/// While nothing changes everything is compared again when a full sync took at most one part in so
/// many of the time since: a single rule may have been deleted, which no canary shows.
const FULL_SHARE: u32 = 1000;
/// In large clusters as many chains may be left before they are removed between changes: it takes
/// ten times as long as to write them.
const MAX_STALE: usize = 500;
/// Lines of `iptables-save` that are read before others may run.
const LINES: usize = 4096;

/// The services of one family and the rules that follow them. Events and syncs do not wait for each
/// other.
#[derive(Debug)]
pub struct Proxier {
    iptables: Iptables,
    desired: Mutex<Desired>,
    applied: tokio::sync::Mutex<Applied>,
    changes: Notify,
}

/// What is to be in the kernel.
#[derive(Debug)]
struct Desired {
    tracker: Tracker,
    settings: Arc<Settings>,
    /// The number of requests for a full sync.
    requested: u64,
}

/// What is in the kernel.
#[derive(Debug, Default)]
struct Applied {
    /// [`Desired::requested`] as of the last sync. None before the first, after a failure and during a
    /// sync, when the state of the kernel is unknown.
    done: Option<u64>,
    full: Option<LastFull>,
    totals: Totals,
    stale: Stale,
    pending: PendingWork,
}

#[derive(Clone, Copy, Debug)]
struct LastFull {
    ended: Instant,
    duration: Duration,
}

/// What a sync is to write.
enum Work {
    Full(State),
    Partial(Partial),
}

/// What a sync is about.
struct Plan {
    work: Work,
    settings: Arc<Settings>,
    requested: u64,
    large: bool,
    services: usize,
    endpoints: usize,
}

/// The rules of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How many there are now, without those of built-in chains.
    pub total: usize,
    /// How many the sync wrote or took out.
    pub written: usize,
}

/// A sync that succeeded.
#[derive(Debug)]
pub struct Synced {
    /// Whose rules.
    pub family: Family,
    /// Whether all rules were compared, not only those of what changed.
    pub full: bool,
    /// When it began: later changes are for the next.
    pub began: Instant,
    /// How long it took until the rules were in place.
    pub duration: Duration,
    /// When they were.
    pub at: Timestamp,
    /// Table filter.
    pub filter: Rules,
    /// Table nat.
    pub nat: Rules,
    /// Services that changed themselves, came or went.
    pub services: usize,
    /// Services of which the endpoints changed, came or went.
    pub endpoints: usize,
    /// Ports that have endpoints on other nodes only.
    pub no_local_endpoints: NoLocalEndpoints,
    /// What the rules now follow, by service: when it happened. For the latency of all of it.
    pub triggers: BTreeMap<ServiceName, Timestamp>,
    /// What was left out of objects that changed; for events.
    pub warnings: Vec<Warning>,
    /// Flows of UDP that were deleted.
    pub stale_flows: usize,
    /// How long the check of all flows took; none if no change required it.
    pub flows_duration: Option<Duration>,
}

/// A sync that failed; the next is full.
#[derive(Debug, thiserror::Error)]
#[error("{} sync of {family} rules: {source}", if *.full { "full" } else { "partial" })]
pub struct Failed {
    /// Whose rules.
    pub family: Family,
    /// Whether all rules were compared, not only those of what changed.
    pub full: bool,
    /// How long it took to fail.
    pub duration: Duration,
    /// Why.
    pub source: apply::Error,
}

impl Proxier {
    /// Rules of the family of `tracker`, which `iptables` and `settings` must be for too.
    pub fn new(tracker: Tracker, iptables: Iptables, settings: Settings) -> Self {
        Self {
            iptables,
            desired: Mutex::new(Desired { tracker, settings: settings.into(), requested: 0 }),
            applied: Default::default(),
            changes: Notify::new(),
        }
    }

    /// Whose rules.
    pub fn family(&self) -> Family {
        self.iptables.family()
    }

    /// Notified whenever there is something to sync, for [`crate::bounded_frequency::run`].
    pub fn changes(&self) -> &Notify {
        &self.changes
    }

    /// Applies an event to the tracker; returns whether there is something to sync. To take
    /// its changes is for [`Proxier::sync`] alone.
    pub fn update(&self, event: impl FnOnce(&mut Tracker) -> bool) -> bool {
        let changed = event(&mut self.desired().tracker);
        if changed {
            self.changes.notify_one();
        }
        changed
    }

    /// The rules depend on something else now.
    pub fn set_settings(&self, settings: Settings) {
        let mut desired = self.desired();
        if *desired.settings != settings {
            desired.settings = settings.into();
            drop(desired);
            self.resync();
        }
    }

    /// Our rules may have been changed: the next sync is a full one.
    pub fn resync(&self) {
        let mut desired = self.desired();
        desired.requested = desired.requested.wrapping_add(1);
        drop(desired);
        self.changes.notify_one();
    }

    /// The services that have a health-check port, as of the last sync.
    pub fn health_checks(&self) -> BTreeMap<ServiceName, HealthCheck> {
        self.desired().tracker.state().health_checks()
    }

    /// Syncs the rules with the tracker. Not before the first lists are complete: rules of what is
    /// not there are removed.
    pub async fn sync(&self, reason: Reason) -> Result<Synced, Failed> {
        let family = self.family();
        let mut applied = self.applied.lock().await;
        let began = Instant::now();
        let plan = self.plan(&mut applied, reason);
        let full = matches!(plan.work, Work::Full(_));
        let written = self.write(&plan, &mut applied).await;
        let duration = began.elapsed();
        let (filter, nat) = written.map_err(|source| Failed { family, full, duration, source })?;
        let at = Timestamp::now();
        if full {
            applied.full = Some(LastFull { ended: Instant::now(), duration });
        }
        // First the rules: a flow that is deleted before would be set up again as it was.
        let started = Instant::now();
        let flows = self.delete_stale_flows(&mut applied.pending, &plan.settings).await;
        let flows_duration = flows.map(|_| started.elapsed());
        if !plan.large || full || reason == Reason::Period || applied.stale.len() > MAX_STALE {
            self.remove(&mut applied.stale).await;
        }
        // Last: chains of a sync that is given up before are found by a full one only.
        applied.done = Some(plan.requested);
        let Plan { services, endpoints, .. } = plan;
        debug!(%family, full, ?duration, services, endpoints, ?filter, ?nat, "rules are in sync");
        let (triggers, warnings) = applied.pending.take_reports();
        let no_local_endpoints = self.desired().tracker.state().no_local_endpoints();
        Ok(Synced {
            family,
            full,
            began,
            duration,
            at,
            filter,
            nat,
            services,
            endpoints,
            no_local_endpoints,
            triggers,
            warnings,
            stale_flows: flows.unwrap_or(0),
            flows_duration,
        })
    }

    /// Takes what changed, and decides how it is to be written.
    fn plan(&self, applied: &mut Applied, reason: Reason) -> Plan {
        let mut desired = self.desired();
        let changes = desired.tracker.take_changes();
        let Desired { tracker, settings, requested } = &*desired;
        let (state, large) = (tracker.state(), tracker.state().is_large());
        let full = applied.done.take() != Some(*requested)
            || changes.everything
            || applied.full.is_none_or(|full| full.is_old(full.ended.elapsed(), reason, large));
        let work = if full {
            Work::Full(state.clone())
        } else {
            Work::Partial(partial(state, &changes.services, settings))
        };
        let changed = |same: fn(&Service, &Service) -> bool| {
            let of = |change: &&Change| match (&change.before, &change.after) {
                (Some(before), Some(after)) => !same(before, after),
                _ => true,
            };
            changes.services.iter().filter(of).count()
        };
        let services = changed(|before, after| before.spec == after.spec);
        let endpoints = changed(|before, after| {
            before.ports().map(|it| it.endpoints).eq(after.ports().map(|it| it.endpoints))
        });
        applied.pending.add(changes);
        Plan { work, settings: settings.clone(), requested: *requested, large, services, endpoints }
    }

    async fn write(
        &self,
        plan: &Plan,
        applied: &mut Applied,
    ) -> Result<(Rules, Rules), apply::Error> {
        let Totals { filter, nat, filter_written, nat_written } = match &plan.work {
            Work::Full(state) => {
                let existing = self.existing().await?;
                let mut full = Full::new(state, &plan.settings, &existing);
                for text in full.by_ref() {
                    self.iptables.restore(&text, false).await?;
                }
                let (totals, stale) = full.finish();
                applied.stale = stale;
                totals
            }
            Work::Partial(partial) => {
                for text in &partial.transactions {
                    self.iptables.restore(text, false).await?;
                }
                applied.stale.follow(partial);
                Totals {
                    filter: applied.totals.filter.saturating_add_signed(partial.filter_growth),
                    nat: applied.totals.nat.saturating_add_signed(partial.nat_growth),
                    filter_written: partial.filter_written,
                    nat_written: partial.nat_written,
                }
            }
        };
        applied.totals = Totals { filter, nat, ..Totals::default() };
        let rules = |total, written| Rules { total, written };
        Ok((rules(filter, filter_written), rules(nat, nat_written)))
    }

    /// Reads what the kernel has.
    async fn existing(&self) -> Result<Existing, apply::Error> {
        let mut existing = Existing::default();
        for table in [apply::Table::Filter, apply::Table::Nat] {
            let text = self.iptables.save(table).await?;
            for (at, line) in text.lines().enumerate() {
                existing.read_line(line);
                if at % LINES == LINES - 1 {
                    yield_now().await;
                }
            }
        }
        Ok(existing)
    }

    /// Deletes stale flows; returns how many, if they were checked. The rules are in place
    /// whether that fails or not; then it is done with the next sync.
    async fn delete_stale_flows(
        &self,
        pending: &mut PendingWork,
        settings: &Settings,
    ) -> Option<usize> {
        if !pending.udp {
            return None;
        }
        let family = self.family();
        let current = self.desired().tracker.state().udp();
        // The current ones last: they count more.
        let ports = pending.gone().chain(current).map(UdpPort::from);
        match conntrack::reconcile(family, &StaleFlows::new(ports, addresses(settings))).await {
            Ok(count) => {
                pending.delete_stale_flows();
                Some(count)
            }
            Err(error) => {
                warn!(%family, %error, "cannot delete stale UDP flows");
                None
            }
        }
    }

    /// Deletes unused chains. One that foreign rules refer to stays until the next
    /// full sync, and does no harm.
    async fn remove(&self, stale: &mut Stale) {
        for text in stale.take() {
            if let Err(error) = self.iptables.restore(&text, false).await {
                warn!(family = %self.family(), %error, "cannot delete unused chains");
            }
        }
    }

    fn desired(&self) -> MutexGuard<'_, Desired> {
        self.desired.lock()
    }
}

impl LastFull {
    /// Whether it is time for another.
    fn is_old(&self, elapsed: Duration, reason: Reason, large: bool) -> bool {
        let idle = reason == Reason::Period && elapsed >= self.duration.saturating_mul(FULL_SHARE);
        idle || (elapsed >= FULL_PERIOD && !large)
    }
}

/// The addresses at which node ports are served; none is all.
fn addresses(settings: &Settings) -> impl Iterator<Item = IpAddr> {
    let addresses = match &settings.node_ports {
        NodePorts::All => None,
        NodePorts::Addresses(addresses) => Some(addresses),
    };
    addresses.into_iter().flatten().copied()
}

impl From<Frontends> for UdpPort {
    fn from(frontends: Frontends) -> Self {
        let Frontends { addresses, node_port, endpoints } = frontends;
        let socket = |Address { ip, port }| SocketAddr::new(ip, port);
        UdpPort {
            port: addresses.first().map_or(0, |address| address.port),
            addresses: addresses.into_iter().map(|address| address.ip).collect(),
            node_port,
            endpoints: endpoints.into_iter().map(socket).collect(),
        }
    }
}
