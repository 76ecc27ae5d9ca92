//! What a node may write: only what is its own. The authorizer has let the kind of request pass,
//! or a role bound to the node; these limits still apply.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::api_types::Resource;
use crate::authz::{
    Access, Authorizer, ResourceTarget, Target, mirror_pod_reference, names_audience,
};
use crate::csr::Request;
use crate::kinds::core;
use crate::kinds::pod::{MIRROR, is_mirror};
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{items, same, text};
use crate::status::StatusError;
use crate::user::User;

/// Labels in Kubernetes' own namespaces that a node may give itself.
const NODE_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const NODE_LABEL_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
const RESTRICTED_NAMESPACE: &str = "node-restriction.kubernetes.io";
const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE: &str = "can only access node lease with the same name as the requesting node";
const CSI_NODE: &str = "can only access CSINode with the same name as the requesting node";
const NODE_SIGNERS: [&str; 2] =
    ["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"];

const CLAIM_STATUS: &str = "may only update PVC status";

const POD_CERTIFICATE: &str = "PodCertificateRequest";

type Admitted = Result<(), StatusError>;

fn refuse_if(resource: &Resource, name: &str, fault: Option<String>) -> Admitted {
    fault.map_or(Ok(()), |why| Err(StatusError::forbidden(resource, name, &why)))
}

/// A caller in the group of nodes must say which one it is.
fn unnamed(node: &str) -> Option<String> {
    node.is_empty().then(|| "could not determine node from user \"system:node:\"".to_owned())
}

/// The restrictions of every write of these kinds, by the object's name.
fn not_own(node: &str, resource: &Resource, namespace: &str, name: &str) -> Option<String> {
    match resource.kind {
        "Node" if name != node => {
            Some(format!("node {node:?} is not allowed to modify node {name:?}"))
        }
        "Lease" if namespace != LEASE_NAMESPACE => {
            Some(format!("can only access leases in the {LEASE_NAMESPACE:?} system namespace"))
        }
        "Lease" if name != node => Some(LEASE.into()),
        "CSINode" if name != node => Some(CSI_NODE.into()),
        _ => None,
    }
}

/// The node object of a node that makes a pod.
pub(crate) async fn own_node(
    registry: &Registry,
    resource: &Resource,
    node: &str,
) -> Result<Option<Value>, StatusError> {
    match resource.kind {
        "Pod" => registry.find(core("nodes")?, "", node).await,
        _ => Ok(None),
    }
}

/// `own` is the caller's Node, if there is one: a mirror pod is owned by it.
pub(crate) fn admit_create(
    node: &str,
    resource: &Resource,
    new: &Value,
    own: Option<&Value>,
) -> Admitted {
    let name = object::name(new);
    let fault = unnamed(node)
        .or_else(|| not_own(node, resource, object::namespace(new), name))
        .or_else(|| match resource.kind {
            "Pod" => mirror_pod_fault(node, new, own),
            "Node" if !new["spec"]["configSource"].is_null() => Some(format!(
                "node {node:?} is not allowed to create pods with a non-nil configSource"
            )),
            "Node" => {
                let labels = forbidden_labels(&changed_labels(new, &Value::Null))?;
                Some(format!("node {node:?} is not allowed to set the following labels: {labels}"))
            }
            "CertificateSigningRequest" => signing_request_fault(node, &new["spec"]),
            "PersistentVolumeClaim" => Some(CLAIM_STATUS.into()),
            "ResourceSlice" => slice_fault(node, new, "create"),
            POD_CERTIFICATE => foreign_request_fault(node, &new["spec"]),
            _ => None,
        });
    refuse_if(resource, name, fault)
}

/// A node asks for certificates of its own pods.
fn foreign_request_fault(node: &str, spec: &Value) -> Option<String> {
    let named = text(&spec["nodeName"]);
    (named != node).then(|| {
        format!("PodCertificateRequest.Spec.NodeName={named:?}, which is not the requesting node {node:?}")
    })
}

