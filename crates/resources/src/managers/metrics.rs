//! Metrics of the resource managers.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Instant;

use longshore_config::Config;
use longshore_metrics::{Buckets, Counter, Family, Histogram, Kind, Labels, Registry, Text};
use longshore_topology::{Allocator, CpuSet, Cpus, Refusal, cpu};

use super::Shared;

/// Label values: scopes and boundaries of alignment.
const SCOPES: [&str; 2] = ["container", "pod"];
const NODE: &str = "numa_node";
const CORE: &str = "physical_cpu";
const CACHE: &str = "uncore_cache";

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    requests: Counter,
    refusals: Counter,
    durations: Histogram,
    pinnings: Counter,
    pinning_errors: Counter,
    memory_pinnings: Counter,
    memory_errors: Counter,
    aligned: Family<Counter, 2>,
    not_aligned: Family<Counter, 2>,
    alignment: Alignment,
    /// With the gate `PodLevelResourceManagers`.
    managers: Option<ManagerMetrics>,
}

/// What the managers have allocated, by resource.
#[derive(Clone, Debug)]
struct ManagerMetrics {
    /// By where it is taken from.
    allocations: Family<Counter, 2>,
    errors: Family<Counter, 2>,
    /// By whom containers share it with.
    assignments: Family<Counter, 2>,
}

const CPU: &str = "cpu";
const MEMORY: &str = "memory";
const OF_NODE: &str = "node";
const OF_POD: &str = "pod";

impl ManagerMetrics {
    fn new(registry: &Registry) -> Self {
        let labels = ["resource_name", "source"];
        Self {
            allocations: registry.counters(
                "resource_manager_allocations_total",
                "[ALPHA] Number of exclusive resource allocations performed by a resource manager.",
                labels,
            ),
            errors: registry.counters(
                "resource_manager_allocation_errors_total",
                "[ALPHA] Number of errors encountered during exclusive resource allocation.",
                labels,
            ),
            assignments: registry.counters(
                "resource_manager_container_assignments",
                "[ALPHA] Number of containers with a specific type of resource assignment.",
                ["resource_name", "assignment_type"],
            ),
        }
    }

    fn count_allocation(&self, allocation: &Allocation) {
        let Allocation { containers, cpus, memory, blocks, .. } = *allocation;
        self.count(CPU, allocation.cpus_of_pod, containers, allocation.own_cpus, cpus, cpus);
        self.count(
            MEMORY,
            allocation.memory_of_pod,
            containers,
            allocation.own_memory,
            memory,
            blocks,
        );
    }

    /// `own`: containers that request some for themselves; `holding`: those that hold some of the node.
    fn count(
        &self,
        resource: &str,
        is_of_pod: bool,
        containers: usize,
        own: usize,
        holding: usize,
        allocations: usize,
    ) {
        let add = |family: &Family<Counter, 2>, label: &str, count: usize| {
            if count > 0 {
                family.with([resource, label]).add(count as u64);
            }
        };
        if is_of_pod {
            add(&self.allocations, OF_POD, containers);
            add(&self.assignments, "pod_exclusive", own);
            add(&self.assignments, "pod_shared", containers.saturating_sub(own));
        } else {
            add(&self.allocations, OF_NODE, allocations);
            add(&self.assignments, "node_exclusive", holding);
        }
    }
}

/// The alignment that the configuration guarantees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Alignment {
    /// The scope for alignment to a single NUMA node.
    one_node: Option<&'static str>,
    whole_cores: bool,
}

impl Alignment {
    fn of(config: &Config) -> Self {
        let settings = &config.kubelet;
        let scope = SCOPES[usize::from(settings.topology_manager_scope == "pod")];
        let full = settings.cpu_manager_policy_options.get("full-pcpus-only");
        Self {
            one_node: (settings.topology_manager_policy == "single-numa-node").then_some(scope),
            whole_cores: settings.cpu_manager_policy == "static"
                && full.is_some_and(|full| full == "true"),
        }
    }
}

