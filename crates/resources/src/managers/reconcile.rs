//! Reconciles the cpusets of running containers: the shared pool changes with every exclusive
//! allocation or release.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use longshore_cri::Runtime;
use longshore_cri::v1::{LinuxContainerResources, UpdateContainerResourcesRequest};
use longshore_pod::spec;
use longshore_topology::CpuSet;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::Shared;

/// The result of an update.
struct Update {
    id: String,
    cpus: CpuSet,
    outcome: Result<(), longshore_cri::Error>,
}

/// After each change, and periodically, for new containers.
pub(super) async fn run(shared: &Arc<Shared>, runtime: Runtime) {
    let mut versions = shared.version.subscribe();
    let mut ticks = interval(shared.period.get());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut updates =
        Updates { runtime, applied: HashMap::new(), busy: HashSet::new(), tasks: JoinSet::new() };
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let stale = shared.drop_stale(&mut shared.allocator());
                if stale {
                    shared.change(|_| ());
                }
                updates.begin(shared);
            }
            changed = versions.changed() => match changed {
                Ok(()) => updates.begin(shared),
                Err(_) => return,
            },
            Some(update) = updates.tasks.join_next(), if !updates.tasks.is_empty() => {
                // A container whose update panicked is retried with the next tick.
                if let Ok(update) = update && updates.done(update) {
                    updates.begin(shared);
                }
            }
        }
    }
}

/// The updates of all containers, at most one per container at a time.
struct Updates {
    runtime: Runtime,
    /// The CPUs that were set last, by container id.
    applied: HashMap<String, CpuSet>,
    busy: HashSet<String>,
    tasks: JoinSet<Update>,
}

impl Updates {
    /// Starts updates of containers whose cpuset differs.
    fn begin(&mut self, shared: &Shared) {
        let mut running = HashSet::new();
        for pod in shared.desired.pods() {
            let uid = spec::uid(&pod);
            let Some(observed) = shared.observer.pod(uid) else { continue };
            for run in observed.containers.iter().filter(|run| run.is_running()) {
                running.insert(run.id.clone());
                let cpus = shared.allocator().cpus(uid, &run.name).cloned();
                let Some(cpus) = cpus else { continue };
                if self.applied.get(&run.id) != Some(&cpus) && self.busy.insert(run.id.clone()) {
                    self.update(run.id.clone(), cpus);
                }
            }
        }
        self.applied.retain(|id, _| running.contains(id));
    }

    fn update(&mut self, id: String, cpus: CpuSet) {
        debug!(id, %cpus, "updating the cpuset of a container");
        let runtime = self.runtime.clone();
        self.tasks.spawn(async move {
            let request = UpdateContainerResourcesRequest {
                container_id: id.clone(),
                linux: Some(LinuxContainerResources {
                    cpuset_cpus: cpus.to_string(),
                    ..LinuxContainerResources::default()
                }),
                ..UpdateContainerResourcesRequest::default()
            };
            let outcome = runtime.update_container_resources(request).await;
            Update { id, cpus, outcome }
        });
    }

    /// Handles the result of an update. Returns whether to continue at once; failures wait for the
    /// next tick.
    fn done(&mut self, update: Update) -> bool {
        self.busy.remove(&update.id);
        match update.outcome {
            Ok(()) => {
                self.applied.insert(update.id, update.cpus);
                true
            }
            Err(error) => {
                if !error.is_not_found() {
                    let (id, cpus) = (&update.id, &update.cpus);
                    warn!(id, %cpus, %error, "failed to update the cpuset of a container");
                }
                false
            }
        }
    }
}
