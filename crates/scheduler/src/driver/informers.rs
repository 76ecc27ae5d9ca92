//! Changes of the cluster, from informers.

use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node as ApiNode, PersistentVolume as ApiVolume, PersistentVolumeClaim,
    Pod as ApiPod, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{
    DeviceClass as ApiDeviceClass, ResourceClaim as ApiResourceClaim, ResourceSlice as ApiSlice,
};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass as ApiClass,
    VolumeAttachment as ApiAttachment,
};
use longshore_informer::{Event, Informer, Informers, Object, Options, Store};
use tokio::sync::mpsc;

use crate::model::{
    Atom, Budget, Capacity, Claim, ClaimKey, CsiDriver, CsiNode, DeviceClass, Labels, Node,
    PersistentVolume, Pod, ResourceClaim, ResourceSlice, Selector, StorageClass, VolumeAttachment,
    Workload, WorkloadKind,
};
use crate::scheduler::Change;

/// Informers of everything that a scheduler needs to know.
pub struct Follower {
    pods: Informer<ApiPod>,
    nodes: Informer<ApiNode>,
}

/// What follows the kinds while [`Follower::start`] goes through them.
struct Starting<'a> {
    informers: &'a Informers,
    changes: &'a mpsc::UnboundedSender<Change>,
    synced: Vec<BoxFuture<'static, ()>>,
}

fn name_of<K: Object>(object: &K) -> Atom {
    Atom::new(k8s_openapi::Metadata::metadata(object).name.as_deref().unwrap_or_default())
}

fn key_of<K: Object>(object: &K) -> ClaimKey {
    let meta = k8s_openapi::Metadata::metadata(object);
    let namespace = Atom::new(meta.namespace.as_deref().unwrap_or_default());
    ClaimKey { namespace, name: name_of(object) }
}

/// Leaves of a pod what the scheduler reads.
fn trim(pod: &mut ApiPod) {
    pod.metadata.annotations = None;
    let Some(spec) = &mut pod.spec else { return };
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        *container = k8s_openapi::api::core::v1::Container {
            name: std::mem::take(&mut container.name),
            image: container.image.take(),
            ports: container.ports.take(),
            resources: container.resources.take(),
            restart_policy: container.restart_policy.take(),
            restart_policy_rules: container.restart_policy_rules.take(),
            ..Default::default()
        };
    }
}

impl Follower {
    /// Follows all kinds, and sends each change. The future ends when everything that is there has been
    /// sent. `keeps_all`: others use the informers too, or extenders are sent whole pods.
    pub fn start(
        informers: &Informers,
        changes: &mpsc::UnboundedSender<Change>,
        keeps_all: bool,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let transform = (!keeps_all).then_some(trim as fn(&mut ApiPod));
        let pods: Informer<ApiPod> =
            informers.get_with(|| Options { transform, ..Options::default() });
        let own = Self { nodes: informers.get(), pods };
        let mut starting = Starting { informers, changes, synced: Vec::new() };
        starting.follow(own.pods.clone(), |pod, is_gone| {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default().into();
            let pod = if is_gone { None } else { Pod::new(pod) };
            Change::Pod(uid, pod.map(Arc::new))
        });
        starting.follow(own.nodes.clone(), |node, is_gone| {
            Change::Node(name_of(node), (!is_gone).then(|| Arc::new(Node::new(node))))
        });
        starting.storage();
        starting.devices();
        starting.workloads();
        let synced = starting.synced;
        (own, async move {
            join_all(synced).await;
        })
    }

    /// Pods as the API has them.
    pub fn pods(&self) -> &Store<ApiPod> {
        self.pods.store()
    }

    /// The informer of pods.
    pub fn pods_informer(&self) -> Informer<ApiPod> {
        self.pods.clone()
    }

    /// Nodes as the API has them.
    pub fn nodes(&self) -> &Store<ApiNode> {
        self.nodes.store()
    }
}

