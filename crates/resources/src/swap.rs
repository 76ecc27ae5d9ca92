//! Swap limits of containers.

use std::path::Path;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_config::KubeletConfiguration;
use longshore_cri::v1::LinuxContainerResources;
use longshore_machine::Machine;
use longshore_pod::qos::{self, units_of};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tracing::debug;

use super::cgroups::Cgroups;

/// The first kernel whose tmpfs supports `noswap`.
const NOSWAP_KERNEL: (u8, u8) = (6, 4);

/// The swap behavior.
#[derive(Clone, Debug, Default)]
pub struct Swap {
    /// Whether swap accounting is available.
    controller: bool,
    unified: bool,
    limited: bool,
    /// The machine's memory and swap in bytes.
    memory: i64,
    swap: i64,
}

impl Swap {
    /// The swap behavior of the config, on this machine.
    pub fn new(settings: &KubeletConfiguration, machine: &Machine, cgroups: &Cgroups) -> Self {
        let bytes = |amount| i64::try_from(amount).unwrap_or(i64::MAX);
        Self {
            controller: cgroups.counts_swap(),
            unified: cgroups.is_unified(),
            limited: settings.memory_swap.swap_behavior == "LimitedSwap",
            memory: bytes(machine.memory),
            swap: bytes(machine.swap),
        }
    }

    /// Sets the swap limit of a container. On v1 there is none without a memory limit.
    pub fn apply(&self, pod: &Pod, container: &Container, resources: &mut LinuxContainerResources) {
        match (self.controller, self.unified) {
            (false, _) => {}
            // No swap: memory and swap together are limited to the memory limit.
            (true, false) => {
                resources.memory_swap_limit_in_bytes = resources.memory_limit_in_bytes;
            }
            (true, true) => {
                let limit = self.limit(pod, container);
                resources.unified.insert("memory.swap.max".to_owned(), limit.to_string());
            }
        }
    }

    /// A container's swap limit, proportional to its memory request.
    fn limit(&self, pod: &Pod, container: &Container) -> i64 {
        let request = units_of(qos::requests(container), "memory");
        let swaps =
            self.limited && qos::may_swap(pod, container) && (0..=self.memory).contains(&request);
        if !swaps || self.memory == 0 {
            return 0;
        }
        (request as f64 / self.memory as f64 * self.swap as f64) as i64
    }
}

/// Whether swap is on.
pub fn is_on() -> bool {
    // A header, then one line for each swap area.
    std::fs::read_to_string("/proc/swaps").is_ok_and(|table| table.trim().lines().count() > 1)
}

/// Whether tmpfs supports `noswap`. Tried below `dir` with older kernels. May block.
pub fn supports_tmpfs_noswap(dir: &Path) -> bool {
    if longshore_machine::process::is_in_user_namespace() {
        debug!("tmpfs noswap is not supported in a user namespace");
        return false;
    }
    match procfs::sys::kernel::Version::current() {
        Ok(kernel) if (kernel.major, kernel.minor) >= NOSWAP_KERNEL => true,
        _ => try_noswap(&dir.join(format!("tmpfs-noswap-test-{}", std::process::id()))),
    }
}

fn try_noswap(dir: &Path) -> bool {
    if let Err(error) = std::fs::create_dir_all(dir) {
        debug!(%error, "failed to create a directory to test tmpfs noswap");
        return false;
    }
    let mounted = mount(Some("tmpfs"), dir, Some("tmpfs"), MsFlags::empty(), Some("noswap"));
    if mounted.is_ok() {
        let _ = umount2(dir, MntFlags::MNT_DETACH);
    }
    let _ = std::fs::remove_dir(dir);
    mounted.is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const MIB: i64 = 1 << 20;

    fn pod(priority: i32, containers: Value) -> Pod {
        serde_json::from_value(json!({"spec": {"priority": priority, "containers": containers}}))
            .unwrap()
    }

    fn container(request: &str, limit: &str) -> Value {
        let list = |text: &str| match text {
            "" => json!({}),
            text => json!({"memory": text}),
        };
        json!({"name": "c", "resources": {"requests": list(request), "limits": list(limit)}})
    }

    fn swap(limited: bool, unified: bool) -> Swap {
        Swap { controller: true, unified, limited, memory: 1000 * MIB, swap: 500 * MIB }
    }

    fn applied(swap: &Swap, pod: &Pod) -> LinuxContainerResources {
        let container = &pod.spec.as_ref().unwrap().containers[0];
        let mut resources = LinuxContainerResources {
            memory_limit_in_bytes: units_of(qos::limits(container), "memory"),
            ..LinuxContainerResources::default()
        };
        swap.apply(pod, container, &mut resources);
        resources
    }

    #[test]
    fn swap_limit_is_proportional_to_the_memory_request() {
        for (priority, own, other, expected) in [
            (0, ("100Mi", "200Mi"), ("", ""), 50 * MIB),
            (0, ("100Mi", ""), ("", ""), 50 * MIB),
            (0, ("1000Mi", ""), ("", ""), 500 * MIB),
            // More than there is.
            (0, ("1001Mi", ""), ("", ""), 0),
            // It says what it needs, or nothing.
            (0, ("100Mi", "100Mi"), ("10Mi", ""), 0),
            (0, ("", ""), ("10Mi", ""), 0),
            // Best effort, and critical.
            (0, ("", ""), ("", ""), 0),
            (2_000_000_000, ("100Mi", "200Mi"), ("", ""), 0),
        ] {
            let mut second = container(other.0, other.1);
            second["name"] = json!("d");
            let pod = pod(priority, json!([container(own.0, own.1), second]));
            let resources = applied(&swap(true, true), &pod);
            let limit = resources.unified.get("memory.swap.max").map(String::as_str);
            assert_eq!(limit, Some(expected.to_string().as_str()), "{priority} {own:?} {other:?}");
            assert_eq!(resources.memory_swap_limit_in_bytes, 0);
        }
    }

    #[test]
    fn swap_limit_without_limited_swap() {
        let pod = pod(0, json!([container("100Mi", "200Mi")]));
        let v2 = applied(&swap(false, true), &pod);
        assert_eq!(v2.unified["memory.swap.max"], "0");
        for limited in [false, true] {
            let v1 = applied(&swap(limited, false), &pod);
            assert_eq!(v1.memory_swap_limit_in_bytes, 200 * MIB);
            assert!(v1.unified.is_empty());
        }
        let uncounted = applied(&Swap { controller: false, ..swap(true, true) }, &pod);
        assert!(uncounted.unified.is_empty() && uncounted.memory_swap_limit_in_bytes == 0);
    }
}
