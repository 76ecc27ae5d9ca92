//! What of a pod matters for CPUs and memory of its own.

use std::collections::BTreeMap;

/// Amounts in bytes by the resource's name: `memory`, `hugepages-2Mi`.
pub type Amounts = BTreeMap<String, u64>;

/// When a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Before the others, to its end.
    Init,
    /// Before the others, and on beside them.
    Sidecar,
    /// With all others of its kind.
    Main,
}

/// What a container asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Its name.
    pub name: String,
    /// When it runs.
    pub kind: Kind,
    /// The CPUs that it asks for, if that is a whole number of them.
    pub cpus: Option<usize>,
    /// Memory and huge pages.
    pub memory: Amounts,
}

/// What a pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// Its UID.
    pub uid: String,
    /// Whether its class is Guaranteed and its resources are those of its containers: no other pod
    /// has anything for itself.
    pub guaranteed: bool,
    /// Its init containers and sidecars, then the others, in their order.
    pub containers: Vec<ContainerRequest>,
}

impl PodRequest {
    /// CPUs that a container has for itself; 0 if it shares them.
    pub(crate) fn cpus_of(&self, container: &ContainerRequest) -> usize {
        container.cpus.filter(|_| self.guaranteed).unwrap_or(0)
    }

    /// The most exclusive CPUs of the pod at one time.
    pub(crate) fn cpus(&self) -> usize {
        let mut total = Peak::default();
        for container in &self.containers {
            total.add(container.kind, self.cpus_of(container) as u64);
        }
        usize::try_from(total.most()).unwrap_or(usize::MAX)
    }

    /// The most memory of the pod at one time. What only init containers ask for is not in it.
    pub(crate) fn memory(&self) -> Amounts {
        let mut totals: BTreeMap<&str, Peak> = BTreeMap::new();
        for container in &self.containers {
            for (resource, amount) in &container.memory {
                totals.entry(resource).or_default().add(container.kind, *amount);
            }
        }
        let of_main = |resource: &str| {
            let mut mains = self.containers.iter().filter(|own| own.kind == Kind::Main);
            mains.any(|own| own.memory.contains_key(resource))
        };
        let totals = totals.into_iter().filter(|(resource, _)| of_main(resource));
        totals.map(|(resource, total)| (resource.to_owned(), total.most())).collect()
    }
}

/// What is in use at most, while containers are looked at in their order.
#[derive(Default)]
struct Peak {
    init: u64,
    sidecars: u64,
    main: u64,
}

impl Peak {
    fn add(&mut self, kind: Kind, amount: u64) {
        match kind {
            Kind::Init => self.init = self.init.max(self.sidecars.saturating_add(amount)),
            Kind::Sidecar => self.sidecars = self.sidecars.saturating_add(amount),
            Kind::Main => self.main = self.main.saturating_add(amount),
        }
    }

    fn most(&self) -> u64 {
        self.init.max(self.main.saturating_add(self.sidecars))
    }
}
