use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use jiff::Timestamp;

use crate::model::{Address, Changes, Frontends, ServiceName, Warning};

/// The most warnings kept until a sync succeeds.
const MAX_WARNINGS: usize = 64;

/// What changes require besides rules. It is kept until a sync succeeds; bounded by the services
/// that there are or were since.
#[derive(Debug, Default)]
pub(super) struct PendingWork {
    /// Flows of UDP are to be checked.
    pub(super) udp: bool,
    /// Where clients reached UDP ports that may be gone.
    gone: BTreeSet<(Vec<Address>, Option<u16>)>,
    triggers: BTreeMap<ServiceName, Timestamp>,
    warnings: Vec<Warning>,
}

impl PendingWork {
    pub(super) fn add(&mut self, changes: Changes) {
        self.udp |= changes.udp;
        let gone = changes.old_udp().into_iter();
        self.gone.extend(gone.map(|port| (port.addresses, port.node_port)));
        for (name, trigger) in changes.triggers {
            let oldest = self.triggers.entry(name).or_insert(trigger);
            *oldest = trigger.min(*oldest);
        }
        self.warnings.extend(changes.warnings);
        self.warnings.truncate(MAX_WARNINGS);
    }

    /// UDP ports that may be gone, without endpoints.
    pub(super) fn gone(&self) -> impl Iterator<Item = Frontends> {
        self.gone.iter().cloned().map(|(addresses, node_port)| Frontends {
            addresses,
            node_port,
            endpoints: BTreeSet::new(),
        })
    }

    /// Flows were checked.
    pub(super) fn delete_stale_flows(&mut self) {
        self.udp = false;
        self.gone.clear();
    }

    /// Takes the triggers and warnings, to report them.
    pub(super) fn take_reports(&mut self) -> (BTreeMap<ServiceName, Timestamp>, Vec<Warning>) {
        (take(&mut self.triggers), take(&mut self.warnings))
    }
}
