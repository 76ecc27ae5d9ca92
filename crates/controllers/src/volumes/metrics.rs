//! What is counted of volumes, claims and attachments at each scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod,
};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use longshore_informer::{Store, object_key};
use longshore_metrics::{Kind, Labels, Text};

use super::objects::{
    claim_class, claim_name, claim_phase, claim_spec, is_bound_for_good, volume_class, volume_name,
    volume_phase, volume_spec, volumes_of,
};
use crate::pods::node_of;
use crate::workload::{name_of, namespace_of};

/// Numbers by label values.
type Counts<const N: usize> = BTreeMap<[String; N], usize>;

fn count<const N: usize>(counts: &mut Counts<N>, key: [String; N]) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}

fn family<const N: usize>(
    text: &mut Text,
    name: &str,
    help: &str,
    labels: [&str; N],
    counts: &Counts<N>,
) {
    let mut samples = text.family(name, help, Kind::Gauge);
    for (values, count) in counts {
        let pairs: Vec<_> = labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
        samples.add(&Labels::new(&pairs), *count as f64);
    }
}

/// The plugin that a volume is of, as upstream names it.
fn plugin(spec: &PersistentVolumeSpec) -> String {
    if let Some(csi) = &spec.csi {
        return csi_plugin(&csi.driver);
    }
    let name = match spec {
        _ if spec.host_path.is_some() => "kubernetes.io/host-path",
        _ if spec.local.is_some() => "kubernetes.io/local-volume",
        _ if spec.nfs.is_some() => "kubernetes.io/nfs",
        _ if spec.iscsi.is_some() => "kubernetes.io/iscsi",
        _ if spec.fc.is_some() => "kubernetes.io/fc",
        _ => "N/A",
    };
    name.to_owned()
}

fn csi_plugin(driver: &str) -> String {
    format!("kubernetes.io/csi:{driver}")
}

/// Writes how many volumes and claims there are, and how many are bound.
pub(super) fn write(
    text: &mut Text,
    volumes: &[Arc<PersistentVolume>],
    claims: &[Arc<PersistentVolumeClaim>],
) {
    let (mut total, mut bound, mut unbound) = (Counts::new(), Counts::new(), Counts::new());
    for volume in volumes {
        let spec = volume_spec(volume);
        let mode = spec.volume_mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
        count(&mut total, [plugin(spec), mode]);
        let is_bound = volume_phase(volume) == "Bound";
        let counts = if is_bound { &mut bound } else { &mut unbound };
        count(counts, [volume_class(volume).to_owned()]);
    }
    let (mut bound_claims, mut unbound_claims) = (Counts::new(), Counts::new());
    for claim in claims {
        let attributes = claim_spec(claim).volume_attributes_class_name.clone();
        let is_bound = claim_phase(claim) == "Bound";
        let counts = if is_bound { &mut bound_claims } else { &mut unbound_claims };
        let class = claim_class(claim).unwrap_or_default().to_owned();
        count(counts, [namespace_of(&**claim).to_owned(), class, attributes.unwrap_or_default()]);
    }
    let class = ["storage_class"];
    let of_claim = ["namespace", "storage_class", "volume_attributes_class"];
    family(
        text,
        "pv_collector_bound_pv_count",
        "[ALPHA] Gauge measuring number of persistent volume currently bound",
        class,
        &bound,
    );
    family(
        text,
        "pv_collector_bound_pvc_count",
        "[ALPHA] Gauge measuring number of persistent volume claim currently bound",
        of_claim,
        &bound_claims,
    );
    family(
        text,
        "pv_collector_total_pv_count",
        "[ALPHA] Gauge measuring total number of persistent volumes",
        ["plugin_name", "volume_mode"],
        &total,
    );
    family(
        text,
        "pv_collector_unbound_pv_count",
        "[ALPHA] Gauge measuring number of persistent volume currently unbound",
        class,
        &unbound,
    );
    family(
        text,
        "pv_collector_unbound_pvc_count",
        "[ALPHA] Gauge measuring number of persistent volume claim currently unbound",
        of_claim,
        &unbound_claims,
    );
}

