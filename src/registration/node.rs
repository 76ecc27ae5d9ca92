//! The node object: its initial state, and what is reconciled on an existing one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use longshore_base::version::go_arch;
use longshore_config::Config;
use serde_json::{Map, Value, json};

use super::patch::metadata_changes;

const ATTACH_DETACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";
const OS: &str = "kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";
/// Labels that registration reconciles, if this node has them.
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "node.kubernetes.io/instance-type",
    "beta.kubernetes.io/instance-type",
    OS,
    ARCH,
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];

/// The node object created by self-registration.
pub(super) fn initial(config: &Config, status: NodeStatus) -> Node {
    let settings = &config.kubelet;
    let mut taints = settings.register_with_taints.clone();
    if config.external_cloud {
        taints.push(Taint {
            key: "node.cloudprovider.kubernetes.io/uninitialized".to_owned(),
            value: Some("true".to_owned()),
            effect: "NoSchedule".to_owned(),
            time_added: None,
        });
    }
    let annotations: BTreeMap<String, String> = annotations(config)
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect();
    Node {
        metadata: ObjectMeta {
            name: Some(config.node_name.clone()),
            labels: Some(labels(config)),
            annotations: Some(annotations).filter(|annotations| !annotations.is_empty()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(taints).filter(|taints| !taints.is_empty()),
            provider_id: Some(settings.provider_id.clone()).filter(|id| !id.is_empty()),
            ..NodeSpec::default()
        }),
        status: Some(status),
    }
}

/// Patch to reconcile an existing object at registration; `None`: nothing to change.
pub(super) fn reconcile(config: &Config, existing: &Node) -> Option<Value> {
    let labels = labels(config);
    let own = OWN_LABELS.iter().filter_map(|key| Some((*key, Some(labels.get(*key)?.as_str()))));
    patch(existing, own, &annotations(config))
}

/// Patch to reconcile an object at any time, even if created manually; `None`: nothing to change.
pub(super) fn required(config: &Config, existing: &Node) -> Option<Value> {
    let provided: Vec<_> =
        annotations(config).into_iter().filter(|(key, _)| *key == PROVIDED_IP).collect();
    patch(existing, [(OS, Some("linux")), (ARCH, Some(go_arch()))], &provided)
}

fn patch<'a>(
    existing: &Node,
    labels: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    annotations: &[(&str, Option<String>)],
) -> Option<Value> {
    let annotations = annotations.iter().map(|(key, value)| (*key, value.as_deref()));
    let mut metadata = Map::new();
    for (field, changes) in [
        ("labels", metadata_changes(existing.metadata.labels.as_ref(), labels)),
        ("annotations", metadata_changes(existing.metadata.annotations.as_ref(), annotations)),
    ] {
        if !changes.is_empty() {
            metadata.insert(field.to_owned(), Value::Object(changes));
        }
    }
    (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
}

fn labels(config: &Config) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = [
        ("kubernetes.io/hostname", config.node_name.as_str()),
        (OS, "linux"),
        (ARCH, go_arch()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", go_arch()),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    labels.extend(config.node_labels.clone());
    labels
}

/// The daemon's annotations; `None`: to be removed.
fn annotations(config: &Config) -> Vec<(&'static str, Option<String>)> {
    let attach = config.kubelet.enable_controller_attach_detach.then(|| "true".to_owned());
    let ips: Vec<String> =
        config.node_ips.iter().filter(|ip| !ip.is_unspecified()).map(ToString::to_string).collect();
    let provided = (config.external_cloud && !ips.is_empty()).then(|| ips.join(","));
    vec![(ATTACH_DETACH, attach), (PROVIDED_IP, provided)]
}
