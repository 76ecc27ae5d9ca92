//! Which pods are bound to which node, and what they refer to. A node has a few hundred pods at
//! most, so its pods are looked through; nothing is kept by object.

use std::collections::HashMap;

use serde_json::Value;

use super::references::{Kind, visit};
use crate::cache::Index;
use crate::object;
use crate::schema::value::text;

/// Namespace and name of an object.
pub(super) type Key = (Box<str>, Box<str>);
/// What one pod refers to, in its own namespace.
type References = Box<[(Kind, Box<str>)]>;

/// The pods of each node.
#[derive(Default)]
pub(super) struct Graph {
    nodes: HashMap<Box<str>, HashMap<Key, References>>,
    node_of: HashMap<Key, Box<str>>,
}

impl Graph {
    /// Whether the object is a pod on the node, or one on the node refers to it.
    pub(super) fn is_related(&self, node: &str, kind: Kind, namespace: &str, name: &str) -> bool {
        let Some(pods) = self.nodes.get(node) else { return false };
        if kind == Kind::Pod {
            return pods.contains_key(&(namespace.into(), name.into()));
        }
        pods.iter().any(|((own, _), references)| {
            **own == *namespace && references.iter().any(|(of, to)| *of == kind && **to == *name)
        })
    }

    /// Whether this holds for one of the claims that pods on the node refer to.
    pub(super) fn any_claim(&self, node: &str, mut test: impl FnMut(&Key) -> bool) -> bool {
        let pods = self.nodes.get(node).into_iter().flatten();
        let mut claims = pods.flat_map(|((namespace, _), references)| {
            let claims = references.iter().filter(|(of, _)| *of == Kind::PersistentVolumeClaim);
            claims.map(|(_, name)| (namespace.clone(), name.clone()))
        });
        claims.any(|claim| test(&claim))
    }
}

impl Index for Graph {
    fn put(&mut self, pod: &Value) {
        let (namespace, name) = (object::namespace(pod), object::name(pod));
        self.remove(namespace, name);
        let node = text(&pod["spec"]["nodeName"]);
        if node.is_empty() {
            return;
        }
        let mut references = Vec::new();
        visit(pod, |kind, name| references.push((kind, Box::from(name))));
        references.sort();
        references.dedup();
        let key: Key = (namespace.into(), name.into());
        self.node_of.insert(key.clone(), node.into());
        self.nodes.entry(node.into()).or_default().insert(key, references.into());
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let key = (namespace.into(), name.into());
        let Some(node) = self.node_of.remove(&key) else { return };
        if let Some(pods) = self.nodes.get_mut(&node) {
            pods.remove(&key);
            if pods.is_empty() {
                self.nodes.remove(&node);
            }
        }
    }
}
