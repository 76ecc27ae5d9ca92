//! What a node may do: its own Node, Lease, CSINode and pods, what the pods that are bound to it
//! refer to, the volumes behind their claims, and what is attached to it; besides, what the role
//! `system:node` lists, which is the same for all nodes. What depends on a request's body is decided by the
//! admission `node_restriction`.

mod graph;
mod references;
mod requests;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
mod volumes;

use longshore_gates::FeatureGates;
use tokio_util::sync::CancellationToken;

use self::graph::{Graph, Key};
use self::references::Kind;
pub(crate) use self::references::{mirror_pod_reference, names_audience, secrets};
use self::requests::Requests;
use self::volumes::{Attachments, Volumes};
use super::rule::Rule;
use super::{Access, Decision, ResourceTarget, Target, policy};
use crate::cache::Cache;
use crate::gates::POD_CERTIFICATES;
use crate::kinds;
use crate::registry::Registry;
use crate::status::StatusError;
use crate::user::node_name;

const NODE_LEASE_NAMESPACE: &str = "kube-node-lease";

/// Decides for nodes.
pub(super) struct NodeAuthorizer {
    known: Known,
    rules: Vec<Rule>,
}

/// The source of relations.
struct Known {
    pods: Cache<Graph>,
    volumes: Cache<Volumes>,
    attachments: Cache<Attachments>,
    /// With the feature gate.
    requests: Option<Cache<Requests>>,
}

impl NodeAuthorizer {
    pub(super) fn new(gates: &FeatureGates) -> Result<NodeAuthorizer, StatusError> {
        let mut requests = kinds::optional().filter(|resource| {
            resource.kind == "PodCertificateRequest" && gates.enabled(POD_CERTIFICATES)
        });
        let known = Known {
            pods: Cache::new("", "pods")?,
            volumes: Cache::new("", "persistentvolumes")?,
            attachments: Cache::new("storage.k8s.io", "volumeattachments")?,
            requests: requests.next().map(Cache::of),
        };
        Ok(NodeAuthorizer { known, rules: policy::node_rules(gates) })
    }

    pub(super) async fn load(&self, registry: &Registry) -> Result<(), StatusError> {
        let Known { pods, volumes, attachments, requests } = &self.known;
        pods.load(registry).await?;
        volumes.load(registry).await?;
        if let Some(requests) = requests {
            requests.load(registry).await?;
        }
        attachments.load(registry).await
    }

    pub(super) async fn run(&self, registry: &Registry, stop: &CancellationToken) {
        let Known { pods, volumes, attachments, requests } = &self.known;
        tokio::join!(
            pods.run(registry, stop),
            volumes.run(registry, stop),
            attachments.run(registry, stop),
            async {
                if let Some(requests) = requests {
                    requests.run(registry, stop).await;
                }
            },
        );
    }

    pub(super) async fn catch_up(&self, registry: &Registry) -> bool {
        let Known { pods, volumes, attachments, requests } = &self.known;
        let (a, b, c, d) = tokio::join!(
            pods.catch_up(registry),
            volumes.catch_up(registry),
            attachments.catch_up(registry),
            async {
                match requests {
                    Some(requests) => requests.catch_up(registry).await,
                    None => false,
                }
            },
        );
        a | b | c | d
    }

    pub(super) fn decide(&self, access: &Access<'_>) -> Decision {
        let node = match node_name(access.user) {
            None => return Decision::deny(""),
            Some("") => {
                return Decision::deny(format!("unknown node for user {:?}", access.user.name));
            }
            Some(node) => node,
        };
        if let Target::Resource(target) = &access.target {
            let node_request = NodeRequest { known: &self.known, node, verb: access.verb, target };
            if let Some(decision) = node_request.decide() {
                return decision;
            }
        }
        match self.rules.iter().any(|rule| rule.allows(access.verb, &access.target)) {
            true => Decision::allow(),
            false => Decision::deny(""),
        }
    }

    #[cfg(test)]
    pub(super) fn put(&self, object: &serde_json::Value) {
        match object["kind"].as_str() {
            Some("PersistentVolume") => self.known.volumes.put(object),
            Some("VolumeAttachment") => self.known.attachments.put(object),
            Some("PodCertificateRequest") => {
                self.known.requests.iter().for_each(|requests| requests.put(object));
            }
            _ => self.known.pods.put(object),
        }
    }
}

