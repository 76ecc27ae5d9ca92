//! The environment of a container.
//!
//! Current limitations: the variables of services are not there yet.

use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, Pod};
use longshore_pod::downward::{self, Addresses};
use longshore_pod::expand::expand;
use longshore_pod::spec;

use super::{Error, Settings};
use crate::objects::Objects;

/// Names and values, each name once.
#[derive(Debug, Default)]
pub(super) struct Environment(Vec<(String, String)>);

impl Environment {
    /// The value of a variable.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The variables in the order in which they were first set.
    pub(super) fn into_inner(self) -> Vec<(String, String)> {
        self.0
    }

    fn set(&mut self, name: &str, value: String) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }
}

/// The variables of a container: those of whole objects first, then its own, each of which may
/// refer to earlier ones.
pub(super) async fn environment(
    settings: &Settings,
    objects: &Objects,
    pod: &Pod,
    container: &Container,
    pod_ips: &[String],
) -> Result<Environment, Error> {
    let mut environment = Environment::default();
    let namespace = spec::namespace(pod);
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            let optional = reference.optional.unwrap_or(false);
            let object = forgive(optional, objects.config_map(namespace, &reference.name).await)?;
            for (key, value) in object.iter().flat_map(|map| map.data.iter().flatten()) {
                environment.set(&format!("{prefix}{key}"), value.clone());
            }
        }
        if let Some(reference) = &source.secret_ref {
            let optional = reference.optional.unwrap_or(false);
            let object = forgive(optional, objects.secret(namespace, &reference.name).await)?;
            for (key, value) in object.iter().flat_map(|secret| secret.data.iter().flatten()) {
                environment.set(&format!("{prefix}{key}"), text(&value.0, key)?);
            }
        }
    }
    let addresses = Addresses { host: &settings.host_ips, pod: pod_ips };
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            None => Some(expand(variable.value.as_deref().unwrap_or_default(), |name| {
                environment.get(name)
            })),
            Some(source) => {
                value_from(settings, objects, pod, container, addresses, variable, source).await?
            }
        };
        if let Some(value) = value {
            environment.set(&variable.name, value);
        }
    }
    Ok(environment)
}

async fn value_from(
    settings: &Settings,
    objects: &Objects,
    pod: &Pod,
    container: &Container,
    addresses: Addresses<'_>,
    variable: &EnvVar,
    source: &EnvVarSource,
) -> Result<Option<String>, Error> {
    let namespace = spec::namespace(pod);
    let missing = |kind, object: &str, key: &str| Error::MissingKey {
        kind,
        namespace: namespace.to_owned(),
        name: object.to_owned(),
        key: key.to_owned(),
    };
    if let Some(field) = &source.field_ref {
        let value = downward::field_ref_value(pod, &field.field_path, addresses)?;
        return Ok(Some(value.into_owned()));
    }
    if let Some(selector) = &source.resource_field_ref {
        let value =
            downward::resource_field_value(pod, Some(container), selector, &settings.allocatable)?;
        return Ok(Some(value));
    }
    if let Some(selector) = &source.config_map_key_ref {
        let optional = selector.optional.unwrap_or(false);
        let object = forgive(optional, objects.config_map(namespace, &selector.name).await)?;
        let value = object.and_then(|map| map.data.as_ref()?.get(&selector.key).cloned());
        return match value {
            None if !optional => Err(missing("ConfigMap", &selector.name, &selector.key)),
            value => Ok(value),
        };
    }
    if let Some(selector) = &source.secret_key_ref {
        let optional = selector.optional.unwrap_or(false);
        let object = forgive(optional, objects.secret(namespace, &selector.name).await)?;
        let value =
            object.and_then(|secret| Some(secret.data.as_ref()?.get(&selector.key)?.0.clone()));
        return match value {
            Some(bytes) => Ok(Some(text(&bytes, &selector.key)?)),
            None if optional => Ok(None),
            None => Err(missing("Secret", &selector.name, &selector.key)),
        };
    }
    Err(Error::Field { field: "env valueFrom", value: variable.name.clone() })
}

/// An object that need not be there and is not there is no error.
fn forgive<T>(
    optional: bool,
    result: Result<T, crate::objects::Error>,
) -> Result<Option<T>, Error> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(error) if optional && error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn text(bytes: &[u8], key: &str) -> Result<String, Error> {
    String::from_utf8(bytes.to_vec()).map_err(|_| Error::Field {
        field: "environment value (must be UTF-8) of key",
        value: key.to_owned(),
    })
}
