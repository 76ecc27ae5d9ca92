//! The resource requests of a pod.

use std::collections::BTreeMap;

/// Amounts in bytes by resource name: `memory`, `hugepages-2Mi`.
pub type Amounts = BTreeMap<String, u64>;

/// Kind of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Init container.
    Init,
    /// Sidecar.
    Sidecar,
    /// Regular container.
    Main,
}

/// The request of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: Kind,
    /// The CPU request, if it is an integer.
    pub cpus: Option<usize>,
    /// Memory and huge pages.
    pub memory: Amounts,
}

/// The request of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// Its UID.
    pub uid: String,
    /// Whether it is Guaranteed without pod-level resources: only such pods get exclusive resources.
    pub guaranteed: bool,
    /// Init containers and sidecars, then the others, in order.
    pub containers: Vec<ContainerRequest>,
}

impl PodRequest {
    /// Exclusive CPUs of a container; 0 if it shares CPUs.
    pub(crate) fn cpus_of(&self, container: &ContainerRequest) -> usize {
        container.cpus.filter(|_| self.guaranteed).unwrap_or(0)
    }

    /// Peak exclusive CPUs of the pod.
    pub(crate) fn cpus(&self) -> usize {
        let mut total = Peak::default();
        for container in &self.containers {
            total.add(container.kind, self.cpus_of(container) as u64);
        }
        usize::try_from(total.most()).unwrap_or(usize::MAX)
    }

    /// Peak memory of the pod, without requests of init containers only.
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

/// Peak of a resource over the containers in order.
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
