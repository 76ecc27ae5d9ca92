//! Which pods are behind which services. A pod's change costs work in proportion to its labels and to
//! its own services, never to all services of the namespace: services are found by one pair of their
//! selector, and what a pod was behind is remembered.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::workload::is_ready;

type Labels = BTreeMap<String, String>;
type Pair = (String, String);

/// The members of the services of all namespaces.
#[derive(Debug, Default)]
pub(crate) struct Membership {
    namespaces: HashMap<String, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    services: HashMap<String, Service>,
    /// The services by the pair that they are found by.
    by_pair: HashMap<Pair, BTreeSet<String>>,
    pods: HashMap<String, Member>,
}

#[derive(Debug)]
struct Service {
    selector: Labels,
    found_by: Pair,
    pods: BTreeSet<String>,
}

#[derive(Debug)]
struct Member {
    /// Of everything about the pod that endpoints show.
    fingerprint: u64,
    services: BTreeSet<String>,
}

/// A hash of everything about a pod that endpoints show.
fn fingerprint(pod: &Pod) -> u64 {
    let mut hash = DefaultHasher::new();
    pod.metadata.uid.hash(&mut hash);
    pod.metadata.deletion_timestamp.is_some().hash(&mut hash);
    is_ready(pod).hash(&mut hash);
    if let Some(spec) = &pod.spec {
        (&spec.node_name, &spec.hostname, &spec.subdomain).hash(&mut hash);
    }
    if let Some(status) = &pod.status {
        status.phase.hash(&mut hash);
        status.pod_ip.hash(&mut hash);
        for address in status.pod_ips.iter().flatten() {
            address.ip.hash(&mut hash);
        }
    }
    hash.finish()
}

/// Whether the labels have every pair of the selector.
pub(crate) fn selects(selector: &Labels, labels: &Labels) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl Namespace {
    fn matching(&self, labels: &Labels) -> BTreeSet<String> {
        let candidates = labels
            .iter()
            .filter_map(|(key, value)| self.by_pair.get(&(key.clone(), value.clone())))
            .flatten();
        candidates
            .filter(|name| {
                self.services.get(*name).is_some_and(|service| selects(&service.selector, labels))
            })
            .cloned()
            .collect()
    }

    fn forget_service(&mut self, name: &str) {
        let Some(service) = self.services.remove(name) else { return };
        if let Some(names) = self.by_pair.get_mut(&service.found_by) {
            names.remove(name);
            if names.is_empty() {
                self.by_pair.remove(&service.found_by);
            }
        }
        for pod in service.pods {
            if let Some(member) = self.pods.get_mut(&pod) {
                member.services.remove(name);
            }
        }
    }

    /// The pair of the selector that the fewest services are found by.
    fn rarest(&self, selector: &Labels) -> Option<Pair> {
        let pairs = selector.iter().map(|(key, value)| (key.clone(), value.clone()));
        pairs.min_by_key(|pair| self.by_pair.get(pair).map_or(0, BTreeSet::len))
    }
}

impl Membership {
    /// Records a service and its selector; `pods` lists those of its namespace, and is only called
    /// when the selector is new. Without a selector the service has no members.
    pub(crate) fn set_service(
        &mut self,
        namespace: &str,
        name: &str,
        selector: Option<&Labels>,
        pods: impl FnOnce() -> Vec<Arc<Pod>>,
    ) {
        let selector = selector.filter(|selector| !selector.is_empty());
        let known = self.namespaces.get(namespace).and_then(|space| space.services.get(name));
        if known.map(|service| &service.selector) == selector {
            return;
        }
        let space = self.namespaces.entry(namespace.to_owned()).or_default();
        space.forget_service(name);
        if let Some((selector, found_by)) =
            selector.and_then(|selector| Some((selector, space.rarest(selector)?)))
        {
            let mut members = BTreeSet::new();
            for pod in pods() {
                let labels = pod.metadata.labels.as_ref();
                if let (Some(labels), Some(pod_name)) = (labels, &pod.metadata.name)
                    && selects(selector, labels)
                {
                    members.insert(pod_name.clone());
                    let print =
                        || Member { fingerprint: fingerprint(&pod), services: BTreeSet::new() };
                    let member = space.pods.entry(pod_name.clone()).or_insert_with(print);
                    member.services.insert(name.to_owned());
                }
            }
            space.by_pair.entry(found_by.clone()).or_default().insert(name.to_owned());
            let service = Service { selector: selector.clone(), found_by, pods: members };
            space.services.insert(name.to_owned(), service);
        }
        self.drop_empty(namespace);
    }

