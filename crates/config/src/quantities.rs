//! Reserved resources: `kubeReserved`, `systemReserved` and hard eviction thresholds. All quantities are
//! in thousandths of their unit.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::eviction::{Amount, Signal, Threshold};
use longshore_pod::qos::milli;
use longshore_topology::CpuSet;

use super::KubeletConfiguration;

const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
/// Reserved resources, by name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reserved {
    kube: BTreeMap<String, i128>,
    system: BTreeMap<String, i128>,
    /// Hard eviction thresholds, if they count.
    eviction: BTreeMap<&'static str, Amount>,
}

impl Reserved {
    /// Parses the settings; the error lists every fault with its field.
    pub(super) fn new(
        settings: &KubeletConfiguration,
        thresholds: &[Threshold],
        allocatable_ignores_eviction: bool,
    ) -> Result<Self, Vec<String>> {
        let mut errors = Vec::new();
        let hard = thresholds.iter().filter(|threshold| threshold.is_hard());
        let eviction =
            hard.filter(|_| !allocatable_ignores_eviction).filter_map(|threshold| match threshold
                .signal
            {
                Signal::Memory => Some(("memory", threshold.value)),
                Signal::NodeFs => Some(("ephemeral-storage", threshold.value)),
                _ => None,
            });
        let mut reserved = Self {
            kube: amounts("kubeReserved", &settings.kube_reserved, &mut errors),
            system: amounts("systemReserved", &settings.system_reserved, &mut errors),
            eviction: eviction.collect(),
        };
        if !settings.reserved_system_cpus.is_empty() {
            match settings.reserved_system_cpus.parse::<CpuSet>() {
                // the explicit list overrides both
                Ok(cpus) => {
                    reserved.kube.remove("cpu");
                    reserved.system.insert("cpu".to_owned(), cpus.len() as i128 * 1000);
                }
                Err(error) => errors.push(format!("reservedSystemCPUs: {error}")),
            }
        }
        if errors.is_empty() { Ok(reserved) } else { Err(errors) }
    }

    /// Reserved by `kubeReserved`.
    pub fn kube(&self) -> &BTreeMap<String, i128> {
        &self.kube
    }

    /// Reserved by `systemReserved`.
    pub fn system(&self) -> &BTreeMap<String, i128> {
        &self.system
    }

    /// Sum of both reservations of a resource.
    pub fn held(&self, resource: &str) -> i128 {
        [&self.kube, &self.system].into_iter().filter_map(|amounts| amounts.get(resource)).sum()
    }

    /// Hard eviction threshold of a resource with that `capacity`.
    pub fn kept(&self, resource: &str, capacity: i128) -> i128 {
        self.eviction.get(resource).map_or(0, |amount| amount.of(capacity))
    }

    /// Allocatable part of `capacity` (thousandths) of a resource; at least 0.
    pub fn allocatable(&self, resource: &str, capacity: i128) -> i128 {
        (capacity - self.held(resource) - self.kept(resource, capacity)).max(0)
    }
}

/// Parses a quantity of at least 0, in thousandths.
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
            None => errors
                .push(format!("{field}[{resource}]: {text:?} is not a quantity of zero or more")),
            Some(amount) => {
                amounts.insert(resource.clone(), amount);
            }
        }
    }
    amounts
}
