//! PURE: the graph of owners and dependents, as metadata of objects and their deletions report it.
//!
//! An owner that only references name is a virtual node, until it is observed or a request shows that
//! it does not exist.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::{Display, Formatter};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";
/// How many owners are remembered to be absent.
const ABSENT: usize = 500;

/// Which object it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    /// Empty for objects of the cluster, and for virtual nodes that may be.
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl Display for Identity {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let Identity { api_version, kind, namespace, name, uid } = self;
        write!(f, "[{api_version}/{kind}, namespace: {namespace}, name: {name}, uid: {uid}]")
    }
}

/// What is to be looked at. The text is the UID.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Work {
    /// Whether the object has to go, or may go.
    Delete(String),
    /// Its dependents are to lose their references to it.
    Orphan(String),
    /// The dependent, that is first, gets an event: its owner is in another namespace.
    Report(String, String),
}

impl Display for Work {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Work::Delete(uid) => write!(f, "delete {uid}"),
            Work::Orphan(uid) => write!(f, "orphan {uid}"),
            Work::Report(uid, owner) => write!(f, "report owner {owner} of {uid}"),
        }
    }
}

/// An object in the graph.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) identity: Identity,
    pub(crate) owners: Vec<OwnerReference>,
    pub(crate) dependents: BTreeSet<String>,
    /// It is being deleted.
    pub(crate) is_deleting: bool,
    /// It waits until its dependents are deleted.
    pub(crate) waits_for_dependents: bool,
    /// It waits until its dependents are orphaned.
    waits_for_orphans: bool,
    /// It was only referred to so far.
    pub(crate) is_virtual: bool,
}

/// The objects by UID.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    nodes: HashMap<String, Node>,
    absent: HashSet<(String, String)>,
    /// The order in which absent owners are forgotten.
    oldest: VecDeque<(String, String)>,
}

fn has_finalizer(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|own| own == finalizer)
}

pub(crate) fn waits_for_dependents(metadata: &ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some() && has_finalizer(metadata, FOREGROUND)
}

/// Whether an owner cannot be one of the dependent, as it is in another namespace.
fn is_elsewhere(owner: &Identity, dependent: &Identity) -> bool {
    !owner.namespace.is_empty() && owner.namespace != dependent.namespace
}

fn blocks(owner: &OwnerReference) -> bool {
    owner.block_owner_deletion == Some(true)
}

impl Graph {
    pub(crate) fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    /// The UIDs of the observed objects of a kind.
    pub(crate) fn of_kind(&self, api_version: &str, kind: &str) -> HashSet<String> {
        let is_it = |node: &&Node| {
            !node.is_virtual
                && node.identity.api_version == api_version
                && node.identity.kind == kind
        };
        self.nodes.values().filter(is_it).map(|node| node.identity.uid.clone()).collect()
    }

    /// The dependents that keep the owner from being deleted in the foreground.
    pub(crate) fn blocking(&self, uid: &str) -> Vec<&Node> {
        let Some(node) = self.nodes.get(uid) else { return Vec::new() };
        let dependents = node.dependents.iter().filter_map(|dependent| self.nodes.get(dependent));
        // One that owns itself would wait for itself.
        let is_blocking = |dependent: &&Node| {
            dependent.identity.uid != uid
                && dependent.owners.iter().any(|owner| owner.uid == uid && blocks(owner))
        };
        dependents.filter(is_blocking).collect()
    }

    /// The dependents of an owner.
    pub(crate) fn dependents(&self, uid: &str) -> Vec<&Node> {
        let dependents = self.nodes.get(uid).map(|node| &node.dependents);
        dependents.into_iter().flatten().filter_map(|uid| self.nodes.get(uid)).collect()
    }

