//! What the kernel and the runtime of this node support, and pods that need more.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, PodSpec, SecurityContext};
use longshore_gates::DeclaredFeatures;

use super::Sysctls;
use crate::status::Verdict;
use crate::{apparmor, features, spec};

/// Label by which a pod may name its operating system.
const OS_LABEL: &str = "kubernetes.io/os";
const OS: &str = "linux";

/// What this node can do for pods, which does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct NodeCapabilities {
    /// The sysctls that pods may set.
    pub sysctls: Sysctls,
    /// Whether the kernel has AppArmor.
    pub app_armor: bool,
    /// Whether the runtime can keep a pod from the groups of its image.
    pub supplemental_groups_policy: bool,
    /// The feature gate `PodLevelResources`.
    pub pod_level_resources: bool,
    /// The feature gate `TaintTolerationComparisonOperators`.
    pub toleration_comparisons: bool,
    /// The features that the node declares; `None`: pods are not checked for those that they need.
    pub declared_features: Option<DeclaredFeatures>,
}

impl NodeCapabilities {
    /// Checks before the fit of the pod: why it is rejected.
    pub(super) fn check_before_fit(&self, pod: &Pod, pod_spec: &PodSpec) -> Option<Verdict> {
        self.sysctls
            .check(pod_spec)
            .or_else(|| operating_system(pod, pod_spec))
            .or_else(|| groups_policy(pod_spec, self).filter(|_| is_new(pod)))
    }

    /// Checks after the fit of the pod: why it is rejected.
    pub(super) fn check_after_fit(&self, pod: &Pod, pod_spec: &PodSpec) -> Option<Verdict> {
        app_armor(pod, pod_spec, self)
            .filter(|_| is_new(pod))
            .or_else(|| pod_level_resources(pod_spec, self))
            .or_else(|| undeclared_features(pod_spec, self))
    }

    /// Features of the node that an update of a pod needs and that it lacks.
    pub fn lacking_for_update(&self, old: &PodSpec, new: &PodSpec) -> DeclaredFeatures {
        let declared = self.declared_features;
        declared.map_or_else(DeclaredFeatures::default, |declared| {
            features::needed_by_update(old, new).without(declared)
        })
    }
}

/// A pod that runs already is not checked again.
fn is_new(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, None | Some("Pending"))
}

fn operating_system(pod: &Pod, pod_spec: &PodSpec) -> Option<Verdict> {
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(OS_LABEL));
    if label.is_some_and(|os| os != OS) {
        return Some(Verdict::failed(
            "PodOSSelectorNodeLabelDoesNotMatch",
            "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
        ));
    }
    pod_spec.os.as_ref().filter(|os| os.name != OS).map(|_| {
        let message = "Failed to admit pod as the OS field doesn't match node OS";
        Verdict::failed("PodOSNotSupported", message)
    })
}

fn groups_policy(pod_spec: &PodSpec, node: &NodeCapabilities) -> Option<Verdict> {
    let policy = pod_spec.security_context.as_ref()?.supplemental_groups_policy.as_deref()?;
    (policy == "Strict" && !node.supplemental_groups_policy).then(|| {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node";
        Verdict::failed("SupplementalGroupsPolicyNotSupported", message)
    })
}

fn app_armor(pod: &Pod, pod_spec: &PodSpec, node: &NodeCapabilities) -> Option<Verdict> {
    if !requests_app_armor(pod, pod_spec) {
        return None;
    }
    let why = match node.app_armor {
        false => "AppArmor is not enabled on the host".to_owned(),
        true => {
            let has_empty_name = contexts(pod_spec)
                .filter_map(|(name, own)| apparmor::profile(pod, name, own))
                .any(|profile| has_empty_name(&profile));
            let empty = || "invalid empty AppArmor profile name: \"Localhost\"".to_owned();
            has_empty_name.then(empty).or_else(|| {
                let unknown = unknown_annotation(pod)?;
                Some(format!("invalid AppArmor profile name: {unknown:?}"))
            })?
        }
    };
    Some(Verdict::failed("AppArmor", format!("Cannot enforce AppArmor: {why}")))
}

fn requests_app_armor(pod: &Pod, pod_spec: &PodSpec) -> bool {
    let pods = pod_spec.security_context.as_ref().and_then(|own| own.app_armor_profile.as_ref());
    let containers = contexts(pod_spec).filter_map(|(_, own)| own?.app_armor_profile.as_ref());
    let mut annotations = pod.metadata.annotations.iter().flatten();
    pods.into_iter().chain(containers).any(|profile| profile.type_ != "Unconfined")
        || annotations
            .any(|(key, value)| key.starts_with(apparmor::ANNOTATION) && value != "unconfined")
}

/// The value of an AppArmor annotation that is no profile; the pod must not run unconfined for it.
fn unknown_annotation(pod: &Pod) -> Option<&str> {
    let annotations = pod.metadata.annotations.iter().flatten();
    let values = annotations.filter(|(key, _)| key.starts_with(apparmor::ANNOTATION));
    values.map(|(_, value)| value.as_str()).find(|value| apparmor::annotation(value).is_none())
}

fn has_empty_name(profile: &AppArmorProfile) -> bool {
    let name = profile.localhost_profile.as_deref().unwrap_or_default();
    profile.type_ == "Localhost" && name.trim().is_empty()
}

/// The security contexts of all containers, by name.
fn contexts(pod_spec: &PodSpec) -> impl Iterator<Item = (&str, Option<&SecurityContext>)> {
    let declared = spec::containers(pod_spec)
        .map(|(_, container)| (container.name.as_str(), container.security_context.as_ref()));
    let ephemeral = spec::ephemeral_containers(pod_spec)
        .iter()
        .map(|container| (container.name.as_str(), container.security_context.as_ref()));
    declared.chain(ephemeral)
}

fn pod_level_resources(pod_spec: &PodSpec, node: &NodeCapabilities) -> Option<Verdict> {
    let own = pod_spec.resources.as_ref()?;
    let has_resources =
        [&own.requests, &own.limits].into_iter().flatten().any(|list| !list.is_empty());
    (has_resources && !node.pod_level_resources).then(|| {
        let message = "PodLevelResources feature gate is disabled";
        Verdict::failed("PodLevelResourcesNotSupported", message)
    })
}

fn undeclared_features(pod_spec: &PodSpec, node: &NodeCapabilities) -> Option<Verdict> {
    let missing = features::needed(pod_spec).without(node.declared_features?);
    (!missing.is_empty())
        .then(|| Verdict::failed("PodFeatureUnsupported", missing_features(missing)))
}

/// The message about features that the node lacks.
pub fn missing_features(missing: DeclaredFeatures) -> String {
    format!("Pod requires node features that are not available: {missing}")
}
