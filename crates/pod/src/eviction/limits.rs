//! Pods that exceed their limits of local ephemeral storage.

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::Layout;
use crate::qos::{self, milli};
use crate::resources;
use crate::usage::PodUsage;

const STORAGE: &str = "ephemeral-storage";

/// A limit that a pod has exceeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exceeded {
    /// The label in metrics.
    pub signal: &'static str,
    /// The message for the pod's status.
    pub message: String,
}

/// Whether an `emptyDir` volume of the pod has a size limit.
pub fn limits_volumes(pod: &Pod) -> bool {
    sized(pod).next().is_some()
}

/// Whether the pod or one of its containers has a limit of ephemeral storage.
pub fn limits_storage(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| resources::limits(spec).contains_key(STORAGE))
}

/// The limit that the pod exceeds, if any. Volumes in memory are checked as well.
pub fn exceeded(pod: &Pod, usage: &PodUsage, layout: Layout) -> Option<Exceeded> {
    let pod_spec = pod.spec.as_ref()?;
    for (name, source) in sized(pod) {
        let used = usage.volumes.get(name).map(|space| space.bytes);
        if let (Some(limit), Some(used)) = (&source.size_limit, used)
            && is_over(used, limit)
        {
            let limit = resources::canonical(limit);
            let message =
                format!("Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. ");
            return Some(Exceeded { signal: "emptydirfs.limit", message });
        }
    }
    if let Some(limit) = resources::limits(pod_spec).get(STORAGE)
        && is_over(usage.ephemeral_storage(pod).bytes, limit)
    {
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            resources::canonical(limit)
        );
        return Some(Exceeded { signal: "ephemeralpodfs.limit", message });
    }
    usage.containers.iter().find_map(|container| {
        let declared = pod_spec.containers.iter().find(|other| other.name == container.name)?;
        let limit = qos::limits(declared)?.get(STORAGE)?;
        let mut used = container.logs.unwrap_or_default();
        if layout == Layout::Single {
            used += container.rootfs.unwrap_or_default();
        }
        (milli(limit) != Some(0) && is_over(used.bytes, limit)).then(|| Exceeded {
            signal: "ephemeralcontainerfs.limit",
            message: format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                container.name,
                resources::canonical(limit)
            ),
        })
    })
}

/// Volumes that have a limit.
fn sized(pod: &Pod) -> impl Iterator<Item = (&str, &EmptyDirVolumeSource)> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    volumes.iter().filter_map(|volume| {
        let source = volume.empty_dir.as_ref()?;
        let limit = source.size_limit.as_ref().and_then(milli)?;
        (limit > 0).then_some((volume.name.as_str(), source))
    })
}

fn is_over(used: u64, limit: &Quantity) -> bool {
    milli(limit).is_some_and(|limit| i128::from(used) * 1000 > limit)
}
