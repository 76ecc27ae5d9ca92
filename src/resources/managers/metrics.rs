//! What the managers give, and how often they cannot.

use std::sync::Weak;
use std::time::Instant;

use longshore_metrics::{Buckets, Counter, Histogram, Registry, Text};
use longshore_topology::Refusal;

use super::Shared;
use crate::metrics::gauge;

/// What the managers count. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    requests: Counter,
    refusals: Counter,
    durations: Histogram,
    pinnings: Counter,
    pinning_errors: Counter,
    memory_pinnings: Counter,
    memory_errors: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(&Registry::default())
    }
}

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        Self {
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

    /// A pod was decided about, from that moment on. With it, so many containers got CPUs, and so
    /// many memory, of their own.
    pub(super) fn decided(&self, began: Instant, outcome: &Result<(usize, usize), Refusal>) {
        self.requests.inc();
        self.durations.observe(began.elapsed().as_secs_f64() * 1000.0);
        match outcome {
            Ok((cpus, memory)) => {
                self.pinnings.add(*cpus as u64);
                self.memory_pinnings.add(*memory as u64);
            }
            Err(Refusal::Topology) => self.refusals.inc(),
            Err(Refusal::Memory(_)) => {
                self.memory_pinnings.inc();
                self.memory_errors.inc();
            }
            Err(_) => {
                self.pinnings.inc();
                self.pinning_errors.inc();
            }
        }
    }
}

/// Has `registry` tell who has which CPUs, while there are managers.
pub(super) fn tell(registry: &Registry, shared: Weak<Shared>) {
    registry.collect(move |text| write(text, &shared));
}

fn write(text: &mut Text, shared: &Weak<Shared>) {
    let Some(shared) = shared.upgrade() else { return };
    let allocator = shared.allocator();
    let Some(state) = allocator.cpu_state() else { return };
    let assigned = state.assignments.values().flat_map(|containers| containers.values());
    let exclusive: usize = assigned.map(|cpus| cpus.len()).sum();
    let help = "CPUs that all containers without CPUs of their own share, in thousandths.";
    let common = state.shared.len() as f64 * 1000.0;
    gauge(text, "kubelet_cpu_manager_shared_pool_size_millicores", help, common);
    let help = "CPUs that containers have for themselves.";
    gauge(text, "kubelet_cpu_manager_exclusive_cpu_allocation_count", help, exclusive as f64);
}
