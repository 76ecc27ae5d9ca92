//! The proxier of one family: rules, or relays with rules that redirect to them.

use std::collections::BTreeMap;

use longshore_proxy::Family;
use longshore_proxy::bounded_frequency::Reason;
use longshore_proxy::model::{HealthCheck, ServiceName, Tracker};
use longshore_proxy::proxier::{Failed, Proxier, Synced};
use longshore_proxy::render::Settings;
use longshore_proxy::userspace::Relays;
use tokio::sync::Notify;

/// The modes that there are.
#[derive(Debug)]
pub(super) enum Engine {
    IpTables(Box<Proxier>),
    Userspace(Box<Relays>),
}

impl Engine {
    pub(super) fn family(&self) -> Family {
        match self {
            Self::IpTables(proxier) => proxier.family(),
            Self::Userspace(relays) => relays.family(),
        }
    }

    /// Notified whenever there is something to sync.
    pub(super) fn changes(&self) -> &Notify {
        match self {
            Self::IpTables(proxier) => proxier.changes(),
            Self::Userspace(relays) => relays.changes(),
        }
    }

    /// Applies an event; returns whether there is something to sync.
    pub(super) fn update(&self, event: impl FnOnce(&mut Tracker) -> bool) -> bool {
        match self {
            Self::IpTables(proxier) => proxier.update(event),
            Self::Userspace(relays) => relays.update(event),
        }
    }

    /// Tables were flushed.
    pub(super) fn resync(&self) {
        match self {
            Self::IpTables(proxier) => proxier.resync(),
            // each sync writes all
            Self::Userspace(relays) => relays.changes().notify_one(),
        }
    }

    /// The rules depend on something else now.
    pub(super) fn set_settings(&self, settings: Settings) {
        match self {
            Self::IpTables(proxier) => proxier.set_settings(settings),
            Self::Userspace(_) => {}
        }
    }

    pub(super) async fn sync(&self, reason: Reason) -> Result<Synced, Failed> {
        match self {
            Self::IpTables(proxier) => proxier.sync(reason).await,
            Self::Userspace(relays) => relays.sync().await,
        }
    }

    /// The services that have a health-check port, as of the last sync. The userspace mode has
    /// none: what it relays has lost its source, whatever the policy.
    pub(super) fn health_checks(&self) -> BTreeMap<ServiceName, HealthCheck> {
        match self {
            Self::IpTables(proxier) => proxier.health_checks(),
            Self::Userspace(_) => BTreeMap::new(),
        }
    }
}
