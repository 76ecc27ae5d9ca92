//! Which API objects a pod refers to: what its node may read, what a mirror pod may not have, and
//! for which audiences its node may ask for tokens.

use serde_json::Value;

use crate::kinds::pod::is_mirror;
use crate::object;
use crate::schema::value::{items, text};

/// Kinds of objects that lead to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The pod itself.
    Pod,
    /// A secret, in a volume, a variable or as a pull secret.
    Secret,
    /// A config map, in a volume or a variable.
    ConfigMap,
    /// The pod's service account.
    ServiceAccount,
    /// A persistent volume claim, its own or an ephemeral volume's.
    PersistentVolumeClaim,
    /// A volume that such a claim is bound to.
    PersistentVolume,
    /// A volume that is attached to the node.
    VolumeAttachment,
    /// A resource claim, its own or one made from a template.
    ResourceClaim,
}

/// Calls `found` for each object that the pod refers to. A mirror pod refers to nothing: a node
/// makes it, and must gain nothing by that.
pub(super) fn visit(pod: &Value, mut found: impl FnMut(Kind, &str)) {
    if is_mirror(pod) {
        return;
    }
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let mut named = |kind, name: &Value| {
        if !text(name).is_empty() {
            found(kind, text(name));
        }
    };
    named(Kind::ServiceAccount, &spec["serviceAccountName"]);
    secrets(spec, |name| named(Kind::Secret, name));
    config_maps(spec, |name| named(Kind::ConfigMap, name));
    for volume in items(&spec["volumes"]) {
        named(Kind::PersistentVolumeClaim, &volume["persistentVolumeClaim"]["claimName"]);
        if volume["ephemeral"].is_object() {
            let claim = format!("{}-{}", object::name(pod), text(&volume["name"]));
            named(Kind::PersistentVolumeClaim, &claim.into());
        }
    }
    for claim in items(&spec["resourceClaims"]) {
        named(Kind::ResourceClaim, &claim["resourceClaimName"]);
    }
    // Those of the pod's templates: the claims' names are known once they are made.
    for claim in items(&status["resourceClaimStatuses"]) {
        let is_of_template = |own: &&Value| {
            own["name"] == claim["name"] && !text(&own["resourceClaimTemplateName"]).is_empty()
        };
        if items(&spec["resourceClaims"]).iter().any(|own| is_of_template(&own)) {
            named(Kind::ResourceClaim, &claim["resourceClaimName"]);
        }
    }
    named(Kind::ResourceClaim, &status["extendedResourceClaimStatus"]["resourceClaimName"]);
}

/// Every place of a pod's spec that names a secret.
pub(crate) fn secrets<'a>(spec: &'a Value, mut found: impl FnMut(&'a Value)) {
    for secret in items(&spec["imagePullSecrets"]) {
        found(&secret["name"]);
    }
    for container in containers(spec) {
        for source in items(&container["envFrom"]) {
            found(&source["secretRef"]["name"]);
        }
        for variable in items(&container["env"]) {
            found(&variable["valueFrom"]["secretKeyRef"]["name"]);
        }
    }
    for volume in items(&spec["volumes"]) {
        found(&volume["secret"]["secretName"]);
        found(&volume["csi"]["nodePublishSecretRef"]["name"]);
        found(&volume["azureFile"]["secretName"]);
        for plugin in ["cephfs", "cinder", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"] {
            found(&volume[plugin]["secretRef"]["name"]);
        }
        for source in items(&volume["projected"]["sources"]) {
            found(&source["secret"]["name"]);
        }
    }
}

/// Every place of a pod's spec that names a config map.
fn config_maps<'a>(spec: &'a Value, mut found: impl FnMut(&'a Value)) {
    for container in containers(spec) {
        for source in items(&container["envFrom"]) {
            found(&source["configMapRef"]["name"]);
        }
        for variable in items(&container["env"]) {
            found(&variable["valueFrom"]["configMapKeyRef"]["name"]);
        }
    }
    for volume in items(&spec["volumes"]) {
        found(&volume["configMap"]["name"]);
        for source in items(&volume["projected"]["sources"]) {
            found(&source["configMap"]["name"]);
        }
    }
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["initContainers", "containers", "ephemeralContainers"];
    lists.into_iter().flat_map(|list| items(&spec[list]))
}

