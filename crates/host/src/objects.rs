//! What a cluster has in its apiserver from its start: what nodes join by, under kubeadm's names where
//! kubeadm has it, the DNS service and the default StorageClass. All of it is applied at every start, so
//! that a newer release brings what it needs.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::error::reason;
use crate::settings::{Server, Settings};
use crate::setup::{CONTROLLERS, DNS, kubelet_configuration};
use crate::tokens::GROUP;
use crate::{Error, Paths, Result};

/// Who has applied the objects.
const MANAGER: &str = "longshore-up";

/// Applies all objects.
///
/// # Errors
/// The apiserver does not take one.
pub async fn apply(
    client: &Client,
    settings: &Settings,
    server: &Server,
    paths: &Paths,
    ca: &str,
) -> Result<()> {
    for object in all(settings, server, paths, ca) {
        let failed = |reason: String| {
            let kind = object["kind"].as_str().unwrap_or_default();
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            Error::cluster(format!("cannot apply {kind} {name}"), reason)
        };
        let parsed: DynamicObject =
            serde_json::from_value(object.clone()).map_err(|error| failed(error.to_string()))?;
        let types = parsed.types.clone().unwrap_or_default();
        let (group, version) =
            types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let kind = GroupVersionKind::gvk(group, version, &types.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, &plural(&types.kind));
        let api: Api<DynamicObject> = match parsed.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let parameters = PatchParams::apply(MANAGER).force();
        let applied = api.patch(&parsed.name_any(), &parameters, &Patch::Apply(&parsed)).await;
        applied.map_err(|error| failed(reason(&error)))?;
    }
    Ok(())
}

/// Of the kinds that are applied here.
fn plural(kind: &str) -> String {
    let name = kind.to_lowercase();
    if name.ends_with("ss") { format!("{name}es") } else { format!("{name}s") }
}

const RBAC: &str = "rbac.authorization.k8s.io";

fn binding(name: &str, role: &str, subject: &Value) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    })
}

fn local_binding(namespace: &str, name: &str, role: &str, subjects: &[Value]) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role},
        "subjects": subjects,
    })
}

fn group(name: &str) -> Value {
    json!({"apiGroup": RBAC, "kind": "Group", "name": name})
}

fn user(name: &str) -> Value {
    json!({"apiGroup": RBAC, "kind": "User", "name": name})
}

fn reader(namespace: &str, name: &str, config_maps: &[&str]) -> Value {
    json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": config_maps, "verbs": ["get"]}],
    })
}

/// PURE: all objects, in the order in which they are applied.
pub(crate) fn all(settings: &Settings, server: &Server, paths: &Paths, ca: &str) -> Vec<Value> {
    let (nodes, joining) = ("system:nodes", GROUP);
    let mut objects = vec![
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-public"}}),
        // What machines that join may know before anybody knows them.
        reader("kube-public", "kubeadm:bootstrap-signer-clusterinfo", &["cluster-info"]),
        local_binding(
            "kube-public",
            "kubeadm:bootstrap-signer-clusterinfo",
            "kubeadm:bootstrap-signer-clusterinfo",
            &[user("system:anonymous")],
        ),
        reader("kube-system", "kubeadm:kubelet-config", &["kubelet-config"]),
        local_binding(
            "kube-system",
            "kubeadm:kubelet-config",
            "kubeadm:kubelet-config",
            &[group(nodes), group(joining)],
        ),
        reader("kube-system", "kubeadm:nodes-kubeadm-config", &["kubeadm-config"]),
        local_binding(
            "kube-system",
            "kubeadm:nodes-kubeadm-config",
            "kubeadm:nodes-kubeadm-config",
            &[group(nodes), group(joining)],
        ),
        // A machine that joins looks whether there is a node of its name.
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": "kubeadm:get-nodes"},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}],
        }),
        binding("kubeadm:get-nodes", "kubeadm:get-nodes", &group(joining)),
        binding("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", &group(joining)),
        binding(
            "kubeadm:node-autoapprove-bootstrap",
            "system:certificates.k8s.io:certificatesigningrequests:nodeclient",
            &group(joining),
        ),
        binding(
            "kubeadm:node-autoapprove-certificate-rotation",
            "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient",
            &group(nodes),
        ),
        // Routes lead to the pods of all nodes. What kube-proxy in the node's process reads, the apiserver
        // grants by itself.
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": "longshore:network"},
            "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}],
        }),
        binding("longshore:network", "longshore:network", &group(nodes)),
        // The scheduler is in the process of the controllers.
        binding("longshore:scheduler", "system:kube-scheduler", &user(CONTROLLERS)),
        binding("longshore:volume-scheduler", "system:volume-scheduler", &user(CONTROLLERS)),
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": "longshore:kubelet-serving-approver"},
            "rules": [
                {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval"],
                 "verbs": ["update"]},
                {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
                 "resourceNames": ["kubernetes.io/kubelet-serving"], "verbs": ["approve"]},
            ],
        }),
        binding(
            "longshore:kubelet-serving-approver",
            "longshore:kubelet-serving-approver",
            &user(CONTROLLERS),
        ),
        json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": "longshore:dns"},
            "rules": [
                {"apiGroups": [""], "resources": ["services", "endpoints", "namespaces", "pods"],
                 "verbs": ["list", "watch"]},
                {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
            ],
        }),
        binding("longshore:dns", "longshore:dns", &user(DNS)),
    ];
    objects.extend(dns(settings, server));
    objects.extend(configuration(settings, server, paths, ca));
    objects.push(json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "standard",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "longshore.dev/host-path",
        "parameters": {"path": paths.volumes()},
        "reclaimPolicy": "Delete",
        // A volume is a directory of the node that its first pod is on.
        "volumeBindingMode": "WaitForFirstConsumer",
    }));
    objects
}