/// A request for a certificate is for a pod that runs on the node that it names, with its service account. What
/// differs may be of an earlier life of an object, so that the answer is no refusal: the node may try again.
pub(crate) async fn admit_pod_certificate(
    registry: &Registry,
    resource: &Resource,
    request: &Value,
) -> Admitted {
    if resource.kind != POD_CERTIFICATE {
        return Ok(());
    }
    let (spec, namespace) = (&request["spec"], object::namespace(request));
    let [node_name, pod_name, account_name] =
        ["nodeName", "podName", "serviceAccountName"].map(|field| text(&spec[field]));
    let named = |name: &str| format!("{:?}", format!("{namespace}/{name}"));
    let (pod_named, account_named) = (named(pod_name), named(account_name));
    let refuse = |why: String| Err(StatusError::forbidden(resource, object::name(request), &why));
    let find = async |plural: &str, what: &str, namespace: &str, name: &str, named: &str| {
        let kind = core(plural)?;
        registry.find(kind, namespace, name).await?.ok_or_else(|| {
            let missing = StatusError::not_found(kind, name).message;
            StatusError::internal_plain(format!(
                "while retrieving {what} {named} named in the PodCertificateRequest: {missing}"
            ))
        })
    };
    let differs = |object: &Value, field: &str, why: &dyn Fn(&str, &str) -> String| {
        let (asked, known) = (text(&spec[field]), object::uid(object));
        match asked == known {
            true => Ok(()),
            false => Err(StatusError::internal_plain(why(asked, known))),
        }
    };

    let node = find("nodes", "node", "", node_name, &format!("{node_name:?}")).await?;
    differs(&node, "nodeUID", &|asked, known| {
        format!(
            "PodCertificateRequest for pod {pod_named} names node UID {asked:?}, inconsistent with \
             the running node ({known:?})"
        )
    })?;
    let pod = find("pods", "pod", namespace, pod_name, &pod_named).await?;
    differs(&pod, "podUID", &|asked, known| {
        format!(
            "PodCertificateRequest for pod {pod_named} contains pod UID ({asked:?}) which differs \
             from running pod {known:?}"
        )
    })?;
    if text(&pod["spec"]["nodeName"]) != node_name {
        return refuse(format!(
            "pod {pod_named} is not running on node {node_name:?} named in the PodCertificateRequest"
        ));
    }
    if is_mirror(&pod) {
        return refuse(format!("pod {pod_named} is a mirror pod"));
    }
    let own = text(&pod["spec"]["serviceAccountName"]);
    if account_name != own {
        return refuse(format!(
            "PodCertificateRequest for pod {pod_named} contains serviceAccountName \
             ({account_name:?}) that differs from running pod ({own:?})"
        ));
    }
    let what = "service account";
    let account = find("serviceaccounts", what, namespace, account_name, &account_named).await?;
    differs(&account, "serviceAccountUID", &|asked, known| {
        format!(
            "PodCertificateRequest for pod {pod_named} names service account UID {asked:?}, which \
             differs from the running service account ({known:?})"
        )
    })
}

/// The authorizer knows nothing of the content of a new slice.
fn slice_fault(node: &str, slice: &Value, verb: &str) -> Option<String> {
    (slice["spec"]["nodeName"] != node).then(|| {
        format!("can only {verb} ResourceSlice with the same NodeName as the requesting node")
    })
}

/// A certificate of a node is for the node that asks.
fn signing_request_fault(node: &str, spec: &Value) -> Option<String> {
    if !NODE_SIGNERS.contains(&text(&spec["signerName"])) {
        return None;
    }
    let wanted = format!("system:node:{node}");
    match Request::parse(text(&spec["request"])) {
        Err(error) => Some(format!("unable to parse csr: {error}")),
        Ok(request) if request.common_name == wanted => None,
        Ok(_) => Some(format!("can only create a node CSR with CN={wanted}")),
    }
}

fn mirror_pod_fault(node: &str, pod: &Value, own: Option<&Value>) -> Option<String> {
    if !is_mirror(pod) {
        return Some(format!(
            "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return Some(format!(
            "node {node:?} can only create pods with spec.nodeName set to itself"
        ));
    }
    let owner = match items(&pod["metadata"]["ownerReferences"]) {
        [owner] => owner,
        [] => {
            return Some(format!(
                "node {node:?} can only create pods with an owner reference set to itself"
            ));
        }
        _ => {
            return Some(format!(
                "node {node:?} can only create pods with a single owner reference set to itself"
            ));
        }
    };
    if owner["apiVersion"] != "v1" || owner["kind"] != "Node" || owner["name"] != node {
        return Some(format!(
            "node {node:?} can only create pods with an owner reference set to itself"
        ));
    }
    if owner["controller"] != true {
        return Some(format!(
            "node {node:?} can only create pods with a controller owner reference set to itself"
        ));
    }
    if owner["blockOwnerDeletion"] == true {
        return Some(format!(
            "node {node:?} must not set blockOwnerDeletion on an owner reference"
        ));
    }
    let (expected, got) = (own.map_or("", object::uid), text(&owner["uid"]));
    if expected != got || got.is_empty() {
        return Some(format!("node {node} UID mismatch: expected {expected} got {got}"));
    }
    let what = mirror_pod_reference(pod)?;
    Some(format!("node {node:?} can not create pods that reference {what}"))
}

