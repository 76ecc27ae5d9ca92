//! Validation of cgroup, reservation and swap settings, also against the machine.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use longshore_machine::cgroup::is_unified;
use longshore_machine::online_cpus;
use longshore_topology::CpuSet;

use super::{FeatureGates, KubeletConfiguration};

impl KubeletConfiguration {
    /// Period of the CPU quota; `None`: no quota.
    pub fn quota_period(&self) -> Option<Duration> {
        self.cpu_cfs_quota.then(|| self.cpu_cfs_quota_period.get())
    }

    /// Memory of higher QoS classes that is reserved from lower ones, in percent.
    pub fn memory_reserve(&self) -> Option<u64> {
        self.qos_reserved.get("memory").and_then(|text| percentage(text))
    }
}

/// Errors independent of the machine.
pub(super) fn faults(settings: &KubeletConfiguration, gates: &FeatureGates) -> Vec<String> {
    let mut faults = Vec::new();
    enforcement(settings, &mut faults);
    qos_reserved(&settings.qos_reserved, &mut faults);
    let memory = &settings.memory_reservation_policy;
    if memory == "TieredReservation" && !gates.enabled("MemoryQoS") {
        faults.push(
            "memoryReservationPolicy: TieredReservation needs the feature gate MemoryQoS"
                .to_owned(),
        );
    }
    faults
}

/// Errors on this machine.
pub(super) fn host_faults(settings: &KubeletConfiguration) -> Vec<String> {
    faults_on(settings, is_unified(), online_cpus().as_ref())
}

/// Errors on a machine of that cgroup version with these CPUs.
fn faults_on(
    settings: &KubeletConfiguration,
    unified: bool,
    online: Option<&CpuSet>,
) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fault = |applies: bool, text: &str| faults.extend(applies.then(|| text.to_owned()));
    fault(
        !unified && settings.fail_cgroup_v1,
        "failCgroupV1: this host uses cgroup v1, which must be allowed by setting it to false",
    );
    fault(
        !unified && settings.single_process_oom_kill == Some(false),
        "singleProcessOOMKill: must not be false on a host that uses cgroup v1",
    );
    fault(
        !unified && settings.memory_swap.swap_behavior == "LimitedSwap",
        "memorySwap.swapBehavior: LimitedSwap is only supported with cgroup v2, and this host uses v1",
    );
    if let (Ok(reserved), Some(online)) = (settings.reserved_system_cpus.parse::<CpuSet>(), online)
        && !reserved.is_subset(online)
    {
        faults.push(format!(
            "reservedSystemCPUs: {:?} is not a subset of the CPUs that are online",
            settings.reserved_system_cpus
        ));
    }
    faults
}

fn enforcement(s: &KubeletConfiguration, faults: &mut Vec<String>) {
    const FIELD: &str = "enforceNodeAllocatable";
    let levels = &s.enforce_node_allocatable;
    let has = |level: &str| levels.iter().any(|other| other == level);
    let mut unless = |holds: bool, fault: &dyn Fn() -> String| {
        if !holds {
            faults.push(fault());
        }
    };
    for owner in ["system-reserved", "kube-reserved"] {
        unless(!(has(owner) && has(&format!("{owner}-compressible"))), &|| {
            format!("{FIELD}: {owner:?} and \"{owner}-compressible\" exclude each other")
        });
    }
    let mut seen = HashSet::new();
    for level in levels {
        if !seen.insert(level) {
            unless(false, &|| format!("{FIELD}: {level:?} is named twice"));
            continue;
        }
        match level.as_str() {
            "none" => {
                unless(levels.len() == 1, &|| format!("{FIELD}: \"none\" must stand alone"));
                continue;
            }
            "pods" => {}
            "system-reserved" | "system-reserved-compressible" => {
                unless(!s.system_reserved_cgroup.is_empty(), &|| {
                    format!("systemReservedCgroup: must be set when {FIELD} has {level:?}")
                });
            }
            "kube-reserved" | "kube-reserved-compressible" => {
                unless(!s.kube_reserved_cgroup.is_empty(), &|| {
                    format!("kubeReservedCgroup: must be set when {FIELD} has {level:?}")
                });
            }
            _ => {
                unless(false, &|| {
                    format!(
                        "{FIELD}: {level:?} must be one of pods, system-reserved, \
                         system-reserved-compressible, kube-reserved, kube-reserved-compressible, none"
                    )
                });
                continue;
            }
        }
        unless(s.cgroups_per_qos, &|| {
            format!("cgroupsPerQOS: must be true when {FIELD} has {level:?}")
        });
    }
    unless(
        s.reserved_system_cpus.is_empty()
            || (s.system_reserved_cgroup.is_empty() && s.kube_reserved_cgroup.is_empty()),
        &|| {
            "reservedSystemCPUs: cannot be used with systemReservedCgroup or kubeReservedCgroup"
                .to_owned()
        },
    );
}

