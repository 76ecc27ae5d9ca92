//! One manifest: from bytes to a static pod of this node, or a reason that names the field.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use longshore_pod::{Timestamp, spec};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::defaults;
use crate::objects;

/// A manifest larger than this is none.
pub(super) const MAX_BYTES: u64 = 10 << 20;

/// Why a manifest gives no pod.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot be read: {0}")]
    Read(String),
    #[error("is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("is not a manifest: {0}")]
    Syntax(String),
    #[error("{field}: {reason}")]
    Field { field: String, reason: String },
}

fn field(field: impl Into<String>, reason: impl Into<String>) -> Error {
    Error::Field { field: field.into(), reason: reason.into() }
}

/// What a document says that it is.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    api_version: String,
    kind: String,
}

/// The static pod that a manifest describes.
///
/// Its UID follows from the node, the file and the content: the same manifest is the same pod
/// after a restart, an edited one is another.
pub(super) fn parse(bytes: &[u8], file: &Path, node_name: &str) -> Result<Pod, Error> {
    let text = std::str::from_utf8(bytes).map_err(|error| Error::Syntax(error.to_string()))?;
    let syntax = |error: serde_saphyr::Error| Error::Syntax(first_line(&error.to_string()));
    let kind: TypeMeta = serde_saphyr::from_str(text).map_err(syntax)?;
    for (name, value, wanted) in
        [("apiVersion", kind.api_version, "v1"), ("kind", kind.kind, "Pod")]
    {
        if value != wanted {
            return Err(field(name, format!("{value:?} is not {wanted:?}")));
        }
    }
    let mut pod: Pod = serde_saphyr::from_str(text).map_err(syntax)?;
    validate(&pod)?;
    let name = spec::name(&pod).to_owned();
    let metadata = &mut pod.metadata;
    metadata.name = Some(format!("{name}-{}", node_name.to_lowercase()));
    metadata.namespace.get_or_insert_with(|| "default".to_owned());
    metadata.deletion_timestamp = None;
    metadata.deletion_grace_period_seconds = None;
    metadata.resource_version = None;
    pod.status = None;
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node_name.to_owned());
    }
    defaults::apply(&mut pod);

    let hash = digest(&pod, file, node_name)?;
    let given = pod.metadata.uid.take().filter(|uid| !uid.is_empty());
    pod.metadata.uid = Some(given.unwrap_or_else(|| hash.clone()));
    let annotations = pod.metadata.annotations.get_or_insert_with(BTreeMap::new);
    annotations.insert(spec::SOURCE_ANNOTATION.to_owned(), "file".to_owned());
    annotations.insert(spec::HASH_ANNOTATION.to_owned(), hash);
    annotations.insert(spec::SEEN_ANNOTATION.to_owned(), Timestamp::now().to_string());
    Ok(pod)
}

fn digest(pod: &Pod, file: &Path, node_name: &str) -> Result<String, Error> {
    let json = serde_json::to_vec(pod).map_err(|error| Error::Syntax(error.to_string()))?;
    let mut hasher = Sha256::new();
    hasher.update(json);
    hasher.update(node_name);
    hasher.update(file.as_os_str().as_encoded_bytes());
    // 32 digits, as UIDs of static pods have always had.
    Ok(hasher.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect())
}

fn validate(pod: &Pod) -> Result<(), Error> {
    let name = spec::name(pod);
    if name.is_empty() {
        return Err(field("metadata.name", "required"));
    }
    if !is_subdomain(name) {
        return Err(field("metadata.name", format!("{name:?} is no DNS subdomain name")));
    }
    if let Some(namespace) = pod.metadata.namespace.as_deref().filter(|n| !is_subdomain(n)) {
        return Err(field("metadata.namespace", format!("{namespace:?} is no DNS name")));
    }
    // It becomes part of paths.
    if let Some(uid) =
        pod.metadata.uid.as_deref().filter(|uid| uid.starts_with('.') || uid.contains('/'))
    {
        return Err(field("metadata.uid", format!("{uid:?} is no UID")));
    }
    let Some(pod_spec) = &pod.spec else { return Err(field("spec", "required")) };
    if pod_spec.containers.is_empty() {
        return Err(field("spec.containers", "required: a pod has at least one container"));
    }
    let mut names = HashSet::new();
    let lists = [
        ("spec.initContainers", spec::init_containers(pod_spec)),
        ("spec.containers", &pod_spec.containers),
    ];
    for (list, containers) in lists {
        for (index, container) in containers.iter().enumerate() {
            let at = |part: &str| format!("{list}[{index}].{part}");
            if container.name.is_empty() {
                return Err(field(at("name"), "required"));
            }
            if !is_subdomain(&container.name) || container.name.contains('.') {
                return Err(field(at("name"), format!("{:?} is no DNS label", container.name)));
            }
            if !names.insert(container.name.as_str()) {
                return Err(field(at("name"), format!("duplicate value {:?}", container.name)));
            }
            if container.image.as_deref().unwrap_or_default().is_empty() {
                return Err(field(at("image"), "required"));
            }
        }
    }
    match pod_spec.restart_policy.as_deref() {
        None | Some("Always" | "OnFailure" | "Never") => {}
        Some(other) => {
            return Err(field(
                "spec.restartPolicy",
                format!("{other:?} is none of Always, OnFailure, Never"),
            ));
        }
    }
    refuse_references(pod, pod_spec)
}

