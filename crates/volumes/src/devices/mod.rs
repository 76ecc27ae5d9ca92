//! What pods of a node share below their volumes: a disk that is logged in and mounted once, a
//! staged volume of a driver, a block device that is mapped. Each is known by upstream's unique
//! name, such as `kubernetes.io/csi/<driver>^<handle>`. Who sets up or takes down holds it, so that
//! it is staged before the first use and unstaged after the last.

mod found;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use k8s_openapi::api::core::v1::Node;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard, watch};

pub(super) use found::{Found, Left};

use super::iscsi;

/// The devices of the node. A cheap handle.
#[derive(Clone)]
pub struct Devices {
    inner: Arc<Inner>,
}

struct Inner {
    uses: watch::Sender<InUse>,
    /// One lock per device at work.
    turns: Mutex<BTreeMap<String, Weak<Turn<()>>>>,
    node: OnceLock<watch::Receiver<Option<Arc<Node>>>>,
}

/// The devices that pods use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// The UIDs of pods that use a device, by its name; none without users.
    users: BTreeMap<String, BTreeSet<String>>,
    /// Those of them that are known to be here without anybody attaching them.
    unattached: BTreeSet<String>,
}

/// A device that nobody else sets up or takes down meanwhile.
pub(super) struct DeviceGuard {
    name: String,
    inner: Arc<Inner>,
    _turn: OwnedMutexGuard<()>,
}

impl InUse {
    /// The names of those that the control plane attaches and detaches, as the node's status tells
    /// them. A device that an earlier daemon has left counts until its pod is seen again.
    pub fn attached(&self) -> Vec<String> {
        const ATTACHABLE: [&str; 2] = ["kubernetes.io/csi/", "kubernetes.io/iscsi/"];
        let is_attachable = |name: &&String| {
            ATTACHABLE.iter().any(|plugin| name.starts_with(plugin))
                && !self.unattached.contains(*name)
        };
        let attachable = self.users.keys().filter(is_attachable);
        let mut names: Vec<_> = attachable.flat_map(|name| names(name)).collect();
        names.sort();
        names
    }

    /// Who uses each.
    #[cfg(test)]
    pub(super) fn users(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.users
    }

    fn leave(&mut self, name: &str, uid: &str) -> bool {
        let Some(users) = self.users.get_mut(name) else { return false };
        let left = users.remove(uid);
        if users.is_empty() {
            self.users.remove(name);
            self.unattached.remove(name);
        }
        left
    }
}

/// The names under which the control plane may know a device: that of an iSCSI disk has the portal
/// as the volume has it, often without the usual port.
fn names(device: &str) -> impl Iterator<Item = String> + use<> {
    let is_disk = device.starts_with(iscsi::PLUGIN) && device.contains(iscsi::USUAL_PORT);
    let short = is_disk.then(|| device.replacen(iscsi::USUAL_PORT, ":", 1));
    short.into_iter().chain([device.to_owned()])
}

impl Devices {
    /// The devices that pods below a root directory use, as its files and mounts tell.
    pub(super) fn find(root: &Path) -> (Self, Found) {
        let found = Found::below(root);
        let uses = InUse { users: found.users.clone(), unattached: BTreeSet::new() };
        let uses = watch::Sender::new(uses);
        let inner = Inner { uses, turns: Mutex::default(), node: OnceLock::new() };
        (Self { inner: Arc::new(inner) }, found)
    }

    /// From here on, the node's object is known by that channel.
    pub fn follow_node(&self, node: watch::Receiver<Option<Arc<Node>>>) {
        // Told once, when the node starts.
        let _ = self.inner.node.set(node);
    }