    /// Records an object as it is now; returns what follows.
    pub(crate) fn observe(&mut self, identity: Identity, metadata: &ObjectMeta) -> Vec<Work> {
        let mut work = Vec::new();
        let uid = identity.uid.clone();
        let owners = metadata.owner_references.clone().unwrap_or_default();
        let is_deleting = metadata.deletion_timestamp.is_some();
        let waits = waits_for_dependents(metadata);
        let orphans = is_deleting && has_finalizer(metadata, ORPHAN);
        let before = self.nodes.remove(&uid);
        let mut node = Node {
            dependents: before.as_ref().map(|node| node.dependents.clone()).unwrap_or_default(),
            identity: identity.clone(),
            owners: owners.clone(),
            is_deleting,
            waits_for_dependents: waits,
            waits_for_orphans: orphans,
            is_virtual: false,
        };
        // Once it waits for dependents it does until it is gone, whatever else is written.
        let waited = before.as_ref().is_some_and(|node| node.waits_for_dependents);
        let orphaned = before.as_ref().is_some_and(|node| node.waits_for_orphans);
        node.waits_for_dependents |= waited;
        if let Some(before) = &before
            && before.is_virtual
            && before.identity != identity
        {
            // What the references said of it is wrong: its dependents are looked at again.
            let is_elsewhere = |dependent: &&String| {
                let dependent = self.nodes.get(*dependent);
                dependent.is_some_and(|dependent| is_elsewhere(&identity, &dependent.identity))
            };
            let wrong = before.dependents.iter().filter(is_elsewhere);
            work.extend(wrong.map(|dependent| Work::Report(dependent.clone(), uid.clone())));
            work.extend(before.dependents.iter().cloned().map(Work::Delete));
        }
        let dependents = node.dependents.clone();
        let before_owners = before.map(|node| node.owners).unwrap_or_default();
        self.nodes.insert(uid.clone(), node);
        // By UID: an object may have as many owners as its author likes.
        let now: HashMap<&str, &OwnerReference> =
            owners.iter().rev().map(|owner| (owner.uid.as_str(), owner)).collect();
        for owner in &before_owners {
            let now = now.get(owner.uid.as_str());
            if now.is_none() {
                self.release(&owner.uid, &uid);
            }
            let was_blocking = blocks(owner);
            let is_unblocked = was_blocking && now.is_none_or(|now| !blocks(now));
            let waits =
                |uid: &String| self.nodes.get(uid).is_some_and(|node| node.waits_for_dependents);
            if is_unblocked && waits(&owner.uid) {
                work.push(Work::Delete(owner.uid.clone()));
            }
        }
        for owner in &owners {
            work.extend(self.own(owner, &uid, &identity));
        }
        if orphans && !orphaned {
            work.push(Work::Orphan(uid.clone()));
        }
        if waits && !waited {
            work.extend(dependents.into_iter().map(Work::Delete));
            work.push(Work::Delete(uid));
        }
        work
    }

    /// Records that `dependent` has this owner.
    fn own(&mut self, owner: &OwnerReference, dependent: &str, identity: &Identity) -> Vec<Work> {
        let mut work = Vec::new();
        match self.nodes.get_mut(&owner.uid) {
            Some(node) => {
                let is_new = node.dependents.insert(dependent.to_owned());
                let is_wrong = !node.is_virtual
                    && (node.identity.api_version.split('/').next()
                        != owner.api_version.split('/').next()
                        || node.identity.kind != owner.kind
                        || node.identity.name != owner.name
                        || is_elsewhere(&node.identity, identity));
                // The reference names another object than the one of that UID, or one that waits.
                if is_new && !node.is_virtual && is_elsewhere(&node.identity, identity) {
                    work.push(Work::Report(dependent.to_owned(), owner.uid.clone()));
                }
                if is_new && (is_wrong || node.waits_for_dependents) {
                    work.push(Work::Delete(dependent.to_owned()));
                }
            }
            None => {
                let identity = Identity {
                    api_version: owner.api_version.clone(),
                    kind: owner.kind.clone(),
                    namespace: identity.namespace.clone(),
                    name: owner.name.clone(),
                    uid: owner.uid.clone(),
                };
                let node = Node {
                    identity,
                    owners: Vec::new(),
                    dependents: BTreeSet::from([dependent.to_owned()]),
                    is_deleting: false,
                    waits_for_dependents: false,
                    waits_for_orphans: false,
                    is_virtual: true,
                };
                self.nodes.insert(owner.uid.clone(), node);
                work.push(Work::Delete(owner.uid.clone()));
            }
        }
        work
    }

