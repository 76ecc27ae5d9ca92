//! Works on what the graph says is to be looked at. Every decision is made on the object as the
//! apiserver has it at that moment, and every write names its UID or version.

use std::collections::HashSet;

use async_trait::async_trait;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use longshore_informer::SyncError;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};

use super::graph::{
    FOREGROUND, Graph, Identity, Node, ORPHAN, OwnerState, Policy, Step, Work, decide,
    waits_for_dependents,
};

/// Why something is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A request failed.
    #[error("{object}: {source}")]
    Request { object: Box<Identity>, source: Box<kube::Error> },
    /// The apiserver has no such kind, or had none when it was asked last.
    #[error("unable to get REST mapping for {api_version}/{kind}.")]
    NoKind { api_version: String, kind: String },
    /// The object was changed meanwhile.
    #[error("{0}: changed meanwhile")]
    Changed(Box<Identity>),
}

impl SyncError for Error {
    fn is_conflict(&self) -> bool {
        match self {
            Self::Request { source, .. } => source.is_conflict(),
            Self::Changed(_) => true,
            Self::NoKind { .. } => false,
        }
    }
}

/// The requests of the garbage collector.
#[async_trait]
pub(crate) trait Cluster: Send + Sync {
    /// Whether objects of the kind are in namespaces.
    fn is_namespaced(&self, api_version: &str, kind: &str) -> Result<bool, Error>;
    /// The metadata of the object of that kind and name, whatever its UID.
    async fn get(&self, object: &Identity) -> Result<Option<ObjectMeta>, Error>;
    /// Deletes the object if it is of that UID and resource version.
    async fn delete(
        &self,
        object: &Identity,
        resource_version: Option<&str>,
        policy: Policy,
    ) -> Result<(), Error>;
    /// Tells the user that the object's owner is not in its namespace.
    fn report(&self, object: &Identity, owner: &Identity);
    /// Patches the metadata (a JSON merge patch).
    async fn patch(&self, object: &Identity, patch: Value) -> Result<(), Error>;
}

/// The collector: the graph, and the cluster.
pub(crate) struct Collector<C> {
    pub(crate) cluster: C,
    graph: Mutex<Graph>,
}

/// What is to be done after a piece of work.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) work: Vec<Work>,
    /// The object was not observed yet: it is looked at again after a while.
    pub(crate) is_unobserved: bool,
}

impl<C: Cluster> Collector<C> {
    pub(crate) fn new(cluster: C) -> Self {
        Collector { cluster, graph: Mutex::default() }
    }

