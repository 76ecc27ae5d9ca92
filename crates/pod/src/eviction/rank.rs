//! The order in which pods are evicted.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;

use super::signal::CountedStorage;
use super::{Layout, Resource, Signal};
use crate::usage::{PodUsage, Space};
use crate::{qos, resources, spec};

/// A pod that may be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its usage, if it is known.
    pub usage: Option<&'a PodUsage>,
}

/// Sort the pods in the order of eviction for that signal: those of unknown usage, those that
/// exceed their requests, those of lower priority, those that exceed their requests the most. There
/// are no requests of process ids, so priority comes first there.
pub fn rank(pods: &mut [Candidate<'_>], signal: Signal, layout: Layout) {
    match signal.resource() {
        Resource::Memory => pods.sort_by_cached_key(|pod| {
            let requested = request(pod.pod, "memory");
            let used = pod.usage.map(|usage| {
                i128::from(usage.cgroup.memory.map_or(0, |memory| memory.working_set))
            });
            by_excess(pod, used, requested, requested)
        }),
        Resource::Pids => pods.sort_by_cached_key(|pod| {
            let tasks = pod.usage.map(|usage| usage.cgroup.tasks.unwrap_or(0));
            (spec::priority(pod.pod), tasks.is_some(), Reverse(tasks))
        }),
        resource => pods.sort_by_cached_key(|pod| {
            let used = pod.usage.map(|usage| disk_usage(pod.pod, usage, layout.counted(signal)));
            let storage = request(pod.pod, "ephemeral-storage");
            match resource {
                // There are no requests of inodes, yet upstream compares with those of storage.
                Resource::Inodes => {
                    by_excess(pod, used.map(|used| i128::from(used.inodes)), 0, storage)
                }
                _ => by_excess(pod, used.map(|used| i128::from(used.bytes)), storage, storage),
            }
        }),
    }
}

type Key = (bool, bool, i32, Reverse<i128>);

fn by_excess(pod: &Candidate<'_>, used: Option<i128>, requested: i128, weighed: i128) -> Key {
    let exceeds = used.is_some_and(|used| used > requested);
    let excess = used.map_or(0, |used| used - weighed);
    (used.is_some(), !exceeds, spec::priority(pod.pod), Reverse(excess))
}

/// The pod's request, in whole units.
fn request(pod: &Pod, resource: &str) -> i128 {
    let requests = pod.spec.as_ref().map(resources::requests);
    i128::from(qos::units_of(requests.as_ref(), resource))
}

fn disk_usage(pod: &Pod, usage: &PodUsage, counted: CountedStorage) -> Space {
    let mut total = Space::default();
    for container in &usage.containers {
        total += container.rootfs.filter(|_| counted.rootfs).unwrap_or_default();
        total += container.logs.filter(|_| counted.logs).unwrap_or_default();
    }
    if counted.volumes {
        total += usage.local_volumes(pod);
    }
    total
}
