//! The state of volumes and their users, and what is to be reconciled after a change. Older versions of
//! an object are ignored, so what the task has written holds until its watch reports it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;

use super::binder::is_bound_for_good;
use super::pod::{Node, Pod};
use crate::object;
use crate::schema::value::text;

/// Namespace and name.
pub(super) type Key = (String, String);

/// An item of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Item {
    /// Claims of its ephemeral volumes.
    Pod(Key),
    /// Its binding and protection. Before claims, which need to know the available volumes.
    Volume(String),
    /// Its binding and protection.
    Claim(Key),
    /// Its attachments.
    Node(String),
    /// The protection of a VolumeAttributesClass.
    Attributes(String),
}

/// All objects.
#[derive(Default)]
pub(super) struct World {
    pub(super) volumes: BTreeMap<String, Value>,
    pub(super) claims: BTreeMap<Key, Value>,
    pub(super) classes: BTreeMap<String, Value>,
    pub(super) attributes: BTreeMap<String, Value>,
    pub(super) drivers: BTreeMap<String, Value>,
    pub(super) attachments: BTreeMap<String, Value>,
    pub(super) nodes: BTreeMap<String, Node>,
    pub(super) pods: BTreeMap<Key, Pod>,
    /// Names of volumes by the claim that they are for.
    volumes_of: HashMap<Key, BTreeSet<String>>,
    /// Names of pods by a claim that they use, which is in their namespace.
    users: HashMap<Key, BTreeSet<String>>,
    /// Pods by the node that they are bound to.
    bound: HashMap<String, BTreeSet<Key>>,
}

pub(super) fn key_of(object: &Value) -> Key {
    (object::namespace(object).to_owned(), object::name(object).to_owned())
}

/// The claim that a volume is for, whether or not it is bound.
pub(super) fn claim_of(volume: &Value) -> Option<Key> {
    let claim = &volume["spec"]["claimRef"];
    claim
        .is_object()
        .then(|| (text(&claim["namespace"]).to_owned(), text(&claim["name"]).to_owned()))
}

fn revision(object: &Value) -> i64 {
    object::resource_version(object).parse().unwrap_or(0)
}

impl World {
    /// Stores an object, unless a newer one is known. Enqueues related items in `work`.
    pub(super) fn put(&mut self, object: &Value, work: &mut BTreeSet<Item>) {
        if self.revision_of(object).is_some_and(|known| known > revision(object)) {
            return;
        }
        self.forget(object, work);
        let (key, name) = (key_of(object), object::name(object).to_owned());
        match text(&object["kind"]) {
            "PersistentVolume" => {
                if let Some(claim) = claim_of(object) {
                    self.volumes_of.entry(claim).or_default().insert(name.clone());
                }
                self.volumes.insert(name, object.clone());
            }
            "Pod" => {
                let pod = Pod::of(object);
                for claim in pod.claims() {
                    self.users.entry((key.0.clone(), claim)).or_default().insert(name.clone());
                }
                if !pod.node.is_empty() {
                    self.bound.entry(pod.node.clone()).or_default().insert(key.clone());
                }
                self.pods.insert(key, pod);
            }
            "Node" => drop(self.nodes.insert(name, Node::of(object))),
            "PersistentVolumeClaim" => drop(self.claims.insert(key, object.clone())),
            "StorageClass" => drop(self.classes.insert(name, object.clone())),
            "VolumeAttributesClass" => drop(self.attributes.insert(name, object.clone())),
            "CSIDriver" => drop(self.drivers.insert(name, object.clone())),
            "VolumeAttachment" => drop(self.attachments.insert(name, object.clone())),
            _ => {}
        }
        self.enqueue_related(object, work);
    }

    /// An object is gone, unless one of that name was made since.
    pub(super) fn remove(&mut self, last: &Value, work: &mut BTreeSet<Item>) {
        if self.revision_of(last).is_some_and(|known| known <= revision(last)) {
            self.forget(last, work);
            self.enqueue_related(last, work);
        }
    }

