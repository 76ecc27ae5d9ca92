//! The one owner of "what should run": the pods of all sources by UID, and which mirror in the
//! apiserver belongs to which static pod. Workers hear of changes; everybody else asks.

mod mirror;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::spec;
use tokio::sync::{mpsc, watch};

pub use mirror::reconcile_mirrors;

use crate::sources::{Source, Update};

/// A change to what should run.
#[derive(Clone, Debug)]
pub enum Change {
    /// The pod should run, like this.
    Set(Arc<Pod>),
    /// The pod is gone from its source.
    Gone(Arc<Pod>),
    /// The mirror of a static pod came, went or changed.
    Mirror {
        /// The static pod.
        uid: String,
    },
}

/// Handle to what should run. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Desired {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: RwLock<State>,
    /// Counts changes to static pods and mirrors.
    mirrors_changed: watch::Sender<u64>,
    synced: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<String, (Source, Arc<Pod>)>,
    mirrors: HashMap<FullName, Arc<Pod>>,
    /// Sources that have yet to tell what they have.
    awaited: HashSet<Source>,
}

/// Namespace and name.
type FullName = (String, String);

fn full_name(pod: &Pod) -> FullName {
    (spec::namespace(pod).to_owned(), spec::name(pod).to_owned())
}

impl Desired {
    /// Nothing should run, and these sources have yet to speak.
    pub fn new(sources: impl IntoIterator<Item = Source>) -> Self {
        let awaited: HashSet<Source> = sources.into_iter().collect();
        let synced = watch::Sender::new(awaited.is_empty());
        let state = RwLock::new(State { awaited, ..State::default() });
        Self { shared: Arc::new(Shared { state, mirrors_changed: watch::Sender::new(0), synced }) }
    }

    /// Becomes true once every source has told what it has.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.shared.synced.subscribe()
    }

    /// The pod with that UID.
    pub fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.state().pods.get(uid).map(|(_, pod)| pod.clone())
    }

    /// The pod of that name.
    pub fn pod_by_name(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let state = self.state();
        let mut pods = state.pods.values().map(|(_, pod)| pod);
        pods.find(|pod| spec::name(pod) == name && spec::namespace(pod) == namespace).cloned()
    }

    /// All pods.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.state().pods.values().map(|(_, pod)| pod.clone()).collect()
    }

    /// The object under which the apiserver knows a static pod.
    pub fn mirror(&self, pod: &Pod) -> Option<Arc<Pod>> {
        let state = self.state();
        state.mirrors.get(&full_name(pod)).filter(|mirror| mirror::is_of(mirror, pod)).cloned()
    }

    /// Merge the sources until they are silent for good.
    pub async fn run(
        self,
        mut updates: mpsc::Receiver<(Source, Update)>,
        changes: mpsc::Sender<Change>,
    ) {
        while let Some((source, update)) = updates.recv().await {
            for change in self.apply(source, update) {
                if changes.send(change).await.is_err() {
                    return;
                }
            }
        }
    }

    fn apply(&self, source: Source, update: Update) -> Vec<Change> {
        let mut state = self.shared.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Vec::new();
        match update {
            Update::Set(pod) => state.set(source, *pod, &mut changes),
            Update::Remove(pod) => state.remove(&pod, &mut changes),
            Update::Snapshot(pods) => {
                let present: HashSet<String> =
                    pods.iter().map(|pod| spec::uid(pod).to_owned()).collect();
                let gone = state.absent(source, &present);
                gone.iter().for_each(|pod| state.remove(pod, &mut changes));
                pods.into_iter().for_each(|pod| state.set(source, pod, &mut changes));
                state.awaited.remove(&source);
            }
        }
        let synced = state.awaited.is_empty();
        drop(state);
        self.shared.synced.send_if_modified(|known| std::mem::replace(known, synced) != synced);
        let concerns_mirrors = |change: &Change| match change {
            Change::Set(pod) | Change::Gone(pod) => spec::is_static(pod),
            Change::Mirror { .. } => true,
        };
        if changes.iter().any(concerns_mirrors) || source == Source::Api && synced {
            self.shared.mirrors_changed.send_modify(|count| *count += 1);
        }
        changes
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        // No code panics while it holds the lock.
        self.shared.state.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn set(&mut self, source: Source, pod: Pod, changes: &mut Vec<Change>) {
        let pod = Arc::new(pod);
        if source == Source::Api && spec::is_mirror(&pod) {
            let name = full_name(&pod);
            changes.extend(self.static_pod(&name).map(|uid| Change::Mirror { uid }));
            self.mirrors.insert(name, pod);
            return;
        }
        let uid = spec::uid(&pod).to_owned();
        if self.pods.get(&uid).is_some_and(|(_, known)| **known == *pod) {
            return;
        }
        self.pods.insert(uid, (source, pod.clone()));
        changes.push(Change::Set(pod));
    }

    fn remove(&mut self, pod: &Pod, changes: &mut Vec<Change>) {
        if spec::is_mirror(pod) {
            let name = full_name(pod);
            if self.mirrors.get(&name).is_some_and(|known| spec::uid(known) == spec::uid(pod)) {
                self.mirrors.remove(&name);
                changes.extend(self.static_pod(&name).map(|uid| Change::Mirror { uid }));
            }
            return;
        }
        changes.extend(self.pods.remove(spec::uid(pod)).map(|(_, pod)| Change::Gone(pod)));
    }

    /// What a source told before and does not tell any more.
    fn absent(&self, source: Source, present: &HashSet<String>) -> Vec<Arc<Pod>> {
        let pods = self.pods.values().filter(|(from, _)| *from == source).map(|(_, pod)| pod);
        let mirrors = self.mirrors.values().filter(|_| source == Source::Api);
        pods.chain(mirrors).filter(|pod| !present.contains(spec::uid(pod))).cloned().collect()
    }

    fn static_pod(&self, name: &FullName) -> Option<String> {
        let mut pods = self.pods.values().map(|(_, pod)| pod);
        pods.find(|pod| spec::is_static(pod) && full_name(pod) == *name)
            .map(|pod| spec::uid(pod).to_owned())
    }
}

#[cfg(test)]
mod tests;
