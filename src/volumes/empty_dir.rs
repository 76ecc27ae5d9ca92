//! Directories that live as long as their pod, on disk or in memory; the ground of all volumes
//! that the node fills itself.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::{qos, spec};
use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::dir::Dir;
use super::error::{Error, if_exists};
use super::layout;

/// Everyone may use the root of a volume: who gets to it is decided by mounts.
const MODE: u32 = 0o777;
/// What owner and group may do with files of the pod's own.
const WRITABLE: u32 = 0o660;
const READY: &str = "ready";

/// What a volume lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    /// A tmpfs of that many bytes; half of the machine's memory if none are given.
    Memory {
        size: Option<u64>,
    },
}

impl Medium {
    /// The medium that an emptyDir asks for.
    pub(super) fn of(
        source: &EmptyDirVolumeSource,
        pod: &Pod,
        allocatable: &BTreeMap<String, Quantity>,
    ) -> Result<Self, Error> {
        match source.medium.as_deref().unwrap_or_default() {
            "" => Ok(Self::Disk),
            "Memory" => Ok(Self::memory(source.size_limit.as_ref(), pod, allocatable)),
            other => Err(Error::UnsupportedPart(format!("emptyDir medium {other}"))),
        }
    }

    /// Memory of the smallest size among what the volume may hold, what the pod may use and what
    /// the node can give.
    pub(super) fn memory(
        limit: Option<&Quantity>,
        pod: &Pod,
        allocatable: &BTreeMap<String, Quantity>,
    ) -> Self {
        let bytes = |quantity: &Quantity| {
            qos::milli(quantity).and_then(|milli| u64::try_from((milli + 999) / 1000).ok())
        };
        let sizes =
            [limit.and_then(bytes), memory_limit(pod), allocatable.get("memory").and_then(bytes)];
        Self::Memory { size: sizes.into_iter().flatten().filter(|size| *size > 0).min() }
    }
}

/// How much memory the pod's cgroup may use; `None` if some container is not limited.
fn memory_limit(pod: &Pod) -> Option<u64> {
    let pod_spec = pod.spec.as_ref()?;
    let of_pod = pod_spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let own = qos::units_of(of_pod, "memory");
    if own > 0 {
        return u64::try_from(own).ok();
    }
    let (mut lasting, mut largest_init) = (0u64, 0u64);
    for (kind, container) in spec::containers(pod_spec) {
        let limit = u64::try_from(qos::units_of(qos::limits(container), "memory")).ok()?;
        match (kind, limit) {
            (_, 0) => return None,
            // It runs beside the sidecars that were started before it.
            (spec::ContainerKind::Init, _) => {
                largest_init = largest_init.max(lasting.saturating_add(limit));
            }
            _ => lasting = lasting.saturating_add(limit),
        }
    }
    let overhead = qos::units_of(pod_spec.overhead.as_ref(), "memory");
    Some(lasting.max(largest_init).saturating_add(u64::try_from(overhead).ok()?))
}

/// Sets up an emptyDir volume; a volume that is ready already is left as the pod made it.
pub(super) fn set_up(
    pod: &Dir,
    volume: &str,
    medium: Medium,
    group: Option<u32>,
) -> Result<(), Error> {
    let parent = layout::volumes_dir(pod, layout::EMPTY_DIR)?;
    let notes = layout::notes_dir(pod, layout::EMPTY_DIR, volume)?;
    let ready = notes.entries(usize::MAX)?.iter().any(|entry| entry.name == READY);
    let stands = match medium {
        Medium::Disk => if_exists(parent.dir(volume))?.is_some(),
        // After a reboot the note is there, and the memory is gone.
        Medium::Memory { .. } => parent.is_mount_point(volume.as_ref())?,
    };
    if ready && stands {
        return Ok(());
    }
    let dir = make(&parent, volume, medium)?;
    if let Some(group) = group {
        dir.give_to_group(group, WRITABLE)?;
    }
    if ready { Ok(()) } else { notes.new_file(READY.as_ref(), &[], 0o640, (None, None)) }
}

/// The root directory of a volume on that medium, made and mounted if it is not there.
pub(super) fn make(parent: &Dir, volume: &str, medium: Medium) -> Result<Dir, Error> {
    let dir = parent.make_dir(volume, MODE)?;
    let Medium::Memory { size } = medium else { return Ok(dir) };
    if !parent.is_mount_point(volume.as_ref())? {
        drop(dir);
        mount_tmpfs(parent, volume.as_ref(), size)?;
    }
    parent.dir(volume)
}

fn mount_tmpfs(parent: &Dir, name: &OsStr, size: Option<u64>) -> Result<(), Error> {
    // Secrets must not reach a swap device, but kernels before 6.4 do not know the option.
    static NOSWAP_UNKNOWN: AtomicBool = AtomicBool::new(false);
    let path = parent.path().join(name);
    let attempt = |noswap: bool| {
        let size = size.map(|bytes| format!("size={bytes}"));
        let options: Vec<_> = size.into_iter().chain(noswap.then(|| "noswap".to_owned())).collect();
        let options = options.join(",");
        mount(Some("tmpfs"), &path, Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
    };
    let noswap = !NOSWAP_UNKNOWN.load(Ordering::Relaxed);
    let mounted = match attempt(noswap) {
        Err(Errno::EINVAL) if noswap => {
            let mounted = attempt(false);
            NOSWAP_UNKNOWN.fetch_or(mounted.is_ok(), Ordering::Relaxed);
            mounted
        }
        mounted => mounted,
    };
    mounted.map_err(|errno| Error::io("mount tmpfs at", &path, errno))
}
