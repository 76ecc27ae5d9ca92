//! Directories of NFS servers, mounted by the system's helper for each pod.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::NFSVolumeSource;
use nix::mount::{MntFlags, umount2};
use tokio::time::timeout;
use tracing::warn;

use crate::error::Error;
use crate::host::format::MOUNT;
use crate::host::tools::Tool;
use crate::host::{self, blocking};
use crate::layout::{self, ReconstructedVolume};
use crate::mounted::Mounted;
use crate::state::State;
use crate::task::Task;

/// The mount helper.
pub(super) const HELPER: Tool = Tool { name: "mount.nfs", package: "nfs-common (or nfs-utils)" };
/// Timeout of an unmount, after which it is forced.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn set_up(task: &Task<'_>, source: &NFSVolumeSource) -> Result<Mounted, Error> {
    let (tools, persistent) = (&task.node.tools, task.persistent);
    tools.find(HELPER)?;
    let target = task.make_target(layout::NFS).await?;
    let read_only = persistent.read_only;
    let mounted = Mounted { read_only, ..Mounted::at(target.clone()) };
    if host::is_mounted(target.clone()).await? {
        return Ok(mounted);
    }
    // An address of IPv6 has colons of its own.
    let server = match source.server.contains(':') && !source.server.starts_with('[') {
        true => format!("[{}]", source.server),
        false => source.server.clone(),
    };
    let export = format!("{server}:{}", source.path);
    let access = if persistent.read_only { "ro" } else { "rw" };
    let options = persistent.mount_options.iter().map(String::as_str).chain([access]);
    let options = options.collect::<Vec<_>>().join(",");
    let args = ["-t", "nfs", "-o", &options, "--", &export].map(AsRef::as_ref);
    let args = [&args[..], &[target.as_os_str()]].concat();
    let outcome = tools.run(MOUNT, args).await.and_then(|output| output.checked());
    if let Err(error) = outcome {
        // A killed helper may have mounted it nevertheless.
        if let Err(error) = unmount(&target).await {
            warn!(%error, "failed to unmount after a failed mount");
        }
        return Err(error);
    }
    Ok(mounted)
}

pub(super) async fn take_down(
    node: &State,
    uid: &str,
    volume: &ReconstructedVolume,
) -> Result<(), Error> {
    unmount(&volume.path(&node.root, uid)).await
}

/// Unmounts; by force, if the server does not answer.
async fn unmount(path: &Path) -> Result<(), Error> {
    let mut unmounting = Box::pin(host::unmount(path.to_owned()));
    if let Ok(unmounted) = timeout(UNMOUNT_TIMEOUT, &mut unmounting).await {
        return unmounted;
    }
    warn!(path = %path.display(), "NFS server does not respond: forcing the unmount");
    let forced = path.to_owned();
    let force = blocking(move || {
        // This makes pending requests to the server fail, including the first attempt.
        let _ = umount2(&forced, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
        Ok(())
    });
    let _ = timeout(UNMOUNT_TIMEOUT, force).await;
    let hung = || Error::io("unmount", path, nix::errno::Errno::ETIMEDOUT);
    timeout(UNMOUNT_TIMEOUT, unmounting).await.unwrap_or_else(|_| Err(hung()))
}
