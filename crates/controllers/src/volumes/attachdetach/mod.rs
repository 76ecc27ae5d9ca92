//! Attaches volumes to the nodes whose pods use them, and detaches them when they are not used.

pub(super) mod csi_volume;
mod plan;

#[cfg(test)]
pub(super) use self::plan::{Plan, State, index, plan as plan_for_node};

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod,
};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use longshore_base::time;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use longshore_metrics::{Counter, Family};
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::time::Instant;
use tracing::warn;

use self::csi_volume::{is_attached_here, is_inline_of_a_cloud};
use super::event::Events;
use super::metrics;
use super::objects::{
    BY_CLAIM, claim_of, is_bound_for_good, is_terminated, volume_name, volumes_of,
};
use crate::Context;
use crate::pods::{BY_NODE, node_of};
use crate::workload::{name_of, uid_of};
use crate::writes::{is_already_there, is_conflict, unless_gone, unless_replaced, unless_stopped};

/// How long an unhealthy node may have a volume mounted that it does not need.
const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);
/// How long a created attachment may not be in the store.
const MAX_UNSEEN: Duration = Duration::from_secs(60);

struct Controller {
    client: Client,
    volumes: Informer<PersistentVolume>,
    claims: Informer<PersistentVolumeClaim>,
    drivers: Informer<CSIDriver>,
    attachments: Informer<VolumeAttachment>,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    queue: WorkQueue<String>,
    events: Events,
    forces_detach: bool,
    /// By `timeout` or `out-of-service`.
    forced: Family<Counter, 1>,
    memory: Arc<Mutex<Memory>>,
}

/// What no object says.
#[derive(Default)]
struct Memory {
    /// Attachments that were created, until the store has them.
    created: Vec<(VolumeAttachment, Instant)>,
    /// Since when a node has a volume mounted that it does not need, by node and unique name.
    mounted: HashMap<String, HashMap<String, Instant>>,
    /// What nodes that were deleted had mounted, as long as something is attached to them.
    last_in_use: HashMap<String, BTreeSet<String>>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let controller = Controller {
        client: context.client.clone(),
        volumes: context.informers.get(),
        claims: context.informers.get(),
        drivers: context.informers.get(),
        attachments: context.informers.get(),
        nodes: context.informers.get(),
        pods: context.informers.get(),
        queue: WorkQueue::new("pvcs", &context.queues),
        events: Events::new(context.recorder("attachdetach-controller")),
        forces_detach: !context.settings.cluster.disable_force_detach_on_timeout,
        forced: context.metrics.forced_detaches.clone(),
        memory: Arc::default(),
    };
    context.metrics.attachments.set({
        let (pods, attachments) = (controller.pods.clone(), controller.attachments.clone());
        let (claims, volumes) = (controller.claims.clone(), controller.volumes.clone());
        move |text| {
            let (pods, attachments) = (pods.store().list(), attachments.store().list());
            let (claims, volumes) = (claims.store(), volumes.store());
            metrics::write_attachments(text, &pods, claims, volumes, &attachments);
        }
    });
    plan::index(controller.state(&[], &BTreeSet::new(), None));
    let all = async {
        controller.volumes.synced().await;
        controller.claims.synced().await;
        controller.drivers.synced().await;
        controller.attachments.synced().await;
        controller.nodes.synced().await;
        controller.pods.synced().await;
    };
    controller.subscribe();
    if !unless_stopped(&context, all).await {
        return;
    }
    let name = "persistentvolume-attach-detach-controller";
    run_workers(name, &controller.queue, 1, &context.stop, |key| controller.sync(key)).await;
}

/// Whether volumes of the pod may have to be attached.
fn has_attachable(pod: &Pod) -> bool {
    volumes_of(pod).iter().any(|volume| {
        volume.persistent_volume_claim.is_some()
            || volume.ephemeral.is_some()
            || volume.iscsi.is_some()
            || is_inline_of_a_cloud(volume)
    })
}

/// Whether the node counts differently than before.
fn has_changed(old: &Node, new: &Node) -> bool {
    plan::is_managed(old) != plan::is_managed(new)
        || plan::is_out_of_service(old) != plan::is_out_of_service(new)
        || plan::is_ready(old) != plan::is_ready(new)
        || plan::in_use(old) != plan::in_use(new)
        || !plan::attached_to(old).eq(plan::attached_to(new))
}

/// Queues the nodes with pods that use the claim.
fn queue_users(queue: &WorkQueue<String>, pods: &Informer<Pod>, claim: &str) {
    for pod in pods.store().by_index(BY_CLAIM, claim) {
        if !node_of(&pod).is_empty() {
            queue.add(node_of(&pod).to_owned());
        }
    }
}

