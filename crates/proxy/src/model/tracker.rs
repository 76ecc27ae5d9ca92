use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::service::Spec;
use super::slice::{self, Slice};
use super::warnings::WarningCollector;
use super::{Change, Changes, Family, Protocol, Service, ServiceName, State, Warning};

/// Names the service that a slice belongs to.
pub(super) const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// On services that another proxy serves.
const OTHER_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// On slices of headless services.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// All labels that are used.
pub(super) const LABELS: [&str; 3] = [SERVICE_LABEL, OTHER_PROXY_LABEL, HEADLESS_LABEL];
/// The annotation of slices with the trigger time.
pub(super) const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// The node, to which endpoints are near or not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// Its zone, from the label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
}

/// Slices are named as services are.
type SliceName = ServiceName;

/// What was read of the objects of one service.
#[derive(Debug, Default)]
struct Objects {
    spec: Option<Listed<Arc<Spec>>>,
    /// By their names. Nearly all services have one: no tree for it.
    slices: Vec<(SliceName, Listed<Slice>)>,
    trigger: Option<Timestamp>,
}

/// An object with the number of the last list or watch that had it.
#[derive(Debug)]
struct Listed<T> {
    what: T,
    list: u32,
}

/// Tracks services and slices of one family. Updates take effect from the next
/// [`Tracker::take_changes`] on.
#[derive(Debug)]
pub struct Tracker {
    family: Family,
    node: Node,
    started: Timestamp,
    external_ips: bool,
    objects: BTreeMap<ServiceName, Objects>,
    /// The service of each slice: labels can change.
    owners: BTreeMap<SliceName, ServiceName>,
    dirty: BTreeSet<ServiceName>,
    warnings: Vec<Warning>,
    state: State,
    lists: Lists,
}

/// The numbers of the lists in progress: services and slices are listed at the same time.
#[derive(Debug, Default)]
struct Lists {
    services: u32,
    slices: u32,
}

impl Tracker {
    /// An empty tracker. Changes that were triggered before `started` are not measured.
    pub fn new(family: Family, node: Node, started: Timestamp) -> Self {
        Self {
            family,
            node,
            started,
            external_ips: true,
            objects: BTreeMap::new(),
            owners: BTreeMap::new(),
            dirty: BTreeSet::new(),
            warnings: Vec::new(),
            state: State::default(),
            lists: Lists::default(),
        }
    }

    /// Whether `externalIPs` of services are used: the feature gate `AllowServiceExternalIPs`.
    #[must_use]
    pub fn with_external_ips(mut self, used: bool) -> Self {
        self.external_ips = used;
        self
    }

    /// The family that it follows.
    pub fn family(&self) -> Family {
        self.family
    }

    /// What is to be in the kernel, as of the last [`Tracker::take_changes`].
    pub fn state(&self) -> &State {
        &self.state
    }

    /// A service was added or changed. Whether there is something to do.
    pub fn apply_service(&mut self, service: &core::Service) -> bool {
        let Some(name) = object_name(&service.metadata).map(|name| self.known(name)) else {
            return false;
        };
        if has_label(&service.metadata, OTHER_PROXY_LABEL) {
            return self.delete_service(&name);
        }
        let mut collector = WarningCollector::about("Service", &name.namespace, &name.name);
        let Some(mut spec) = Spec::read(&name, service, self.family, &mut collector) else {
            collector.report(&mut self.warnings);
            return self.delete_service(&name);
        };
        if !self.external_ips {
            spec.external_ips.clear();
        }
        let list = self.lists.services;
        let objects = self.objects.entry(name.clone()).or_default();
        match &mut objects.spec {
            Some(seen) if *seen.what == spec => {
                seen.list = list;
                false
            }
            old => {
                *old = Some(Listed { what: Arc::new(spec), list });
                collector.report(&mut self.warnings);
                self.dirty.insert(name);
                true
            }
        }
    }

    /// A service is gone. Whether there is something to do.
    pub fn delete_service(&mut self, name: &ServiceName) -> bool {
        let known = self.objects.get_mut(name).is_some_and(|objects| objects.spec.take().is_some());
        if known {
            self.dirty.insert(name.clone());
            self.forget_empty(name);
        }
        known
    }

    /// A service cannot be decoded: the last one stays. Returns false, as nothing is to be synced.
    pub fn keep_service(&mut self, name: &ServiceName) -> bool {
        let list = self.lists.services;
        let known = self.objects.get_mut(name).and_then(|objects| objects.spec.as_mut());
        known.into_iter().for_each(|seen| seen.list = list);
        false
    }

