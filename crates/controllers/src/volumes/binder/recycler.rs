//! PURE: the pod that removes the data of a volume with the reclaim policy `Recycle`.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeSpec, Pod, Volume};
use longshore_informer::object_key;
use serde_json::json;

use crate::cluster_settings::{Recycler, RecyclerSettings};
use crate::volumes::objects::{size, volume_spec};
use crate::workload::{name_of, phase};

/// Where recycler pods run, unless their template says otherwise.
const NAMESPACE: &str = "default";
const PREFIX: &str = "recycler-for-";
/// 1 GiB in billionths of a byte.
const GIBIBYTE: i128 = (1 << 30) * 1_000_000_000;

/// Whether volumes of that kind can be recycled.
pub(super) fn can_recycle(spec: &PersistentVolumeSpec) -> bool {
    spec.host_path.is_some() || spec.nfs.is_some()
}

fn pod_name(volume: &PersistentVolume) -> String {
    format!("{PREFIX}{}", name_of(volume))
}

/// The key of the volume's recycler pod.
pub(super) fn key(volume: &PersistentVolume) -> String {
    object_key(NAMESPACE, &pod_name(volume))
}

/// The name of the volume that a pod recycles, if it is a recycler.
pub(super) fn volume_of(pod: &Pod) -> Option<&str> {
    let is_there = pod.metadata.namespace.as_deref() == Some(NAMESPACE);
    name_of(pod).strip_prefix(PREFIX).filter(|_| is_there)
}

/// How the recycler ended, once it has.
pub(super) fn outcome(pod: &Pod) -> Option<Result<(), String>> {
    let message = pod.status.as_ref().and_then(|status| status.message.clone());
    match phase(pod) {
        "Succeeded" => Some(Ok(())),
        "Failed" => Some(Err(message
            .filter(|message| !message.is_empty())
            .unwrap_or_else(|| "pod failed, pod.Status.Message unknown".to_owned()))),
        _ => None,
    }
}

/// The pod for a volume.
pub(super) fn pod(volume: &PersistentVolume, settings: &RecyclerSettings) -> Pod {
    let spec = volume_spec(volume);
    let recycler = if spec.nfs.is_some() { &settings.nfs } else { &settings.host_path };
    let mut pod = recycler.template.clone().unwrap_or_else(default_template);
    pod.metadata.name = Some(pod_name(volume));
    pod.metadata.generate_name = None;
    pod.metadata.namespace = Some(NAMESPACE.to_owned());
    let spec_of_pod = pod.spec.get_or_insert_default();
    spec_of_pod.active_deadline_seconds = Some(timeout(volume, recycler));
    let volumes = spec_of_pod.volumes.get_or_insert_default();
    let name = volumes.first().map_or_else(|| "vol".to_owned(), |first| first.name.clone());
    let host_path = spec.host_path.clone().map(|mut source| {
        source.type_ = None;
        source
    });
    let nfs = spec.nfs.clone().map(|mut source| {
        source.read_only = None;
        source
    });
    let first = Volume { name, host_path, nfs, ..Volume::default() };
    match volumes.first_mut() {
        Some(known) => *known = first,
        None => volumes.push(first),
    }
    pod
}

/// In seconds: some for each whole gibibyte, and not too few.
fn timeout(volume: &PersistentVolume, recycler: &Recycler) -> i64 {
    let gibibytes = i64::try_from(size(volume).checked_div(GIBIBYTE).unwrap_or_default());
    gibibytes.unwrap_or(i64::MAX).saturating_mul(recycler.increment).max(recycler.minimum)
}

fn default_template() -> Pod {
    const SCRUB: &str = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";
    let template = json!({
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{"name": "vol"}],
            "containers": [{
                "name": "pv-recycler",
                "image": "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6",
                "command": ["/bin/sh"],
                "args": ["-c", SCRUB],
                "volumeMounts": [{"name": "vol", "mountPath": "/scrub"}],
            }],
        },
    });
    serde_json::from_value(template).unwrap_or_default()
}