    /// The revision of what is known of that name.
    fn revision_of(&self, object: &Value) -> Option<i64> {
        let (key, name) = (key_of(object), object::name(object));
        let known = match text(&object["kind"]) {
            "PersistentVolume" => self.volumes.get(name),
            "PersistentVolumeClaim" => self.claims.get(&key),
            "StorageClass" => self.classes.get(name),
            "VolumeAttributesClass" => self.attributes.get(name),
            "CSIDriver" => self.drivers.get(name),
            "VolumeAttachment" => self.attachments.get(name),
            "Pod" => return self.pods.get(&key).map(|pod| pod.revision),
            "Node" => return self.nodes.get(name).map(|node| node.revision),
            _ => None,
        };
        known.map(revision)
    }

    /// Removes the object of that name, and enqueues related items.
    fn forget(&mut self, object: &Value, work: &mut BTreeSet<Item>) {
        let (key, name) = (key_of(object), object::name(object));
        let known = match text(&object["kind"]) {
            "PersistentVolume" => self.volumes.remove(name),
            "PersistentVolumeClaim" => self.claims.remove(&key),
            "StorageClass" => self.classes.remove(name),
            "VolumeAttributesClass" => self.attributes.remove(name),
            "CSIDriver" => self.drivers.remove(name),
            "VolumeAttachment" => self.attachments.remove(name),
            "Pod" => {
                if let Some(pod) = self.pods.remove(&key) {
                    self.enqueue_pod(&key, &pod, work);
                    for claim in pod.claims() {
                        release(&mut self.users, &(key.0.clone(), claim), &key.1);
                    }
                    release(&mut self.bound, &pod.node, &key);
                }
                None
            }
            "Node" => {
                self.nodes.remove(name);
                None
            }
            _ => None,
        };
        let Some(known) = known else { return };
        if text(&known["kind"]) == "PersistentVolume"
            && let Some(claim) = claim_of(&known)
        {
            release(&mut self.volumes_of, &claim, &name.to_owned());
        }
        self.enqueue_related(&known, work);
    }

    /// Enqueues the items related to this object.
    fn enqueue_related(&self, object: &Value, work: &mut BTreeSet<Item>) {
        let (key, name) = (key_of(object), object::name(object));
        match text(&object["kind"]) {
            "PersistentVolume" => {
                work.insert(Item::Volume(name.to_owned()));
                self.enqueue_attributes(object, work);
                match claim_of(object) {
                    Some(claim) => {
                        self.enqueue_nodes(&claim, work);
                        work.insert(Item::Claim(claim));
                    }
                    None => self.enqueue_unbound_claims(work),
                }
            }
            "PersistentVolumeClaim" => {
                let volumes = self.volumes_of(&key).map(|name| Item::Volume(name.clone()));
                work.extend(volumes);
                let volume = text(&object["spec"]["volumeName"]);
                work.insert(Item::Volume(volume.to_owned()));
                work.extend(self.users(&key).map(|(pod, _)| Item::Pod(pod)));
                self.enqueue_nodes(&key, work);
                self.enqueue_attributes(object, work);
                work.insert(Item::Claim(key));
            }
            "Pod" => {
                if let Some(pod) = self.pods.get(&key) {
                    self.enqueue_pod(&key, pod, work);
                }
            }
            "Node" => {
                for claim in self.pods_on(name).flat_map(|(key, pod)| used(key, pod)) {
                    if self.claims.get(&claim).is_some_and(|claim| !is_bound_for_good(claim)) {
                        work.insert(Item::Claim(claim));
                    }
                }
                work.insert(Item::Node(name.to_owned()));
            }
            "StorageClass" => self.enqueue_unbound_claims(work),
            "VolumeAttributesClass" => drop(work.insert(Item::Attributes(name.to_owned()))),
            "CSIDriver" => work.extend(self.bound.keys().cloned().map(Item::Node)),
            "VolumeAttachment" => {
                work.insert(Item::Node(text(&object["spec"]["nodeName"]).to_owned()));
                // Others may wait for the volume to come off this node.
                let volume = text(&object["spec"]["source"]["persistentVolumeName"]);
                let volume = self.volumes.get(volume);
                match volume.filter(|volume| volume["spec"]["csi"].is_object()).map(claim_of) {
                    Some(claim) => claim.iter().for_each(|claim| self.enqueue_nodes(claim, work)),
                    // Pods may describe the same volume themselves.
                    None => work.extend(self.bound.keys().cloned().map(Item::Node)),
                }
            }
            _ => {}
        }
    }

