//! Devices that pods of a node share: a disk of a SAN, a staged CSI volume, a mapped block device.
//! Each has upstream's unique name, such as `kubernetes.io/csi/<driver>^<handle>`. It is locked
//! during set-up and teardown, so that it is staged before the first use and unstaged after the
//! last.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::core::v1::{AttachedVolume, Node};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use tokio::time::timeout;

use crate::error::Error;
use crate::host::blocking;
use crate::{layout, remove};

/// How long the control plane may take to attach a device.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);
/// The default port of iSCSI, as part of names.
const DEFAULT_PORT_INFIX: &str = ":3260:";

/// The node itself, as a user of a device that is yet to be unstaged or detached.
pub(super) const NODE_USER: &str = "";

/// The devices of the node. A cheap handle.
#[derive(Clone)]
pub struct Devices {
    inner: Arc<Inner>,
}

struct Inner {
    in_use: watch::Sender<InUse>,
    /// One lock per device in use.
    locks: Mutex<BTreeMap<String, Weak<AsyncMutex<()>>>>,
    /// The node's object; `None`: there is no apiserver.
    node: Option<watch::Receiver<Option<Arc<Node>>>>,
}

/// The devices that pods use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// The UIDs of pods that use a device, by its name; never empty.
    users: BTreeMap<String, BTreeSet<String>>,
    /// Those of them that are known not to be attachable.
    unattached: BTreeSet<String>,
}

/// A lock on a device.
pub(super) struct DeviceGuard {
    name: String,
    inner: Arc<Inner>,
    _turn: OwnedMutexGuard<()>,
}

impl InUse {
    /// The names of the attachable ones, for `volumesInUse` of the node's status. A reconstructed
    /// device counts until its pod is set up again.
    pub fn attached(&self) -> Vec<String> {
        // Local ones are not, and those without this prefix are of FlexVolume drivers.
        const ATTACHABLE: [&str; 3] =
            ["kubernetes.io/csi/", "kubernetes.io/fc/", "kubernetes.io/iscsi/"];
        let is_attachable = |name: &&String| {
            let of_plugin = !name.starts_with("kubernetes.io/")
                || ATTACHABLE.iter().any(|plugin| name.starts_with(plugin));
            of_plugin && !self.unattached.contains(*name)
        };
        let attachable = self.users.keys().filter(is_attachable);
        let mut names: Vec<_> = attachable.flat_map(|name| names(name)).collect();
        names.sort();
        names
    }

    /// The users of each device.
    #[cfg(test)]
    pub(super) fn users(&self) -> &BTreeMap<String, BTreeSet<String>> {
        &self.users
    }

    fn remove_user(&mut self, name: &str, uid: &str) -> bool {
        let Some(users) = self.users.get_mut(name) else { return false };
        let removed = users.remove(uid);
        if users.is_empty() {
            self.users.remove(name);
            self.unattached.remove(name);
        }
        removed
    }
}

/// The names that the control plane may use for a device: that of an iSCSI disk has the portal as
/// written in the volume, often without the default port.
fn names(device: &str) -> impl Iterator<Item = String> + use<> {
    let is_disk = device.starts_with(layout::ISCSI_PLUGIN) && device.contains(DEFAULT_PORT_INFIX);
    let short = is_disk.then(|| device.replacen(DEFAULT_PORT_INFIX, ":", 1));
    short.into_iter().chain([device.to_owned()])
}

/// The first volume in `volumesAttached` of a node's status that has one of these names.
fn attachment<'n>(node: Option<&'n Node>, names: &[String]) -> Option<&'n AttachedVolume> {
    let attached = node?.status.as_ref()?.volumes_attached.as_ref()?;
    attached.iter().find(|volume| names.contains(&volume.name))
}

impl Devices {
    /// The devices that pods use, by name with the UIDs of these pods. `node` is the node's object,
    /// if there is an apiserver.
    pub(super) fn new(
        users: BTreeMap<String, BTreeSet<String>>,
        node: Option<watch::Receiver<Option<Arc<Node>>>>,
    ) -> Self {
        let in_use = watch::Sender::new(InUse { users, unattached: BTreeSet::new() });
        let inner = Inner { in_use, locks: Mutex::default(), node };
        Self { inner: Arc::new(inner) }
    }

