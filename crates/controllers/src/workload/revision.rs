//! ControllerRevisions: the templates that a StatefulSet or DaemonSet has had.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::Client;
use kube::api::{DeleteParams, Preconditions};
use longshore_client::object;
use serde_json::Value;

use super::{
    Error, Namespaced, api, controller_reference, create, data_hash, is_controlled_by, name_of,
    namespace_of, replace, revision_data, template_hash, uid_of,
};
use crate::writes::is_not_found;

/// The longest prefix of a revision's name.
const MAX_PREFIX: usize = 223;

/// The name of a revision of an object with that hash.
fn revision_name(owner: &str, hash: &str) -> String {
    format!("{}-{hash}", &owner[..owner.floor_char_boundary(MAX_PREFIX)])
}

/// The revisions of an object, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revisions(Vec<Arc<ControllerRevision>>);

/// Of what the hash of a new revision is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashOf {
    /// The template, as for daemon sets.
    Template,
    /// What the revision keeps, as for stateful sets.
    Data,
}

/// The revisions that the limit of the history is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counts<'a> {
    /// Those that are not live, as for stateful sets.
    Unused,
    /// All but the current one, as for daemon sets.
    AllBut(&'a ControllerRevision),
}

/// What came of the search for the revision of the current template.
pub(crate) enum Current {
    /// The revision, which is the newest.
    Found(Arc<ControllerRevision>),
    /// Another object has its name: the hash is to be made with one more collision.
    Collision,
}

impl Revisions {
    /// In their order.
    pub(crate) fn new(mut revisions: Vec<Arc<ControllerRevision>>) -> Self {
        revisions.sort_by_cached_key(|one| {
            let created = one.metadata.creation_timestamp.as_ref().map(|time| time.0);
            (one.revision, created, one.metadata.name.clone())
        });
        Self(revisions)
    }

    /// The one of that name.
    pub(crate) fn named(&self, name: &str) -> Option<&Arc<ControllerRevision>> {
        self.0.iter().find(|one| name_of(&***one) == name)
    }