/// The server runs on this machine and not in a pod.
fn dns(settings: &Settings, server: &Server) -> [Value; 2] {
    let ports = |more: &[(&str, Value)]| -> Vec<Value> {
        [("dns", "UDP"), ("dns-tcp", "TCP")]
            .into_iter()
            .map(|(name, protocol)| {
                let mut port = json!({"name": name, "protocol": protocol, "port": 53});
                for (key, value) in more {
                    port[*key] = value.clone();
                }
                port
            })
            .collect()
    };
    [
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {
                    "k8s-app": "kube-dns",
                    "kubernetes.io/cluster-service": "true",
                    "kubernetes.io/name": "CoreDNS",
                },
            },
            "spec": {"clusterIP": server.dns_address(), "ports": ports(&[("targetPort", json!(53))])},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [settings.address], "conditions": {"ready": true}}],
            "ports": ports(&[]),
        }),
    ]
}

/// What those who join read: the address and CA, to be signed; the configuration of nodes; what kubeadm
/// wants to know of a cluster.
fn configuration(settings: &Settings, server: &Server, paths: &Paths, ca: &str) -> [Value; 3] {
    let info = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {}\n    server: {}\n  name: \"\"\n\
         contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n",
        STANDARD.encode(ca),
        settings.url,
    );
    let cluster = json!({
        "apiVersion": "kubeadm.k8s.io/v1beta4",
        "kind": "ClusterConfiguration",
        "kubernetesVersion": longshore_base::version::KUBERNETES_VERSION,
        "controlPlaneEndpoint": settings.url.trim_start_matches("https://"),
        "certificatesDir": paths.pki(),
        "networking": {
            "dnsDomain": settings.domain,
            "podSubnet": settings.pods.to_string(),
            "serviceSubnet": server.services.to_string(),
        },
    });
    let map = |namespace: &str, name: &str, key: &str, text: String| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": namespace},
            "data": {key: text},
        })
    };
    // JSON is YAML.
    [
        map("kube-public", "cluster-info", "kubeconfig", info),
        map(
            "kube-system",
            "kubelet-config",
            "kubelet",
            kubelet_configuration(server.dns_address(), &settings.domain).to_string(),
        ),
        map("kube-system", "kubeadm-config", "ClusterConfiguration", cluster.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::args::UpArgs;
    use crate::settings::tests::cluster;

    #[test]
    fn objects_are_complete_and_their_plurals_right() {
        let settings = cluster(&UpArgs::default()).unwrap();
        let paths = Paths::new(Path::new("/"));
        let objects = all(&settings, settings.server().unwrap(), &paths, "CA");
        for object in &objects {
            let parsed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            assert!(parsed.types.is_some() && parsed.metadata.name.is_some(), "{object}");
        }
        let known = [
            "clusterrolebindings",
            "clusterroles",
            "configmaps",
            "endpointslices",
            "namespaces",
            "rolebindings",
            "roles",
            "services",
            "storageclasses",
        ];
        let mut found: Vec<String> =
            objects.iter().map(|object| plural(object["kind"].as_str().unwrap())).collect();
        found.sort();
        found.dedup();
        assert_eq!(found, known);
    }

    #[test]
    fn objects_show_strangers_the_address_and_the_ca_alone() {
        let settings = cluster(&UpArgs::default()).unwrap();
        let paths = Paths::new(Path::new("/"));
        let objects = all(&settings, settings.server().unwrap(), &paths, "CA");
        let info = objects.iter().find(|one| one["metadata"]["name"] == "cluster-info").unwrap();
        let text = info["data"]["kubeconfig"].as_str().unwrap();
        let config = kube::config::Kubeconfig::from_yaml(text).unwrap();
        let known = config.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(known.server.as_deref(), Some("https://198.18.1.2:6443"));
        assert!(config.auth_infos.is_empty());
        let anonymous =
            objects.iter().filter(|object| object.to_string().contains("system:anonymous"));
        assert_eq!(anonymous.count(), 1);
        let unauthenticated =
            objects.iter().filter(|o| o.to_string().contains("system:unauthenticated"));
        assert_eq!(unauthenticated.count(), 0);
    }
}
