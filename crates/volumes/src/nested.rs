//! Mount points inside of volumes. Runtimes create missing mount points, which is not possible in
//! read-only volumes, so they are created here.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, VolumeMount};
use longshore_pod::spec;

use crate::dir::Dir;
use crate::error::Error;

/// Creates the directories in a volume that other volumes of the pod are mounted on.
pub(super) fn make_mount_points(dir: &Dir, mount_points: &[PathBuf]) -> Result<(), Error> {
    mount_points.iter().try_for_each(|path| dir.make_dirs(path, 0o755).map(drop))
}

/// The paths in a volume, relative to its root, where other volumes are mounted in some container.
/// Mounts nested in such mounts are skipped.
pub(super) fn mount_points(pod: &Pod, volume: &str) -> Result<Vec<PathBuf>, Error> {
    let Some(pod_spec) = &pod.spec else { return Ok(Vec::new()) };
    let regular = spec::containers(pod_spec).map(|(_, container)| &container.volume_mounts);
    let ephemeral = spec::ephemeral_containers(pod_spec).iter().map(|c| &c.volume_mounts);
    let mut found = BTreeSet::new();
    for mounts in regular.chain(ephemeral).flatten() {
        in_container(mounts, volume, &mut found)?;
    }
    Ok(found.into_iter().collect())
}

fn in_container(
    mounts: &[VolumeMount],
    volume: &str,
    found: &mut BTreeSet<PathBuf>,
) -> Result<(), Error> {
    let paths = mounts.iter().map(|mount| clean(&mount.mount_path));
    let all = paths.collect::<Result<BTreeSet<_>, _>>()?;
    for mount in mounts.iter().filter(|mount| mount.name == volume) {
        let own = clean(&mount.mount_path)?;
        let mut last: Option<&Path> = None;
        // Paths are ordered by component, so what is below a path follows it at once.
        for path in all.iter().filter(|path| **path != own) {
            let Ok(inside) = path.strip_prefix(&own) else { continue };
            if !last.is_some_and(|outer| inside.starts_with(outer)) {
                found.insert(inside.to_owned());
                last = Some(inside);
            }
        }
    }
    Ok(())
}

/// The path in the container's root directory, without `.` and `..`.
fn clean(mount_path: &str) -> Result<PathBuf, Error> {
    let mut path = PathBuf::new();
    for component in Path::new(mount_path).components() {
        match component {
            Component::Normal(name) => path.push(name),
            // Above the root is the root; above a relative path is something else.
            Component::ParentDir => {
                if !path.pop() && !mount_path.starts_with('/') {
                    return Err(Error::InvalidPath {
                        what: "container mount point",
                        path: mount_path.to_owned(),
                        reason: "must not lead out of the container",
                    });
                }
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(path)
}
