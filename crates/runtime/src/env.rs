//! The environment of a container.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::arguments::{MAX_TOTAL, TooLong, expanded, max_argument};
use crate::services::Variables;
use k8s_openapi::api::core::v1::{Container, EnvVarSource, FileKeySelector, Pod};
use longshore_pod::downward::{self, Addresses};
use longshore_pod::spec;
use longshore_volumes::PodMounts;

use super::{Error, PodRuntime, env_file};

/// Names and values: the container's own variables, which override those of services.
#[derive(Debug, Default)]
pub(super) struct Environment {
    own: Vec<(String, Vec<u8>)>,
    /// The index of a name in `own`.
    indexes: HashMap<String, usize>,
    /// The bytes in `own`.
    size: usize,
    services: Variables,
}

impl Environment {
    /// The value of a variable, if it is valid UTF-8.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        match self.indexes.get(name) {
            Some(at) => std::str::from_utf8(&self.own[*at].1).ok(),
            None => self.services.get(name).map(String::as_str),
        }
    }

    /// The variables: the own ones in the order in which they were first set, then those of
    /// services.
    pub(super) fn into_inner(self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let Self { own, mut services, .. } = self;
        own.iter().for_each(|(name, _)| drop(services.remove(name)));
        let services = services.into_iter().map(|(name, value)| (name, value.into_bytes()));
        own.into_iter().chain(services)
    }

    /// Adds variables that are not set yet.
    pub(super) fn add(&mut self, more: BTreeMap<String, String>) -> Result<(), Error> {
        for (name, value) in more {
            if self.get(&name).is_none() && !self.indexes.contains_key(&name) {
                self.set(name, value.into_bytes())?;
            }
        }
        Ok(())
    }

    fn set(&mut self, name: String, value: Vec<u8>) -> Result<(), Error> {
        if name.len() + value.len() >= max_argument() {
            let limit = max_argument();
            let name = &name[..name.floor_char_boundary(256)];
            let message = format!("environment variable {name:?} is longer than {limit} bytes");
            return Err(TooLong(message).into());
        }
        self.size += name.len() + value.len() + 2;
        match self.indexes.entry(name) {
            Entry::Occupied(place) => {
                let (name, known) = &mut self.own[*place.get()];
                self.size -= name.len() + known.len() + 2;
                *known = value;
            }
            Entry::Vacant(place) => {
                self.own.push((place.key().clone(), value));
                place.insert(self.own.len() - 1);
            }
        }
        match self.size <= MAX_TOTAL {
            true => Ok(()),
            false => Err(TooLong::total("the environment").into()),
        }
    }
}

/// The sources of a container's environment.
pub(super) struct Sources<'a> {
    pub runtime: &'a PodRuntime,
    pub pod: &'a Pod,
    pub container: &'a Container,
    pub pod_ips: &'a [String],
    pub mounts: &'a PodMounts,
}