impl Controller {
    fn subscribe(&self) {
        self.nodes.subscribe({
            let (queue, memory) = (self.queue.clone(), self.memory.clone());
            move |event: &Event<Node>| {
                let node = event.latest();
                match event {
                    Event::Updated { old, new } if !has_changed(old, new) => return,
                    Event::Updated { .. } => {}
                    Event::Added(_) => drop(memory.lock().last_in_use.remove(name_of(&**node))),
                    Event::Deleted(_) => {
                        let mounted = plan::in_use(node).into_iter().map(str::to_owned).collect();
                        let name = name_of(&**node).to_owned();
                        memory.lock().last_in_use.insert(name, mounted);
                    }
                }
                queue.add(key_of(&**node));
            }
        });
        self.pods.subscribe({
            let queue = self.queue.clone();
            move |event: &Event<Pod>| {
                let pod = event.latest();
                let seen = |pod: &Pod| (node_of(pod).to_owned(), is_terminated(pod));
                let is_same =
                    matches!(event, Event::Updated { old, new } if seen(old) == seen(new));
                if !is_same && !node_of(pod).is_empty() && has_attachable(pod) {
                    queue.add(node_of(pod).to_owned());
                }
            }
        });
        self.claims.subscribe({
            let (queue, pods) = (self.queue.clone(), self.pods.clone());
            move |event: &Event<PersistentVolumeClaim>| {
                let seen = |claim: &PersistentVolumeClaim| {
                    (is_bound_for_good(claim), volume_name(claim).to_owned())
                };
                if !matches!(event, Event::Updated { old, new } if seen(old) == seen(new)) {
                    queue_users(&queue, &pods, &key_of(&**event.latest()));
                }
            }
        });
        self.volumes.subscribe({
            let (queue, pods) = (self.queue.clone(), self.pods.clone());
            move |event: &Event<PersistentVolume>| {
                let is_same = matches!(event, Event::Updated { old, new } if old.spec == new.spec);
                if let Some(claim) = claim_of(event.latest()).filter(|_| !is_same) {
                    queue_users(&queue, &pods, &claim);
                }
            }
        });
        self.drivers.subscribe({
            let (queue, nodes) = (self.queue.clone(), self.nodes.clone());
            move |event: &Event<CSIDriver>| {
                let is_same = matches!(event, Event::Updated { old, new }
                    if old.spec.attach_required == new.spec.attach_required);
                if !is_same {
                    nodes.store().list().iter().for_each(|node| queue.add(key_of(&**node)));
                }
            }
        });
        self.attachments.subscribe({
            let (queue, pods) = (self.queue.clone(), self.pods.clone());
            let (volumes, nodes) = (self.volumes.clone(), self.nodes.clone());
            let memory = self.memory.clone();
            move |event: &Event<VolumeAttachment>| {
                let attachment = event.latest();
                queue.add(attachment.spec.node_name.clone());
                if !matches!(event, Event::Deleted(_)) {
                    return;
                }
                let uid = uid_of(&**attachment);
                memory.lock().created.retain(|(created, _)| uid_of(created) != uid);
                // Others may wait for the volume to come off this node.
                let source = &attachment.spec.source;
                let volume = source.persistent_volume_name.as_deref();
                let volume = volume.and_then(|name| volumes.store().get(name));
                match volume
                    .filter(|volume| volume.spec.as_ref().is_some_and(|it| it.csi.is_some()))
                {
                    Some(volume) => {
                        claim_of(&volume).iter().for_each(|it| queue_users(&queue, &pods, it));
                    }
                    // Pods may describe the same volume themselves.
                    None => nodes.store().list().iter().for_each(|node| queue.add(key_of(&**node))),
                }
            }
        });
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    fn state<'a>(
        &'a self,
        created: &'a [VolumeAttachment],
        expired: &'a BTreeSet<String>,
        last_in_use: Option<&'a BTreeSet<String>>,
    ) -> plan::State<'a> {
        plan::State {
            volumes: self.volumes.store(),
            claims: self.claims.store(),
            drivers: self.drivers.store(),
            attachments: self.attachments.store(),
            nodes: self.nodes.store(),
            pods: self.pods.store(),
            created,
            expired,
            last_in_use,
        }
    }

    /// The attachments that were created and are not in the store yet.
    fn unseen(&self, now: Instant) -> Vec<VolumeAttachment> {
        let mut memory = self.memory();
        memory.created.retain(|(attachment, at)| {
            now.saturating_duration_since(*at) < MAX_UNSEEN
                && self.attachments.store().get(name_of(attachment)).is_none()
        });
        memory.created.iter().map(|(attachment, _)| attachment.clone()).collect()
    }

    /// The volumes that the node has mounted without need for too long.
    fn expired(&self, node: &str, now: Instant) -> BTreeSet<String> {
        let memory = self.memory();
        let mounted = memory.mounted.get(node).into_iter().flatten();
        let is_expired = |since: Instant| {
            self.forces_detach && now.saturating_duration_since(since) >= MAX_WAIT_FOR_UNMOUNT
        };
        mounted.filter(|(_, since)| is_expired(**since)).map(|(name, _)| name.clone()).collect()
    }

    /// What the node had mounted when it was deleted; forgotten when nothing is attached to it.
    fn last_in_use(&self, node: &str) -> Option<BTreeSet<String>> {
        let mut memory = self.memory();
        if self.attachments.store().by_index(BY_NODE, node).is_empty() {
            memory.last_in_use.remove(node);
        }
        memory.last_in_use.get(node).cloned()
    }

    /// Remembers what the node has mounted without need, and looks again when that is too long.
    fn watch_mounted(&self, node: &str, mounted: &BTreeSet<String>, now: Instant) {
        let mut memory = self.memory();
        if mounted.is_empty() {
            memory.mounted.remove(node);
            return;
        }
        let since = memory.mounted.entry(node.to_owned()).or_default();
        since.retain(|name, _| mounted.contains(name));
        for name in mounted {
            since.entry(name.clone()).or_insert(now);
        }
        let next = since.values().map(|since| time::later(*since, MAX_WAIT_FOR_UNMOUNT));
        if let Some(next) = next.filter(|next| *next > now).min() {
            self.queue.add_after(node.to_owned(), next.saturating_duration_since(now));
        }
    }

    async fn sync(&self, name: String) -> Result<(), kube::Error> {
        let now = Instant::now();
        let (created, expired) = (self.unseen(now), self.expired(&name, now));
        let last_in_use = self.last_in_use(&name);
        let plan = plan::plan(self.state(&created, &expired, last_in_use.as_ref()), &name);
        self.watch_mounted(&name, &plan.mounted, now);
        // A node hears that it loses a volume before it does.
        if let Some(attached) = &plan.attached
            && let Some(node) = self.nodes.store().get(&name)
        {
            self.report(&node, attached).await?;
        }
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        for attachment in plan.attach {
            match api.create(&PostParams::default(), &attachment).await {
                Ok(attachment) => self.memory().created.push((attachment, now)),
                Err(error) if is_already_there(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if !plan.detach.is_empty() && !expired.is_empty() {
            warn!(node = name, volumes = ?expired, "detaching volumes that the node does not unmount");
        }
        for name in &plan.detach {
            let Some(attachment) = self.attachments.store().get(name) else { continue };
            let params = DeleteParams::default().preconditions(kube::api::Preconditions {
                uid: Some(uid_of(&*attachment).to_owned()),
                resource_version: None,
            });
            unless_replaced(api.delete(name, &params).await)?;
            if let Some(reason) = plan.forced.get(name) {
                self.forced.with([reason]).inc();
            }
        }
        for (pod, event) in plan.events {
            self.events.record(&*pod, Some(event));
        }
        Ok(())
    }

    /// Writes the node's `volumesAttached`.
    async fn report(
        &self,
        node: &Arc<Node>,
        attached: &BTreeSet<String>,
    ) -> Result<(), kube::Error> {
        let known = node.status.as_ref().and_then(|status| status.volumes_attached.as_ref());
        let others = known.into_iter().flatten().filter(|it| !is_attached_here(&it.name)).cloned();
        let own = attached.iter().filter(|name| is_attached_here(name));
        let own = own.map(|name| AttachedVolume { device_path: String::new(), name: name.clone() });
        let all: Vec<AttachedVolume> = others.chain(own).collect();
        let patch = json!({
            "metadata": {"uid": node.metadata.uid},
            "status": {"volumesAttached": all},
        });
        let api: Api<Node> = Api::all(self.client.clone());
        let patch = Patch::Merge(patch);
        let written = api.patch_status(name_of(&**node), &PatchParams::default(), &patch).await;
        let written = match written {
            // It is another node of that name by now.
            Err(error) if is_conflict(&error) => return Ok(()),
            written => unless_gone(written)?,
        };
        written.into_iter().for_each(|node| self.nodes.observe(node));
        Ok(())
    }
}