    /// A slice was added or changed. Whether there is something to do.
    pub fn apply_slice(&mut self, slice: &discovery::EndpointSlice) -> bool {
        let metadata = &slice.metadata;
        let (Some(slice_name), Some(service)) = (object_name(metadata), service_of(metadata))
        else {
            return self.delete_slice(slice);
        };
        let mut collector =
            WarningCollector::about("EndpointSlice", &slice_name.namespace, &slice_name.name);
        let Some(read) = Slice::read(slice, self.family, &self.node, &mut collector) else {
            return false;
        };
        let service = self.known(service);
        let moved = self.owners.get(&slice_name).is_some_and(|owner| *owner != service)
            && self.remove_slice(&slice_name);
        let objects = self.objects.entry(service.clone()).or_default();
        let at = objects.slices.binary_search_by(|(name, _)| name.cmp(&slice_name));
        let seen = Listed { what: read, list: self.lists.slices };
        match at {
            Ok(at) if objects.slices[at].1.what == seen.what => {
                objects.slices[at].1.list = seen.list;
                return moved;
            }
            Ok(at) => objects.slices[at].1 = seen,
            Err(at) => {
                objects.slices.reserve_exact(1);
                objects.slices.insert(at, (slice_name.clone(), seen));
                self.owners.insert(slice_name.clone(), service.clone());
            }
        }
        if let Some(trigger) = trigger_time(metadata).filter(|at| *at > self.started) {
            objects.trigger = Some(objects.trigger.map_or(trigger, |oldest| oldest.min(trigger)));
        }
        collector.report(&mut self.warnings);
        self.mark(service) | moved
    }

    /// A slice is gone. Whether there is something to do.
    pub fn delete_slice(&mut self, slice: &discovery::EndpointSlice) -> bool {
        object_name(&slice.metadata).is_some_and(|name| self.remove_slice(&name))
    }

    /// A slice cannot be decoded: the last one stays. Returns false, as nothing is to be synced.
    pub fn keep_slice(&mut self, slice: &ServiceName) -> bool {
        let list = self.lists.slices;
        let objects = self.owners.get(slice).and_then(|owner| self.objects.get_mut(owner));
        if let Some(objects) = objects
            && let Ok(at) = objects.slices.binary_search_by(|(name, _)| name.cmp(slice))
        {
            objects.slices[at].1.list = list;
        }
        false
    }

    /// Endpoints cannot be decoded: the last ones stay. Returns false, as nothing is to be synced.
    pub fn keep_endpoints(&mut self, service: &ServiceName) -> bool {
        let list = self.lists.slices;
        let slices = self.objects.get_mut(service).into_iter().flat_map(|o| &mut o.slices);
        slices.for_each(|(_, seen)| seen.list = list);
        false
    }

    /// Endpoints were added or changed, in a cluster without slices. Whether there is something
    /// to do.
    pub fn apply_endpoints(&mut self, endpoints: &core::Endpoints) -> bool {
        let Some(service) = object_name(&endpoints.metadata) else { return false };
        let slices = slice::from_endpoints(endpoints);
        let mut gone: BTreeSet<_> = self.slices_of(&service).into_iter().collect();
        let mut changed = false;
        for slice in &slices {
            object_name(&slice.metadata).map(|name| gone.remove(&name));
            changed |= self.apply_slice(slice);
        }
        gone.iter().fold(changed, |changed, name| self.remove_slice(name) | changed)
    }

    /// Endpoints are gone, in a cluster without slices. Whether there is something to do.
    pub fn delete_endpoints(&mut self, service: &ServiceName) -> bool {
        let gone = self.slices_of(service);
        gone.iter().fold(false, |changed, name| self.remove_slice(name) | changed)
    }

    /// A list of services begins.
    pub fn begin_list_services(&mut self) {
        self.lists.services = self.lists.services.wrapping_add(1);
    }

    /// The list since [`Tracker::begin_list_services`] is complete: other services are gone. Whether
    /// there is something to do.
    pub fn end_list_services(&mut self) -> bool {
        let list = self.lists.services;
        let old = |objects: &Objects| objects.spec.as_ref().is_some_and(|seen| seen.list != list);
        let gone: Vec<_> =
            self.objects.iter().filter(|(_, o)| old(o)).map(|(name, _)| name.clone()).collect();
        gone.iter().fold(false, |changed, name| self.delete_service(name) | changed)
    }

    /// A list of slices (or endpoints) begins.
    pub fn begin_list_slices(&mut self) {
        self.lists.slices = self.lists.slices.wrapping_add(1);
    }

    /// The list since [`Tracker::begin_list_slices`] is complete: other slices (or endpoints) are gone.
    /// Whether there is something to do.
    pub fn end_list_slices(&mut self) -> bool {
        let list = self.lists.slices;
        let mut services = Vec::new();
        for (service, objects) in &mut self.objects {
            let before = objects.slices.len();
            objects.slices.retain(|(name, seen)| {
                let stays = seen.list == list;
                if !stays {
                    self.owners.remove(name);
                }
                stays
            });
            if objects.slices.len() < before {
                objects.trigger = None;
                services.push(service.clone());
            }
        }
        services.into_iter().fold(false, |changed, service| {
            self.forget_empty(&service);
            self.mark(service) | changed
        })
    }