    /// The revision of the template, created or renumbered if need be.
    pub(crate) async fn current<K: Namespaced>(
        &mut self,
        client: &Client,
        owner: &K,
        template: &PodTemplateSpec,
        hash_of: HashOf,
        collisions: Option<i32>,
    ) -> Result<Current, Error> {
        let data = revision_data(template);
        let newest = self.0.last().map_or(0, |last| last.revision);
        let position = self.0.iter().rposition(|one| has_data(one, &data));
        if let Some(position) = position {
            let known = self.0.remove(position);
            let found = if known.revision == newest {
                known
            } else {
                let mut renumbered = ControllerRevision::clone(&known);
                renumbered.revision = newest.saturating_add(1);
                Arc::new(replace(client, &renumbered).await?)
            };
            self.0.push(found.clone());
            return Ok(Current::Found(found));
        }
        let hash = match hash_of {
            HashOf::Template => template_hash(template, collisions),
            HashOf::Data => data_hash(&data, collisions),
        };
        let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        let mut labels: BTreeMap<_, _> = labels.unwrap_or_default();
        labels.insert(HASH_LABEL.to_owned(), hash.clone());
        let new = ControllerRevision {
            metadata: ObjectMeta {
                name: Some(revision_name(name_of(owner), &hash)),
                namespace: Some(namespace_of(owner).to_owned()),
                labels: Some(labels),
                owner_references: Some(vec![controller_reference(owner)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(data.clone())),
            revision: newest.saturating_add(1),
        };
        let created = match create(client, &new).await {
            Ok(created) => created,
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                let api = api::<ControllerRevision>(client, namespace_of(owner));
                let existing = object(api.get(name_of(&new))).await?;
                let is_same = has_data(&existing, &data)
                    && is_controlled_by(&existing.metadata, uid_of(owner));
                if !is_same {
                    return Ok(Current::Collision);
                }
                existing
            }
            Err(error) => return Err(error.into()),
        };
        let created = Arc::new(created);
        self.0.push(created.clone());
        Ok(Current::Found(created))
    }

    /// The oldest revisions above the limit that are not live. Of which the limit is, `counts` says.
    fn surplus(
        &self,
        limit: usize,
        counts: Counts<'_>,
        is_live: impl Fn(&ControllerRevision) -> bool,
    ) -> Vec<&Arc<ControllerRevision>> {
        let unused: Vec<_> = self.0.iter().filter(|one| !is_live(one)).collect();
        let counted = match counts {
            Counts::Unused => unused.len(),
            Counts::AllBut(current) => {
                self.0.iter().filter(|one| uid_of(&***one) != uid_of(current)).count()
            }
        };
        unused.into_iter().take(counted.saturating_sub(limit)).collect()
    }

    /// Deletes the oldest revisions above the limit that are not live.
    pub(crate) async fn truncate(
        &self,
        client: &Client,
        limit: usize,
        counts: Counts<'_>,
        is_live: impl Fn(&ControllerRevision) -> bool,
    ) -> Result<(), Error> {
        for one in self.surplus(limit, counts, is_live) {
            let same = Preconditions { uid: one.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
            let api = api::<ControllerRevision>(client, namespace_of(&**one));
            match api.delete(name_of(&**one), &params).await {
                Err(error) if !is_not_found(&error) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The label with the hash of a revision.
pub(crate) const HASH_LABEL: &str = "controller-revision-hash";

/// The hash of a revision.
pub(crate) fn revision_hash(revision: &ControllerRevision) -> &str {
    let labels = revision.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(HASH_LABEL)).map_or("", String::as_str)
}

/// The template that a revision keeps.
pub(crate) fn template_of(revision: &ControllerRevision) -> Result<PodTemplateSpec, Error> {
    let name = name_of(revision);
    let invalid = |reason: &str| Error::Invalid(format!("controller revision {name}: {reason}"));
    let data = revision.data.as_ref().ok_or_else(|| invalid("it has no data"))?;
    let mut template = data.0["spec"]["template"].clone();
    if let Some(members) = template.as_object_mut() {
        members.remove("$patch");
    }
    serde_json::from_value(pruned(template)).map_err(|error| invalid(&error.to_string()))
}

fn has_data(revision: &ControllerRevision, data: &Value) -> bool {
    revision
        .data
        .as_ref()
        .is_some_and(|known| known.0 == *data || pruned(known.0.clone()) == pruned(data.clone()))
}

/// Without nulls and empty lists and maps of metadata, which writers differ in.
fn pruned(mut value: Value) -> Value {
    fn prune(value: &mut Value) {
        match value {
            Value::Object(members) => {
                members.values_mut().for_each(prune);
                members.retain(|_, member| !member.is_null());
            }
            Value::Array(items) => items.iter_mut().for_each(prune),
            _ => {}
        }
    }
    prune(&mut value);
    value
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn revision_restores_its_template() {
        let template: PodTemplateSpec = serde_json::from_value(json!({
            "metadata": {"labels": {"a": "b"}},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {}}]},
        }))
        .unwrap();
        let data = revision_data(&template);
        let mut written = data.clone();
        written["spec"]["template"]["metadata"]["creationTimestamp"] = Value::Null;
        let revision =
            ControllerRevision { data: Some(RawExtension(written)), ..Default::default() };
        assert!(has_data(&revision, &data), "Go writes nulls");
        assert_eq!(template_of(&revision).unwrap(), template);
        let empty = ControllerRevision::default();
        assert!(!has_data(&empty, &data));
        assert!(template_of(&empty).is_err());
    }

    #[test]
    fn revision_history_counts_live_ones_of_daemon_sets_alone() {
        let revision = |number: i64| -> Arc<ControllerRevision> {
            let text = number.to_string();
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": text, "uid": text},
                    "revision": number}))
                .unwrap(),
            )
        };
        let revisions = Revisions::new((1..=6).map(revision).collect());
        let current = revision(6);
        // 2 and the current one have pods
        let live = |one: &ControllerRevision| [2, 6].contains(&one.revision);
        let surplus = |limit, counts| -> Vec<i64> {
            revisions.surplus(limit, counts, live).iter().map(|one| one.revision).collect()
        };
        assert_eq!(surplus(3, Counts::Unused), [1]);
        assert_eq!(surplus(3, Counts::AllBut(&current)), [1, 3]);
        assert_eq!(surplus(0, Counts::AllBut(&current)), [1, 3, 4, 5]);
        assert_eq!(surplus(9, Counts::Unused), [0_i64; 0]);
    }

    #[test]
    fn revision_names_fit() {
        assert_eq!(revision_name("web", "5f"), "web-5f");
        assert_eq!(revision_name(&"x".repeat(253), "5f").len(), 226);
    }
}
