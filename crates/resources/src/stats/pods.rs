//! Usage of pods: processes by their cgroups, files by a walk, and writable layers from the
//! runtime.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_cri::Runtime;
use longshore_pod::observed::ObservedPod;
use longshore_pod::spec;
use longshore_pod::usage::{CgroupUsage, ContainerUsage, Memory, PodUsage, Space};

use super::cgroup::{Cgroup, Reader, container_id};
use super::disk::PodDisk;
use super::{Error, Layers, Shared};

/// Cgroup usage of pods, by UID.
pub(super) fn read(shared: &Shared, pods: &[Arc<Pod>]) -> HashMap<String, PodUsage> {
    let (mut reader, mut levels) = (Reader::default(), HashMap::new());
    let one = |pod: &Arc<Pod>| {
        let uid = spec::uid(pod);
        let observed = shared.observer.pod(uid)?;
        let path = PathBuf::from(shared.cgroups.parent_of(pod));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let level = path.parent().unwrap_or(&path).to_owned();
        let open = |level: &PathBuf| Cgroup::new(&shared.hierarchies, level);
        let group = levels.entry(level).or_insert_with_key(open).child(&name);
        // Without pod cgroups, the usage of pods is the sum of their containers.
        let own = name.contains("pod");
        Some((uid.to_owned(), usage(&group, &observed, own, &mut reader)))
    };
    pods.iter().filter_map(one).collect()
}

fn usage(group: &Cgroup, observed: &ObservedPod, own: bool, reader: &mut Reader) -> PodUsage {
    let mut containers = Vec::new();
    let mut sum = CgroupUsage::default();
    for name in group.children() {
        let id = container_id(&name);
        let container = observed.containers.iter().find(|container| container.id == id);
        let sandbox = observed.sandboxes.iter().any(|sandbox| sandbox.id == id);
        if container.is_none() && !sandbox {
            continue;
        }
        let figures = group.child(&name).usage(reader);
        add(&mut sum, &figures);
        if let Some(container) = container {
            let name = container.name.clone();
            containers.push(ContainerUsage { name, cgroup: figures, ..ContainerUsage::default() });
        }
    }
    containers.sort_by(|a, b| a.name.cmp(&b.name));
    let cgroup = if own { group.usage(reader) } else { sum };
    PodUsage { cgroup, containers, ..PodUsage::default() }
}

fn add(sum: &mut CgroupUsage, other: &CgroupUsage) {
    let both = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    };
    sum.cpu = both(sum.cpu, other.cpu);
    sum.swap = both(sum.swap, other.swap);
    sum.tasks = both(sum.tasks, other.tasks);
    if let Some(more) = other.memory {
        let known = sum.memory.unwrap_or_default();
        sum.memory = Some(Memory {
            usage: known.usage.saturating_add(more.usage),
            working_set: known.working_set.saturating_add(more.working_set),
            rss: known.rss.saturating_add(more.rss),
            limit: None,
        });
    }
}

/// The writable layers of containers, by container ID.
pub(super) async fn layers(runtime: Runtime) -> Result<Layers, Error> {
    let at = Timestamp::now();
    let listed = runtime.list_container_stats(None).await.map_err(Error::of)?;
    let layer = |stats: longshore_cri::v1::ContainerStats| {
        let layer = stats.writable_layer?;
        let bytes = layer.used_bytes.map_or(0, |used| used.value);
        let inodes = layer.inodes_used.map_or(0, |used| used.value);
        Some((stats.attributes?.id, Space { bytes, inodes }))
    };
    Ok(Layers { at, used: listed.into_iter().filter_map(layer).collect() })
}

/// Adds the pod's disk usage.
pub(super) fn add_disk(
    usage: &mut PodUsage,
    disk: &PodDisk,
    layers: Option<&Layers>,
    observed: Option<&ObservedPod>,
) {
    usage.volumes = disk.volumes.iter().map(|(name, volume)| (name.clone(), volume.used)).collect();
    usage.own = disk.own;
    for container in &mut usage.containers {
        let id = observed.and_then(|pod| pod.newest(&container.name)).map(|run| run.id.as_str());
        container.rootfs = id.and_then(|id| layers?.used.get(id).copied());
        container.logs = disk.logs.get(&container.name).copied();
    }
}