/// Writes how many volumes of drivers pods use on nodes, are to be attached, and are.
pub(super) fn write_attachments(
    text: &mut Text,
    pods: &[Arc<Pod>],
    claims: &Store<PersistentVolumeClaim>,
    volumes: &Store<PersistentVolume>,
    attachments: &[Arc<VolumeAttachment>],
) {
    let (mut in_use, mut total) = (Counts::new(), Counts::new());
    let mut desired: BTreeSet<(String, String)> = BTreeSet::new();
    for pod in pods.iter().filter(|pod| !node_of(pod).is_empty()) {
        for name in volumes_of(pod).iter().filter_map(|volume| claim_name(pod, volume)) {
            let claim = claims.get(&object_key(namespace_of(&**pod), &name));
            let Some(claim) = claim.filter(|claim| is_bound_for_good(claim)) else { continue };
            let Some(volume) = volumes.get(volume_name(&claim)) else { continue };
            let Some(csi) = &volume_spec(&volume).csi else { continue };
            let (node, plugin) = (node_of(pod).to_owned(), csi_plugin(&csi.driver));
            count(&mut in_use, [node.clone(), plugin.clone()]);
            if desired.insert((node, name_of(&*volume).to_owned())) {
                count(&mut total, [plugin, "desired_state_of_world".to_owned()]);
            }
        }
    }
    for attachment in attachments {
        if attachment.status.as_ref().is_some_and(|status| status.attached) {
            let plugin = csi_plugin(&attachment.spec.attacher);
            count(&mut total, [plugin, "actual_state_of_world".to_owned()]);
        }
    }
    family(
        text,
        "attachdetach_controller_total_volumes",
        "[ALPHA] Number of volumes in A/D Controller",
        ["plugin_name", "state"],
        &total,
    );
    family(
        text,
        "storage_count_attachable_volumes_in_use",
        "[ALPHA] Measure number of volumes in use",
        ["node", "volume_plugin"],
        &in_use,
    );
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volume_metrics_count_by_class_plugin_and_state() {
        let volume =
            |name: &str, source: serde_json::Value, phase: &str| -> Arc<PersistentVolume> {
                let mut volume = json!({
                    "metadata": {"name": name},
                    "spec": {"storageClassName": "fast", "volumeMode": "Block"},
                    "status": {"phase": phase},
                });
                for (key, value) in source.as_object().unwrap() {
                    volume["spec"][key] = value.clone();
                }
                Arc::new(serde_json::from_value(volume).unwrap())
            };
        let claim = |name: &str, phase: &str| -> Arc<PersistentVolumeClaim> {
            let claim = json!({
                "metadata": {"namespace": "ns", "name": name},
                "spec": {"storageClassName": "fast", "volumeAttributesClassName": "gold"},
                "status": {"phase": phase},
            });
            Arc::new(serde_json::from_value(claim).unwrap())
        };
        let csi = json!({"csi": {"driver": "d.io", "volumeHandle": "h"}});
        let volumes = [
            volume("a", csi.clone(), "Bound"),
            volume("b", csi, "Available"),
            volume("c", json!({"hostPath": {"path": "/x"}}), "Bound"),
            volume("d", json!({}), "Failed"),
        ];
        let mut text = Text::new();
        write(&mut text, &volumes, &[claim("x", "Bound"), claim("y", "Pending")]);
        let page = text.finish();
        let claims =
            "{namespace=\"ns\",storage_class=\"fast\",volume_attributes_class=\"gold\"} 1\n";
        for line in [
            "pv_collector_bound_pv_count{storage_class=\"fast\"} 2\n".to_owned(),
            "pv_collector_unbound_pv_count{storage_class=\"fast\"} 2\n".to_owned(),
            "{plugin_name=\"kubernetes.io/csi:d.io\",volume_mode=\"Block\"} 2\n".to_owned(),
            "{plugin_name=\"kubernetes.io/host-path\",volume_mode=\"Block\"} 1\n".to_owned(),
            "{plugin_name=\"N/A\",volume_mode=\"Block\"} 1\n".to_owned(),
            format!("pv_collector_bound_pvc_count{claims}"),
            format!("pv_collector_unbound_pvc_count{claims}"),
        ] {
            assert!(page.contains(&line), "{line}{page}");
        }
    }
}
