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

/// The pod-level resources of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnRequest {
    /// The CPU request if it is an integer, or 0.
    pub cpus: usize,
    /// Memory and huge pages, above 0.
    pub memory: Amounts,
}

/// The request of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRequest {
    /// Its UID.
    pub uid: String,
    /// Whether it is Guaranteed, and may have exclusive resources: only such pods get any.
    pub guaranteed: bool,
    /// Its pod-level resources, if these are managed. Then its containers request exclusive resources only
    /// where they would be Guaranteed by themselves.
    pub own: Option<OwnRequest>,
    /// Init containers and sidecars, then the others, in order.
    pub containers: Vec<ContainerRequest>,
}

impl PodRequest {
    /// Exclusive CPUs of a container; 0 if it shares CPUs.
    pub fn cpus_of(&self, container: &ContainerRequest) -> usize {
        container.cpus.filter(|_| self.guaranteed).unwrap_or(0)
    }

    /// Peak exclusive CPUs of the pod.
    pub(crate) fn cpus(&self) -> usize {
        if let Some(own) = &self.own {
            return if self.guaranteed { own.cpus } else { 0 };
        }
        let mut total = Peak::default();
        for container in &self.containers {
            total.add(container.kind, self.cpus_of(container) as u64);
        }
        usize::try_from(total.most()).unwrap_or(usize::MAX)
    }

    /// Peak memory of the pod, without requests of init containers only.
    pub(crate) fn memory(&self) -> Amounts {
        if let Some(own) = &self.own {
            return own.memory.clone();
        }
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

impl PodRequest {
    /// Checks that what containers request for themselves leaves some of the pod's `total` to those that share
    /// it. `own`: what a container requests for itself; `None` if it shares.
    pub(crate) fn check_pool(
        &self,
        resource: &str,
        total: u64,
        own: impl Fn(&ContainerRequest) -> Option<u64>,
    ) -> Result<(), EmptyPool> {
        let (mut taken, mut is_shared) = (0_u64, false);
        for container in &self.containers {
            match (container.kind, own(container)) {
                (Kind::Init, None) if taken >= total => {
                    return Err(EmptyPool::Init(resource.to_owned()));
                }
                (Kind::Init, _) => {}
                (Kind::Sidecar | Kind::Main, None) => is_shared = true,
                (Kind::Sidecar | Kind::Main, Some(amount)) => taken = taken.saturating_add(amount),
            }
        }
        match is_shared && taken >= total {
            true => Err(EmptyPool::Main(resource.to_owned())),
            false => Ok(()),
        }
    }
}

/// Containers are to share what others of their pod have taken, by the name of the resource. The texts are
/// upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmptyPool {
    /// Init containers.
    #[error(
        "pod rejected, pod has shared init containers but no {what} available for them",
        what = if .0 == "cpu" { "cpus" } else { .0 }
    )]
    Init(String),
    /// Sidecars or regular containers.
    #[error(
        "pod rejected, sum of exclusive container {0} requests equals pod budget, leaving no {what} for \
         shared containers",
        what = if .0 == "cpu" { "cpus" } else { "memory" }
    )]
    Main(String),
}

impl EmptyPool {
    /// The resource that is lacking.
    pub fn resource(&self) -> &str {
        let (Self::Init(resource) | Self::Main(resource)) = self;
        resource
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