    /// The node's object, if it is known.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        self.inner.node.as_ref().and_then(|node| node.borrow().clone())
    }

    /// Whether the attach/detach controller manages the node, by its annotation.
    pub(super) fn is_attach_controller_managed(&self) -> bool {
        const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
        let Some(node) = self.node() else { return self.inner.node.is_some() };
        let annotations = node.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(MANAGED)).is_some_and(|on| on == "true")
    }

    /// Waits until the device is in `volumesAttached` of the node's status. Without an apiserver it
    /// waits forever.
    pub(super) async fn attached(&self, device: &str) {
        let Some(mut node) = self.inner.node.clone() else {
            return std::future::pending().await;
        };
        let names: Vec<_> = names(device).collect();
        let is_attached = |node: &Option<Arc<Node>>| attachment(node.as_deref(), &names).is_some();
        if node.wait_for(is_attached).await.is_err() {
            std::future::pending().await
        }
    }

    /// The same, as long as attachments may take.
    pub(super) async fn attached_in_time(&self, device: &str) -> Result<(), Error> {
        timeout(ATTACH_TIMEOUT, self.attached(device)).await.map_err(|_| Error::NotAttached)
    }

    /// The device path of a device that is in `volumesAttached` of the node's status; it may be empty.
    pub(super) fn attached_now(&self, device: &str) -> Option<String> {
        let names: Vec<_> = names(device).collect();
        attachment(self.node().as_deref(), &names).map(|attached| attached.device_path.clone())
    }

    /// The devices that some pod uses.
    pub fn in_use(&self) -> watch::Receiver<InUse> {
        self.inner.in_use.subscribe()
    }

    /// Removes the pod from the users of all devices.
    pub(super) fn forget(&self, uid: &str) {
        self.inner.in_use.send_if_modified(|in_use| {
            let names: Vec<_> = in_use.users.keys().cloned().collect();
            names.iter().filter(|name| in_use.remove_user(name, uid)).count() > 0
        });
    }

    /// Whether a device with that prefix, other than the given one, is in use.
    pub(super) fn has_others_with_prefix(&self, start: &str, own: &str) -> bool {
        let in_use = self.inner.in_use.borrow();
        in_use.users.keys().any(|name| name.starts_with(start) && name != own)
    }

    /// Locks a device.
    pub(super) async fn hold(&self, name: &str) -> DeviceGuard {
        let lock_of = self.inner.lock_of(name);
        let _turn = lock_of.lock_owned().await;
        DeviceGuard { name: name.to_owned(), inner: Arc::clone(&self.inner), _turn }
    }
}

impl DeviceGuard {
    /// Adds a pod to the users.
    pub(super) fn add_user(&self, uid: &str) {
        self.inner.in_use.send_if_modified(|in_use| {
            in_use.users.entry(self.name.clone()).or_default().insert(uid.to_owned())
        });
    }

    /// The same, and sets whether the device is attachable.
    pub(super) fn add_user_attachable(&self, uid: &str, attached: bool) {
        self.inner.in_use.send_if_modified(|in_use| {
            let changed = match attached {
                true => in_use.unattached.remove(&self.name),
                false => in_use.unattached.insert(self.name.clone()),
            };
            in_use.users.entry(self.name.clone()).or_default().insert(uid.to_owned()) || changed
        });
    }

    /// The unique name of the device.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether that pod uses the device.
    pub(super) fn has_user(&self, uid: &str) -> bool {
        self.inner.in_use.borrow().users.get(&self.name).is_some_and(|users| users.contains(uid))
    }

    /// Whether a pod other than that one uses the device.
    pub(super) fn has_other_users(&self, uid: &str) -> bool {
        let in_use = self.inner.in_use.borrow();
        in_use.users.get(&self.name).is_some_and(|users| users.iter().any(|user| user != uid))
    }

    /// The pods other than that one that use the device.
    pub(super) fn other_users(&self, uid: &str) -> Vec<String> {
        let in_use = self.inner.in_use.borrow();
        let users = in_use.users.get(&self.name).into_iter().flatten();
        users.filter(|user| *user != uid).cloned().collect()
    }

    /// Unmounts the device from the path where it is mounted for all pods, unless a pod other than
    /// that one uses it.
    pub(super) async fn unstage(&self, uid: &str, global: PathBuf) -> Result<(), Error> {
        if self.has_other_users(uid) {
            return Ok(());
        }
        blocking(move || {
            remove::unmount(&global)?;
            layout::remove_empty_dir(&global)
        })
        .await
    }

    /// Removes a pod from the users.
    pub(super) fn remove_user(&self, uid: &str) {
        self.inner.in_use.send_if_modified(|in_use| in_use.remove_user(&self.name, uid));
    }
}

impl Inner {
    fn lock_of(&self, name: &str) -> Arc<AsyncMutex<()>> {
        let mut locks = self.locks();
        locks.retain(|_, lock_of| lock_of.strong_count() > 0);
        if let Some(lock_of) = locks.get(name).and_then(Weak::upgrade) {
            return lock_of;
        }
        let lock_of = Arc::new(AsyncMutex::new(()));
        locks.insert(name.to_owned(), Arc::downgrade(&lock_of));
        lock_of
    }

    fn locks(&self) -> MutexGuard<'_, BTreeMap<String, Weak<AsyncMutex<()>>>> {
        self.locks.lock()
    }
}
