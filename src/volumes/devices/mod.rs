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

/// The devices of the node. A cheap handle.
#[derive(Clone)]
pub struct Devices {
    inner: Arc<Inner>,
}

struct Inner {
    /// The UIDs of pods that use a device, by its name; none without users.
    users: watch::Sender<BTreeMap<String, BTreeSet<String>>>,
    /// One lock per device at work.
    turns: Mutex<BTreeMap<String, Weak<Turn<()>>>>,
    node: OnceLock<watch::Receiver<Option<Arc<Node>>>>,
}

/// A device that nobody else sets up or takes down meanwhile.
pub(super) struct Held {
    name: String,
    inner: Arc<Inner>,
    _turn: OwnedMutexGuard<()>,
}

impl Devices {
    /// The devices that pods below a root directory use, as its files and mounts tell.
    pub(super) fn find(root: &Path) -> (Self, Found) {
        let found = Found::below(root);
        let users = watch::Sender::new(found.users.clone());
        let inner = Inner { users, turns: Mutex::default(), node: OnceLock::new() };
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

    /// Waits until the node's status names the device as attached; gives the path it tells, which
    /// may be empty. Without an apiserver it waits for good.
    pub(super) async fn attached(&self, device: &str) -> String {
        let Some(mut node) = self.inner.node.get().cloned() else {
            return std::future::pending().await;
        };
        let attached = |node: &Option<Arc<Node>>| {
            let status = node.as_ref().and_then(|node| node.status.as_ref());
            let mut volumes = status.and_then(|status| status.volumes_attached.as_ref())?.iter();
            volumes.find(|volume| volume.name == device).map(|volume| volume.device_path.clone())
        };
        let told = node.wait_for(|node| attached(node).is_some()).await;
        match told.ok().and_then(|node| attached(&node)) {
            Some(path) => path,
            None => std::future::pending().await,
        }
    }

    /// The names of the devices that some pod uses, as the node's status tells them.
    pub fn in_use(&self) -> watch::Receiver<BTreeMap<String, BTreeSet<String>>> {
        self.inner.users.subscribe()
    }

    /// The pod uses no device any more: nothing is left of its volumes.
    pub(super) fn forget(&self, uid: &str) {
        self.inner.users.send_if_modified(|all| {
            let before = all.len();
            let mut left = false;
            all.retain(|_, users| {
                left |= users.remove(uid);
                !users.is_empty()
            });
            left || all.len() != before
        });
    }

    /// Whether some pod uses a device whose name begins like that, and is not the one given.
    pub(super) fn has_others_like(&self, start: &str, own: &str) -> bool {
        let users = self.inner.users.borrow();
        users.keys().any(|name| name.starts_with(start) && name != own)
    }

    /// Holds a device: waits for whoever holds it now.
    pub(super) async fn hold(&self, name: &str) -> Held {
        let turn = self.inner.turn(name);
        let _turn = turn.lock_owned().await;
        Held { name: name.to_owned(), inner: Arc::clone(&self.inner), _turn }
    }
}

impl Held {
    /// The pod uses the device from here on.
    pub(super) fn enter(&self, uid: &str) {
        self.inner.users.send_if_modified(|users| {
            users.entry(self.name.clone()).or_default().insert(uid.to_owned())
        });
    }

    /// The unique name of the device.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a pod other than that one uses the device.
    pub(super) fn has_others(&self, uid: &str) -> bool {
        let users = self.inner.users.borrow();
        users.get(&self.name).is_some_and(|users| users.iter().any(|user| user != uid))
    }

    /// The pods other than that one that use the device.
    pub(super) fn others(&self, uid: &str) -> Vec<String> {
        let users = self.inner.users.borrow();
        let users = users.get(&self.name).into_iter().flatten();
        users.filter(|user| *user != uid).cloned().collect()
    }

    /// The pod does not use the device any more.
    pub(super) fn leave(&self, uid: &str) {
        self.inner.users.send_if_modified(|all| {
            let Some(users) = all.get_mut(&self.name) else { return false };
            let left = users.remove(uid);
            if users.is_empty() {
                all.remove(&self.name);
            }
            left
        });
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
