//! What is held back from pods: `kubeReserved` and `systemReserved`, read from their texts once, and
//! what hard eviction keeps free. All amounts are in thousandths of their unit.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::eviction::{Amount, Signal, Threshold};
use longshore_pod::qos::milli;
use longshore_topology::CpuSet;

use super::KubeletConfiguration;

const RESERVABLE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];
/// What pods may not use, by resource name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reserved {
    kube: BTreeMap<String, i128>,
    system: BTreeMap<String, i128>,
    /// Where it counts: what hard eviction keeps free.
    eviction: BTreeMap<&'static str, Amount>,
}

impl Reserved {
    /// Reads the texts of the configuration; the error tells every fault with its field.
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
                // the explicit list stands in for both amounts
                Ok(cpus) => {
                    reserved.kube.remove("cpu");
                    reserved.system.insert("cpu".to_owned(), cpus.len() as i128 * 1000);
                }
                Err(error) => errors.push(format!("reservedSystemCPUs: {error}")),
            }
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
        self.eviction.get(resource).map_or(0, |amount| amount.of(capacity))
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
