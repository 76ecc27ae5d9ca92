use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

use jiff::Timestamp;

use crate::model::{Address, Changes, Frontends, ServiceName, Warning};

/// As many warnings wait for a sync that succeeds.
const MAX_WARNINGS: usize = 64;

/// What changes ask for besides rules. It is owed until a sync succeeds, however many fail before;
/// bounded by the services that there are or were since.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// Flows of UDP are to be looked at.
    pub(super) udp: bool,
    /// Where clients reached UDP ports that may be gone.
    gone: BTreeSet<(Vec<Address>, Option<u16>)>,
    triggers: BTreeMap<ServiceName, Timestamp>,
    warnings: Vec<Warning>,
}

impl Owed {
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

    /// Flows were looked at.
    pub(super) fn end_flows(&mut self) {
        self.udp = false;
        self.gone.clear();
    }

    /// The rest, for others to tell.
    pub(super) fn tell(&mut self) -> (BTreeMap<ServiceName, Timestamp>, Vec<Warning>) {
        (take(&mut self.triggers), take(&mut self.warnings))
    }
}