    /// Records a pod; returns the services whose endpoints it may change.
    pub(crate) fn set_pod(&mut self, pod: &Pod) -> BTreeSet<String> {
        let (Some(namespace), Some(name)) = (&pod.metadata.namespace, &pod.metadata.name) else {
            return BTreeSet::new();
        };
        let Some(space) = self.namespaces.get_mut(namespace) else { return BTreeSet::new() };
        let now = pod.metadata.labels.as_ref().map(|labels| space.matching(labels));
        let now = now.unwrap_or_default();
        let print = fingerprint(pod);
        let before = space.pods.remove(name);
        let is_same = before.as_ref().is_some_and(|before| before.fingerprint == print);
        let before = before.map(|before| before.services).unwrap_or_default();
        let affected = match is_same {
            true => before.symmetric_difference(&now).cloned().collect(),
            false => before.union(&now).cloned().collect(),
        };
        for service in before.difference(&now) {
            if let Some(service) = space.services.get_mut(service) {
                service.pods.remove(name);
            }
        }
        for service in now.difference(&before) {
            if let Some(service) = space.services.get_mut(service) {
                service.pods.insert(name.clone());
            }
        }
        if !now.is_empty() {
            space.pods.insert(name.clone(), Member { fingerprint: print, services: now });
        }
        affected
    }

    /// Forgets a pod; returns the services that it was behind.
    pub(crate) fn remove_pod(&mut self, namespace: &str, name: &str) -> BTreeSet<String> {
        let Some(space) = self.namespaces.get_mut(namespace) else { return BTreeSet::new() };
        let Some(member) = space.pods.remove(name) else { return BTreeSet::new() };
        for service in &member.services {
            if let Some(service) = space.services.get_mut(service) {
                service.pods.remove(name);
            }
        }
        self.drop_empty(namespace);
        member.services
    }

    /// The names of the pods behind a service.
    pub(crate) fn pods_of(&self, namespace: &str, service: &str) -> Vec<String> {
        let service = self.namespaces.get(namespace).and_then(|space| space.services.get(service));
        service.map(|service| service.pods.iter().cloned().collect()).unwrap_or_default()
    }

    fn drop_empty(&mut self, namespace: &str) {
        if self.namespaces.get(namespace).is_some_and(|space| space.services.is_empty()) {
            self.namespaces.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use proptest::prelude::*;
    use serde_json::json;

    use super::{Labels, Membership, selects};

    fn labels(pairs: &[(u8, u8)]) -> Labels {
        pairs.iter().map(|(key, value)| (format!("k{key}"), format!("v{value}"))).collect()
    }

    fn pod(name: u8, labels: &Labels, ip: u8) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": format!("p{name}"), "labels": labels},
            "status": {"podIP": format!("10.0.0.{ip}")},
        }))
        .unwrap()
    }

    #[test]
    fn endpointslice_membership_follows_labels_and_selectors() {
        let mut members = Membership::default();
        let web = labels(&[(1, 1)]);
        members.set_service("ns", "web", Some(&web), Vec::new);
        assert_eq!(members.set_pod(&pod(1, &web, 1)), ["web".to_owned()].into());
        assert!(members.set_pod(&pod(1, &web, 1)).is_empty(), "nothing that endpoints show");
        assert_eq!(members.set_pod(&pod(1, &web, 2)), ["web".to_owned()].into());
        assert!(members.set_pod(&pod(2, &labels(&[(1, 2)]), 3)).is_empty());
        let both = [pod(1, &web, 2), pod(2, &labels(&[(1, 2)]), 3)];
        members.set_service("ns", "web", Some(&labels(&[(1, 2)])), || both.map(Arc::new).into());
        assert_eq!(members.pods_of("ns", "web"), ["p2"]);
        assert_eq!(members.remove_pod("ns", "p2"), ["web".to_owned()].into());
        members.set_service("ns", "web", None, Vec::new);
        assert!(members.namespaces.is_empty(), "nothing is left behind");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Service(u8, Vec<(u8, u8)>),
        Pod(u8, Vec<(u8, u8)>, u8),
        Gone(u8),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let pairs = || prop::collection::vec((0..3u8, 0..2u8), 0..3);
        prop::collection::vec(
            prop_oneof![
                (0..4u8, pairs()).prop_map(|(name, pairs)| Step::Service(name, pairs)),
                (0..4u8, pairs(), 0..3u8).prop_map(|(name, pairs, ip)| Step::Pod(name, pairs, ip)),
                (0..4u8).prop_map(Step::Gone),
            ],
            0..40,
        )
    }

    proptest! {
        /// The index says what going through everything says, after any order of events.
        #[test]
        fn endpointslice_membership_is_what_selectors_say(steps in steps()) {
            let mut members = Membership::default();
            let mut services: BTreeMap<u8, Labels> = BTreeMap::new();
            let mut pods: BTreeMap<u8, Pod> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Service(name, pairs) => {
                        let selector = labels(&pairs);
                        members.set_service("ns", &format!("s{name}"), Some(&selector), || pods.values().cloned().map(Arc::new).collect());
                        services.insert(name, selector);
                    }
                    Step::Pod(name, pairs, ip) => {
                        let pod = pod(name, &labels(&pairs), ip);
                        members.set_pod(&pod);
                        pods.insert(name, pod);
                    }
                    Step::Gone(name) => {
                        members.remove_pod("ns", &format!("p{name}"));
                        pods.remove(&name);
                    }
                }
                for (name, selector) in &services {
                    let expected: Vec<String> = pods
                        .values()
                        .filter(|pod| selects(selector, pod.metadata.labels.as_ref().unwrap()))
                        .map(|pod| pod.metadata.name.clone().unwrap())
                        .collect();
                    prop_assert_eq!(members.pods_of("ns", &format!("s{name}")), expected);
                }
            }
        }
    }
}
