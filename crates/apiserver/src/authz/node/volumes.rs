//! Which claim each persistent volume is bound to, which secrets it needs on a node, and which
//! node each volume is attached to.

use std::collections::HashMap;

use serde_json::Value;

use super::graph::Key;
use crate::cache::Index;
use crate::object;
use crate::schema::value::text;

/// Plugins whose volumes name one secret. Without a namespace it is in the claim's.
const ONE_SECRET: [&str; 7] =
    ["cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"];
/// The secrets of a CSI volume that its node hands to the driver. The others are the controller's.
const CSI_SECRETS: [&str; 3] =
    ["nodePublishSecretRef", "nodeStageSecretRef", "nodeExpandSecretRef"];

/// The volumes that are bound, or meant for a claim.
#[derive(Default)]
pub(super) struct Volumes {
    volumes: HashMap<Box<str>, Volume>,
    of_claim: HashMap<Key, Vec<Box<str>>>,
}

struct Volume {
    claim: Key,
    secrets: Box<[Key]>,
}

impl Volumes {
    /// Namespace and name of the claim that the volume is for.
    pub(super) fn claim(&self, volume: &str) -> Option<&Key> {
        self.volumes.get(volume).map(|volume| &volume.claim)
    }

    /// Whether a volume of the claim needs the secret.
    pub(super) fn needs_secret(&self, claim: &Key, secret: &Key) -> bool {
        let volumes = self.of_claim.get(claim).into_iter().flatten();
        let mut volumes = volumes.filter_map(|name| self.volumes.get(name));
        volumes.any(|volume| volume.secrets.contains(secret))
    }
}

impl Index for Volumes {
    fn put(&mut self, volume: &Value) {
        let name = object::name(volume);
        self.remove("", name);
        let claim = &volume["spec"]["claimRef"];
        if !claim.is_object() {
            return;
        }
        let claim: Key = (text(&claim["namespace"]).into(), text(&claim["name"]).into());
        let secrets = secrets(&volume["spec"], &claim.0);
        self.of_claim.entry(claim.clone()).or_default().push(name.into());
        self.volumes.insert(name.into(), Volume { claim, secrets });
    }

    fn remove(&mut self, _: &str, name: &str) {
        let Some(volume) = self.volumes.remove(name) else { return };
        if let Some(names) = self.of_claim.get_mut(&volume.claim) {
            names.retain(|other| **other != *name);
            if names.is_empty() {
                self.of_claim.remove(&volume.claim);
            }
        }
    }
}

fn secrets(spec: &Value, claim_namespace: &str) -> Box<[Key]> {
    let or_claims = |namespace: &str| match namespace {
        "" => claim_namespace.into(),
        given => given.into(),
    };
    let azure = &spec["azureFile"];
    let mut found: Vec<Key> =
        vec![(or_claims(text(&azure["secretNamespace"])), text(&azure["secretName"]).into())];
    for plugin in ONE_SECRET {
        let secret = &spec[plugin]["secretRef"];
        found.push((or_claims(text(&secret["namespace"])), text(&secret["name"]).into()));
    }
    for field in CSI_SECRETS {
        let secret = &spec["csi"][field];
        found.push((text(&secret["namespace"]).into(), text(&secret["name"]).into()));
    }
    found.retain(|(_, name)| !name.is_empty());
    found.into()
}

/// The node of each attachment.
#[derive(Default)]
pub(super) struct Attachments(HashMap<Box<str>, Box<str>>);

impl Attachments {
    pub(super) fn node(&self, attachment: &str) -> Option<&str> {
        self.0.get(attachment).map(|node| &**node)
    }
}

impl Index for Attachments {
    fn put(&mut self, attachment: &Value) {
        let node = text(&attachment["spec"]["nodeName"]);
        self.0.insert(object::name(attachment).into(), node.into());
    }

    fn remove(&mut self, _: &str, name: &str) {
        self.0.remove(name);
    }
}