impl Starting<'_> {
    fn get<K: Object + k8s_openapi::Resource>(&mut self, change: fn(&K, bool) -> Change) {
        self.follow(self.informers.get::<K>(), change);
    }

    fn follow<K: Object + k8s_openapi::Resource>(
        &mut self,
        informer: Informer<K>,
        change: fn(&K, bool) -> Change,
    ) {
        let changes = self.changes.clone();
        informer.subscribe(move |event: &Event<K>| {
            let is_gone = matches!(event, Event::Deleted(_));
            // without a receiver the scheduler has ended
            let _ = changes.send(change(event.latest(), is_gone));
        });
        self.synced.push(Box::pin(async move { informer.synced().await }));
    }

    fn storage(&mut self) {
        self.get::<PersistentVolumeClaim>(|claim, is_gone| {
            Change::Claim(key_of(claim), (!is_gone).then(|| Box::new(Claim::new(claim))))
        });
        self.get::<ApiVolume>(|volume, is_gone| {
            let new = (!is_gone).then(|| Box::new(PersistentVolume::new(volume)));
            Change::Volume(name_of(volume), new)
        });
        self.get::<ApiClass>(|class, is_gone| {
            Change::Class(name_of(class), (!is_gone).then(|| StorageClass::new(class)))
        });
        self.get::<CSINode>(|node, is_gone| {
            Change::CsiNode(name_of(node), (!is_gone).then(|| CsiNode::new(node)))
        });
        self.get::<CSIDriver>(|driver, is_gone| {
            Change::CsiDriver(name_of(driver), (!is_gone).then(|| CsiDriver::new(driver)))
        });
        self.get::<CSIStorageCapacity>(|capacity, is_gone| {
            Change::Capacity(key_of(capacity), (!is_gone).then(|| Capacity::new(capacity)))
        });
        self.get::<ApiAttachment>(|attachment, is_gone| {
            let new = (!is_gone).then(|| VolumeAttachment::new(attachment));
            Change::Attachment(name_of(attachment), new)
        });
    }

    fn devices(&mut self) {
        self.get::<ApiResourceClaim>(|claim, is_gone| {
            let new = (!is_gone).then(|| Box::new(ResourceClaim::new(claim)));
            Change::ResourceClaim(key_of(claim), new)
        });
        self.get::<ApiDeviceClass>(|class, is_gone| {
            let new = (!is_gone).then(|| Box::new(DeviceClass::new(class)));
            Change::DeviceClass(name_of(class), new)
        });
        self.get::<ApiSlice>(|slice, is_gone| {
            let new = (!is_gone).then(|| Box::new(ResourceSlice::new(slice)));
            Change::ResourceSlice(name_of(slice), new)
        });
    }

    fn workloads(&mut self) {
        self.get::<Service>(|service, is_gone| {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selector = selector.filter(|_| !is_gone).map(|map| Selector::of_map(Some(map)));
            Change::Service(key_of(service), selector)
        });
        self.get::<ReplicationController>(|controller, is_gone| {
            let selector = controller.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selector = selector.filter(|_| !is_gone).map(|map| Selector::of_map(Some(map)));
            let kind = WorkloadKind::ReplicationController;
            Change::Workload(Workload { kind, key: key_of(controller) }, selector)
        });
        self.get::<ReplicaSet>(|set, is_gone| {
            let selector = set.spec.as_ref().map(|spec| &spec.selector).filter(|_| !is_gone);
            let workload = Workload { kind: WorkloadKind::ReplicaSet, key: key_of(set) };
            Change::Workload(workload, selector.and_then(|own| Selector::new(Some(own))))
        });
        self.get::<StatefulSet>(|set, is_gone| {
            let selector = set.spec.as_ref().map(|spec| &spec.selector).filter(|_| !is_gone);
            let workload = Workload { kind: WorkloadKind::StatefulSet, key: key_of(set) };
            Change::Workload(workload, selector.and_then(|own| Selector::new(Some(own))))
        });
        self.get::<PodDisruptionBudget>(|budget, is_gone| {
            Change::Budget(key_of(budget), (!is_gone).then(|| Budget::new(budget)))
        });
        self.get::<Namespace>(|namespace, is_gone| {
            let labels = (!is_gone).then(|| Labels::new(namespace.metadata.labels.as_ref()));
            Change::Namespace(name_of(namespace), labels)
        });
    }
}
