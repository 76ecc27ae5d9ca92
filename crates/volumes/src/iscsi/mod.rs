//! iSCSI volumes: login by `iscsiadm`; the disk is mounted once for all its pods, or mapped for
//! each. A disk with several portals is attached by all of them, and used through multipath if there is a device
//! for it.

mod admin;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longshore_pod::spec;

use crate::devices::DeviceGuard;
use crate::error::Error;
use crate::layout;
use crate::mounted::Mounted;
use crate::persistent::Disk;
use crate::shared_disk::{self, SharedDisk};
use crate::state::State;
use crate::task::Task;
use admin::Admin;

#[cfg(test)]
pub(super) use admin::ISCSIADM;

impl SharedDisk for Disk {
    const PLUGIN: &'static str = layout::ISCSI_PLUGIN;
    const DIR: &'static str = layout::ISCSI;
    const NOTE: &'static str = "iscsi.json";

    fn device_name(&self) -> String {
        self.unique_name()
    }

    fn dir_name(&self, volume: &str) -> PathBuf {
        self.path_of(volume)
    }

    fn of_path(path: &Path) -> Option<Self> {
        Self::parse(path)
    }

    fn file_system(&self) -> Option<&str> {
        self.file_system.as_deref()
    }

    /// After the last disk of a target, its sessions are logged out.
    async fn detach(
        &self,
        node: &State,
        volume: &str,
        is_last: bool,
    ) -> Result<Option<DeviceGuard>, Error> {
        // Held until the user is removed, so that concurrent teardowns of the last disks log out once.
        let sessions = node.devices.hold(&self.target_name()).await;
        if is_last {
            let shared =
                node.devices.has_others_with_prefix(&self.target_name(), &self.unique_name());
            let admin = Admin { tools: &node.tools, kernel: &node.kernel, disk: self, volume };
            admin.detach(shared).await?;
        }
        Ok(Some(sessions))
    }
}

pub(super) async fn set_up(task: &Task<'_>, disk: &Disk) -> Result<Mounted, Error> {
    let (node, persistent) = (task.node, task.persistent);
    let volume = &persistent.spec_name;
    let secret = secret(task, disk).await?;
    let admin = Admin { tools: &node.tools, kernel: &node.kernel, disk, volume };
    // Before anything is created that only the tool can undo.
    admin.check().map_err(Error::unreached)?;
    let held = task.devices().hold(&disk.unique_name()).await;
    held.add_user(task.uid());
    shared_disk::write_note(task, disk).await?;
    let map = shared_disk::map(&node.root, task.uid(), volume, disk);
    let target = match persistent.block {
        true => {
            map.link(&admin.expected_path()).await?;
            None
        }
        false => Some(task.make_target(layout::ISCSI).await?),
    };
    let device = {
        // Sessions of a target are shared by its disks.
        let _sessions = task.devices().hold(&disk.target_name()).await;
        admin.attach(&secret).await.map_err(Error::unreached)?
    };
    match target {
        Some(target) => shared_disk::mount(task, disk, &device, target).await,
        None => map.make(task, &device).await,
    }
}

/// CHAP credentials, by iscsiadm's names.
async fn secret(task: &Task<'_>, disk: &Disk) -> Result<BTreeMap<String, String>, Error> {
    let wanted = disk.chap_discovery || disk.chap_session;
    let Some((namespace, name)) = disk.secret.as_ref().filter(|_| wanted) else {
        return Ok(BTreeMap::new());
    };
    let namespace = namespace.as_deref().unwrap_or_else(|| spec::namespace(task.pod));
    let secret = task.node.objects.secret(namespace, name).await?;
    let data = secret.data.iter().flatten();
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    Ok(data.map(|(key, value)| (key.clone(), text(&value.0))).collect())
}
