//! Which dead containers and sandboxes go: a plain function of what is there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use longshore_config::Config;
use longshore_pod::observed::{Container, ObservedPod, Sandbox, State};

/// How many dead containers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gc) struct Policy {
    /// A container is kept for this long after it was made.
    pub(in crate::gc) min_age: Duration,
    /// Dead runs that are kept of each container of a pod; `None` for all.
    pub(in crate::gc) per_container: Option<usize>,
    /// Dead runs that are kept on the node; `None` for all.
    pub(in crate::gc) total: Option<usize>,
}

impl Policy {
    /// The policy that the flags ask for; a negative number stands for no limit.
    pub(in crate::gc) fn new(config: &Config) -> Self {
        Self {
            min_age: config.minimum_container_ttl.get(),
            per_container: usize::try_from(config.maximum_dead_containers_per_container).ok(),
            total: usize::try_from(config.maximum_dead_containers).ok(),
        }
    }
}

/// What becomes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Its containers may start, and start again.
    Lives,
    /// Nothing of it will run any more; its object is there, and who looks at it wants its logs.
    Ended,
    /// It has ended, and was deleted or evicted: nothing of it is wanted.
    Spent,
}

/// A pod of this node, and what the runtime has of it.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) pod: Arc<ObservedPod>,
    pub(super) fate: Fate,
}

/// Something that goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removal<'a> {
    /// A container that does not run; one in an unknown state may have to be stopped.
    Run(&'a ObservedPod, &'a Container),
    /// A sandbox that does not stand, and of which no container is left by then.
    Sandbox(&'a ObservedPod, &'a Sandbox),
}

/// The dead runs of one container of one pod, newest first.
struct Unit<'a> {
    pod: &'a ObservedPod,
    runs: Vec<&'a Container>,
    /// Runs that never began, and never will: there is nothing to see of them.
    unstarted: Vec<&'a Container>,
    /// Whether the first of them is needed: it tells the pod's worker what ran already.
    needed: bool,
}

impl<'a> Unit<'a> {
    /// Give up what never began, whatever the policy.
    fn clear(&mut self, removals: &mut Vec<Removal<'a>>) {
        let pod = self.pod;
        removals.extend(self.unstarted.drain(..).rev().map(|run| Removal::Run(pod, run)));
    }

    /// Give up all but the newest few.
    fn shrink(&mut self, keep: usize, removals: &mut Vec<Removal<'a>>) {
        let keep = keep.max(usize::from(self.needed)).min(self.runs.len());
        let pod = self.pod;
        // The oldest first, should not all of them go.
        removals.extend(self.runs.drain(keep..).rev().map(|run| Removal::Run(pod, run)));
    }
}

/// What of these pods goes, containers before the sandboxes that they were in.
pub(super) fn plan<'a>(pods: &'a [Subject], policy: &Policy, now: Timestamp) -> Vec<Removal<'a>> {
    let mut removals = Vec::new();
    // Of a pod that is known in part, what looks dead may have company that cannot be seen yet.
    let pods = || pods.iter().filter(|subject| !subject.pod.partial);
    let mut units: Vec<Unit<'_>> = Vec::new();
    for subject in pods() {
        for mut unit in dead_runs(subject, policy.min_age, now) {
            unit.clear(&mut removals);
            match subject.fate {
                Fate::Spent => unit.shrink(0, &mut removals),
                Fate::Lives | Fate::Ended if unit.runs.is_empty() => {}
                Fate::Lives | Fate::Ended => units.push(unit),
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
    for Subject { pod, fate } in pods() {
        // The newest is what a pod is known by: its number, its addresses.
        let kept = usize::from(*fate != Fate::Spent);
        let dead = pod.sandboxes.iter().skip(kept).filter(|sandbox| !sandbox.ready);
        removals.extend(dead.filter(|s| is_empty(s)).map(|s| Removal::Sandbox(pod, s)));
    }
    removals
}

/// The dead runs of a pod that are old enough to go, by container.
fn dead_runs<'a>(
    subject: &'a Subject,
    min_age: Duration,
    now: Timestamp,
) -> impl Iterator<Item = Unit<'a>> {
    let min_age = SignedDuration::try_from(min_age).unwrap_or(SignedDuration::MAX);
    let Subject { pod, fate } = subject;
    let mut units: BTreeMap<&str, Unit<'_>> = BTreeMap::new();
    let mut seen: Vec<&str> = Vec::new();
    for run in &pod.containers {
        let newest = !seen.contains(&run.name.as_str());
        if newest {
            seen.push(&run.name);
        }
        // The newest one that has yet to start does not count for the log of the one before.
        let awaited = newest && run.state == State::Created && *fate == Fate::Lives;
        if run.is_running() || awaited || now.duration_since(run.created_at) < min_age {
            continue;
        }
        let needed = newest && *fate == Fate::Lives;
        let fresh = || Unit { pod, runs: Vec::new(), unstarted: Vec::new(), needed };
        let unit = units.entry(&run.name).or_insert_with(fresh);
        match run.state {
            State::Created if !newest => unit.unstarted.push(run),
            _ => unit.runs.push(run),
        }
    }
    units.into_values()
}

/// Give up so many that no more than `most` are left in all: first all that exceed an equal share,
/// which is one at least, then the oldest of the rest.
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
