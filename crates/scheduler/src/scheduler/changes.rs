//! Changes of the cluster.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{PRE_ENQUEUE, Scheduler};
use crate::events::ClusterEvent;
use crate::framework::status_name;
use crate::model::{
    Atom, Budget, Capacity, Claim, ClaimKey, CsiDriver, CsiNode, DeviceClass, Labels, Node,
    PersistentVolume, Pod, ResourceClaim, ResourceSlice, Selector, StorageClass, Uid,
    VolumeAttachment, Workload,
};

/// A change of one object; `None`: it is gone.
#[derive(Debug, Clone)]
pub enum Change {
    /// A pod. One that has ended is as good as gone.
    Pod(Uid, Option<Arc<Pod>>),
    /// A node.
    Node(Atom, Option<Arc<Node>>),
    /// A claim.
    Claim(ClaimKey, Option<Box<Claim>>),
    /// A volume.
    Volume(Atom, Option<Box<PersistentVolume>>),
    /// A storage class.
    Class(Atom, Option<StorageClass>),
    /// The drivers of a node.
    CsiNode(Atom, Option<CsiNode>),
    /// A driver.
    CsiDriver(Atom, Option<CsiDriver>),
    /// A capacity.
    Capacity(ClaimKey, Option<Capacity>),
    /// A claim for devices.
    ResourceClaim(ClaimKey, Option<Box<ResourceClaim>>),
    /// A class of devices.
    DeviceClass(Atom, Option<Box<DeviceClass>>),
    /// A slice of a pool of devices.
    ResourceSlice(Atom, Option<Box<ResourceSlice>>),
    /// An attached volume.
    Attachment(Atom, Option<VolumeAttachment>),
    /// A service: namespace, name and selector.
    Service(ClaimKey, Option<Selector>),
    /// A controller.
    Workload(Workload, Option<Selector>),
    /// A pod disruption budget.
    Budget(ClaimKey, Option<Budget>),
    /// The labels of a namespace.
    Namespace(Atom, Option<Labels>),
}

/// Stores an object; returns what it was and whether that is a change.
fn store<K: Hash + Eq, V: PartialEq + Clone>(
    map: &mut HashMap<K, V>,
    key: K,
    new: Option<V>,
) -> (Option<V>, bool) {
    let old = match &new {
        Some(new) => map.insert(key, new.clone()),
        None => map.remove(&key),
    };
    let is_change = old != new;
    (old, is_change)
}

impl Scheduler {
    /// Takes in a change.
    pub fn apply(&mut self, change: Change, now: Duration) {
        let start = Instant::now();
        if let Some(event) = self.take_in(change, now) {
            self.metrics.handled.with([event]).took(start.elapsed());
        }
    }

