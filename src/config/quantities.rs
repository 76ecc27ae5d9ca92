//! What is held back from pods: `kubeReserved`, `systemReserved` and the eviction thresholds, read
//! from their texts once. All amounts are in thousandths of their unit.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::qos::milli;

use super::{GoDuration, KubeletConfiguration};

const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
const SIGNALS: [&str; 9] = [
    "memory.available",
    "allocatableMemory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
];

/// An eviction threshold: an amount, or a part of the capacity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Threshold {
    /// That much, in thousandths of the unit.
    Milli(i128),
    /// That part of the capacity, from 0 to 1.
    Part(f64),
}

impl Threshold {
    /// The threshold against a capacity, both in thousandths of the unit.
    pub fn of(self, capacity: i128) -> i128 {
        match self {
            Self::Milli(amount) => amount,
            Self::Part(part) => (capacity as f64 * part) as i128,
        }
    }
}

/// What pods may not use, by resource name or eviction signal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reserved {
    kube: BTreeMap<String, i128>,
    system: BTreeMap<String, i128>,
    /// Hard eviction thresholds by signal; those that never bite (0 % and 100 %) are left out.
    pub eviction_hard: BTreeMap<String, Threshold>,
    eviction_counts: bool,
}

impl Reserved {
    /// Reads the texts of the configuration; the error tells every fault with its field.
    pub(super) fn new(
        settings: &KubeletConfiguration,
        allocatable_ignores_eviction: bool,
    ) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let mut reserved = Self {
            kube: amounts("kubeReserved", &settings.kube_reserved, &mut errors),
            system: amounts("systemReserved", &settings.system_reserved, &mut errors),
            eviction_hard: thresholds("evictionHard", &settings.eviction_hard, &mut errors),
            eviction_counts: !allocatable_ignores_eviction,
        };
        if !settings.reserved_system_cpus.is_empty() {
            match cpus(&settings.reserved_system_cpus) {
                // the explicit list stands in for both amounts
                Some(cpus) => {
                    reserved.kube.remove("cpu");
                    reserved.system.insert("cpu".to_owned(), cpus.len() as i128 * 1000);
                }
                None => errors.push(format!(
                    "reservedSystemCPUs: {:?} is no list of CPUs such as \"0-3,8\"",
                    settings.reserved_system_cpus
                )),
            }
        }
        let soft = thresholds("evictionSoft", &settings.eviction_soft, &mut errors);
        thresholds("evictionMinimumReclaim", &settings.eviction_minimum_reclaim, &mut errors);
        for (signal, period) in &settings.eviction_soft_grace_period {
            if !period.parse().is_ok_and(|period: GoDuration| period >= GoDuration::ZERO) {
                errors.push(format!(
                    "evictionSoftGracePeriod[{signal}]: {period:?} is no duration of zero or more"
                ));
            }
        }
        for signal in
            soft.keys().filter(|signal| !settings.eviction_soft_grace_period.contains_key(*signal))
        {
            errors.push(format!(
                "evictionSoftGracePeriod: must give a period for the soft threshold of {signal}"
            ));
        }
        if errors.is_empty() { Ok(reserved) } else { Err(errors) }
    }

    /// What is held back for the node's daemons.
    pub fn kube(&self) -> &BTreeMap<String, i128> {
        &self.kube
    }

    /// What is held back for the system.
    pub fn system(&self) -> &BTreeMap<String, i128> {
        &self.system
    }

    /// What is held back of a resource for both together.
    pub fn held(&self, resource: &str) -> i128 {
        [&self.kube, &self.system].into_iter().filter_map(|amounts| amounts.get(resource)).sum()
    }

    /// What is kept free of `capacity` of a resource for eviction to act in time.
    pub fn kept(&self, resource: &str, capacity: i128) -> i128 {
        let signal = match resource {
            "memory" => "memory.available",
            "ephemeral-storage" => "nodefs.available",
            _ => "",
        };
        let threshold = self.eviction_hard.get(signal).filter(|_| self.eviction_counts);
        threshold.map_or(0, |threshold| threshold.of(capacity))
    }

    /// What pods may ask for of `capacity` (thousandths) of a resource; never below zero.
    pub fn allocatable(&self, resource: &str, capacity: i128) -> i128 {
        (capacity - self.held(resource) - self.kept(resource, capacity)).max(0)
    }
}

/// The thousandths of a quantity's text that is zero or more.
pub(super) fn amount(text: &str) -> Option<i128> {
    milli(&Quantity(text.to_owned())).filter(|amount| *amount >= 0)
}

fn amounts(
    field: &str,
    texts: &BTreeMap<String, String>,
    errors: &mut Vec<String>,
) -> BTreeMap<String, i128> {
    let mut amounts = BTreeMap::new();
    for (resource, text) in texts {
        match amount(text) {
            _ if !RESERVABLE.contains(&resource.as_str()) => {
                errors.push(format!(
                    "{field}: cannot reserve {resource:?}, only {}",
                    RESERVABLE.join(", ")
                ));
            }
            None => {
                errors.push(format!("{field}[{resource}]: {text:?} is no quantity of zero or more"))
            }
            Some(amount) => {
                amounts.insert(resource.clone(), amount);
            }
        }
    }
    amounts
}

fn thresholds(
    field: &str,
    texts: &BTreeMap<String, String>,
    errors: &mut Vec<String>,
) -> BTreeMap<String, Threshold> {
    let mut thresholds = BTreeMap::new();
    for (signal, text) in texts {
        if !SIGNALS.contains(&signal.as_str()) {
            errors.push(format!("{field}: {signal:?} is no eviction signal"));
            continue;
        }
        let threshold = match text.strip_suffix('%') {
            Some("0" | "100") => continue,
            Some(percent) => percent
                .parse::<f64>()
                .ok()
                .filter(|percent| (0.0..=100.0).contains(percent))
                .map(|percent| Threshold::Part(percent / 100.0)),
            None => amount(text).filter(|amount| *amount > 0).map(Threshold::Milli),
        };
        match threshold {
            Some(threshold) => {
                thresholds.insert(signal.clone(), threshold);
            }
            None => errors.push(format!(
                "{field}[{signal}]: {text:?} is neither a percentage nor a positive quantity"
            )),
        }
    }
    thresholds
}

/// The CPUs that a list such as `0-3,8` names; `None` if it is no such list.
pub(super) fn cpus(list: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for item in list.split(',') {
        let (first, last) = item.split_once('-').unwrap_or((item, item));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // no machine has more: a bound on the work that a bad list can ask for
        if first > last || last > 8192 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}
