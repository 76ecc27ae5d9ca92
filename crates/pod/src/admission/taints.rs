//! Taints of the node and tolerations of pods.

use k8s_openapi::api::core::v1::{PodSpec, Taint, Toleration};

/// Whether the pod does not tolerate a `NoExecute` taint. `NoSchedule` concerns the scheduler only.
pub(super) fn has_untolerated_taint(
    pod_spec: &PodSpec,
    taints: &[Taint],
    comparisons: bool,
) -> bool {
    let mut taints = taints.iter().filter(|taint| taint.effect == "NoExecute");
    taints.any(|taint| !tolerates(pod_spec, taint, comparisons))
}

/// Whether the pod tolerates the taint.
pub(super) fn tolerates(pod_spec: &PodSpec, taint: &Taint, comparisons: bool) -> bool {
    let mut tolerations = pod_spec.tolerations.iter().flatten();
    tolerations.any(|toleration| matches(toleration, taint, comparisons))
}

fn matches(toleration: &Toleration, taint: &Taint, comparisons: bool) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let (effect, key) = (text(&toleration.effect), text(&toleration.key));
    if !effect.is_empty() && effect != taint.effect || !key.is_empty() && key != taint.key {
        return false;
    }
    let (own, value) = (text(&toleration.value), text(&taint.value));
    let numbers = || Some((integer(&own)?, integer(&value)?));
    match toleration.operator.as_deref().unwrap_or_default() {
        "" | "Equal" => own == value,
        "Exists" => true,
        "Lt" if comparisons => numbers().is_some_and(|(own, value)| value < own),
        "Gt" if comparisons => numbers().is_some_and(|(own, value)| value > own),
        _ => false,
    }
}

/// An integer in canonical notation: neither `+1` nor `01`.
fn integer(text: &str) -> Option<i64> {
    text.parse::<i64>().ok().filter(|number| number.to_string() == text)
}