/// A static pod must not depend on objects of the apiserver.
fn refuse_references(pod: &Pod, pod_spec: &PodSpec) -> Result<(), Error> {
    let refuse = |at: String| Err(field(at, "a static pod may not reference an API object"));
    if pod_spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return refuse("spec.serviceAccountName".to_owned());
    }
    for (index, volume) in pod_spec.volumes.iter().flatten().enumerate() {
        let token =
            volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        if token.into_iter().any(|source| source.service_account_token.is_some())
            || volume.persistent_volume_claim.is_some()
            || volume.ephemeral.is_some()
            || volume.csi.is_some()
        {
            return refuse(format!("spec.volumes[{index}]"));
        }
    }
    match objects::first_reference(pod) {
        Some(object) => refuse(format!("spec ({object})")),
        None => Ok(()),
    }
}

fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)]

    use super::*;

    const GOOD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  containers:\n  - {name: c, image: busybox}\n";

    fn parsed(text: &str) -> Result<Pod, Error> {
        parse(text.as_bytes(), Path::new("/manifests/web.yaml"), "Node1")
    }

    #[test]
    fn a_manifest_becomes_a_static_pod_of_this_node() {
        let pod = parsed(GOOD).expect("good");
        assert_eq!(spec::name(&pod), "web-node1");
        assert_eq!(spec::namespace(&pod), "default");
        assert_eq!(spec::uid(&pod).len(), 32);
        assert!(spec::is_static(&pod) && !spec::is_mirror(&pod));
        let again = parsed(GOOD).expect("good");
        assert_eq!(spec::uid(&again), spec::uid(&pod), "the same manifest is the same pod");
        let edited = parsed(&GOOD.replace("busybox", "busybox:2")).expect("good");
        assert_ne!(spec::uid(&edited), spec::uid(&pod), "an edited manifest is another pod");
    }

    #[test]
    fn json_is_yaml() {
        let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"c","image":"i:1"}]}}"#;
        assert!(parsed(json).is_ok());
    }

    #[test]
    fn bad_manifests_name_field_and_reason() {
        for (text, expected) in [
            (": {", "is not a manifest"),
            ("apiVersion: v1\nkind: Service\nmetadata: {name: web}", "kind"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {}\nspec: {containers: [{name: c, image: i}]}",
                "metadata.name",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: []}",
                "spec.containers",
            ),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {}", "containers"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c, image: i}, {name: c, image: i}]}",
                "spec.containers[1].name: duplicate value",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: c}]}",
                "spec.containers[0].image",
            ),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {name: W_eb}\nspec: {containers: [{name: c, image: i}]}",
                "metadata.name",
            ),
        ] {
            let error = parsed(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}\n→ {error}\nwanted {expected}");
        }
    }

    #[test]
    fn a_uid_that_leads_elsewhere_is_refused() {
        for uid in ["..", "../../x", "a/b"] {
            let text = GOOD.replace("{name: web}", &format!("{{name: web, uid: {uid}}}"));
            let error = parsed(&text).expect_err(uid).to_string();
            assert!(error.contains("metadata.uid"), "{error}");
        }
    }

    #[test]
    fn references_to_objects_of_the_apiserver_are_refused() {
        let with = |container: &str, pod: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec: {{containers: [{{name: c, image: i{container}}}]{pod}}}"
            )
        };
        assert!(parsed(&with("", ", volumes: [{name: v, emptyDir: {}}]")).is_ok());
        for (container, pod, expected) in [
            ("", ", serviceAccountName: a", "spec.serviceAccountName"),
            ("", ", imagePullSecrets: [{name: s}]", "secret \"s\""),
            (", envFrom: [{configMapRef: {name: m}}]", "", "configmap \"m\""),
            ("", ", volumes: [{name: v, secret: {secretName: s}}]", "secret \"s\""),
            ("", ", volumes: [{name: v, csi: {driver: d}}]", "spec.volumes[0]"),
            (
                "",
                ", volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]",
                "spec.volumes[0]",
            ),
        ] {
            let error = parsed(&with(container, pod)).expect_err(expected).to_string();
            assert!(error.contains(expected), "{container}{pod} → {error}");
        }
    }

    #[test]
    fn an_alias_bomb_is_refused_and_does_not_grow() {
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let refs = vec![format!("*a{}", level - 1); 9].join(",");
            bomb.push_str(&format!("a{level}: &a{level} [{refs}]\n"));
        }
        assert!(parsed(&bomb).is_err());
    }
}
