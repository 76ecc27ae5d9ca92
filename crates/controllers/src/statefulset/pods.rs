//! What the pods of a StatefulSet look like.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};

use super::claims::claim_name;
use crate::workload::{HASH_LABEL, count, name_of, namespace_of, new_pod};

const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

/// The ordinal of the pod of that name, if it is one of the set's.
pub(super) fn ordinal(set: &StatefulSet, pod: &str) -> Option<isize> {
    let digits = pod.strip_prefix(name_of(set))?.strip_prefix('-')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let ordinal: i32 = digits.parse().ok().filter(|_| is_number)?;
    isize::try_from(ordinal).ok()
}

/// The first ordinal, and that after the last.
pub(super) fn range(set: &StatefulSet) -> std::ops::Range<isize> {
    let Some(spec) = &set.spec else { return 0..0 };
    let start = count(spec.ordinals.as_ref().and_then(|ordinals| ordinals.start));
    start..start.saturating_add(count(Some(spec.replicas.unwrap_or(1))))
}

/// The name of the revision that a pod was made from.
pub(super) fn revision(pod: &Pod) -> &str {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(HASH_LABEL)).map_or("", String::as_str)
}

/// The pod of that ordinal from the template of a revision.
pub(super) fn new(
    set: &StatefulSet,
    ordinal: isize,
    revision: &str,
    template: &PodTemplateSpec,
) -> Pod {
    let mut pod = new_pod(set, template);
    let name = format!("{}-{ordinal}", name_of(set));
    pod.metadata.generate_name = None;
    pod.metadata.name = Some(name.clone());
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(HASH_LABEL.to_owned(), revision.to_owned());
    let spec = pod.spec.get_or_insert_default();
    spec.hostname = Some(name);
    spec.subdomain = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
    identify(set, &mut pod, ordinal);
    pod
}

/// Gives a pod the labels and volumes of its ordinal; whether that is a change.
pub(super) fn identify(set: &StatefulSet, pod: &mut Pod, ordinal: isize) -> bool {
    let before = pod.clone();
    let name = format!("{}-{ordinal}", name_of(set));
    pod.metadata.namespace = Some(namespace_of(set).to_owned());
    let labels = pod.metadata.labels.get_or_insert_default();
    if labels.get(NAME_LABEL) != Some(&name) {
        labels.insert(NAME_LABEL.to_owned(), name);
        labels.insert(INDEX_LABEL.to_owned(), ordinal.to_string());
    }
    let templates = set.spec.as_ref().and_then(|spec| spec.volume_claim_templates.as_ref());
    for template in templates.into_iter().flatten() {
        let claim = claim_name(set, name_of(template), ordinal);
        let volumes = pod.spec.get_or_insert_default().volumes.get_or_insert_default();
        let is_it = |volume: &Volume| {
            let source = volume.persistent_volume_claim.as_ref();
            volume.name == name_of(template) && source.is_some_and(|it| it.claim_name == claim)
        };
        if volumes.iter().any(is_it) {
            continue;
        }
        volumes.retain(|volume| volume.name != name_of(template));
        volumes.push(Volume {
            name: name_of(template).to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: claim,
                read_only: None,
            }),
            ..Volume::default()
        });
    }
    *pod != before
}
