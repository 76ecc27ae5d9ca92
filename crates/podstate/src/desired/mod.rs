//! The desired state: the pods of all sources by UID, and the mirror pods of static pods. Workers
//! are notified of changes; all others query it.

mod metrics;
mod mirror;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use longshore_pod::{Timestamp, admission, spec};
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::{mpsc, watch};
use tracing::warn;

use mirror::Mirroring;
pub use mirror::{MirrorHold, reconcile_mirrors};

use crate::sources::{Source, Update};

/// A change of the desired state.
#[derive(Debug)]
pub enum Change {
    /// The pod should run, with this spec.
    Set(Arc<Pod>),
    /// The pod is gone from its source.
    Gone {
        /// The pod as it was.
        pod: Arc<Pod>,
        /// Of a static pod: to be dropped when nothing of the pod runs any more.
        hold: Option<MirrorHold>,
    },
    /// The mirror pod of a static pod was created, deleted or changed.
    Mirror {
        /// The static pod.
        uid: String,
    },
}

/// Handle to the desired state. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Desired {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: RwLock<State>,
    mirroring: Arc<Mirroring>,
    synced: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    pods: HashMap<String, (Source, Arc<Pod>)>,
    /// The last snapshot of each source of static pods.
    statics: BTreeMap<Source, Vec<Pod>>,
    mirrors: HashMap<FullName, Arc<Pod>>,
    mirroring: Arc<Mirroring>,
    /// UIDs of the pods in the apiserver whose objects cannot be decoded.
    unreadable: HashSet<String>,
    /// Sources that are not synced yet.
    unsynced: HashSet<Source>,
}

/// Namespace and name.
type FullName = (String, String);

fn full_name(pod: &Pod) -> FullName {
    (spec::namespace(pod).to_owned(), spec::name(pod).to_owned())
}

impl Desired {
    /// An empty state that waits for these sources.
    pub fn new(sources: impl IntoIterator<Item = Source>) -> Self {
        let unsynced: HashSet<Source> = sources.into_iter().collect();
        let synced = watch::Sender::new(unsynced.is_empty());
        let mirroring = Arc::<Mirroring>::default();
        let state = State { unsynced, mirroring: mirroring.clone(), ..State::default() };
        Self { shared: Arc::new(Shared { state: RwLock::new(state), mirroring, synced }) }
    }

    /// Becomes true once all sources are synced.
    pub fn synced(&self) -> watch::Receiver<bool> {
        self.shared.synced.subscribe()
    }

    /// Whether a source is not synced yet.
    pub fn awaits(&self, source: Source) -> bool {
        self.state().unsynced.contains(&source)
    }

    /// The pod with that UID.
    pub fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.state().pods.get(uid).map(|(_, pod)| pod.clone())
    }

    /// Whether a source has a pod of that UID, even if it cannot be decoded: its containers and
    /// files must not be removed.
    pub fn has(&self, uid: &str) -> bool {
        let state = self.state();
        state.pods.contains_key(uid) || state.unreadable.contains(uid)
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

    /// The mirror pod of a static pod.
    pub fn mirror(&self, pod: &Pod) -> Option<Arc<Pod>> {
        let state = self.state();
        state
            .mirrors
            .get(&full_name(pod))
            .filter(|mirror| mirror::is_mirror_of(mirror, pod))
            .cloned()
    }

    /// Apply updates until all sources are closed.
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
        let mut state = self.shared.state.write();
        let mut changes = Vec::new();
        match update {
            Update::Set(pod) => state.set(source, *pod, &mut changes),
            Update::Remove(pod) => state.remove(&pod, &mut changes),
            Update::Unreadable(uids) => state.unreadable = uids,
            Update::Snapshot(pods) if source != Source::Api => {
                state.statics.insert(source, pods);
                state.update_statics(&mut changes);
                state.unsynced.remove(&source);
            }
            Update::Snapshot(mut pods) => {
                pods.sort_by_cached_key(admission::admission_order);
                let present: HashSet<String> =
                    pods.iter().map(|pod| spec::uid(pod).to_owned()).collect();
                let gone = state.absent(&present);
                gone.iter().for_each(|pod| state.remove(pod, &mut changes));
                pods.into_iter().for_each(|pod| state.set(source, pod, &mut changes));
                state.unsynced.remove(&source);
            }
        }
        let synced = state.unsynced.is_empty();
        drop(state);
        self.shared.synced.send_if_modified(|known| std::mem::replace(known, synced) != synced);
        let concerns_mirrors = |change: &Change| match change {
            Change::Set(pod) | Change::Gone { pod, .. } => spec::is_static(pod),
            Change::Mirror { .. } => true,
        };
        if changes.iter().any(concerns_mirrors) || source == Source::Api && synced {
            self.shared.mirroring.note_change();
        }
        changes
    }

    fn state(&self) -> RwLockReadGuard<'_, State> {
        // No code panics while it holds the lock.
        self.shared.state.read()
    }
}

