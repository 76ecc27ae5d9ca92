use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use super::{Service, ServiceName, Warning};

/// With more endpoints than this, rules go without comments: the kernel holds them for each rule.
const LARGE: usize = 1000;

/// All services of one family and their endpoints: what the kernel is to follow.
#[derive(Debug, Clone, Default)]
pub struct State {
    services: BTreeMap<ServiceName, Arc<Service>>,
    endpoints: usize,
}

impl State {
    /// All services in the order of their names.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.values()
    }

    /// One service.
    pub fn service(&self, name: &ServiceName) -> Option<&Arc<Service>> {
        self.services.get(name)
    }

    /// How many endpoints all ports of all services have.
    pub fn endpoints(&self) -> usize {
        self.endpoints
    }

    /// Whether there are so many endpoints that rules go without comments.
    pub fn is_large(&self) -> bool {
        self.endpoints > LARGE
    }

    /// Sets or removes a service; what it was before.
    pub(super) fn set(
        &mut self,
        name: &ServiceName,
        service: Option<Arc<Service>>,
    ) -> Option<Arc<Service>> {
        self.endpoints += service.as_deref().map_or(0, count);
        let before = match service {
            Some(service) => self.services.insert(name.clone(), service),
            None => self.services.remove(name),
        };
        self.endpoints -= before.as_deref().map_or(0, count);
        before
    }
}

fn count(service: &Service) -> usize {
    service.endpoints.iter().map(|endpoints| endpoints.len()).sum()
}

/// A service before and after.
#[derive(Debug, Clone)]
pub struct Change {
    /// As it was at the last [`Tracker::take_changes`](super::Tracker::take_changes); none when it is new.
    pub before: Option<Arc<Service>>,
    /// As it is; none when it is gone.
    pub after: Option<Arc<Service>>,
}

/// What happened since the last [`Tracker::take_changes`](super::Tracker::take_changes).
#[derive(Debug, Default)]
pub struct Changes {
    /// The services that changed, in the order of their names.
    pub services: Vec<Change>,
    /// The rules of services that did not change are other ones too: only a full sync will do.
    pub everything: bool,
    /// A service with a UDP port changed: flows that the kernel keeps may be stale.
    pub udp: bool,
    /// The oldest trigger time of each service that changed.
    pub triggers: Vec<(ServiceName, Timestamp)>,
    /// What was left out of objects that changed, and why.
    pub warnings: Vec<Warning>,
}