/// The resources that were allocated to a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Allocation {
    /// Number of containers.
    pub(super) containers: usize,
    /// Containers with exclusive CPUs...
    pub(super) cpus: usize,
    /// ...which share a cache.
    pub(super) one_cache: usize,
    /// Containers with exclusive memory...
    pub(super) memory: usize,
    /// ...in so many blocks.
    pub(super) blocks: usize,
    /// Whether these CPUs, or that memory, are of the pod as a whole...
    pub(super) cpus_of_pod: bool,
    pub(super) memory_of_pod: bool,
    /// ...and so many containers have some of it for themselves.
    pub(super) own_cpus: usize,
    pub(super) own_memory: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::with(&Registry::default(), Alignment::default())
    }
}

impl Metrics {
    pub(super) fn new(registry: &Registry, config: &Config) -> Self {
        let mut metrics = Self::with(registry, Alignment::of(config));
        if config.gates.enabled("PodLevelResourceManagers") {
            metrics.managers = Some(ManagerMetrics::new(registry));
        }
        let settings = &config.kubelet;
        let Self { aligned, not_aligned, .. } = &metrics;
        // Initialize the series.
        if settings.cpu_manager_policy == "static" {
            aligned.with([SCOPES[0], CORE]);
            not_aligned.with([SCOPES[0], CORE]);
            aligned.with([SCOPES[0], CACHE]);
        }
        if settings.topology_manager_policy != "none" {
            for scope in SCOPES {
                aligned.with([scope, NODE]);
                not_aligned.with([scope, NODE]);
            }
        }
        metrics
    }

    fn with(registry: &Registry, alignment: Alignment) -> Self {
        Self {
            alignment,
            managers: None,
            aligned: registry.counters(
                "kubelet_container_aligned_compute_resources_count",
                "How often what containers or pods got for themselves was aligned as promised, by \
                 what it does not leave.",
                ["scope", "boundary"],
            ),
            not_aligned: registry.counters(
                "kubelet_container_aligned_compute_resources_failure_count",
                "How often what containers or pods asked for could not be aligned as promised.",
                ["scope", "boundary"],
            ),
            requests: registry.counter(
                "kubelet_topology_manager_admission_requests_total",
                "Pods whose resources were to be aligned.",
            ),
            refusals: registry.counter(
                "kubelet_topology_manager_admission_errors_total",
                "Pods whose resources could not be aligned.",
            ),
            durations: registry.histogram(
                "kubelet_topology_manager_admission_duration_ms",
                "How long it took to align the resources of a pod, in milliseconds.",
                Buckets::exponential(0.05, 2.0, 15),
            ),
            pinnings: registry.counter(
                "kubelet_cpu_manager_pinning_requests_total",
                "Containers that were to have CPUs of their own.",
            ),
            pinning_errors: registry.counter(
                "kubelet_cpu_manager_pinning_errors_total",
                "Containers that could not have CPUs of their own.",
            ),
            memory_pinnings: registry.counter(
                "kubelet_memory_manager_pinning_requests_total",
                "Containers that were to have memory of their own.",
            ),
            memory_errors: registry.counter(
                "kubelet_memory_manager_pinning_errors_total",
                "Containers that could not have memory of their own.",
            ),
        }
    }

    /// Observes an admission.
    pub(super) fn observe_admission(
        &self,
        began: Instant,
        outcome: &Result<Allocation, Refusal>,
        is_of_pod: bool,
    ) {
        self.requests.inc();
        self.durations.observe(began.elapsed().as_secs_f64() * 1000.0);
        match outcome {
            Ok(allocation) => self.count_allocation(allocation),
            Err(refusal) => self.count_rejection(refusal, is_of_pod),
        }
    }

    fn count_allocation(&self, allocation: &Allocation) {
        self.pinnings.add(allocation.cpus as u64);
        self.memory_pinnings.add(allocation.memory as u64);
        if let Some(managers) = &self.managers {
            managers.count_allocation(allocation);
        }
        let aligned = |scope, boundary, count: usize| {
            if count > 0 {
                self.aligned.with([scope, boundary]).add(count as u64);
            }
        };
        if let Some(scope) = self.alignment.one_node {
            let count = if scope == SCOPES[0] { allocation.containers } else { 1 };
            aligned(scope, NODE, count);
        }
        if self.alignment.whole_cores {
            aligned(SCOPES[0], CORE, allocation.cpus);
        }
        aligned(SCOPES[0], CACHE, allocation.one_cache);
    }

