//! Which API objects a pod refers to: what its node may read, and what a mirror pod may not have.

use serde_json::Value;

/// Kinds that pods refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ReferenceKind {
    /// The pod itself.
    Pod,
    /// A secret, in a volume, a variable or as a pull secret.
    Secret,
    /// A config map, in a volume or a variable.
    ConfigMap,
    /// The pod's service account.
    ServiceAccount,
    /// A persistent volume claim.
    PersistentVolumeClaim,
    /// A resource claim or its template.
    ResourceClaim,
}

impl ReferenceKind {
    /// The plural that messages use.
    pub(crate) fn resource(self) -> &'static str {
        match self {
            ReferenceKind::Pod => "pods",
            ReferenceKind::Secret => "secrets",
            ReferenceKind::ConfigMap => "configmaps",
            ReferenceKind::ServiceAccount => "serviceaccounts",
            ReferenceKind::PersistentVolumeClaim => "persistentvolumeclaims",
            ReferenceKind::ResourceClaim => "resourceclaims",
        }
    }
}

/// One object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// What it is.
    pub(crate) kind: ReferenceKind,
    /// Its namespace: the pod's.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

/// Calls `found` for each object that the pod's spec refers to, itself excluded.
pub(crate) fn references<'a>(pod: &'a Value, mut found: impl FnMut(ReferenceKind, &'a str)) {
    use ReferenceKind::{ConfigMap, PersistentVolumeClaim, ResourceClaim, Secret, ServiceAccount};
    let spec = &pod["spec"];
    let mut name = |kind, value: &'a Value| {
        if let Some(name) = value.as_str().filter(|name| !name.is_empty()) {
            found(kind, name);
        }
    };
    name(ServiceAccount, &spec["serviceAccountName"]);
    for secret in items(&spec["imagePullSecrets"]) {
        name(Secret, &secret["name"]);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in items(&spec[list]) {
            for source in items(&container["envFrom"]) {
                name(Secret, &source["secretRef"]["name"]);
                name(ConfigMap, &source["configMapRef"]["name"]);
            }
            for variable in items(&container["env"]) {
                name(Secret, &variable["valueFrom"]["secretKeyRef"]["name"]);
                name(ConfigMap, &variable["valueFrom"]["configMapKeyRef"]["name"]);
            }
        }
    }
    for volume in items(&spec["volumes"]) {
        name(Secret, &volume["secret"]["secretName"]);
        name(ConfigMap, &volume["configMap"]["name"]);
        name(PersistentVolumeClaim, &volume["persistentVolumeClaim"]["claimName"]);
        name(Secret, &volume["csi"]["nodePublishSecretRef"]["name"]);
        name(Secret, &volume["azureFile"]["secretName"]);
        for plugin in ["cephfs", "flexVolume", "iscsi", "rbd", "scaleIO", "storageos"] {
            name(Secret, &volume[plugin]["secretRef"]["name"]);
        }
        for source in items(&volume["projected"]["sources"]) {
            name(Secret, &source["secret"]["name"]);
            name(ConfigMap, &source["configMap"]["name"]);
        }
    }
    for claim in items(&spec["resourceClaims"]) {
        name(ResourceClaim, &claim["resourceClaimName"]);
        name(ResourceClaim, &claim["resourceClaimTemplateName"]);
    }
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