/// Volumes that need nothing of the API.
const PLAIN_VOLUMES: [&str; 23] = [
    "awsElasticBlockStore",
    "azureDisk",
    "cephfs",
    "cinder",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flexVolume",
    "flocker",
    "gcePersistentDisk",
    "gitRepo",
    "hostPath",
    "image",
    "iscsi",
    "nfs",
    "photonPersistentDisk",
    "portworxVolume",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
    "vsphereVolume",
    "name",
];

/// What of the API a pod that a node makes refers to, in the words of the refusal; `None` is as it
/// must be. A volume that is not known counts as a reference.
pub(crate) fn mirror_pod_reference(pod: &Value) -> Option<&'static str> {
    let spec = &pod["spec"];
    if !text(&spec["serviceAccountName"]).is_empty() {
        return Some("serviceaccounts");
    }
    let mut names = 0;
    secrets(spec, |name| names += usize::from(!text(name).is_empty()));
    if names > 0 {
        return Some("secrets");
    }
    config_maps(spec, |name| names += usize::from(!text(name).is_empty()));
    if names > 0 {
        return Some("configmaps");
    }
    if !items(&spec["resourceClaims"]).is_empty() {
        return Some("resourceclaims");
    }
    items(&spec["volumes"]).iter().find_map(volume_reference)
}

fn volume_reference(volume: &Value) -> Option<&'static str> {
    const BY_SOURCE: [(&str, &str); 7] = [
        ("configMap", "configmaps (via configmap volumes)"),
        ("secret", "secrets (via secret volumes)"),
        ("csi", "csidrivers (via CSI volumes)"),
        ("glusterfs", "endpoints (via glusterFS volumes)"),
        ("persistentVolumeClaim", "persistentvolumeclaims"),
        ("ephemeral", "persistentvolumeclaims (via ephemeral volumes)"),
        ("azureFile", "secrets (via azureFile volumes)"),
    ];
    let has = |source: &str| !volume[source].is_null();
    if let Some((_, what)) = BY_SOURCE.iter().find(|(source, _)| has(source)) {
        return Some(what);
    }
    if has("projected") {
        return items(&volume["projected"]["sources"]).iter().find_map(projected_reference);
    }
    let is_plain = |source: &String| PLAIN_VOLUMES.contains(&source.as_str());
    let is_known = volume.as_object().is_some_and(|volume| volume.keys().all(is_plain));
    (!is_known).then_some("unknown volume types")
}

fn projected_reference(source: &Value) -> Option<&'static str> {
    const BY_SOURCE: [(&str, &str); 5] = [
        ("configMap", "configmaps (via projected volumes)"),
        ("secret", "secrets (via projected volumes)"),
        ("serviceAccountToken", "serviceaccounts (via projected volumes)"),
        ("clusterTrustBundle", "clustertrustbundles"),
        ("podCertificate", "podcertificates"),
    ];
    let known = BY_SOURCE.iter().find(|(field, _)| !source[*field].is_null());
    known
        .map(|(_, what)| *what)
        .or_else(|| source["downwardAPI"].is_null().then_some("unknown projected volume sources"))
}

/// Whether a pod has a volume with a token for this audience (empty: the apiserver).
pub(crate) fn names_audience(pod: &Value, audience: &str) -> bool {
    let sources = items(&pod["spec"]["volumes"])
        .iter()
        .flat_map(|volume| items(&volume["projected"]["sources"]));
    let mut tokens = sources.map(|source| &source["serviceAccountToken"]);
    tokens.any(|token| token.is_object() && text(&token["audience"]) == audience)
}
