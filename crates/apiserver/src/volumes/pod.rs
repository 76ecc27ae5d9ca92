//! What of pods and nodes matters to volumes: the rest of them is not kept.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::attachments::disk_name;
use crate::object;
use crate::schema::value::{entries, items, text};

/// The annotation of nodes whose volumes the attach/detach controller attaches.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// A pod.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) revision: i64,
    pub(super) uid: String,
    /// Where it is bound to; empty while it is not.
    pub(super) node: String,
    name: String,
    /// Names of the claims that it did not make.
    named: Vec<String>,
    /// Its ephemeral volumes, with the templates of their claims.
    pub(super) ephemeral: Vec<(String, Value)>,
    /// The iSCSI disks that it describes itself, by their unique names.
    pub(super) disks: Vec<String>,
    /// The PersistentVolumes of its in-tree volumes that are migrated to CSI.
    pub(super) migrated: Vec<Value>,
    /// It succeeded or failed.
    pub(super) is_over: bool,
    pub(super) is_deleting: bool,
    /// Its node is done with it.
    is_shut_down: bool,
}

impl Pod {
    pub(super) fn of(pod: &Value) -> Pod {
        let volumes = items(&pod["spec"]["volumes"]);
        let named = volumes.iter().map(|v| text(&v["persistentVolumeClaim"]["claimName"]));
        let ephemeral = volumes.iter().filter(|volume| volume["ephemeral"].is_object());
        let namespace = object::namespace(pod);
        // What its driver cannot handle is reported by the node.
        let migrated = |volume| longshore_migration::inline(volume, namespace).ok().flatten();
        Pod {
            revision: object::resource_version(pod).parse().unwrap_or(0),
            uid: object::uid(pod).to_owned(),
            node: text(&pod["spec"]["nodeName"]).to_owned(),
            name: object::name(pod).to_owned(),
            named: named.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            ephemeral: ephemeral
                .map(|volume| {
                    let template = &volume["ephemeral"]["volumeClaimTemplate"];
                    (text(&volume["name"]).to_owned(), template.clone())
                })
                .collect(),
            disks: volumes.iter().filter_map(|volume| disk_name(&volume["iscsi"])).collect(),
            migrated: volumes.iter().filter_map(migrated).collect(),
            is_over: matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed"),
            is_deleting: object::is_deleting(pod),
            is_shut_down: object::is_deleting(pod)
                && pod["metadata"]["deletionGracePeriodSeconds"].as_i64() == Some(0),
        }
    }

    /// The name of the claim of its ephemeral volume.
    pub(super) fn claim_name(&self, volume: &str) -> String {
        format!("{}-{volume}", self.name)
    }

    /// The names of all claims that it uses.
    pub(super) fn claims(&self) -> impl Iterator<Item = String> {
        let made = self.ephemeral.iter().map(|(volume, _)| self.claim_name(volume));
        self.named.iter().cloned().chain(made)
    }

    /// Whether the claim must stay for it. What was made for it is not needed once it is shut down.
    pub(super) fn holds(&self, claim: &Value) -> bool {
        let name = object::name(claim);
        let is_own = self.ephemeral.iter().any(|(volume, _)| self.claim_name(volume) == name);
        self.named.iter().any(|named| named == name)
            || (is_own && !self.is_shut_down && is_controlled_by(claim, &self.uid))
    }

    /// The claim of an ephemeral volume, which goes with the pod.
    pub(super) fn claim(&self, namespace: &str, volume: &str, template: &Value) -> Value {
        let mut metadata = Map::new();
        for field in ["labels", "annotations"] {
            if entries(&template["metadata"][field]).next().is_some() {
                metadata.insert(field.into(), template["metadata"][field].clone());
            }
        }
        metadata.insert("name".into(), self.claim_name(volume).into());
        metadata.insert("namespace".into(), namespace.into());
        let owner = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "name": self.name,
            "uid": self.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        });
        metadata.insert("ownerReferences".into(), json!([owner]));
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": metadata,
            "spec": template["spec"],
        })
    }
}

/// The pod that made the object for itself: its name and UID.
pub(super) fn owner(object: &Value) -> Option<(&str, &str)> {
    let owners = items(&object["metadata"]["ownerReferences"]);
    let controller = owners.iter().find(|owner| owner["controller"] == true)?;
    let is_pod = controller["kind"] == "Pod" && controller["apiVersion"] == "v1";
    is_pod.then(|| (text(&controller["name"]), text(&controller["uid"])))
}

/// Whether the object was made by the pod of this UID.
pub(super) fn is_controlled_by(object: &Value, uid: &str) -> bool {
    owner(object).is_some_and(|(_, owner)| owner == uid)
}

/// A node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) revision: i64,
    /// As an object has them, below `metadata`.
    pub(super) labels: Value,
    /// Whether the attach/detach controller attaches its volumes.
    pub(super) is_managed: bool,
    /// What it says that it still has mounted: unique names of volumes.
    pub(super) in_use: BTreeSet<String>,
    /// `volumesAttached`: unique names of volumes.
    pub(super) attached: BTreeSet<String>,
}

impl Node {
    pub(super) fn of(node: &Value) -> Node {
        let metadata = &node["metadata"];
        let status = &node["status"];
        let names = |list: &Value, field: Option<&str>| -> BTreeSet<String> {
            let all = items(list).iter();
            all.map(|item| text(field.map_or(item, |field| &item[field])).to_owned()).collect()
        };
        Node {
            revision: object::resource_version(node).parse().unwrap_or(0),
            labels: json!({"metadata": {"labels": metadata["labels"]}}),
            is_managed: metadata["annotations"][MANAGED] == "true",
            in_use: names(&status["volumesInUse"], None),
            attached: names(&status["volumesAttached"], Some("name")),
        }
    }
}
