use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::service::Spec;
use super::slice::{self, Slice};
use super::{Family, Protocol, Service, ServiceName};

/// Names the service that a slice belongs to.
pub(super) const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// On services that another proxy serves.
const OTHER_PROXY_LABEL: &str = "service.kubernetes.io/service-proxy-name";
/// On slices of headless services.
const HEADLESS_LABEL: &str = "service.kubernetes.io/headless";
/// When what an endpoint stands for changed, on slices.
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";
/// With more endpoints than this, rules go without comments: the kernel holds them for each rule.
const LARGE: usize = 1000;
/// As many warnings are kept between two looks at them.
const MAX_WARNINGS: usize = 64;

/// What endpoints are compared with to tell which are near.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Node {
    /// The node's name.
    pub name: String,
    /// Its zone, from the label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
}

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

    fn set(&mut self, name: &ServiceName, service: Option<Arc<Service>>) -> Option<Arc<Service>> {
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
    /// As it was at the last [`Tracker::take_changes`]; none when it is new.
    pub before: Option<Arc<Service>>,
    /// As it is; none when it is gone.
    pub after: Option<Arc<Service>>,
}

/// What happened since the last [`Tracker::take_changes`].
#[derive(Debug, Default)]
pub struct Changes {
    /// The services that changed, in the order of their names.
    pub services: Vec<Change>,
    /// The rules of services that did not change are other ones too: only a full sync will do.
    pub everything: bool,
    /// A service with a UDP port changed: flows that the kernel keeps may be stale.
    pub udp: bool,
    /// Of services that changed, the oldest moment at which what they stand for changed.
    pub triggers: Vec<(ServiceName, Timestamp)>,
    /// What was left out of objects that changed, and why.
    pub warnings: Vec<Warning>,
}

/// Something about an object that was left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The kind of the object: `Service` or `EndpointSlice`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The reason, for an event.
    pub reason: &'static str,
    /// What and why.
    pub message: String,
}

/// Complaints about one object: the first in full, of others how many there are.
pub(super) struct Complaints<'a> {
    kind: &'static str,
    namespace: &'a str,
    name: &'a str,
    first: Option<Warning>,
    more: usize,
}

impl<'a> Complaints<'a> {
    fn about(kind: &'static str, namespace: &'a str, name: &'a str) -> Self {
        Self { kind, namespace, name, first: None, more: 0 }
    }

    pub(super) fn add(&mut self, reason: &'static str, message: fmt::Arguments<'_>) {
        if self.first.is_some() {
            self.more += 1;
            return;
        }
        self.first = Some(Warning {
            kind: self.kind,
            namespace: self.namespace.to_owned(),
            name: self.name.to_owned(),
            reason,
            message: message.to_string(),
        });
    }

    fn tell(self, warnings: &mut Vec<Warning>) {
        let Some(mut warning) = self.first.filter(|_| warnings.len() < MAX_WARNINGS) else {
            return;
        };
        if self.more > 0 {
            warning.message.push_str(&format!(" (and {} more)", self.more));
        }
        warnings.push(warning);
    }
}

/// What was read of the objects of one service.
#[derive(Debug, Default)]
struct Objects {
    spec: Option<Seen<Arc<Spec>>>,
    slices: BTreeMap<Box<str>, Seen<Slice>>,
    trigger: Option<Timestamp>,
}

/// Something with the number of the list that last showed it.
#[derive(Debug)]
struct Seen<T> {
    what: T,
    list: u32,
}

/// Follows services and slices of one family. What it is told is used from the next
/// [`Tracker::take_changes`] on.
#[derive(Debug)]
pub struct Tracker {
    family: Family,
    node: Node,
    started: Timestamp,
    objects: BTreeMap<ServiceName, Objects>,
    /// The service of each slice, by namespace and name of the slice: labels can change.
    owners: BTreeMap<(Box<str>, Box<str>), ServiceName>,
    dirty: BTreeSet<ServiceName>,
    warnings: Vec<Warning>,
    state: State,
    list: u32,
}