pub(crate) fn admit_update(
    node: &str,
    resource: &Resource,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Admitted {
    let name = object::name(old);
    let fault = unnamed(node)
        .or_else(|| not_own(node, resource, object::namespace(old), name))
        .or_else(|| match (resource.kind, subresource) {
            ("Pod", "status") => pod_status_fault(node, new, old),
            ("Pod", "") => Some(format!(
                "unexpected operation \"UPDATE\", node {node:?} can only create and delete mirror pods"
            )),
            ("Pod", subresource) => Some(unexpected(subresource)),
            ("Node", _) => node_fault(node, new, old),
            ("PersistentVolumeClaim", "status") => claim_fault(node, new, old),
            ("PersistentVolumeClaim", _) => Some(CLAIM_STATUS.into()),
            (POD_CERTIFICATE, _) => Some("unexpected operation UPDATE".to_owned()),
            ("ResourceSlice", _) => {
                slice_fault(node, old, "update").or_else(|| slice_fault(node, new, "update"))
            }
            _ => None,
        });
    refuse_if(resource, name, fault)
}

/// A node reports the size of a claim's volume after a resize, and may write nothing else of it.
fn claim_fault(node: &str, new: &Value, old: &Value) -> Option<String> {
    const OWN: [&str; 4] =
        ["capacity", "conditions", "allocatedResources", "allocatedResourceStatuses"];
    let others = |claim: &Value| {
        let mut claim = claim.clone();
        let metadata = object::metadata_mut(&mut claim);
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
        object::child_mut(&mut claim, "status").retain(|field, _| !OWN.contains(&field.as_str()));
        claim
    };
    (!same(&others(new), &others(old))).then(|| {
        format!(
            "node {node:?} is not allowed to update fields other than status.quantity and status.conditions"
        )
    })
}

fn pod_status_fault(node: &str, new: &Value, old: &Value) -> Option<String> {
    let claims = |pod: &Value| -> Vec<(String, Option<String>)> {
        let name = |value: &Value| value.as_str().map(str::to_owned);
        let claims = items(&pod["status"]["resourceClaimStatuses"]).iter();
        claims.map(|c| (text(&c["name"]).to_owned(), name(&c["resourceClaimName"]))).collect()
    };
    let extended = "extendedResourceClaimStatus";
    match () {
        () if old["spec"]["nodeName"] != node => Some(format!(
            "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
        )),
        () if !changed_labels(new, old).is_empty() => {
            Some(format!("node {node:?} cannot update labels through pod status"))
        }
        () if claims(new) != claims(old) => {
            Some(format!("node {node:?} cannot update resource claim statues"))
        }
        () if !same(&new["status"][extended], &old["status"][extended]) => {
            Some(format!("node {node:?} cannot update extended resource claim status"))
        }
        () => None,
    }
}

fn node_fault(node: &str, new: &Value, old: &Value) -> Option<String> {
    let source = &new["spec"]["configSource"];
    let metadata = |object: &Value| object["metadata"]["ownerReferences"].clone();
    match () {
        () if !source.is_null() && !same(source, &old["spec"]["configSource"]) => Some(format!(
            "node {node:?} is not allowed to update configSource to a new non-nil configSource"
        )),
        () if !same_list(&new["spec"]["taints"], &old["spec"]["taints"]) => {
            Some(format!("node {node:?} is not allowed to modify taints"))
        }
        () if !same_list(&metadata(new), &metadata(old)) => {
            Some(format!("node {node:?} is not allowed to modify ownerReferences"))
        }
        () => {
            let labels = forbidden_labels(&changed_labels(new, old))?;
            Some(format!("is not allowed to modify labels: {labels}"))
        }
    }
}

fn unexpected(subresource: &str) -> String {
    format!("unexpected pod subresource {subresource:?}, only 'status' and 'eviction' are allowed")
}

/// Writes of a pod's subresources that are no node's business.
pub(crate) fn admit_subresource(
    node: &str,
    resource: &Resource,
    name: &str,
    subresource: &str,
) -> Admitted {
    refuse_if(resource, name, unnamed(node).or_else(|| Some(unexpected(subresource))))
}

pub(crate) fn admit_delete(node: &str, resource: &Resource, old: &Value) -> Admitted {
    let name = object::name(old);
    let fault = unnamed(node)
        .or_else(|| not_own(node, resource, object::namespace(old), name))
        .or_else(|| match resource.kind {
            "Pod" if old["spec"]["nodeName"] != node => {
                Some(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            "PersistentVolumeClaim" => Some(CLAIM_STATUS.into()),
            "ResourceSlice" => slice_fault(node, old, "delete"),
            POD_CERTIFICATE => Some("unexpected operation DELETE".to_owned()),
            _ => None,
        });
    refuse_if(resource, name, fault)
}

pub(crate) fn admit_eviction(node: &str, resource: &Resource, pod: &Value) -> Admitted {
    let fault = unnamed(node).or_else(|| {
        (pod["spec"]["nodeName"] != node)
            .then(|| format!("node {node} can only evict pods with spec.nodeName set to itself"))
    });
    refuse_if(resource, object::name(pod), fault)
}

/// A node may request tokens of service accounts only for pods that it runs, and for audiences that
/// the pods name. `request`: a TokenRequest for this account.
pub(crate) async fn admit_token_request(
    (registry, authorizer): (&Registry, &Authorizer),
    (user, node): (&User, &str),
    accounts: &Resource,
    (namespace, account): (&str, &str),
    request: &Value,
) -> Admitted {
    let bound = &request["spec"]["boundObjectRef"];
    let refuse = |why: &str| refuse_if(accounts, account, Some(why.to_owned()));
    refuse_if(accounts, account, unnamed(node))?;
    if bound["apiVersion"] != "v1" || bound["kind"] != "Pod" || text(&bound["name"]).is_empty() {
        return refuse("node requested token not bound to a pod");
    }
    let uid = text(&bound["uid"]);
    if uid.is_empty() {
        return refuse("node requested token with a pod binding without a uid");
    }
    let pod = registry.get(core("pods")?, namespace, text(&bound["name"])).await?;
    if object::uid(&pod) != uid {
        return refuse(&format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. \
             The object might have been deleted and then recreated"
        ));
    }
    if pod["spec"]["nodeName"] != node {
        return refuse("node requested token bound to a pod scheduled on a different node");
    }
    let audience = match items(&request["spec"]["audiences"]) {
        [] => "",
        [audience] => text(audience),
        _ => return refuse("node may only request 0 or 1 audiences"),
    };
    if names_audience(&pod, audience) {
        return Ok(());
    }
    let verb = "request-serviceaccounts-token-audience";
    let target = ResourceTarget {
        resource: audience,
        namespace,
        name: account,
        ..ResourceTarget::default()
    };
    let access = Access { user, verb, target: Target::Resource(target) };
    match authorizer.check(registry, &access).await? {
        Ok(_) => Ok(()),
        Err(_) => refuse(&format!(
            "audience {audience:?} not found in pod spec volume, {} is not authorized to request \
             tokens for this audience",
            user.name
        )),
    }
}

/// An absent list and an empty one are the same.
fn same_list(a: &Value, b: &Value) -> bool {
    items(a) == items(b)
}

fn changed_labels<'a>(new: &'a Value, old: &'a Value) -> BTreeSet<&'a str> {
    let labels = |object: &'a Value| object["metadata"]["labels"].as_object();
    let (new, old) = (labels(new), labels(old));
    [(new, old), (old, new)]
        .into_iter()
        .filter_map(|(a, b)| a.map(|a| (a, b)))
        .flat_map(|(a, b)| {
            a.iter().filter(move |(key, value)| b.and_then(|b| b.get(*key)) != Some(*value))
        })
        .map(|(key, _)| key.as_str())
        .collect()
}

/// Those that a node may not touch, as a list for people; `None` when there are none.
fn forbidden_labels(changed: &BTreeSet<&str>) -> Option<String> {
    let is_forbidden = |label: &&&str| {
        let namespace = label.split_once('/').map_or("", |(namespace, _)| namespace);
        let is_within = |domain: &str| {
            namespace == domain
                || namespace.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
        };
        let is_kubernetes = is_within("kubernetes.io") || is_within("k8s.io");
        let is_node_label =
            NODE_LABELS.contains(*label) || NODE_LABEL_NAMESPACES.into_iter().any(is_within);
        is_within(RESTRICTED_NAMESPACE) || (is_kubernetes && !is_node_label)
    };
    let forbidden: Vec<&str> = changed.iter().filter(is_forbidden).copied().collect();
    (!forbidden.is_empty()).then(|| forbidden.join(", "))
}
