//! The storage medium and size limit of volumes that the node writes.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use longshore_pod::{qos, spec};

use crate::error::Error;

const HUGE_PAGES: &str = "HugePages";
const HUGE_PAGES_OF: &str = "HugePages-";
/// The prefix of huge page resources.
const RESOURCE: &str = "hugepages-";

/// A storage medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Medium {
    Disk,
    /// A tmpfs of that many bytes; half of the machine's memory if none are given.
    Memory {
        size: Option<u64>,
    },
    /// A hugetlbfs with that page size, limited by the pod's cgroup and by its own size limit, if
    /// any.
    HugePages {
        page: u64,
        size: Option<u64>,
    },
}

impl Medium {
    /// The medium of an emptyDir.
    pub(super) fn of(
        source: &EmptyDirVolumeSource,
        pod: &Pod,
        allocatable: &BTreeMap<String, Quantity>,
    ) -> Result<Self, Error> {
        let limit = source.size_limit.as_ref();
        match source.medium.as_deref().unwrap_or_default() {
            "" => Ok(Self::Disk),
            "Memory" => Ok(Self::memory(limit, pod, allocatable)),
            medium if medium == HUGE_PAGES || medium.starts_with(HUGE_PAGES_OF) => {
                let page = huge_page(medium, pod).map_err(Error::Medium)?;
                Ok(Self::HugePages { page, size: limit.and_then(bytes).filter(|size| *size > 0) })
            }
            other => Err(Error::Medium(format!("unknown storage medium {other:?}"))),
        }
    }

    /// Memory, limited by the smallest of the size limit, the pod's memory limit and the node's
    /// allocatable memory.
    pub(super) fn memory(
        limit: Option<&Quantity>,
        pod: &Pod,
        allocatable: &BTreeMap<String, Quantity>,
    ) -> Self {
        let sizes =
            [limit.and_then(bytes), memory_limit(pod), allocatable.get("memory").and_then(bytes)];
        Self::Memory { size: sizes.into_iter().flatten().filter(|size| *size > 0).min() }
    }
}

/// Whole bytes, rounded up.
fn bytes(quantity: &Quantity) -> Option<u64> {
    qos::milli(quantity).and_then(|milli| u64::try_from((milli + 999) / 1000).ok())
}

/// The page size of a huge pages medium, which the pod must request.
fn huge_page(medium: &str, pod: &Pod) -> Result<u64, String> {
    let size = |text: &str| {
        let size = bytes(&Quantity(text.to_owned())).filter(|size| *size > 0);
        size.ok_or_else(|| format!("medium {medium}: {text:?} is not a valid page size"))
    };
    let pod_spec = pod.spec.as_ref();
    let of_pod = pod_spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let containers: Vec<_> = pod_spec.into_iter().flat_map(spec::containers).collect();
    let of_containers = containers.iter().filter_map(|(_, container)| qos::requests(container));
    let names = of_pod.into_iter().chain(of_containers).flat_map(BTreeMap::keys);
    let asked = names.filter_map(|name| name.strip_prefix(RESOURCE)).map(size);
    let asked = asked.collect::<Result<BTreeSet<_>, _>>()?;
    let no_request = || {
        format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    };
    match medium.strip_prefix(HUGE_PAGES_OF) {
        Some(page) => {
            let page = size(page)?;
            asked.contains(&page).then_some(page).ok_or_else(no_request)
        }
        None if asked.len() > 1 => Err(format!(
            "medium: {medium} can't be used if container requests multiple huge page sizes"
        )),
        None => asked.first().copied().ok_or_else(no_request),
    }
}

/// The pod's memory limit; `None` if some container has none.
fn memory_limit(pod: &Pod) -> Option<u64> {
    let pod_spec = pod.spec.as_ref()?;
    let of_pod = pod_spec.resources.as_ref().and_then(|resources| resources.limits.as_ref());
    let own = qos::units_of(of_pod, "memory");
    if own > 0 {
        return u64::try_from(own).ok();
    }
    let (mut regular, mut largest_init) = (0u64, 0u64);
    for (kind, container) in spec::containers(pod_spec) {
        let limit = u64::try_from(qos::units_of(qos::limits(container), "memory")).ok()?;
        match (kind, limit) {
            (_, 0) => return None,
            // It runs together with the sidecars before it.
            (spec::ContainerKind::Init, _) => {
                largest_init = largest_init.max(regular.saturating_add(limit));
            }
            _ => regular = regular.saturating_add(limit),
        }
    }
    let overhead = qos::units_of(pod_spec.overhead.as_ref(), "memory");
    Some(regular.max(largest_init).saturating_add(u64::try_from(overhead).ok()?))
}