    /// The event that the change is, if pods may wait for it.
    fn take_in(&mut self, change: Change, now: Duration) -> Option<&'static str> {
        self.set_clock(now);
        match change {
            Change::Pod(uid, None) => self.remove_pod(&uid, now),
            Change::Pod(_, Some(pod)) if pod.node.is_some() => self.set_bound(pod, now),
            Change::Pod(_, Some(pod)) => self.set_pending(pod, now),
            Change::Node(name, new) => self.set_node(&name, new, now),
            Change::Claim(key, new) => {
                let new = new.map(|new| *new);
                let (old, is_change) = store(&mut self.objects.claims, key, new.clone());
                let new = new.filter(|_| is_change);
                let event =
                    new.map(|new| self.requeue(ClusterEvent::Claim(old.as_ref(), &new), now));
                self.check_claims(now);
                event
            }
            Change::Volume(name, new) => {
                let new = new.map(|new| *new);
                let (old, is_change) = store(&mut self.objects.volumes, name, new.clone());
                let new = new.filter(|_| is_change)?;
                Some(self.requeue(ClusterEvent::Volume(old.as_ref(), &new), now))
            }
            Change::Class(name, new) => {
                let (old, is_change) = store(&mut self.objects.classes, name, new.clone());
                let new = new.filter(|_| is_change)?;
                Some(self.requeue(ClusterEvent::Class(old.as_ref(), &new), now))
            }
            Change::CsiNode(name, new) => {
                let (old, is_change) = store(&mut self.objects.csi_nodes, name, new.clone());
                let new = new.filter(|_| is_change)?;
                Some(self.requeue(ClusterEvent::CsiNode(old.as_ref(), &new), now))
            }
            Change::CsiDriver(name, new) => {
                let (old, is_change) = store(&mut self.objects.csi_drivers, name, new.clone());
                let new = new.filter(|_| is_change)?;
                Some(self.requeue(ClusterEvent::CsiDriver(old.as_ref(), &new), now))
            }
            Change::Capacity(key, new) => {
                let (old, is_change) = store(&mut self.objects.capacities, key, new.clone());
                let new = new.filter(|_| is_change)?;
                Some(self.requeue(ClusterEvent::Capacity(old.as_ref(), &new), now))
            }
            Change::ResourceClaim(key, new) => {
                let event = self.set_resource_claim(key, new.map(|new| *new), now);
                self.check_claims(now);
                event
            }
            Change::DeviceClass(name, new) => {
                let new = new.map(|new| *new);
                let is_there = new.is_some();
                let (old, is_change) = store(&mut self.objects.device_classes, name, new);
                (is_there && is_change)
                    .then(|| self.requeue(ClusterEvent::DeviceClass(old.is_none()), now))
            }
            Change::ResourceSlice(name, new) => {
                let new = new.map(|new| *new);
                let is_there = new.is_some();
                let (old, is_change) = store(&mut self.objects.slices, name, new);
                (is_there && is_change)
                    .then(|| self.requeue(ClusterEvent::ResourceSlice(old.is_none()), now))
            }
            Change::Attachment(name, new) => {
                let is_gone = new.is_none();
                let (old, _) = store(&mut self.objects.attachments, name, new);
                let old = old.filter(|_| is_gone)?;
                Some(self.requeue(ClusterEvent::AttachmentDeleted(&old), now))
            }
            Change::Service(key, new) => {
                let services = self.objects.services.entry(key.namespace.clone()).or_default();
                store(services, key.name, new);
                if services.is_empty() {
                    self.objects.services.remove(&key.namespace);
                }
                None
            }
            Change::Workload(key, new) => {
                store(&mut self.objects.workloads, key, new);
                None
            }
            Change::Budget(key, new) => {
                store(&mut self.objects.budgets, key, new);
                None
            }
            Change::Namespace(name, new) => {
                store(&mut self.objects.namespaces, name, new);
                None
            }
        }
    }

    pub(super) fn set_resource_claim(
        &mut self,
        key: ClaimKey,
        new: Option<ResourceClaim>,
        now: Duration,
    ) -> Option<&'static str> {
        let (old, is_change) = self.objects.set_resource_claim(key.clone(), new);
        if !is_change {
            return None;
        }
        let new = self.objects.resource_claims.get(&key).cloned();
        let event = new.as_ref().map(|new| ClusterEvent::ResourceClaim(old.as_ref(), new));
        self.open_gates(
            event.map_or("resource.k8s.io/ResourceClaimDelete", |own| own.label()),
            now,
        );
        event.map(|event| self.requeue(event, now))
    }

    /// Pods that waited for their claims to be there may be tried.
    fn open_gates(&mut self, event: &'static str, now: Duration) {
        let gated = self.queue.gated().map(|own| &own.pod);
        let free: Vec<Arc<Pod>> = gated
            .filter(|pod| !pod.resource_claims.is_empty() && self.gating(pod) == Some(None))
            .cloned()
            .collect();
        for pod in free {
            self.queue.update(pod, None, (event, false), now);
        }
    }

    /// The plugin that keeps a pod out of the queue, if one does. The outer `None`: no profile is responsible
    /// for the pod.
    fn gating(&self, pod: &Pod) -> Option<Option<&'static str>> {
        let profile = self.profiles.get(&pod.scheduler)?;
        let run = || profile.pre_enqueue(pod, &self.objects);
        let outcome =
            self.metrics.recorder(&pod.scheduler, false).point(PRE_ENQUEUE, status_name, run);
        Some(outcome.err().map(|status| status.plugin))
    }

    fn set_node(
        &mut self,
        name: &Atom,
        new: Option<Arc<Node>>,
        now: Duration,
    ) -> Option<&'static str> {
        let Some(new) = new else {
            let old = self.cache.remove_node(name)?;
            return Some(self.requeue(ClusterEvent::NodeDeleted(&old), now));
        };
        match self.cache.set_node(new.clone()) {
            None => Some(self.requeue(ClusterEvent::NodeAdded(&new), now)),
            Some(old) if old != new => {
                Some(self.requeue(ClusterEvent::NodeUpdated(&old, &new), now))
            }
            Some(_) => None,
        }
    }

    fn set_bound(&mut self, pod: Arc<Pod>, now: Duration) -> Option<&'static str> {
        let was_assumed = self.cache.is_assumed(&pod.uid);
        self.queue.remove(&pod.uid);
        match self.cache.set_pod(pod.clone()) {
            Some(old) if !was_assumed => {
                (old != pod).then(|| self.requeue(ClusterEvent::PodUpdated(&old, &pod), now))
            }
            _ => Some(self.requeue(ClusterEvent::PodAdded(&pod), now)),
        }
    }

    fn set_pending(&mut self, pod: Arc<Pod>, now: Duration) -> Option<&'static str> {
        let gated_by = self.gating(&pod)?;
        let profile = self.profiles.get(&pod.scheduler)?;
        let hints = &self.metrics.hints;
        let Some((old, event, helps)) = self.queue.get(&pod.uid).map(|own| {
            let event = ClusterEvent::UnscheduledPodUpdated(&own.pod, &pod);
            let helps = profile.may_help(event, &pod, &own.rejectors, hints);
            (own.pod.clone(), event.label(), helps)
        }) else {
            // A late update of one that is bound already.
            if self.cache.pod(&pod.uid).is_some() {
                return None;
            }
            self.queue.add(pod, gated_by, now);
            return Some("UnschedulablePodAdd");
        };
        if old == pod {
            return None;
        }
        let lost_room = old.nominated_node.is_some() && old.nominated_node != pod.nominated_node;
        self.queue.update(pod, gated_by, (event, helps), now);
        if lost_room {
            self.requeue_below(&old, now);
        }
        Some(event)
    }

    /// Room that was made for a pod is free for those of no higher priority.
    fn requeue_below(&mut self, pod: &Pod, now: Duration) {
        let (profiles, hints) = (&self.profiles, &self.metrics.hints);
        let event = ClusterEvent::PodDeleted(pod);
        self.queue.requeue(event.label(), now, |own| {
            own.pod.priority <= pod.priority
                && profiles
                    .get(&own.pod.scheduler)
                    .is_some_and(|profile| profile.may_help(event, &own.pod, &own.rejectors, hints))
        });
    }

    fn remove_pod(&mut self, uid: &str, now: Duration) -> Option<&'static str> {
        let queued = self.queue.remove(uid);
        if let Some(old) = self.cache.remove_pod(uid) {
            return Some(self.requeue(ClusterEvent::PodDeleted(&old), now));
        }
        let old = queued?;
        if old.pod.nominated_node.is_some() {
            self.requeue_below(&old.pod, now);
        }
        Some("UnschedulablePodDelete")
    }
}
