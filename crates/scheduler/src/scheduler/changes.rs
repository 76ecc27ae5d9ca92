//! Changes of the cluster.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Scheduler;
use crate::events::ClusterEvent;
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

impl Change {
    /// The name in metrics, as upstream has it.
    fn label(&self) -> &'static str {
        let of = |is_there: bool, update: &'static str, delete: &'static str| {
            if is_there { update } else { delete }
        };
        match self {
            Self::Pod(_, Some(pod)) if pod.node.is_none() => "UnscheduledPodUpdate",
            Self::Pod(_, new) => of(new.is_some(), "AssignedPodUpdate", "AssignedPodDelete"),
            Self::Node(_, new) => of(new.is_some(), "NodeUpdate", "NodeDelete"),
            Self::Claim(_, new) => {
                of(new.is_some(), "PersistentVolumeClaimUpdate", "PersistentVolumeClaimDelete")
            }
            Self::Volume(_, new) => {
                of(new.is_some(), "PersistentVolumeUpdate", "PersistentVolumeDelete")
            }
            Self::Class(_, new) => of(new.is_some(), "StorageClassUpdate", "StorageClassDelete"),
            Self::CsiNode(_, new) => of(new.is_some(), "CSINodeUpdate", "CSINodeDelete"),
            Self::CsiDriver(_, new) => of(new.is_some(), "CSIDriverUpdate", "CSIDriverDelete"),
            Self::Capacity(_, new) => {
                of(new.is_some(), "CSIStorageCapacityUpdate", "CSIStorageCapacityDelete")
            }
            Self::ResourceClaim(_, new) => {
                of(new.is_some(), "ResourceClaimUpdate", "ResourceClaimDelete")
            }
            Self::DeviceClass(_, new) => {
                of(new.is_some(), "DeviceClassUpdate", "DeviceClassDelete")
            }
            Self::ResourceSlice(_, new) => {
                of(new.is_some(), "ResourceSliceUpdate", "ResourceSliceDelete")
            }
            Self::Attachment(_, new) => {
                of(new.is_some(), "VolumeAttachmentUpdate", "VolumeAttachmentDelete")
            }
            Self::Service(_, new) => of(new.is_some(), "ServiceUpdate", "ServiceDelete"),
            Self::Workload(_, new) => of(new.is_some(), "WorkloadUpdate", "WorkloadDelete"),
            Self::Budget(_, new) => {
                of(new.is_some(), "PodDisruptionBudgetUpdate", "PodDisruptionBudgetDelete")
            }
            Self::Namespace(_, new) => of(new.is_some(), "NamespaceUpdate", "NamespaceDelete"),
        }
    }
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
        let (label, start) = (change.label(), Instant::now());
        self.take_in(change, now);
        self.metrics.handled.with([label]).took(start.elapsed());
    }

    fn take_in(&mut self, change: Change, now: Duration) {
        self.set_clock(now);
        match change {
            Change::Pod(uid, None) => self.remove_pod(&uid, now),
            Change::Pod(_, Some(pod)) if pod.node.is_some() => self.set_bound(pod, now),
            Change::Pod(_, Some(pod)) => self.set_pending(pod, now),
            Change::Node(name, new) => self.set_node(&name, new, now),
            Change::Claim(key, new) => {
                let new = new.map(|new| *new);
                let (old, is_change) = store(&mut self.objects.claims, key, new.clone());
                if let Some(new) = new.filter(|_| is_change) {
                    self.requeue(ClusterEvent::Claim(old.as_ref(), &new), now);
                }
                self.check_claims(now);
            }
            Change::Volume(name, new) => {
                let new = new.map(|new| *new);
                let (old, is_change) = store(&mut self.objects.volumes, name, new.clone());
                if let Some(new) = new.filter(|_| is_change) {
                    self.requeue(ClusterEvent::Volume(old.as_ref(), &new), now);
                }
            }
            Change::Class(name, new) => {
                let (old, is_change) = store(&mut self.objects.classes, name, new.clone());
                if let Some(new) = new.filter(|_| is_change) {
                    self.requeue(ClusterEvent::Class(old.as_ref(), &new), now);
                }
            }
            Change::CsiNode(name, new) => {
                let (old, is_change) = store(&mut self.objects.csi_nodes, name, new.clone());
                if let Some(new) = new.filter(|_| is_change) {
                    self.requeue(ClusterEvent::CsiNode(old.as_ref(), &new), now);
                }
            }
            Change::CsiDriver(name, new) => {
                let (old, is_change) = store(&mut self.objects.csi_drivers, name, new.clone());
                if let Some(new) = new.filter(|_| is_change) {
                    self.requeue(ClusterEvent::CsiDriver(old.as_ref(), &new), now);
                }
            }
            Change::Capacity(key, new) => {
                let (old, is_change) = store(&mut self.objects.capacities, key, new.clone());
                if let Some(new) = new.filter(|_| is_change) {
                    self.requeue(ClusterEvent::Capacity(old.as_ref(), &new), now);
                }
            }
            Change::ResourceClaim(key, new) => {
                self.set_resource_claim(key, new.map(|new| *new), now);
                self.check_claims(now);
            }
            Change::DeviceClass(name, new) => {
                let new = new.map(|new| *new);
                let is_there = new.is_some();
                let (old, is_change) = store(&mut self.objects.device_classes, name, new);
                if is_there && is_change {
                    self.requeue(ClusterEvent::DeviceClass(old.is_none()), now);
                }
            }
            Change::ResourceSlice(name, new) => {
                let new = new.map(|new| *new);
                let is_there = new.is_some();
                let (old, is_change) = store(&mut self.objects.slices, name, new);
                if is_there && is_change {
                    self.requeue(ClusterEvent::ResourceSlice(old.is_none()), now);
                }
            }
            Change::Attachment(name, new) => {
                let is_gone = new.is_none();
                let (old, _) = store(&mut self.objects.attachments, name, new);
                if let Some(old) = old.filter(|_| is_gone) {
                    self.requeue(ClusterEvent::AttachmentDeleted(&old), now);
                }
            }
            Change::Service(key, new) => {
                let services = self.objects.services.entry(key.namespace.clone()).or_default();
                store(services, key.name, new);
                if services.is_empty() {
                    self.objects.services.remove(&key.namespace);
                }
            }
            Change::Workload(key, new) => {
                store(&mut self.objects.workloads, key, new);
            }
            Change::Budget(key, new) => {
                store(&mut self.objects.budgets, key, new);
            }
            Change::Namespace(name, new) => {
                store(&mut self.objects.namespaces, name, new);
            }
        }
    }

    pub(super) fn set_resource_claim(
        &mut self,
        key: ClaimKey,
        new: Option<ResourceClaim>,
        now: Duration,
    ) {
        let (old, is_change) = self.objects.set_resource_claim(key.clone(), new);
        if !is_change {
            return;
        }
        self.open_gates(now);
        if let Some(new) = self.objects.resource_claims.get(&key).cloned() {
            self.requeue(ClusterEvent::ResourceClaim(old.as_ref(), &new), now);
        }
    }

    /// Pods that waited for their claims to be there may be tried.
    fn open_gates(&mut self, now: Duration) {
        let free: Vec<Arc<Pod>> = self
            .queue
            .gated()
            .map(|own| &own.pod)
            .filter(|pod| !pod.resource_claims.is_empty())
            .filter(|pod| {
                let profile = self.profiles.get(&pod.scheduler);
                profile.is_some_and(|own| own.pre_enqueue(pod, &self.objects).is_ok())
            })
            .cloned()
            .collect();
        for pod in free {
            self.queue.update(pod, false, false, now);
        }
    }

    fn set_node(&mut self, name: &Atom, new: Option<Arc<Node>>, now: Duration) {
        let Some(new) = new else {
            if let Some(old) = self.cache.remove_node(name) {
                self.requeue(ClusterEvent::NodeDeleted(&old), now);
            }
            return;
        };
        match self.cache.set_node(new.clone()) {
            None => self.requeue(ClusterEvent::NodeAdded(&new), now),
            Some(old) if old != new => self.requeue(ClusterEvent::NodeUpdated(&old, &new), now),
            Some(_) => {}
        }
    }

    fn set_bound(&mut self, pod: Arc<Pod>, now: Duration) {
        let was_assumed = self.cache.is_assumed(&pod.uid);
        self.queue.remove(&pod.uid);
        match self.cache.set_pod(pod.clone()) {
            Some(old) if !was_assumed => {
                if old != pod {
                    self.requeue(ClusterEvent::PodUpdated(&old, &pod), now);
                }
            }
            _ => self.requeue(ClusterEvent::PodAdded(&pod), now),
        }
    }

    fn set_pending(&mut self, pod: Arc<Pod>, now: Duration) {
        let Some(profile) = self.profiles.get(&pod.scheduler) else { return };
        let is_gated = profile.pre_enqueue(&pod, &self.objects).is_err();
        let Some((old, helps)) = self.queue.get(&pod.uid).map(|own| {
            let event = ClusterEvent::UnscheduledPodUpdated(&own.pod, &pod);
            (own.pod.clone(), profile.may_help(event, &pod, &own.rejectors))
        }) else {
            // A late update of one that is bound already.
            if self.cache.pod(&pod.uid).is_none() {
                self.queue.add(pod, is_gated, now);
            }
            return;
        };
        if old == pod {
            return;
        }
        let lost_room = old.nominated_node.is_some() && old.nominated_node != pod.nominated_node;
        self.queue.update(pod, is_gated, helps, now);
        if lost_room {
            self.requeue_below(&old, now);
        }
    }

    /// Room that was made for a pod is free for those of no higher priority.
    fn requeue_below(&mut self, pod: &Pod, now: Duration) {
        let profiles = &self.profiles;
        let event = ClusterEvent::PodDeleted(pod);
        self.queue.requeue(event.label(), now, |own| {
            own.pod.priority <= pod.priority
                && profiles
                    .get(&own.pod.scheduler)
                    .is_some_and(|profile| profile.may_help(event, &own.pod, &own.rejectors))
        });
    }

    fn remove_pod(&mut self, uid: &str, now: Duration) {
        let queued = self.queue.remove(uid);
        if let Some(old) = self.cache.remove_pod(uid) {
            self.requeue(ClusterEvent::PodDeleted(&old), now);
        } else if let Some(old) = queued.filter(|own| own.pod.nominated_node.is_some()) {
            self.requeue_below(&old.pod, now);
        }
    }
}
