//! Amounts of resources as plain numbers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerStatus, Pod as ApiPod, PodSpec, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::quantity::milli;

use super::Atom;

/// What a container without a request for CPU counts in scores, in millicores.
pub const DEFAULT_MILLI_CPU: i64 = 100;
/// What a container without a request for memory counts in scores, in bytes.
pub const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

type List = BTreeMap<String, Quantity>;

/// Amounts of resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU in millicores.
    pub milli_cpu: i64,
    /// Memory in bytes.
    pub memory: i64,
    /// Local ephemeral storage in bytes.
    pub ephemeral_storage: i64,
    /// Number of pods.
    pub pods: i64,
    /// Extended resources, huge pages and attachable volumes, in units.
    pub scalars: Vec<(Atom, i64)>,
}

impl Resources {
    /// From the API's list. What cannot be read counts as zero.
    pub fn new(list: Option<&List>) -> Self {
        let mut own = Self::default();
        for (name, quantity) in list.into_iter().flatten() {
            let milli = milli(quantity).unwrap_or(0);
            if name == "cpu" {
                own.milli_cpu = saturated(milli);
            } else {
                own.set(name, units(milli));
            }
        }
        own
    }

    /// Sets a resource by name; CPU in millicores.
    pub fn set(&mut self, name: &str, amount: i64) {
        match name {
            "cpu" => self.milli_cpu = amount,
            "memory" => self.memory = amount,
            "ephemeral-storage" => self.ephemeral_storage = amount,
            "pods" => self.pods = amount,
            _ => {
                let atom = Atom::new(name);
                match self.scalars.iter_mut().find(|(own, _)| *own == atom) {
                    Some((_, own)) => *own = amount,
                    None => self.scalars.push((atom, amount)),
                }
            }
        }
    }

    /// An amount of a scalar resource.
    pub fn scalar(&self, name: &Atom) -> i64 {
        self.scalars.iter().find(|(own, _)| own == name).map_or(0, |(_, amount)| *amount)
    }

    /// Adds all amounts but the number of pods.
    pub fn add(&mut self, other: &Self) {
        self.apply(other, i64::saturating_add);
    }

    /// Subtracts all amounts but the number of pods.
    pub fn subtract(&mut self, other: &Self) {
        self.apply(other, i64::saturating_sub);
    }

    /// Raises all amounts but the number of pods to those of the other.
    pub fn raise(&mut self, other: &Self) {
        self.apply(other, i64::max);
    }

    fn apply(&mut self, other: &Self, operation: fn(i64, i64) -> i64) {
        self.milli_cpu = operation(self.milli_cpu, other.milli_cpu);
        self.memory = operation(self.memory, other.memory);
        self.ephemeral_storage = operation(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.scalars {
            match self.scalars.iter_mut().find(|(own, _)| own == name) {
                Some((_, own)) => *own = operation(*own, *amount),
                None => self.scalars.push((name.clone(), operation(0, *amount))),
            }
        }
    }

    /// Whether nothing is requested, as upstream counts it.
    pub fn is_zero(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral_storage == 0
            && self.scalars.is_empty()
    }

    /// Whether any amount is below that of the other.
    pub fn is_below(&self, other: &Self) -> bool {
        self.milli_cpu < other.milli_cpu
            || self.memory < other.memory
            || self.ephemeral_storage < other.ephemeral_storage
            || other.scalars.iter().any(|(name, amount)| self.scalar(name) < *amount)
    }
}

fn saturated(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

/// Thousandths as whole units, rounded up.
fn units(milli: i128) -> i64 {
    saturated(milli.saturating_add(999).div_euclid(1000))
}

/// A quantity in whole units; 0 if it cannot be read.
pub fn value(quantity: &Quantity) -> i64 {
    units(milli(quantity).unwrap_or(0))
}

/// What a pod requests: as the API counts it, and with defaults for containers that request nothing.
pub fn of_pod(pod: &ApiPod) -> (Resources, Resources) {
    let Some(spec) = &pod.spec else { return Default::default() };
    (total(pod, spec, false), total(pod, spec, true))
}

fn total(pod: &ApiPod, spec: &PodSpec, with_defaults: bool) -> Resources {
    let status = pod.status.as_ref();
    let infeasible = status.and_then(|status| status.conditions.as_ref()).is_some_and(|all| {
        all.iter().any(|one| {
            one.type_ == "PodResizePending" && one.reason.as_deref() == Some("Infeasible")
        })
    });
    let statuses = status.and_then(|status| status.container_statuses.as_deref());
    let init_statuses = status.and_then(|status| status.init_container_statuses.as_deref());
    let of = |container: &Container, statuses: Option<&[ContainerStatus]>| {
        let status =
            statuses.unwrap_or_default().iter().find(|status| status.name == container.name);
        of_container(container, status, infeasible, with_defaults)
    };

    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of(container, statuses));
    }
    let (mut sidecars, mut peak) = (Resources::default(), Resources::default());
    for container in spec.init_containers.iter().flatten() {
        let mut own = of(container, init_statuses);
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&own);
            sidecars.add(&own);
            own = sidecars.clone();
        } else {
            own.add(&sidecars);
        }
        peak.raise(&own);
    }
    running.raise(&peak);
    if let Some(list) = spec.resources.as_ref().and_then(|own| own.requests.as_ref()) {
        let own = Resources::new(Some(list));
        for name in list.keys() {
            match name.as_str() {
                "cpu" => running.milli_cpu = own.milli_cpu,
                "memory" => running.memory = own.memory,
                name if name.starts_with("hugepages-") => {
                    running.set(name, own.scalar(&name.into()));
                }
                _ => {}
            }
        }
    }
    running.add(&Resources::new(spec.overhead.as_ref()));
    running
}

/// A container's requests: what it wants, what it was given and what it has, whichever is most.
fn of_container(
    container: &Container,
    status: Option<&ContainerStatus>,
    infeasible: bool,
    with_defaults: bool,
) -> Resources {
    let requests = |resources: Option<&ResourceRequirements>| -> Option<List> {
        resources.and_then(|resources| resources.requests.clone())
    };
    let wanted = requests(container.resources.as_ref());
    let mut own = Resources::new(wanted.as_ref());
    let actual = status.and_then(|status| requests(status.resources.as_ref()));
    let allocated = status.and_then(|status| status.allocated_resources.as_ref());
    if actual.is_some() || allocated.is_some() {
        if infeasible {
            own = Resources::default();
        }
        own.raise(&Resources::new(actual.as_ref()));
        own.raise(&Resources::new(allocated));
    }
    if with_defaults {
        let has = |name| wanted.as_ref().is_some_and(|list| list.contains_key(name));
        if !has("cpu") {
            own.milli_cpu = own.milli_cpu.max(DEFAULT_MILLI_CPU);
        }
        if !has("memory") {
            own.memory = own.memory.max(DEFAULT_MEMORY);
        }
    }
    own
}