    pub(crate) fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock()
    }

    pub(crate) async fn work(&self, work: &Work) -> Result<Next, Error> {
        match work {
            Work::Delete(uid) => self.delete(uid).await,
            Work::Orphan(uid) => self.orphan(uid).await.map(|()| Next::default()),
            Work::Report(uid, owner) => {
                self.report(uid, owner);
                Ok(Next::default())
            }
        }
    }

    fn report(&self, uid: &str, owner: &str) {
        let Some(node) = self.graph().get(uid).cloned() else { return };
        if let Some(owner) = node.owners.iter().find(|own| own.uid == owner) {
            self.cluster.report(&node.identity, &named_by(&node.identity, owner));
        }
    }

    fn gone(&self, uid: &str) -> Next {
        Next { work: self.graph().remove(uid), is_unobserved: false }
    }

    async fn delete(&self, uid: &str) -> Result<Next, Error> {
        let Some(node) = self.graph().get(uid).cloned() else { return Ok(Next::default()) };
        if node.is_deleting && !node.waits_for_dependents {
            return Ok(Next::default());
        }
        let Some(latest) = self.latest(&node).await? else { return Ok(self.gone(uid)) };
        if node.waits_for_dependents {
            return self.finish_foreground(&node).await;
        }
        let mut states = Vec::new();
        for owner in latest.owner_references.iter().flatten() {
            match self.owner_state(named_by(&node.identity, owner)).await? {
                Some(state) => states.push(state),
                // An object of the cluster cannot have an owner in a namespace: it is left alone.
                None => return Ok(Next::default()),
            }
        }
        let (has_dependents, dependent_waits) = {
            let graph = self.graph();
            let dependents = graph.dependents(uid);
            let waits = dependents.iter().any(|dependent| dependent.waits_for_dependents);
            (!dependents.is_empty(), waits)
        };
        match decide(&latest, &states, has_dependents, dependent_waits) {
            Step::Keep => {}
            Step::Disown(owners) => self.disown(&node.identity, &latest, &owners).await?,
            Step::Delete { policy, unblock } => {
                let mut version = latest.resource_version.clone();
                if unblock {
                    self.unblock(&node.identity, &latest).await?;
                    version = None;
                }
                self.cluster.delete(&node.identity, version.as_deref(), policy).await?;
            }
        }
        Ok(Next { work: Vec::new(), is_unobserved: node.is_virtual })
    }

    /// The object as it is now; `None`: there is none of that UID.
    async fn latest(&self, node: &Node) -> Result<Option<ObjectMeta>, Error> {
        let mut identity = node.identity.clone();
        if node.is_virtual && !self.cluster.is_namespaced(&identity.api_version, &identity.kind)? {
            identity.namespace.clear();
        }
        let found = self.cluster.get(&identity).await?;
        Ok(found.filter(|found| found.uid.as_deref() == Some(identity.uid.as_str())))
    }

    /// `None`: such an owner is not possible.
    async fn owner_state(&self, mut owner: Identity) -> Result<Option<OwnerState>, Error> {
        if self.graph().is_absent(&owner.uid, &owner.namespace) {
            return Ok(Some(OwnerState::Absent));
        }
        let namespaced = self.cluster.is_namespaced(&owner.api_version, &owner.kind)?;
        match (namespaced, owner.namespace.is_empty()) {
            (true, true) => return Ok(None),
            (false, _) => owner.namespace.clear(),
            (true, false) => {}
        }
        let found = self.cluster.get(&owner).await?;
        match found.filter(|found| found.uid.as_deref() == Some(owner.uid.as_str())) {
            None => {
                self.graph().note_absent(&owner.uid, &owner.namespace);
                Ok(Some(OwnerState::Absent))
            }
            Some(found) if waits_for_dependents(&found) => Ok(Some(OwnerState::Waiting)),
            Some(_) => Ok(Some(OwnerState::Solid)),
        }
    }

    /// Lets an object go whose dependents are deleted, or looks at those that are not.
    async fn finish_foreground(&self, node: &Node) -> Result<Next, Error> {
        let blocking: Option<Vec<Work>> = {
            let graph = self.graph();
            let blocking = graph.blocking(&node.identity.uid);
            (!blocking.is_empty()).then(|| {
                let others = blocking.iter().filter(|dependent| !dependent.waits_for_dependents);
                others.map(|dependent| Work::Delete(dependent.identity.uid.clone())).collect()
            })
        };
        match blocking {
            Some(work) => Ok(Next { work, is_unobserved: false }),
            None => {
                self.remove_finalizer(&node.identity, FOREGROUND).await?;
                Ok(Next::default())
            }
        }
    }

    async fn orphan(&self, uid: &str) -> Result<(), Error> {
        let (owner, dependents) = {
            let graph = self.graph();
            let Some(node) = graph.get(uid) else { return Ok(()) };
            let dependents = graph.dependents(uid);
            let dependents: Vec<Identity> =
                dependents.into_iter().map(|dependent| dependent.identity.clone()).collect();
            (node.identity.clone(), dependents)
        };
        let owners = [uid.to_owned()];
        for dependent in dependents {
            let Some(latest) = self.cluster.get(&dependent).await? else { continue };
            if latest.uid.as_deref() == Some(dependent.uid.as_str()) {
                self.disown(&dependent, &latest, &owners).await?;
            }
        }
        self.remove_finalizer(&owner, ORPHAN).await
    }

    async fn disown(
        &self,
        object: &Identity,
        latest: &ObjectMeta,
        owners: &[String],
    ) -> Result<(), Error> {
        let mut references = latest.owner_references.clone().unwrap_or_default();
        let before = references.len();
        let owners: HashSet<&str> = owners.iter().map(String::as_str).collect();
        references.retain(|reference| !owners.contains(reference.uid.as_str()));
        if references.len() == before {
            return Ok(());
        }
        let patch = metadata_patch(latest, json!({"ownerReferences": references}));
        self.cluster.patch(object, patch).await
    }

    async fn unblock(&self, object: &Identity, latest: &ObjectMeta) -> Result<(), Error> {
        let mut references = latest.owner_references.clone().unwrap_or_default();
        for reference in &mut references {
            reference.block_owner_deletion = Some(false);
        }
        let patch = metadata_patch(latest, json!({"ownerReferences": references}));
        self.cluster.patch(object, patch).await
    }

    async fn remove_finalizer(&self, object: &Identity, finalizer: &str) -> Result<(), Error> {
        let Some(latest) = self.cluster.get(object).await? else { return Ok(()) };
        let mut finalizers = latest.finalizers.clone().unwrap_or_default();
        let before = finalizers.len();
        finalizers.retain(|own| own != finalizer);
        if latest.uid.as_deref() != Some(object.uid.as_str()) || finalizers.len() == before {
            return Ok(());
        }
        let patch = metadata_patch(&latest, json!({"finalizers": finalizers}));
        self.cluster.patch(object, patch).await
    }
}

/// The owner as the dependent names it: in the dependent's namespace.
fn named_by(dependent: &Identity, owner: &OwnerReference) -> Identity {
    Identity {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        namespace: dependent.namespace.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    }
}

/// A patch that is refused if the object was changed meanwhile.
fn metadata_patch(latest: &ObjectMeta, mut metadata: Value) -> Value {
    metadata["resourceVersion"] = json!(latest.resource_version);
    metadata["uid"] = json!(latest.uid);
    json!({"metadata": metadata})
}
