//! `--runtime-config`: what is served of the API that is off by default. Such a resource is served when its
//! feature gate is on as well. What is on by default cannot be switched off.

use std::collections::BTreeMap;
use std::str::FromStr;

use longshore_gates::FeatureGates;

use crate::api_types::Resource;
use crate::kinds;

/// The stages of versions, by what is in their names.
const STAGES: [(&str, &str); 2] = [("alpha", "api/alpha"), ("beta", "api/beta")];
const STABLE: &str = "api/ga";
const ALL: &str = "api/all";

/// Groups with versions, resources and stages that are switched on or off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig(BTreeMap<String, bool>);

impl FromStr for RuntimeConfig {
    type Err = String;

    /// Reads `KEY=BOOL,KEY`, where a key alone is true. A key is `GROUP/VERSION`, `GROUP/VERSION/RESOURCE`,
    /// `api/all`, `api/ga`, `api/beta` or `api/alpha`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut keys = BTreeMap::new();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = match value.trim() {
                "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                other => return Err(format!("invalid value of {key}: {other}")),
            };
            keys.insert(key.trim().to_owned(), value);
        }
        Ok(Self(keys))
    }
}

impl FromIterator<RuntimeConfig> for RuntimeConfig {
    /// What is said later counts.
    fn from_iter<T: IntoIterator<Item = RuntimeConfig>>(configs: T) -> Self {
        Self(configs.into_iter().flat_map(|config| config.0).collect())
    }
}

impl RuntimeConfig {
    /// The resources that are served though they are off by default.
    pub(crate) fn optional(&self, gates: &FeatureGates) -> Vec<&'static Resource> {
        let is_on = |resource: &&Resource| {
            resource.gate.is_some_and(|gate| gates.enabled(gate)) && self.has(resource)
        };
        kinds::optional().filter(is_on).collect()
    }

    /// Whether a resource is switched on: what is said of the resource counts before what is said of its version,
    /// that before what is said of its stage.
    fn has(&self, resource: &Resource) -> bool {
        let version = resource.gvk().api_version();
        let of_resource = format!("{version}/{}", resource.plural);
        let keys = [of_resource.as_str(), &version, stage(resource.version), ALL];
        keys.into_iter().find_map(|key| self.0.get(key).copied()).unwrap_or(false)
    }

    /// Warns of what has no effect, and of resources that are switched on without their feature gates.
    pub(crate) fn warn(&self, gates: &FeatureGates) {
        for (key, value) in self.0.iter().filter(|(key, value)| !is_in_force(key, **value)) {
            tracing::warn!("--runtime-config: {key}={value} has no effect");
        }
        for resource in kinds::optional().filter(|resource| self.has(resource)) {
            let Some(gate) = resource.gate.filter(|gate| !gates.enabled(gate)) else { continue };
            let name = resource.qualified();
            tracing::warn!("{name} is not served: the feature gate {gate} is off");
        }
    }
}

fn stage(version: &str) -> &'static str {
    let of = STAGES.iter().find(|(part, _)| version.contains(part));
    of.map_or(STABLE, |(_, key)| key)
}

/// Whether something is as the key says: it is served, or can be switched.
fn is_in_force(key: &str, value: bool) -> bool {
    let names = |resource: &Resource| {
        let version = resource.gvk().api_version();
        key == version || key.strip_prefix(&version) == Some(&format!("/{}", resource.plural))
    };
    let is_optional = kinds::optional().any(&names);
    let is_stage = [ALL, STABLE].contains(&key) || STAGES.iter().any(|(_, of)| *of == key);
    is_optional || value && (is_stage || kinds::resources().any(names))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn runtime_config_switches_on_what_is_off_by_default() {
        let on = "PodCertificateRequest=true";
        let version = "certificates.k8s.io/v1beta1";
        let resource = format!("{version}/podcertificaterequests");
        for (gates, text, expected) in [
            (on, format!("{resource}=true"), true),
            (on, version.to_owned(), true),
            (on, "api/all=true".to_owned(), true),
            (on, "api/beta=1".to_owned(), true),
            (on, "api/alpha=true,api/ga=true".to_owned(), false),
            (on, String::new(), false),
            (on, format!("{version}=true, {resource}=false"), false),
            (on, format!("api/all=true,{version}=F"), false),
            (on, format!("api/all=false,{resource}"), true),
            ("", format!("{resource}=true"), false),
        ] {
            let config: RuntimeConfig = text.parse().unwrap();
            let served = config.optional(&gates.parse().unwrap());
            let names: Vec<_> = served.iter().map(|resource| resource.plural).collect();
            let wanted: &[&str] = if expected { &["podcertificaterequests"] } else { &[] };
            assert_eq!(names, wanted, "{gates} {text}");
        }
        let error = "apps/v1=perhaps".parse::<RuntimeConfig>().unwrap_err();
        assert_eq!(error, "invalid value of apps/v1: perhaps");
    }

    #[test]
    fn runtime_config_without_effect_is_known() {
        for (key, value, expected) in [
            ("api/all", true, true),
            ("api/all", false, false),
            ("api/beta", true, true),
            ("v1", true, true),
            ("apps/v1", true, true),
            ("apps/v1/deployments", true, true),
            ("apps/v1", false, false),
            ("apps/v2", true, false),
            ("certificates.k8s.io/v1beta1", false, true),
            ("certificates.k8s.io/v1beta1/podcertificaterequests", false, true),
            ("certificates.k8s.io/v1beta1/clustertrustbundles", false, false),
        ] {
            assert_eq!(is_in_force(key, value), expected, "{key}={value}");
        }
    }
}
