//! The PodSecurityConfiguration of the plugin.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::PodSecurity;
use super::policy::{Policy, parse_level, parse_version};
use crate::schema::names;

/// For whom nothing holds.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct Exemptions {
    pub(super) usernames: Vec<String>,
    pub(super) namespaces: Vec<String>,
    pub(super) runtime_classes: Vec<String>,
}

impl PodSecurity {
    /// Reads a PodSecurityConfiguration.
    pub(in crate::admission) fn read(configuration: &Value) -> Result<PodSecurity, String> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Configuration {
            api_version: String,
            kind: String,
            #[serde(default)]
            defaults: BTreeMap<String, String>,
            #[serde(default)]
            exemptions: Exemptions,
        }
        const MODES: [&str; 3] = ["enforce", "audit", "warn"];
        let read = Configuration::deserialize(configuration)
            .map_err(|error| format!("no PodSecurityConfiguration: {error}"))?;
        let version = read.api_version.strip_prefix("pod-security.admission.config.k8s.io/");
        let is_known = version.is_some_and(|v| ["v1", "v1beta1", "v1alpha1"].contains(&v));
        if !is_known || read.kind != "PodSecurityConfiguration" {
            let (version, kind) = (read.api_version, read.kind);
            return Err(format!("{version}, {kind} is no PodSecurityConfiguration"));
        }
        let mut policies = [Policy::default(); MODES.len()];
        for (field, value) in read.defaults.iter().filter(|(_, value)| !value.is_empty()) {
            let (mode, is_version) = match field.strip_suffix("-version") {
                Some(mode) => (mode, true),
                None => (field.as_str(), false),
            };
            let policy = MODES.iter().zip(&mut policies).find(|(known, _)| **known == mode);
            let Some((_, policy)) = policy else {
                return Err(format!("defaults.{field}: unknown field"));
            };
            let at = |why| format!("defaults.{field}: Invalid value: {value:?}: {why}");
            match is_version {
                true => policy.version = parse_version(value).map_err(at)?,
                false => policy.level = parse_level(value).map_err(at)?,
            }
        }
        let [enforce, audit, warn] = policies;
        let exempt = read.exemptions;
        exempt.check()?;
        Ok(PodSecurity { enforce, audit, warn, exempt })
    }
}

impl Exemptions {
    fn check(&self) -> Result<(), String> {
        let named = |text: &str| match names::is_dns_subdomain(text) {
            true => Ok(()),
            false => Err("it is not a name".to_owned()),
        };
        let not_empty = |text: &str| match text.is_empty() {
            true => Err("username must not be empty".to_owned()),
            false => Ok(()),
        };
        type Check<'a> = &'a dyn Fn(&str) -> Result<(), String>;
        let lists: [(&str, &[String], Check<'_>); 3] = [
            ("namespaces", &self.namespaces, &named),
            ("runtimeClasses", &self.runtime_classes, &named),
            ("usernames", &self.usernames, &not_empty),
        ];
        for (list, texts, check) in lists {
            for (i, text) in texts.iter().enumerate() {
                let at = format!("exemptions.{list}[{i}]");
                check(text).map_err(|why| format!("{at}: Invalid value: {text:?}: {why}"))?;
                if texts.iter().take(i).any(|other| other == text) {
                    return Err(format!("{at}: Duplicate value: {text:?}"));
                }
            }
        }
        Ok(())
    }
}