/// One request of a node about resources.
struct NodeRequest<'a> {
    known: &'a Known,
    node: &'a str,
    verb: &'a str,
    target: &'a ResourceTarget<'a>,
}

impl NodeRequest<'_> {
    /// `None` for resources that are the same for all nodes.
    fn decide(&self) -> Option<Decision> {
        Some(match (self.target.group, self.target.resource) {
            ("", "secrets") => self.read(Kind::Secret),
            ("", "configmaps") => self.read(Kind::ConfigMap),
            ("", "persistentvolumeclaims") if self.target.subresource == "status" => {
                match self.verb {
                    "update" | "patch" => self.related(Some(Kind::PersistentVolumeClaim)),
                    _ => Decision::deny("can only get/update/patch this type"),
                }
            }
            ("", "persistentvolumeclaims") => self.get(Some(Kind::PersistentVolumeClaim)),
            ("resource.k8s.io", "resourceclaims") => self.get(Some(Kind::ResourceClaim)),
            ("", "persistentvolumes") => self.get(Some(Kind::PersistentVolume)),
            ("storage.k8s.io", "volumeattachments") => self.get(Some(Kind::VolumeAttachment)),
            ("", "serviceaccounts") => self.service_account(),
            ("", "nodes") => self.own_node(),
            ("", "pods") => self.pods(),
            ("coordination.k8s.io", "leases") => self.lease(),
            ("storage.k8s.io", "csinodes") => self.csi_node(),
            ("resource.k8s.io", "resourceslices") => self.slices(),
            ("certificates.k8s.io", "podcertificaterequests") => self.certificate_requests(),
            _ => return None,
        })
    }

    /// Whether something on the node leads to the object. `None`: a kind that nothing leads to.
    fn related(&self, kind: Option<Kind>) -> Decision {
        if self.target.name.is_empty() {
            return Decision::deny("No Object name found");
        }
        match kind.is_some_and(|kind| self.is_related(kind)) {
            true => Decision::allow(),
            false => Decision::Deny(format!(
                "no relationship found between node '{}' and this object",
                self.node
            )),
        }
    }

    fn is_related(&self, kind: Kind) -> bool {
        let ResourceTarget { namespace, name, .. } = *self.target;
        let pods = self.known.pods.read();
        match kind {
            Kind::PersistentVolume => {
                let volumes = self.known.volumes.read();
                volumes.claim(name).is_some_and(|(namespace, claim)| {
                    pods.is_related(self.node, Kind::PersistentVolumeClaim, namespace, claim)
                })
            }
            Kind::VolumeAttachment => self.known.attachments.read().node(name) == Some(self.node),
            Kind::Secret => {
                let secret: Key = (namespace.into(), name.into());
                let volumes = self.known.volumes.read();
                pods.is_related(self.node, kind, namespace, name)
                    || pods.any_claim(self.node, |claim| volumes.needs_secret(claim, &secret))
            }
            kind => pods.is_related(self.node, kind, namespace, name),
        }
    }

    fn read(&self, kind: Kind) -> Decision {
        match () {
            () if !matches!(self.verb, "get" | "list" | "watch") => {
                Decision::deny("can only read resources of this type")
            }
            () if !self.target.subresource.is_empty() => Decision::deny("cannot read subresource"),
            () if self.target.namespace.is_empty() => {
                Decision::deny("can only read namespaced object of this type")
            }
            () => self.related(Some(kind)),
        }
    }

    fn get(&self, kind: Option<Kind>) -> Decision {
        match () {
            () if self.verb != "get" => {
                Decision::deny("can only get individual resources of this type")
            }
            () if !self.target.subresource.is_empty() => Decision::deny("cannot get subresource"),
            () => self.related(kind),
        }
    }

    fn service_account(&self) -> Decision {
        match (self.verb, self.target.subresource) {
            ("get", "") => self.get(Some(Kind::ServiceAccount)),
            ("create", _) if self.target.name.is_empty() => {
                Decision::deny("can only create tokens for individual service accounts")
            }
            ("create", "token") => self.related(Some(Kind::ServiceAccount)),
            ("create", _) => Decision::deny("can only create token subresource of serviceaccount"),
            _ => Decision::deny("can only create tokens for individual service accounts"),
        }
    }

    fn own_node(&self) -> Decision {
        let node = self.node;
        match (self.target.subresource, self.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => {
                Decision::allow()
            }
            ("", "get" | "list" | "watch") => match self.target.name {
                name if name == node => Decision::allow(),
                "" => Decision::deny(format!(
                    "node '{node}' cannot read all nodes, only its own Node object"
                )),
                name => Decision::deny(format!(
                    "node '{node}' cannot read '{name}', only its own Node object"
                )),
            },
            _ => Decision::deny(""),
        }
    }

    fn selects(&self, field: &str) -> bool {
        self.target.fields.iter().any(|(name, value)| name == field && value == self.node)
    }

    fn pods(&self) -> Decision {
        match (self.target.subresource, self.verb) {
            ("", "get") => self.get(Some(Kind::Pod)),
            ("", "list" | "watch") if self.selects("spec.nodeName") => Decision::allow(),
            ("", "list" | "watch") if !self.target.name.is_empty() => self.related(Some(Kind::Pod)),
            ("", "list" | "watch") => {
                Decision::deny("can only list/watch pods with spec.nodeName field selector")
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => {
                Decision::allow()
            }
            _ => Decision::deny(""),
        }
    }

    fn lease(&self) -> Decision {
        match () {
            () if !is_of_one_object(self.verb) => {
                Decision::deny("can only get, create, update, patch, or delete a node lease")
            }
            () if self.target.namespace != NODE_LEASE_NAMESPACE => Decision::Deny(format!(
                "can only access leases in the {NODE_LEASE_NAMESPACE:?} system namespace"
            )),
            () if self.verb != "create" && self.target.name != self.node => Decision::deny(
                "can only access node lease with the same name as the requesting node",
            ),
            () => Decision::allow(),
        }
    }

    fn csi_node(&self) -> Decision {
        match () {
            () if !is_of_one_object(self.verb) => {
                Decision::deny("can only get, create, update, patch, or delete a CSINode")
            }
            () if !self.target.subresource.is_empty() => {
                Decision::deny("cannot authorize CSINode subresources")
            }
            () if self.verb != "create" && self.target.name != self.node => {
                Decision::deny("can only access CSINode with the same name as the requesting node")
            }
            () => Decision::allow(),
        }
    }

    /// What a node creates is for the admission.
    fn certificate_requests(&self) -> Decision {
        let Some(requests) = &self.known.requests else { return Decision::deny("") };
        let ResourceTarget { namespace, name, subresource, .. } = *self.target;
        match self.verb {
            _ if !subresource.is_empty() => Decision::deny(
                "nodes may not access the status subresource of PodCertificateRequests",
            ),
            "create" => Decision::allow(),
            "get" if requests.read().node(namespace, name) == Some(self.node) => Decision::allow(),
            "get" => self.related(None),
            "list" | "watch" if self.selects("spec.nodeName") => Decision::allow(),
            "list" | "watch" => Decision::deny(
                "can only list/watch podcertificaterequests with nodeName field selector",
            ),
            verb => Decision::deny(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn slices(&self) -> Decision {
        if !self.target.subresource.is_empty() {
            return Decision::deny("cannot authorize ResourceSlice subresources");
        }
        match self.verb {
            "create" => Decision::allow(),
            "get" | "update" | "patch" | "delete" => self.related(None),
            "list" | "watch" | "deletecollection" if self.selects("spec.nodeName") => {
                Decision::allow()
            }
            "list" | "watch" | "deletecollection" => Decision::deny(
                "can only list/watch/deletecollection resourceslices with nodeName field selector",
            ),
            _ => Decision::deny(
                "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, \
                 update, patch, delete, deletecollection",
            ),
        }
    }
}

fn is_of_one_object(verb: &str) -> bool {
    matches!(verb, "get" | "create" | "update" | "patch" | "delete")
}