    /// The zone of the node is another one. Whether there is something to do.
    pub fn set_zone(&mut self, zone: Option<&str>) -> bool {
        if self.node.zone.as_deref() == zone {
            return false;
        }
        self.node.zone = zone.map(str::to_owned);
        self.dirty.extend(self.state.services().map(|service| service.spec.name.clone()));
        true
    }

    /// Takes what changed since the last time, and moves [`Tracker::state`] there.
    pub fn take_changes(&mut self) -> Changes {
        let was_large = self.state.is_large();
        let mut changes = Changes::default();
        for name in std::mem::take(&mut self.dirty) {
            let trigger = self.objects.get_mut(&name).and_then(|objects| objects.trigger.take());
            let after = self.build(&name);
            if self.state.service(&name) == after.as_ref() {
                continue;
            }
            changes.triggers.extend(trigger.map(|trigger| (name.clone(), trigger)));
            let before = self.state.set(&name, after.clone());
            let udp = |service: &Option<Arc<Service>>| {
                let mut ports = service.iter().flat_map(|service| &service.spec.ports);
                ports.any(|port| port.protocol == Protocol::Udp)
            };
            changes.udp |= udp(&before) || udp(&after);
            changes.services.push(Change { before, after });
        }
        changes.everything = was_large != self.state.is_large();
        changes.warnings = std::mem::take(&mut self.warnings);
        changes
    }

    /// Whether it remembers nothing at all.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.owners.is_empty() && self.dirty.is_empty()
    }

    fn build(&mut self, name: &ServiceName) -> Option<Arc<Service>> {
        let objects = self.objects.get(name)?;
        let spec = &objects.spec.as_ref()?.what;
        let mut collector = WarningCollector::about("Service", &name.namespace, &name.name);
        let slices = objects.slices.iter().map(|(_, seen)| &seen.what);
        let endpoints = slice::merge(spec, slices, self.node.zone.as_deref(), &mut collector);
        collector.report(&mut self.warnings);
        Some(Arc::new(Service { spec: spec.clone(), endpoints }))
    }

    fn remove_slice(&mut self, slice: &SliceName) -> bool {
        let Some(service) = self.owners.remove(slice) else { return false };
        if let Some(objects) = self.objects.get_mut(&service) {
            if let Ok(at) = objects.slices.binary_search_by(|(name, _)| name.cmp(slice)) {
                objects.slices.remove(at);
            }
            // the annotation is of the last change, not of this removal
            objects.trigger = None;
        }
        self.forget_empty(&service);
        self.mark(service)
    }

    /// Endpoints of a service changed. Nothing to do while there is no such service: a sync now
    /// would only delay the one that is wanted when it comes.
    fn mark(&mut self, service: ServiceName) -> bool {
        let known = self.objects.get(&service).is_some_and(|objects| objects.spec.is_some());
        if known {
            self.dirty.insert(service);
        }
        known
    }

    fn slices_of(&self, service: &ServiceName) -> Vec<SliceName> {
        let slices = self.objects.get(service).into_iter().flat_map(|objects| &objects.slices);
        slices.map(|(name, _)| name.clone()).collect()
    }

    /// The same name, sharing its memory with what is here already.
    fn known(&self, name: ServiceName) -> ServiceName {
        self.objects.get_key_value(&name).map_or(name, |(known, _)| known.clone())
    }

    fn forget_empty(&mut self, name: &ServiceName) {
        let empty = |objects: &Objects| objects.spec.is_none() && objects.slices.is_empty();
        if self.objects.get(name).is_some_and(empty) {
            self.objects.remove(name);
        }
    }
}

fn object_name(metadata: &ObjectMeta) -> Option<ServiceName> {
    Some(ServiceName::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?))
}

fn has_label(metadata: &ObjectMeta, label: &str) -> bool {
    metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(label))
}

/// The service of a slice; none when it has none, or one that has no rules.
fn service_of(metadata: &ObjectMeta) -> Option<ServiceName> {
    if has_label(metadata, HEADLESS_LABEL) || has_label(metadata, OTHER_PROXY_LABEL) {
        return None;
    }
    let name = metadata.labels.as_ref()?.get(SERVICE_LABEL).filter(|name| !name.is_empty())?;
    Some(ServiceName::new(metadata.namespace.as_deref()?, name))
}

fn trigger_time(metadata: &ObjectMeta) -> Option<Timestamp> {
    metadata.annotations.as_ref()?.get(TRIGGER_ANNOTATION)?.parse().ok()
}
