//! Which pod has to go first.

use std::cmp::Reverse;

use k8s_openapi::api::core::v1::Pod;

use super::signal::Counted;
use super::{Layout, Resource, Signal};
use crate::usage::{PodUsage, Space};
use crate::{qos, resources, spec};

/// A pod that may have to go.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// What it uses; `None` if nobody knows.
    pub usage: Option<&'a PodUsage>,
}

/// Put the pods in the order in which they have to go for that signal: those that nobody knows
/// the use of, those that use more than they asked for, those of less priority, those that use the
/// most over what they asked for. Process ids are not asked for, so priority comes first there.
pub fn rank(pods: &mut [Candidate<'_>], signal: Signal, layout: Layout) {
    match signal.resource() {
        Resource::Memory => pods.sort_by_cached_key(|pod| {
            let asked = request(pod.pod, "memory");
            let used = pod.usage.map(|usage| {
                i128::from(usage.figures.memory.map_or(0, |memory| memory.working_set))
            });
            by_excess(pod, used, asked, asked)
        }),
        Resource::Pids => pods.sort_by_cached_key(|pod| {
            let tasks = pod.usage.map(|usage| usage.figures.tasks.unwrap_or(0));
            (spec::priority(pod.pod), tasks.is_some(), Reverse(tasks))
        }),
        resource => pods.sort_by_cached_key(|pod| {
            let used = pod.usage.map(|usage| disk_usage(pod.pod, usage, layout.counted(signal)));
            let storage = request(pod.pod, "ephemeral-storage");
            match resource {
                // Nobody asks for inodes, yet upstream weighs them against the storage asked for.
                Resource::Inodes => {
                    by_excess(pod, used.map(|used| i128::from(used.inodes)), 0, storage)
                }
                _ => by_excess(pod, used.map(|used| i128::from(used.bytes)), storage, storage),
            }
        }),
    }
}

type Key = (bool, bool, i32, Reverse<i128>);

fn by_excess(pod: &Candidate<'_>, used: Option<i128>, asked: i128, weighed: i128) -> Key {
    let exceeds = used.is_some_and(|used| used > asked);
    let excess = used.map_or(0, |used| used - weighed);
    (used.is_some(), !exceeds, spec::priority(pod.pod), Reverse(excess))
}

/// What the pod asks for, in whole units.
fn request(pod: &Pod, resource: &str) -> i128 {
    let requests = pod.spec.as_ref().map(resources::requests);
    i128::from(qos::units_of(requests.as_ref(), resource))
}

fn disk_usage(pod: &Pod, usage: &PodUsage, counted: Counted) -> Space {
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