    fn enqueue_pod(&self, key: &Key, pod: &Pod, work: &mut BTreeSet<Item>) {
        work.insert(Item::Pod(key.clone()));
        work.extend(used(key, pod).map(Item::Claim));
        let describes = !pod.disks.is_empty() || !pod.migrated.is_empty();
        let has_volumes = describes || pod.claims().next().is_some();
        if !pod.node.is_empty() && has_volumes {
            work.insert(Item::Node(pod.node.clone()));
        }
    }

    /// The nodes with pods that use the claim.
    fn enqueue_nodes(&self, claim: &Key, work: &mut BTreeSet<Item>) {
        let nodes = self.users(claim).map(|(_, pod)| pod.node.clone());
        work.extend(nodes.filter(|node| !node.is_empty()).map(Item::Node));
    }

    fn enqueue_attributes(&self, object: &Value, work: &mut BTreeSet<Item>) {
        if let Some(class) = object["spec"]["volumeAttributesClassName"].as_str() {
            work.insert(Item::Attributes(class.to_owned()));
        }
    }

    /// The claims that are not bound yet.
    fn enqueue_unbound_claims(&self, work: &mut BTreeSet<Item>) {
        let open = self.claims.iter().filter(|(_, claim)| !is_bound_for_good(claim));
        work.extend(open.map(|(key, _)| Item::Claim(key.clone())));
    }

    /// All items.
    pub(super) fn everything(&self) -> BTreeSet<Item> {
        let mut work: BTreeSet<Item> = self.claims.keys().cloned().map(Item::Claim).collect();
        work.extend(self.volumes.keys().cloned().map(Item::Volume));
        work.extend(self.pods.keys().cloned().map(Item::Pod));
        work.extend(self.attributes.keys().cloned().map(Item::Attributes));
        work.extend(self.nodes.keys().chain(self.bound.keys()).cloned().map(Item::Node));
        let nodes = self.attachments.values().map(|a| text(&a["spec"]["nodeName"]).to_owned());
        work.extend(nodes.map(Item::Node));
        work
    }

    /// The pods that name the claim, or that made it for a volume of theirs.
    pub(super) fn users(&self, claim: &Key) -> impl Iterator<Item = (Key, &Pod)> {
        let names = self.users.get(claim).into_iter().flatten();
        let keys = names.map(|name| (claim.0.clone(), name.clone()));
        keys.filter_map(|key| self.pods.get(&key).map(|pod| (key, pod)))
    }

    /// The names of the volumes that are for the claim.
    pub(super) fn volumes_of(&self, claim: &Key) -> impl Iterator<Item = &String> {
        self.volumes_of.get(claim).into_iter().flatten()
    }

    /// The pods that are bound to the node.
    pub(super) fn pods_on(&self, node: &str) -> impl Iterator<Item = (&Key, &Pod)> {
        self.bound.get(node).into_iter().flatten().filter_map(|key| self.pods.get_key_value(key))
    }
}

/// The claims that a pod uses.
fn used<'a>(key: &'a Key, pod: &'a Pod) -> impl Iterator<Item = Key> + 'a {
    pod.claims().map(|claim| (key.0.clone(), claim))
}

fn release<K: std::hash::Hash + Eq, V: Ord>(
    index: &mut HashMap<K, BTreeSet<V>>,
    key: &K,
    value: &V,
) {
    if let Some(values) = index.get_mut(key) {
        values.remove(value);
        if values.is_empty() {
            index.remove(key);
        }
    }
}
