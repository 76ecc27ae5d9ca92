//! The AppArmor profile of a container.

use k8s_openapi::api::core::v1::{AppArmorProfile, Pod, SecurityContext};

use crate::spec;

/// The annotation of old manifests, before the name of the container.
pub const ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// The profile of a container: its own, the annotation's, or its pod's.
pub fn profile(
    pod: &Pod,
    container: &str,
    own: Option<&SecurityContext>,
) -> Option<AppArmorProfile> {
    let pods = || pod.spec.as_ref()?.security_context.as_ref()?.app_armor_profile.clone();
    let own = own.and_then(|own| own.app_armor_profile.clone());
    own.or_else(|| annotated(pod, container)).or_else(pods)
}

fn annotated(pod: &Pod, container: &str) -> Option<AppArmorProfile> {
    annotation(spec::annotation(pod, &format!("{ANNOTATION}{container}"))?)
}

/// The profile that the value of an annotation means.
pub fn annotation(value: &str) -> Option<AppArmorProfile> {
    let (type_, localhost_profile) = match value.strip_prefix("localhost/") {
        Some(name) => ("Localhost", Some(name.to_owned())),
        None if value == "runtime/default" => ("RuntimeDefault", None),
        None if value == "unconfined" => ("Unconfined", None),
        None => return None,
    };
    Some(AppArmorProfile { type_: type_.to_owned(), localhost_profile })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn apparmor_profile_of_a_container() {
        let local = |name: &str| json!({"type": "Localhost", "localhostProfile": name});
        // the container's, the annotation and the pod's
        let cases = [
            (json!(null), None, json!(null), None),
            (local("own"), Some("localhost/a"), local("pods"), Some(("Localhost", Some("own")))),
            (json!(null), Some("localhost/a/b"), local("pods"), Some(("Localhost", Some("a/b")))),
            (json!(null), Some("runtime/default"), json!(null), Some(("RuntimeDefault", None))),
            (json!(null), Some("unconfined"), local("pods"), Some(("Unconfined", None))),
            (json!(null), Some("localhost/"), json!(null), Some(("Localhost", Some("")))),
            (json!(null), Some("localhost"), json!(null), None),
            (json!(null), Some("other"), local("pods"), Some(("Localhost", Some("pods")))),
            (json!(null), None, local("pods"), Some(("Localhost", Some("pods")))),
        ];
        for (own, value, pods, expected) in cases {
            let annotations = value.map(|value| (format!("{ANNOTATION}c"), json!(value)));
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {"annotations": annotations.into_iter().collect::<serde_json::Map<_, _>>()},
                "spec": {"containers": [], "securityContext": {"appArmorProfile": pods}},
            }))
            .unwrap();
            let own = serde_json::from_value(json!({"appArmorProfile": own})).unwrap();
            let found = profile(&pod, "c", Some(&own));
            let found = found.as_ref().map(|p| (p.type_.as_str(), p.localhost_profile.as_deref()));
            assert_eq!(found, expected, "{value:?}");
        }
    }
}