impl Sources<'_> {
    /// The variables of the container: those of `envFrom` first, then those of `env`, each of which
    /// may refer to earlier ones and to those of services.
    pub(super) async fn environment(&self) -> Result<Environment, Error> {
        let services = self.runtime.services.variables(self.pod).await?;
        let mut environment = Environment { services, ..Environment::default() };
        self.add_objects(&mut environment).await?;
        for variable in self.container.env.iter().flatten() {
            let literal = variable.value.as_deref().unwrap_or_default();
            let value = match &variable.value_from {
                Some(source) if literal.is_empty() => self.value_from(source).await?,
                _ => {
                    let value = expanded("a value of env", literal, |name| environment.get(name));
                    Some(value?.into_bytes())
                }
            };
            if let Some(value) = value {
                environment.set(variable.name.clone(), value)?;
            }
        }
        Ok(environment)
    }

    async fn add_objects(&self, environment: &mut Environment) -> Result<(), Error> {
        let (objects, namespace) = (&self.runtime.objects, spec::namespace(self.pod));
        for source in self.container.env_from.iter().flatten() {
            let prefix = source.prefix.as_deref().unwrap_or_default();
            if let Some(reference) = &source.config_map_ref {
                let found = objects.config_map(namespace, &reference.name).await;
                let found = optional(reference.optional, found)?;
                for (key, value) in found.iter().flat_map(|map| map.data.iter().flatten()) {
                    environment.set(format!("{prefix}{key}"), value.clone().into_bytes())?;
                }
            } else if let Some(reference) = &source.secret_ref {
                let found = objects.secret(namespace, &reference.name).await;
                let found = optional(reference.optional, found)?;
                for (key, value) in found.iter().flat_map(|secret| secret.data.iter().flatten()) {
                    environment.set(format!("{prefix}{key}"), value.0.clone())?;
                }
            }
        }
        Ok(())
    }

    /// The value of a source; `None` if it is optional and missing.
    async fn value_from(&self, source: &EnvVarSource) -> Result<Option<Vec<u8>>, Error> {
        let settings = &self.runtime.settings;
        let (objects, namespace) = (&self.runtime.objects, spec::namespace(self.pod));
        let required = |value: Option<Vec<u8>>, optional, kind, object: &str, key: &str| {
            let missing = || Error::MissingKey {
                kind,
                namespace: namespace.to_owned(),
                name: object.to_owned(),
                key: key.to_owned(),
            };
            match value {
                None if optional != Some(true) => Err(missing()),
                value => Ok(value),
            }
        };
        if let Some(field) = &source.field_ref {
            let host_ips = settings.host_ips.get();
            let addresses = Addresses { host: &host_ips, pod: self.pod_ips };
            let value = downward::field_ref_value(self.pod, &field.field_path, addresses)?;
            Ok(Some(value.into_owned().into_bytes()))
        } else if let Some(selector) = &source.resource_field_ref {
            let (container, allocatable) = (Some(self.container), &settings.allocatable);
            let value = downward::resource_field_value(self.pod, container, selector, allocatable)?;
            Ok(Some(value.into_bytes()))
        } else if let Some(selector) = &source.config_map_key_ref {
            let found = objects.config_map(namespace, &selector.name).await;
            let found = optional(selector.optional, found)?;
            let value = found.and_then(|map| map.data.as_ref()?.get(&selector.key).cloned());
            let value = value.map(String::into_bytes);
            required(value, selector.optional, "ConfigMap", &selector.name, &selector.key)
        } else if let Some(selector) = &source.secret_key_ref {
            let found = objects.secret(namespace, &selector.name).await;
            let found = optional(selector.optional, found)?;
            let value =
                found.and_then(|secret| Some(secret.data.as_ref()?.get(&selector.key)?.0.clone()));
            required(value, selector.optional, "Secret", &selector.name, &selector.key)
        } else if let Some(selector) = &source.file_key_ref {
            self.file_key(selector).await
        } else {
            Ok(Some(Vec::new()))
        }
    }

    async fn file_key(&self, selector: &FileKeySelector) -> Result<Option<Vec<u8>>, Error> {
        let FileKeySelector { key, optional, path, volume_name } = selector;
        let volume = self.mounts.get(volume_name).map(|mounted| &mounted.path);
        let volume = volume.ok_or_else(|| Error::NoEnvVolume(volume_name.clone()))?;
        let content = self.runtime.volumes.read_file(volume, path, env_file::MAX_SIZE).await;
        let value = content.map_err(env_file::Error::from).and_then(|content| {
            let content = String::from_utf8(content).map_err(|_| env_file::Error::NotText)?;
            env_file::value(&content, key)
        });
        let value = value.map_err(|error| {
            // The pod may name any path: its content must not be revealed.
            tracing::warn!(pod = spec::name(self.pod), path, %error, "cannot read environment file");
            Error::EnvFile
        })?;
        match value {
            Some(value) => Ok(Some(value.into_bytes())),
            None if *optional == Some(true) => Ok(None),
            None => Err(Error::MissingFileKey { key: key.clone(), path: volume.join(path) }),
        }
    }
}

/// A missing optional object is no error.
fn optional<T>(
    optional: Option<bool>,
    result: Result<T, longshore_client::objects::Error>,
) -> Result<Option<T>, Error> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(error) if optional == Some(true) && error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finding 14: each name was searched for in all that were set before.
    #[test]
    fn env_handles_many_variables() {
        let mut environment = Environment::default();
        for round in 0..2 {
            for index in 0..100_000 {
                environment.set(format!("A{index}"), format!("{round}").into_bytes()).unwrap();
            }
        }
        assert!((0..100_000).all(|index| environment.get(&format!("A{index}")) == Some("1")));
        assert_eq!(environment.get("B"), None);
        assert_eq!(environment.into_inner().count(), 100_000);
    }

    /// Finding 13: the environment of a program is limited, whatever it consists of.
    #[test]
    fn environment_variables_are_limited() {
        let mut environment = Environment::default();
        let value = vec![b'x'; max_argument() / 2];
        let error = environment.set("A".repeat(max_argument() / 2 + 2), value.clone()).unwrap_err();
        let expected = format!("is longer than {} bytes", max_argument());
        assert!(error.to_string().ends_with(&expected), "{error}");
        let mut set = |name: String| environment.set(name, value.clone()).is_ok();
        // Setting the same name again adds nothing.
        assert!((0..1000).all(|_| set("A".to_owned())));
        assert!(!(0..1000).all(|index| set(format!("A{index}"))));
    }
}
