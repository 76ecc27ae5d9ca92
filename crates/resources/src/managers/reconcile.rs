//! Running containers stay on their CPUs: the shared ones change with every pod that takes some for
//! itself or gives them back.

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

/// What came of an update.
struct Update {
    id: String,
    cpus: CpuSet,
    outcome: Result<(), longshore_cri::Error>,
}

/// Whenever something changes, and each period: containers may have come since.
pub(super) async fn run(shared: &Arc<Shared>, runtime: Runtime) {
    let mut versions = shared.version.subscribe();
    let mut ticks = interval(shared.period.get());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut rounds =
        Rounds { runtime, applied: HashMap::new(), busy: HashSet::new(), updates: JoinSet::new() };
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let stale = shared.drop_stale(&mut shared.allocator());
                if stale {
                    shared.change(|_| ());
                }
                rounds.begin(shared);
            }
            changed = versions.changed() => match changed {
                Ok(()) => rounds.begin(shared),
                Err(_) => return,
            },
            Some(update) = rounds.updates.join_next(), if !rounds.updates.is_empty() => {
                // An update that panicked or was stopped leaves its container for the next tick.
                if let Ok(update) = update && rounds.done(update) {
                    rounds.begin(shared);
                }
            }
        }
    }
}

/// The updates of all containers: one at a time for each, and none waits for another's.
struct Rounds {
    runtime: Runtime,
    /// The CPUs that were set last, by container id.
    applied: HashMap<String, CpuSet>,
    busy: HashSet<String>,
    updates: JoinSet<Update>,
}

impl Rounds {
    /// Begin to update every container that runs elsewhere than it should.
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
        debug!(id, %cpus, "container moves");
        let runtime = self.runtime.clone();
        self.updates.spawn(async move {
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

    /// Take in what came of an update. Tells whether to look for more at once: what failed waits.
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
                    warn!(id, %cpus, %error, "container is not on its CPUs");
                }
                false
            }
        }
    }
}