    /// The node's object, if it is known.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.inner.node.get().and_then(|node| node.borrow().clone())
    }

    /// Whether the control plane attaches devices to the node, as the node's object says.
    pub(super) fn are_attached_by_others(&self) -> bool {
        const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
        let Some(node) = self.node() else { return self.inner.node.get().is_some() };
        let annotations = node.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(MANAGED)).is_some_and(|on| on == "true")
    }

    /// Waits until the node's status names the device as attached; gives the path it tells, which
    /// may be empty. Without an apiserver it waits for good.
    pub(super) async fn attached(&self, device: &str) -> String {
        let Some(mut node) = self.inner.node.get().cloned() else {
            return std::future::pending().await;
        };
        let names: Vec<_> = names(device).collect();
        let attached = |node: &Option<Arc<Node>>| {
            let status = node.as_ref().and_then(|node| node.status.as_ref());
            let mut volumes = status.and_then(|status| status.volumes_attached.as_ref())?.iter();
            let found = volumes.find(|volume| names.contains(&volume.name));
            found.map(|volume| volume.device_path.clone())
        };
        let told = node.wait_for(|node| attached(node).is_some()).await;
        match told.ok().and_then(|node| attached(&node)) {
            Some(path) => path,
            None => std::future::pending().await,
        }
    }

    /// The devices that some pod uses.
    pub fn in_use(&self) -> watch::Receiver<InUse> {
        self.inner.uses.subscribe()
    }

    /// The pod uses no device any more: nothing is left of its volumes.
    pub(super) fn forget(&self, uid: &str) {
        self.inner.uses.send_if_modified(|uses| {
            let names: Vec<_> = uses.users.keys().cloned().collect();
            names.iter().filter(|name| uses.leave(name, uid)).count() > 0
        });
    }

    /// Whether some pod uses a device whose name begins like that, and is not the one given.
    pub(super) fn has_others_like(&self, start: &str, own: &str) -> bool {
        let uses = self.inner.uses.borrow();
        uses.users.keys().any(|name| name.starts_with(start) && name != own)
    }

    /// Holds a device: waits for whoever holds it now.
    pub(super) async fn hold(&self, name: &str) -> DeviceGuard {
        let turn = self.inner.turn(name);
        let _turn = turn.lock_owned().await;
        DeviceGuard { name: name.to_owned(), inner: Arc::clone(&self.inner), _turn }
    }
}

impl DeviceGuard {
    /// The pod uses the device from here on.
    pub(super) fn enter(&self, uid: &str) {
        self.inner.uses.send_if_modified(|uses| {
            uses.users.entry(self.name.clone()).or_default().insert(uid.to_owned())
        });
    }

    /// The same of a device of which it is now known whether somebody attaches it to the node.
    pub(super) fn enter_attached(&self, uid: &str, attached: bool) {
        self.inner.uses.send_if_modified(|uses| {
            let learnt = match attached {
                true => uses.unattached.remove(&self.name),
                false => uses.unattached.insert(self.name.clone()),
            };
            uses.users.entry(self.name.clone()).or_default().insert(uid.to_owned()) || learnt
        });
    }

    /// The unique name of the device.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a pod other than that one uses the device.
    pub(super) fn has_others(&self, uid: &str) -> bool {
        let uses = self.inner.uses.borrow();
        uses.users.get(&self.name).is_some_and(|users| users.iter().any(|user| user != uid))
    }

    /// The pods other than that one that use the device.
    pub(super) fn others(&self, uid: &str) -> Vec<String> {
        let uses = self.inner.uses.borrow();
        let users = uses.users.get(&self.name).into_iter().flatten();
        users.filter(|user| *user != uid).cloned().collect()
    }

    /// The pod does not use the device any more.
    pub(super) fn leave(&self, uid: &str) {
        self.inner.uses.send_if_modified(|uses| uses.leave(&self.name, uid));
    }
}

impl Inner {
    fn turn(&self, name: &str) -> Arc<Turn<()>> {
        let mut turns = self.turns();
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(name).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::new(Turn::new(()));
        turns.insert(name.to_owned(), Arc::downgrade(&turn));
        turn
    }

    fn turns(&self) -> MutexGuard<'_, BTreeMap<String, Weak<Turn<()>>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