/// Whether the content of a static pod has changed since it was first seen.
fn has_changed(known: &Pod, pod: &Pod) -> bool {
    let content = |pod: &Pod| spec::annotation(pod, spec::CONTENT_ANNOTATION).map(str::to_owned);
    content(known) != content(pod)
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
        let Some((_, pod)) = self.pods.remove(spec::uid(pod)) else { return };
        let hold = spec::is_static(&pod).then(|| self.mirroring.hold(full_name(&pod)));
        changes.push(Change::Gone { pod, hold });
    }

    /// Pods of the apiserver that are not in `present`.
    fn absent(&self, present: &HashSet<String>) -> Vec<Arc<Pod>> {
        let pods = self.pods.values().filter(|(from, _)| *from == Source::Api).map(|(_, pod)| pod);
        pods.chain(self.mirrors.values())
            .map(|pod| (spec::uid(pod), pod))
            .filter(|(uid, _)| !present.contains(*uid) && !self.unreadable.contains(*uid))
            .map(|(_, pod)| pod)
            .cloned()
            .collect()
    }

    /// Update the static pods from the snapshots of their sources. Of two with the same name, that
    /// of the first source is used, and the other one once that is gone.
    fn update_statics(&mut self, changes: &mut Vec<Change>) {
        let mut wanted: Vec<(Source, Pod)> = Vec::new();
        for (source, pods) in &self.statics {
            for pod in pods {
                let taken = wanted.iter().find(|(_, other)| {
                    full_name(other) == full_name(pod) || spec::uid(other) == spec::uid(pod)
                });
                match taken {
                    None => wanted.push((*source, pod.clone())),
                    Some((other, _)) => {
                        let name = spec::name(pod);
                        warn!(
                            name,
                            ?source,
                            ?other,
                            "static pod is defined by another source already"
                        );
                    }
                }
            }
        }
        let is_wanted = |known: &Pod| {
            wanted
                .iter()
                .any(|(_, pod)| spec::uid(pod) == spec::uid(known) && !has_changed(known, pod))
        };
        // One that was edited and keeps its UID is ended like any other, and then started again.
        let gone: Vec<Arc<Pod>> = self
            .pods
            .values()
            .filter(|(source, pod)| *source != Source::Api && !is_wanted(pod))
            .map(|(_, pod)| pod.clone())
            .collect();
        gone.iter().for_each(|pod| self.remove(pod, changes));
        for (source, mut pod) in wanted {
            if !self.pods.contains_key(spec::uid(&pod)) {
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(spec::SEEN_ANNOTATION.to_owned(), Timestamp::now().to_string());
                self.set(source, pod, changes);
            }
        }
    }

    fn static_pod(&self, name: &FullName) -> Option<String> {
        let mut pods = self.pods.values().map(|(_, pod)| pod);
        pods.find(|pod| spec::is_static(pod) && full_name(pod) == *name)
            .map(|pod| spec::uid(pod).to_owned())
    }
}

#[cfg(test)]
mod tests;
