//! `--admission-control-config-file`: configurations of plugins, as a file of apiserver.config.k8s.io. One
//! of a plugin that is in force and cannot be configured is an error; of another it has no effect.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::event_rate_limit::{self, Limit};
use super::plugins::Plugins;
use super::pod_security::PodSecurity;
use super::quota::{self, LimitedResource};
use crate::config_file::parse;
use crate::remote::HostCredentials;

const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.k8s.io/v1alpha1"];

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not a configuration.
    #[error("{}: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// What plugins are configured with.
#[derive(Clone, Debug, Default)]
pub struct AdmissionConfig {
    pub(crate) pod_security: PodSecurity,
    /// How many events may be written.
    pub(crate) event_limits: Vec<Limit>,
    /// What needs a quota to be used at all.
    pub(crate) limited_resources: Vec<LimitedResource>,
    /// What webhooks are shown.
    pub(crate) mutating_webhooks: HostCredentials,
    pub(crate) validating_webhooks: HostCredentials,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    #[serde(default)]
    plugins: Vec<Plugin>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plugin {
    name: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    configuration: Option<Value>,
}

impl AdmissionConfig {
    /// Reads a file and those that it names, for these plugins. Also what has no effect of it, in words for
    /// the log.
    ///
    /// # Errors
    /// A file cannot be read, or says what cannot be done.
    pub fn load(
        path: &Path,
        plugins: Plugins,
    ) -> Result<(AdmissionConfig, Vec<String>), ConfigError> {
        let invalid = |reason| ConfigError::Invalid { path: path.to_owned(), reason };
        let file: File = parse(&read(path)?).map_err(invalid)?;
        if file.kind != "AdmissionConfiguration" || !VERSIONS.contains(&file.api_version.as_str()) {
            let (version, kind) = (file.api_version, file.kind);
            return Err(invalid(format!("{version}, {kind} is not an AdmissionConfiguration")));
        }
        let (mut config, mut warnings) = (AdmissionConfig::default(), Vec::new());
        for (i, plugin) in file.plugins.iter().enumerate() {
            let name = plugin.name.as_str();
            if file.plugins.iter().take(i).any(|other| other.name == name) {
                return Err(invalid(format!("plugins[{i}]: {name} is configured twice")));
            }
            if !plugins.has(name) {
                warnings.push(format!("the admission plugin {name} is not enabled"));
                continue;
            }
            let Some(configuration) = plugin.configuration(path)? else { continue };
            let at = |why| invalid(format!("plugins[{i}], {name}: {why}"));
            match name {
                "PodSecurity" => {
                    config.pod_security = PodSecurity::read(&configuration).map_err(at)?;
                }
                "EventRateLimit" => {
                    config.event_limits = event_rate_limit::read(&configuration).map_err(at)?;
                }
                "MutatingAdmissionWebhook" => {
                    config.mutating_webhooks = webhooks(&configuration).map_err(at)?;
                }
                "ValidatingAdmissionWebhook" => {
                    config.validating_webhooks = webhooks(&configuration).map_err(at)?;
                }
                "ResourceQuota" => {
                    config.limited_resources = quota::read(&configuration).map_err(at)?;
                }
                _ => {
                    return Err(invalid(format!(
                        "plugins[{i}]: the admission plugin {name} cannot be configured"
                    )));
                }
            }
        }
        Ok((config, warnings))
    }
}

/// A WebhookAdmissionConfiguration: the kubeconfig with what webhooks are shown.
fn webhooks(configuration: &Value) -> Result<HostCredentials, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct WebhookAdmission {
        api_version: String,
        kind: String,
        #[serde(default)]
        kube_config_file: String,
    }
    const VERSIONS: [&str; 2] = ["apiserver.config.k8s.io/v1", "apiserver.config.k8s.io/v1alpha1"];
    let own = WebhookAdmission::deserialize(configuration).map_err(|error| error.to_string())?;
    let is_known = VERSIONS.contains(&own.api_version.as_str());
    if own.kind != "WebhookAdmissionConfiguration" || !is_known {
        let WebhookAdmission { api_version, kind, .. } = own;
        return Err(format!("{api_version}, {kind} is not a WebhookAdmissionConfiguration"));
    }
    match own.kube_config_file.as_str() {
        "" => Ok(HostCredentials::default()),
        file if !Path::new(file).is_absolute() => {
            Err(format!("kubeConfigFile: Invalid value: {file:?}: must be an absolute file path"))
        }
        file => HostCredentials::load(Path::new(file)).map_err(|error| error.to_string()),
    }
}