    fn count_rejection(&self, refusal: &Refusal, is_of_pod: bool) {
        if let (Some(managers), Some(resource)) = (&self.managers, lacking(refusal)) {
            let source = if is_of_pod { OF_POD } else { OF_NODE };
            managers.errors.with([resource, source]).inc();
        }
        match refusal {
            Refusal::Topology | Refusal::PodTopology { .. } => {
                self.refusals.inc();
                if let Some(scope) = self.alignment.one_node {
                    self.not_aligned.with([scope, NODE]).inc();
                }
            }
            Refusal::Devices(_) => self.refusals.inc(),
            _ if lacking(refusal) == Some(MEMORY) => {
                self.memory_pinnings.inc();
                self.memory_errors.inc();
            }
            _ => {
                self.pinnings.inc();
                self.pinning_errors.inc();
                if self.alignment.whole_cores {
                    self.not_aligned.with([SCOPES[0], CORE]).inc();
                }
            }
        }
    }
}

/// Which manager has refused a pod, by its resource; `None`: another one has.
fn lacking(refusal: &Refusal) -> Option<&'static str> {
    match refusal {
        Refusal::Topology | Refusal::PodTopology { .. } | Refusal::Devices(_) => None,
        Refusal::EmptyPool(pool) if pool.resource() != CPU => Some(MEMORY),
        Refusal::Memory(_) => Some(MEMORY),
        Refusal::EmptyPool(_)
        | Refusal::Cpus(_)
        | Refusal::NotWholeCores { .. }
        | Refusal::NotEnoughCores { .. } => Some(CPU),
    }
}

/// Whether CPUs share an uncore cache.
pub(super) fn share_cache(cpus: &CpuSet, machine: &Cpus) -> bool {
    let mut caches = cpus.iter().map(|cpu| machine.info(cpu).map(|info| info.uncore));
    caches.next().is_none_or(|first| caches.all(|other| other == first))
}

/// Registers the metrics of CPU assignments; they are zero without managers.
pub(super) fn register_collector(registry: &Registry, shared: Weak<Shared>) {
    registry.collect(move |text| write(text, &shared));
}

fn write(text: &mut Text, shared: &Weak<Shared>) {
    let shared = shared.upgrade();
    let allocator = shared.as_ref().map(|shared| shared.allocator());
    let allocator = allocator.as_deref();
    let nothing = cpu::State::default();
    let state = allocator.and_then(Allocator::cpu_state).unwrap_or(&nothing);
    let assigned = state.assignments.values().flat_map(|containers| containers.values());
    let exclusive: CpuSet = assigned.chain(state.pods.values()).flat_map(CpuSet::iter).collect();
    let help = "CPUs that all containers without CPUs of their own share, in thousandths.";
    let common = state.shared.len() as f64 * 1000.0;
    text.gauge("kubelet_cpu_manager_shared_pool_size_millicores", help, common);
    let help = "CPUs that containers have for themselves.";
    text.gauge("kubelet_cpu_manager_exclusive_cpu_allocation_count", help, exclusive.len() as f64);
    let Some(machine) = allocator.and_then(Allocator::machine) else { return };
    let node = |cpu: u32| machine.info(cpu).map(|info| info.numa);
    let nodes = machine.all();
    let mut counts: BTreeMap<u32, u32> =
        nodes.iter().filter_map(node).map(|node| (node, 0)).collect();
    for node in exclusive.iter().filter_map(node) {
        *counts.entry(node).or_default() += 1;
    }
    let help = "CPUs that containers have for themselves, by their NUMA node.";
    let name = "kubelet_cpu_manager_allocation_per_numa";
    let mut samples = text.family(name, help, Kind::Gauge);
    for (node, count) in counts {
        samples.add(&Labels::new(&[(NODE, &node.to_string())]), f64::from(count));
    }
}

#[cfg(test)]
mod tests {
    use longshore_metrics::parse::{Page, parse};
    use longshore_topology::EmptyPool;

    use super::*;

    fn metrics_page(alignment: Alignment, outcomes: &[Result<Allocation, Refusal>]) -> Page {
        let registry = Registry::default();
        let metrics = Metrics::with(&registry, alignment);
        outcomes
            .iter()
            .for_each(|outcome| metrics.observe_admission(Instant::now(), outcome, false));
        parse(&registry.text()).unwrap()
    }