fn qos_reserved(reserved: &BTreeMap<String, String>, faults: &mut Vec<String>) {
    for (resource, text) in reserved {
        if resource != "memory" {
            faults.push(format!("qosReserved: cannot reserve {resource:?}, only memory"));
        } else if percentage(text).is_none() {
            faults.push(format!(
                "qosReserved[{resource}]: {text:?} is no percentage from 0% to 100%"
            ));
        }
    }
}

fn percentage(text: &str) -> Option<u64> {
    text.strip_suffix('%')?.parse().ok().filter(|percent| *percent <= 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_cgroup_settings_not_supported_by_the_machine_are_rejected() {
        let settings = |change: &dyn Fn(&mut KubeletConfiguration)| {
            let mut settings = KubeletConfiguration { fail_cgroup_v1: false, ..Default::default() };
            change(&mut settings);
            settings
        };
        let v1 = settings(&|s| s.fail_cgroup_v1 = true);
        let whole_group = settings(&|s| s.single_process_oom_kill = Some(false));
        let swap = settings(&|s| s.memory_swap.swap_behavior = "LimitedSwap".to_owned());
        for (settings, field) in [
            (&v1, "failCgroupV1: "),
            (&whole_group, "singleProcessOOMKill: "),
            (&swap, "memorySwap.swapBehavior: "),
        ] {
            let faults = faults_on(settings, false, Some(&CpuSet::from([0, 1, 2, 3])));
            assert!(faults.len() == 1 && faults[0].starts_with(field), "{field} {faults:?}");
            assert!(
                faults_on(settings, true, Some(&CpuSet::from([0, 1, 2, 3]))).is_empty(),
                "{field}"
            );
        }
        for (reserved, fits) in [("0-1", true), ("3", true), ("2-4", false), ("", true)] {
            let settings = settings(&|s| s.reserved_system_cpus = reserved.to_owned());
            let faults = faults_on(&settings, false, Some(&CpuSet::from([0, 1, 2, 3])));
            assert_eq!(faults.is_empty(), fits, "{reserved}: {faults:?}");
        }
    }

    #[test]
    fn config_memory_reservation_is_in_percent() {
        for (resource, text, fault) in [
            ("memory", "50%", ""),
            ("memory", "0%", ""),
            ("memory", "101%", "qosReserved[memory]: "),
            ("memory", "50", "qosReserved[memory]: "),
            ("memory", "-1%", "qosReserved[memory]: "),
            ("cpu", "50%", "qosReserved: cannot reserve \"cpu\""),
        ] {
            let mut found = Vec::new();
            qos_reserved(&BTreeMap::from([(resource.to_owned(), text.to_owned())]), &mut found);
            assert_eq!(found.is_empty(), fault.is_empty(), "{resource} {text}: {found:?}");
            assert!(found.iter().all(|found| found.starts_with(fault)), "{found:?}");
        }
    }
}
