//! Directories of NFS servers, mounted by the system's helper for each pod.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::NFSVolumeSource;
use nix::mount::{MntFlags, umount2};
use tokio::time::timeout;
use tracing::warn;

use super::devices::Left;
use super::error::Error;
use super::host::format::MOUNT;
use super::host::mounts::Table;
use super::host::tools::Tool;
use super::persistent::Task;
use super::{Inner, Mounted, blocking, layout, local};

/// What `mount` itself cannot do without.
pub(super) const HELPER: Tool = Tool { name: "mount.nfs", package: "nfs-common (or nfs-utils)" };
/// After how long a server that does not answer is given up when its directory is unmounted.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn set_up(task: &Task<'_>, source: &NFSVolumeSource) -> Result<Mounted, Error> {
    let (tools, persistent) = (&task.node.tools, task.persistent);
    tools.find(HELPER)?;
    let target = task.make_target(layout::NFS).await?;
    let read_only = persistent.read_only;
    let mounted = Mounted { read_only, ..Mounted::at(target.clone()) };
    if is_mounted(target.clone()).await? {
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
        // One that was killed may have mounted it at the last moment.
        if let Err(left) = unmount(&target).await {
            warn!(error = %left, "what a failed mount has left stays for now");
        }
        return Err(error);
    }
    Ok(mounted)
}

pub(super) async fn take_down(node: &Inner, uid: &str, left: &Left) -> Result<(), Error> {
    unmount(&left.path(&node.root, uid)).await
}

async fn is_mounted(path: PathBuf) -> Result<bool, Error> {
    blocking(move || Ok(Table::read()?.has(&path))).await
}

/// Unmounts; by force, if the server does not answer.
async fn unmount(path: &Path) -> Result<(), Error> {
    let mut patient = Box::pin(local::unmount(path.to_owned()));
    if let Ok(unmounted) = timeout(PATIENCE, &mut patient).await {
        return unmounted;
    }
    warn!(path = %path.display(), "an NFS server does not answer: its directory is unmounted by force");
    let forced = path.to_owned();
    let force = blocking(move || {
        // What waits for the server is told an error by this, be it the first attempt.
        let _ = umount2(&forced, MntFlags::MNT_FORCE | MntFlags::UMOUNT_NOFOLLOW);
        Ok(())
    });
    let _ = timeout(PATIENCE, force).await;
    let hung = || Error::io("unmount", path, nix::errno::Errno::ETIMEDOUT);
    timeout(PATIENCE, patient).await.unwrap_or_else(|_| Err(hung()))
}