    #[test]
    fn topology_metrics_count_admissions() {
        let allocation =
            Allocation { containers: 3, cpus: 2, one_cache: 1, memory: 1, ..Allocation::default() };
        let split = Refusal::NotWholeCores { requested: 1, per_core: 2 };
        let outcomes = [Ok(allocation), Err(Refusal::Topology), Err(split)];
        let count = |page: &Page, what: &str, scope: &str, boundary: &str| {
            let name = format!("kubelet_container_aligned_compute_resources_{what}count");
            page.sum(&name, &[("scope", scope), ("boundary", boundary)]).unwrap_or(0.0)
        };
        for (one_node, whole_cores, expected) in [
            (None, false, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
            (Some("container"), true, [3.0, 1.0, 0.0, 0.0, 2.0, 1.0]),
            (Some("pod"), false, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]),
        ] {
            let page = metrics_page(Alignment { one_node, whole_cores }, &outcomes);
            let found = [
                count(&page, "", "container", NODE),
                count(&page, "failure_", "container", NODE),
                count(&page, "", "pod", NODE),
                count(&page, "failure_", "pod", NODE),
                count(&page, "", "container", CORE),
                count(&page, "failure_", "container", CORE),
            ];
            assert_eq!(found, expected, "{one_node:?} {whole_cores}");
            assert_eq!(count(&page, "", "container", CACHE), 1.0);
            assert_eq!(page.sum("kubelet_cpu_manager_pinning_requests_total", &[]), Some(3.0));
        }
    }

    #[test]
    fn manager_metrics_tell_pods_from_containers() {
        let registry = Registry::default();
        let mut metrics = Metrics::with(&registry, Alignment::default());
        metrics.managers = Some(ManagerMetrics::new(&registry));
        let of_node =
            Allocation { containers: 3, cpus: 2, memory: 3, blocks: 6, ..Allocation::default() };
        let of_pod = Allocation {
            containers: 4,
            cpus: 4,
            memory: 4,
            blocks: 4,
            cpus_of_pod: true,
            memory_of_pod: true,
            own_cpus: 1,
            own_memory: 2,
            ..Allocation::default()
        };
        metrics.observe_admission(Instant::now(), &Ok(of_node), false);
        metrics.observe_admission(Instant::now(), &Ok(of_pod), true);
        let split = Refusal::NotWholeCores { requested: 1, per_core: 2 };
        let pool = Refusal::EmptyPool(EmptyPool::Main(MEMORY.to_owned()));
        metrics.observe_admission(Instant::now(), &Err(split), false);
        metrics.observe_admission(Instant::now(), &Err(pool), true);
        metrics.observe_admission(Instant::now(), &Err(Refusal::Topology), true);
        let page = parse(&registry.text()).unwrap();
        for (name, label, values) in [
            (
                "allocations_total",
                "source",
                &[
                    (CPU, OF_NODE, 2.0),
                    (CPU, OF_POD, 4.0),
                    (MEMORY, OF_NODE, 6.0),
                    (MEMORY, OF_POD, 4.0),
                ][..],
            ),
            ("allocation_errors_total", "source", &[(CPU, OF_NODE, 1.0), (MEMORY, OF_POD, 1.0)]),
            (
                "container_assignments",
                "assignment_type",
                &[
                    (CPU, "node_exclusive", 2.0),
                    (CPU, "pod_exclusive", 1.0),
                    (CPU, "pod_shared", 3.0),
                    (MEMORY, "node_exclusive", 3.0),
                    (MEMORY, "pod_exclusive", 2.0),
                    (MEMORY, "pod_shared", 2.0),
                ],
            ),
        ] {
            let name = format!("resource_manager_{name}");
            for (resource, kind, count) in values {
                let labels = [("resource_name", *resource), (label, *kind)];
                assert_eq!(page.sum(&name, &labels), Some(*count), "{name} {labels:?}");
            }
            let total: f64 = values.iter().map(|(_, _, count)| count).sum();
            assert_eq!(page.sum(&name, &[]), Some(total), "{name}");
        }
    }
}