impl Tracker {
    /// An empty tracker. Changes that were triggered before `started` are not measured.
    pub fn new(family: Family, node: Node, started: Timestamp) -> Self {
        Self {
            family,
            node,
            started,
            objects: BTreeMap::new(),
            owners: BTreeMap::new(),
            dirty: BTreeSet::new(),
            warnings: Vec::new(),
            state: State::default(),
            list: 0,
        }
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
        let Some(name) = object_name(&service.metadata) else { return false };
        if has_label(&service.metadata, OTHER_PROXY_LABEL) {
            return self.delete_service(&name);
        }
        let mut complaints = Complaints::about("Service", &name.namespace, &name.name);
        let Some(spec) = Spec::read(&name, service, self.family, &mut complaints) else {
            complaints.tell(&mut self.warnings);
            return self.delete_service(&name);
        };
        let list = self.list;
        let objects = self.objects.entry(name.clone()).or_default();
        match &mut objects.spec {
            Some(seen) if *seen.what == spec => {
                seen.list = list;
                false
            }
            old => {
                *old = Some(Seen { what: Arc::new(spec), list });
                complaints.tell(&mut self.warnings);
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

    /// A slice was added or changed. Whether there is something to do.
    pub fn apply_slice(&mut self, slice: &discovery::EndpointSlice) -> bool {
        let metadata = &slice.metadata;
        let (Some(slice_name), Some(service)) = (object_name(metadata), service_of(metadata))
        else {
            return self.delete_slice(slice);
        };
        let mut complaints =
            Complaints::about("EndpointSlice", &slice_name.namespace, &slice_name.name);
        let Some(read) = Slice::read(slice, self.family, &self.node, &mut complaints) else {
            return false;
        };
        let key = slice_key(&slice_name);
        let moved =
            self.owners.get(&key).is_some_and(|owner| *owner != service) && self.remove_slice(&key);
        if !self.owners.contains_key(&key) {
            self.owners.insert(key.clone(), service.clone());
        }
        let objects = self.objects.entry(service.clone()).or_default();
        if let Some(seen) = objects.slices.get_mut(&key.1)
            && seen.what == read
        {
            seen.list = self.list;
            return moved;
        }
        objects.slices.insert(key.1, Seen { what: read, list: self.list });
        if let Some(trigger) = trigger_time(metadata).filter(|at| *at > self.started) {
            objects.trigger = Some(objects.trigger.map_or(trigger, |oldest| oldest.min(trigger)));
        }
        complaints.tell(&mut self.warnings);
        self.dirty.insert(service);
        true
    }

    /// A slice is gone. Whether there is something to do.
    pub fn delete_slice(&mut self, slice: &discovery::EndpointSlice) -> bool {
        object_name(&slice.metadata).is_some_and(|name| self.remove_slice(&slice_key(&name)))
    }

    /// Endpoints were added or changed, in a cluster without slices. Whether there is something
    /// to do.
    pub fn apply_endpoints(&mut self, endpoints: &core::Endpoints) -> bool {
        let Some(service) = object_name(&endpoints.metadata) else { return false };
        let slices = slice::from_endpoints(endpoints);
        let mut gone = self.slice_keys(&service);
        let mut changed = false;
        for slice in &slices {
            gone.retain(|(_, name)| slice.metadata.name.as_deref() != Some(&**name));
            changed |= self.apply_slice(slice);
        }
        gone.iter().fold(changed, |changed, key| self.remove_slice(key) | changed)
    }

    /// Endpoints are gone, in a cluster without slices. Whether there is something to do.
    pub fn delete_endpoints(&mut self, service: &ServiceName) -> bool {
        let keys = self.slice_keys(service);
        keys.iter().fold(false, |changed, key| self.remove_slice(key) | changed)
    }

    /// A list of services, slices or endpoints begins: all of them are told again.
    pub fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
    }

    /// All services were told since [`Tracker::begin_list`]: others are gone. Whether there is
    /// something to do.
    pub fn end_list_services(&mut self) -> bool {
        let list = self.list;
        let old = |objects: &Objects| objects.spec.as_ref().is_some_and(|seen| seen.list != list);
        let gone: Vec<_> =
            self.objects.iter().filter(|(_, o)| old(o)).map(|(name, _)| name.clone()).collect();
        gone.iter().fold(false, |changed, name| self.delete_service(name) | changed)
    }

    /// All slices (or endpoints) were told since [`Tracker::begin_list`]: others are gone. Whether
    /// there is something to do.
    pub fn end_list_slices(&mut self) -> bool {
        let list = self.list;
        let mut gone = Vec::new();
        for (service, objects) in &self.objects {
            let old = objects.slices.iter().filter(|(_, seen)| seen.list != list);
            gone.extend(old.map(|(name, _)| ((*service.namespace).into(), name.clone())));
        }
        gone.iter().fold(false, |changed, key| self.remove_slice(key) | changed)
    }

    /// The zone of the node is another one. Whether there is something to do.
    pub fn set_zone(&mut self, zone: Option<&str>) -> bool {
        if self.node.zone.as_deref() == zone {
            return false;
        }
        self.node.zone = zone.map(str::to_owned);
        self.dirty.extend(self.state.services.keys().cloned());
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
        let mut complaints = Complaints::about("Service", &name.namespace, &name.name);
        let slices = objects.slices.values().map(|seen| &seen.what);
        let endpoints = slice::merge(spec, slices, self.node.zone.as_deref(), &mut complaints);
        complaints.tell(&mut self.warnings);
        Some(Arc::new(Service { spec: spec.clone(), endpoints }))
    }

    fn remove_slice(&mut self, key: &(Box<str>, Box<str>)) -> bool {
        let Some(service) = self.owners.remove(key) else { return false };
        if let Some(objects) = self.objects.get_mut(&service) {
            objects.slices.remove(&key.1);
            // the annotation tells of the last change, not of this removal
            objects.trigger = None;
        }
        self.forget_empty(&service);
        self.dirty.insert(service);
        true
    }

    fn slice_keys(&self, service: &ServiceName) -> Vec<(Box<str>, Box<str>)> {
        let names = self.objects.get(service).into_iter().flat_map(|objects| objects.slices.keys());
        names.map(|name| ((*service.namespace).into(), name.clone())).collect()
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

fn slice_key(name: &ServiceName) -> (Box<str>, Box<str>) {
    ((*name.namespace).into(), (*name.name).into())
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