impl Plugin {
    /// What it is configured with: beside its name, or in a file of its own.
    fn configuration(&self, file: &Path) -> Result<Option<Value>, ConfigError> {
        if let Some(configuration) = &self.configuration {
            return Ok(Some(configuration.clone()).filter(|own| !own.is_null()));
        }
        if self.path.is_empty() {
            return Ok(None);
        }
        let path = file.parent().unwrap_or(Path::new("")).join(&self.path);
        parse(&read(&path)?).map(Some).map_err(|reason| ConfigError::Invalid { path, reason })
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n";
    const SECURITY: &str =
        "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n";

    fn load(text: &str, other: &str) -> Result<(AdmissionConfig, Vec<String>), String> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("other.yaml"), other).unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        let plugins =
            Plugins { event_rate_limit: other.contains("eventratelimit"), ..Plugins::default() };
        AdmissionConfig::load(&path, plugins).map_err(|error| error.to_string())
    }

    #[test]
    fn admission_config_configures_pod_security() {
        let by_path = format!("{HEAD}plugins: [{{name: PodSecurity, path: other.yaml}}]\n");
        let other = format!("{SECURITY}defaults: {{enforce: baseline}}\n");
        let (config, warnings) = load(&by_path, &other).unwrap();
        assert_ne!(config.pod_security, PodSecurity::default());
        assert!(warnings.is_empty());
        let inside = format!(
            "{HEAD}plugins:\n- name: PodSecurity\n  configuration:\n    {}",
            other.replace('\n', "\n    ")
        );
        assert_eq!(load(&inside, "").unwrap().0.pod_security, config.pod_security);
        assert_eq!(load(HEAD, "").unwrap().0.pod_security, PodSecurity::default());
    }

    #[test]
    fn admission_config_limits_events_and_resources() {
        let events = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
                      limits: [{type: Server, qps: 1, burst: 1}]\n";
        let quota = "apiVersion: apiserver.config.k8s.io/v1\nkind: ResourceQuotaConfiguration\n\
                     limitedResources: [{resource: pods, matchContains: [cpu]}]\n";
        for (name, other, expected) in
            [("EventRateLimit", events, (1, 0)), ("ResourceQuota", quota, (0, 1))]
        {
            let text = format!("{HEAD}plugins: [{{name: {name}, path: other.yaml}}]\n");
            let (config, warnings) = load(&text, other).unwrap();
            let found = (config.event_limits.len(), config.limited_resources.len());
            assert_eq!((found, warnings.len()), (expected, 0), "{name}");
            let error = load(&text, &other.replace("kind: ", "kind: Other")).unwrap_err();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn admission_config_names_what_webhooks_are_shown() {
        let kubeconfig = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(kubeconfig.path(), "users: [{name: '*', user: {token: t}}]").unwrap();
        let webhook = |file: &str| {
            format!(
                "{HEAD}plugins:\n- name: ValidatingAdmissionWebhook\n  configuration:\n    \
                 apiVersion: apiserver.config.k8s.io/v1\n    \
                 kind: WebhookAdmissionConfiguration\n    kubeConfigFile: '{file}'\n"
            )
        };
        let (config, _) = load(&webhook(&kubeconfig.path().display().to_string()), "").unwrap();
        assert_eq!(format!("{:?}", config.validating_webhooks), "[\"*\"]");
        assert_eq!(format!("{:?}", config.mutating_webhooks), "[]");
        for (file, why) in [("relative", "must be an absolute file path"), ("/none", "/none")] {
            let error = load(&webhook(file), "").unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn admission_config_that_cannot_be_done_is_an_error() {
        let (_, warnings) =
            load(&format!("{HEAD}plugins: [{{name: EventRateLimit, path: none}}]"), "").unwrap();
        assert_eq!(warnings, ["the admission plugin EventRateLimit is not enabled"]);
        for (plugins, why) in [
            (
                "[{name: LimitRanger, configuration: {limitedResources: []}}]",
                "cannot be configured",
            ),
            ("[{name: ResourceQuota, configuration: {limitedResources: []}}]", "apiVersion"),
            ("[{name: PodSecurity, path: none.yaml}]", "none.yaml"),
            ("[{name: PodSecurity}, {name: PodSecurity}]", "configured twice"),
            ("[{name: PodSecurity, configuration: {}}]", "PodSecurityConfiguration"),
            ("[{name: PodSecurity, file: x}]", "file"),
        ] {
            let error = load(&format!("{HEAD}plugins: {plugins}"), "").unwrap_err();
            assert!(error.contains(why), "{plugins}: {error}");
        }
        assert!(load("apiVersion: v1\nkind: Pod", "").unwrap_err().contains("v1, Pod"));
    }
}