    fn release(&mut self, owner: &str, dependent: &str) {
        let Some(node) = self.nodes.get_mut(owner) else { return };
        node.dependents.remove(dependent);
        if node.is_virtual && node.dependents.is_empty() {
            self.nodes.remove(owner);
        }
    }

    /// Records that an object is gone; returns what follows.
    pub(crate) fn remove(&mut self, uid: &str) -> Vec<Work> {
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        let mut work: Vec<Work> = Vec::new();
        for owner in &node.owners {
            self.release(&owner.uid, uid);
            if self.nodes.get(&owner.uid).is_some_and(|owner| owner.waits_for_dependents) {
                work.push(Work::Delete(owner.uid.clone()));
            }
        }
        if !node.dependents.is_empty() && !node.is_virtual {
            self.note_absent(uid, &node.identity.namespace);
        }
        work.extend(node.dependents.into_iter().map(Work::Delete));
        work
    }

    /// Remembers that there is no object of that UID, in the namespace or, when that is empty, in the
    /// cluster.
    pub(crate) fn note_absent(&mut self, uid: &str, namespace: &str) {
        let key = (uid.to_owned(), namespace.to_owned());
        if self.absent.insert(key.clone()) {
            self.oldest.push_back(key);
        }
        if self.oldest.len() > ABSENT
            && let Some(key) = self.oldest.pop_front()
        {
            self.absent.remove(&key);
        }
    }

    /// Whether an owner of that UID is known not to exist for a dependent in the namespace.
    pub(crate) fn is_absent(&self, uid: &str, namespace: &str) -> bool {
        let has = |namespace: &str| self.absent.contains(&(uid.to_owned(), namespace.to_owned()));
        has(namespace) || has("")
    }
}

/// What an owner is to its dependent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OwnerState {
    /// It keeps the dependent.
    Solid,
    /// It does not exist.
    Absent,
    /// It is deleted once its dependents are.
    Waiting,
}

/// What is done with an object that has owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// It stays as it is.
    Keep,
    /// It stays, and loses the references to these owners.
    Disown(Vec<String>),
    /// It is deleted, with this policy; before, its references are made not to block if there may be
    /// a cycle.
    Delete { policy: Policy, unblock: bool },
}

/// The propagation policy of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Background,
    Foreground,
    Orphan,
}

/// Decides on an object, by the states of its owners in the order of its references.
pub(crate) fn decide(
    latest: &ObjectMeta,
    owners: &[OwnerState],
    has_dependents: bool,
    dependent_waits: bool,
) -> Step {
    if owners.is_empty() {
        return Step::Keep;
    }
    let waiting = owners.contains(&OwnerState::Waiting);
    if owners.contains(&OwnerState::Solid) {
        let references = latest.owner_references.iter().flatten().zip(owners);
        let others: Vec<String> = references
            .filter(|(_, state)| **state != OwnerState::Solid)
            .map(|(owner, _)| owner.uid.clone())
            .collect();
        return if others.is_empty() { Step::Keep } else { Step::Disown(others) };
    }
    if waiting && has_dependents {
        return Step::Delete { policy: Policy::Foreground, unblock: dependent_waits };
    }
    let policy = if has_finalizer(latest, ORPHAN) {
        Policy::Orphan
    } else if has_finalizer(latest, FOREGROUND) {
        Policy::Foreground
    } else {
        Policy::Background
    };
    Step::Delete { policy, unblock: false }
}
