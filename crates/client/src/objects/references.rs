//! Which secrets and configmaps a pod refers to, in every place of its spec that can name one.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, PodSpec, Volume};
use longshore_pod::spec;

use super::cache::Key;

/// One object that a pod refers to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reference {
    Secret(Key),
    ConfigMap(Key),
    RuntimeClass(Key),
    /// All of the cluster's.
    TrustBundles,
}

impl fmt::Display for Reference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Secret(key) => write!(out, "secret {:?}", key.name),
            Self::ConfigMap(key) => write!(out, "configmap {:?}", key.name),
            Self::RuntimeClass(key) => write!(out, "runtimeclass {:?}", key.name),
            Self::TrustBundles => out.write_str("cluster trust bundles"),
        }
    }
}

/// All objects that a pod refers to.
pub(super) type References = BTreeSet<Reference>;

/// The references of a pod, optional ones too.
pub(super) fn of(pod: &Pod) -> References {
    let Some(pod_spec) = &pod.spec else { return References::new() };
    let mut found = Found { namespace: spec::namespace(pod), references: References::new() };
    for secret in pod_spec.image_pull_secrets.iter().flatten() {
        found.secret(&secret.name);
    }
    for (env, env_from) in environments(pod_spec) {
        found.environment(env, env_from);
    }
    for volume in pod_spec.volumes.iter().flatten() {
        found.volume(volume);
    }
    if let Some(class) = pod_spec.runtime_class_name.as_deref().filter(|name| !name.is_empty()) {
        found.references.insert(Reference::RuntimeClass(Key::new("", class)));
    }
    found.references
}

/// The references of one volume.
pub(super) fn of_volume(namespace: &str, volume: &Volume) -> References {
    let mut found = Found { namespace, references: References::new() };
    found.volume(volume);
    found.references
}

type Environment<'a> = (Option<&'a Vec<EnvVar>>, Option<&'a Vec<EnvFromSource>>);

/// The environment of every container of the pod, of whichever list.
fn environments(pod_spec: &PodSpec) -> impl Iterator<Item = Environment<'_>> {
    let lasting = spec::containers(pod_spec).map(|(_, c)| (c.env.as_ref(), c.env_from.as_ref()));
    let ephemeral =
        spec::ephemeral_containers(pod_spec).iter().map(|c| (c.env.as_ref(), c.env_from.as_ref()));
    lasting.chain(ephemeral)
}

struct Found<'a> {
    namespace: &'a str,
    references: References,
}

impl Found<'_> {
    fn secret(&mut self, name: &str) {
        if !name.is_empty() {
            self.references.insert(Reference::Secret(Key::new(self.namespace, name)));
        }
    }

    fn config_map(&mut self, name: &str) {
        if !name.is_empty() {
            self.references.insert(Reference::ConfigMap(Key::new(self.namespace, name)));
        }
    }

    fn environment(&mut self, env: Option<&Vec<EnvVar>>, env_from: Option<&Vec<EnvFromSource>>) {
        for source in env.into_iter().flatten().filter_map(|variable| variable.value_from.as_ref())
        {
            if let Some(key) = &source.secret_key_ref {
                self.secret(&key.name);
            }
            if let Some(key) = &source.config_map_key_ref {
                self.config_map(&key.name);
            }
        }
        for source in env_from.into_iter().flatten() {
            if let Some(secret) = &source.secret_ref {
                self.secret(&secret.name);
            }
            if let Some(config_map) = &source.config_map_ref {
                self.config_map(&config_map.name);
            }
        }
    }

    fn volume(&mut self, volume: &Volume) {
        if let Some(name) = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref())
        {
            self.secret(name);
        }
        if let Some(source) = &volume.config_map {
            self.config_map(&source.name);
        }
        for source in
            volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten())
        {
            if let Some(secret) = &source.secret {
                self.secret(&secret.name);
            }
            if let Some(config_map) = &source.config_map {
                self.config_map(&config_map.name);
            }
            if source.cluster_trust_bundle.is_some() {
                self.references.insert(Reference::TrustBundles);
            }
        }
    }
}
