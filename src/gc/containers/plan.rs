//! Selects dead containers and sandboxes for removal. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use longshore_config::Config;
use longshore_pod::observed::{Container, ObservedPod, Sandbox, State};

/// Retention policy of dead containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gc) struct Policy {
    /// Minimum age.
    pub(in crate::gc) min_age: Duration,
    /// Maximum number of dead runs per container of a pod; `None`: unlimited.
    pub(in crate::gc) per_container: Option<usize>,
    /// Maximum number of dead runs on the node; `None`: unlimited.
    pub(in crate::gc) total: Option<usize>,
}

impl Policy {
    /// The configured policy; negative numbers mean unlimited.
    pub(in crate::gc) fn new(config: &Config) -> Self {
        Self {
            min_age: config.minimum_container_ttl.get(),
            per_container: usize::try_from(config.maximum_dead_containers_per_container).ok(),
            total: usize::try_from(config.maximum_dead_containers).ok(),
        }
    }
}

/// State of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// Its containers may be started or restarted.
    Active,
    /// It has terminated; its logs are kept while its object exists.
    Terminated,
    /// It has terminated and was deleted or evicted: all of it can be removed.
    Removable,
}

/// A pod of this node and its observed state.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) pod: Arc<ObservedPod>,
    pub(super) state: PodState,
}

/// An object to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal<'a> {
    /// A dead container; one in an unknown state is stopped first.
    Run(&'a ObservedPod, &'a Container),
    /// A sandbox that is not ready, after all its containers.
    Sandbox(&'a ObservedPod, &'a Sandbox),
}

/// The dead runs of one container of one pod, newest first.
struct Unit<'a> {
    pod: &'a ObservedPod,
    runs: Vec<&'a Container>,
    /// Containers that were created and will never be started.
    unstarted: Vec<&'a Container>,
    /// Whether the newest is needed: the pod worker sees from it that the container ran.
    needed: bool,
}

impl<'a> Unit<'a> {
    /// Removes containers that were never started, whatever the policy.
    fn clear(&mut self, removals: &mut Vec<Removal<'a>>) {
        let pod = self.pod;
        removals.extend(self.unstarted.drain(..).rev().map(|run| Removal::Run(pod, run)));
    }

    /// Removes all but the newest.
    fn shrink(&mut self, keep: usize, removals: &mut Vec<Removal<'a>>) {
        let keep = keep.max(usize::from(self.needed)).min(self.runs.len());
        let pod = self.pod;
        // The oldest first.
        removals.extend(self.runs.drain(keep..).rev().map(|run| Removal::Run(pod, run)));
    }
}

/// The objects to remove, containers before their sandboxes.
pub(super) fn plan<'a>(pods: &'a [Subject], policy: &Policy, now: Timestamp) -> Vec<Removal<'a>> {
    let mut removals = Vec::new();
    // With partial state, more containers of the pod may exist.
    let pods = || pods.iter().filter(|subject| !subject.pod.partial);
    let mut units: Vec<Unit<'_>> = Vec::new();
    for subject in pods() {
        for mut unit in dead_runs(subject, policy.min_age, now) {
            unit.clear(&mut removals);
            match subject.state {
                PodState::Removable => unit.shrink(0, &mut removals),
                PodState::Active | PodState::Terminated if unit.runs.is_empty() => {}
                PodState::Active | PodState::Terminated => units.push(unit),
            }
        }
    }
    if let Some(most) = policy.per_container {
        units.iter_mut().for_each(|unit| unit.shrink(most, &mut removals));
    }
    if let Some(most) = policy.total {
        shrink_to(&mut units, most, &mut removals);
    }
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for subject in pods() {
        for run in &subject.pod.containers {
            *left.entry(&run.sandbox_id).or_default() += 1;
        }
    }
    for removal in &removals {
        if let Removal::Run(_, run) = removal
            && let Some(count) = left.get_mut(run.sandbox_id.as_str())
        {
            *count -= 1;
        }
    }
    let is_empty =
        |sandbox: &Sandbox| left.get(sandbox.id.as_str()).is_none_or(|count| *count == 0);
    for Subject { pod, state } in pods() {
        // The newest has the attempt number and the addresses of the pod.
        let kept = usize::from(*state != PodState::Removable);
        let dead = pod.sandboxes.iter().skip(kept).filter(|sandbox| !sandbox.ready);
        removals.extend(dead.filter(|s| is_empty(s)).map(|s| Removal::Sandbox(pod, s)));
    }
    removals
}

/// The dead runs of a pod above the minimum age, by container.
fn dead_runs<'a>(
    subject: &'a Subject,
    min_age: Duration,
    now: Timestamp,
) -> impl Iterator<Item = Unit<'a>> {
    let min_age = SignedDuration::try_from(min_age).unwrap_or(SignedDuration::MAX);
    let Subject { pod, state } = subject;
    let mut units: BTreeMap<&str, Unit<'_>> = BTreeMap::new();
    let mut seen: Vec<&str> = Vec::new();
    for run in &pod.containers {
        let newest = !seen.contains(&run.name.as_str());
        if newest {
            seen.push(&run.name);
        }
        // A container that is about to start does not count: the log of the previous one is kept.
        let is_starting = newest && run.state == State::Created && *state == PodState::Active;
        if run.is_running() || is_starting || now.duration_since(run.created_at) < min_age {
            continue;
        }
        let needed = newest && *state == PodState::Active;
        let fresh = || Unit { pod, runs: Vec::new(), unstarted: Vec::new(), needed };
        let unit = units.entry(&run.name).or_insert_with(fresh);
        match run.state {
            State::Created if !newest => unit.unstarted.push(run),
            _ => unit.runs.push(run),
        }
    }
    units.into_values()
}

/// Removes runs until `most` are left: first those beyond an equal share of at least one, then the oldest.
fn shrink_to<'a>(units: &mut [Unit<'a>], most: usize, removals: &mut Vec<Removal<'a>>) {
    let count = |units: &[Unit<'_>]| units.iter().map(|unit| unit.runs.len()).sum::<usize>();
    if count(units) <= most {
        return;
    }
    let share = (most / units.len().max(1)).max(1);
    units.iter_mut().for_each(|unit| unit.shrink(share, removals));
    let excess = count(units).saturating_sub(most);
    let mut rest: Vec<(&ObservedPod, &Container)> = units
        .iter()
        .flat_map(|unit| {
            let free = unit.runs.iter().skip(usize::from(unit.needed));
            free.map(|run| (unit.pod, *run))
        })
        .collect();
    rest.sort_by_key(|(_, run)| (run.created_at, run.id.as_str()));
    removals.extend(rest.into_iter().take(excess).map(|(pod, run)| Removal::Run(pod, run)));
}
