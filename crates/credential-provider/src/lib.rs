//! Credentials for images from plugins, as `--image-credential-provider-config` and
//! `--image-credential-provider-bin-dir` name them: programs that read a `CredentialProviderRequest` and
//! write a `CredentialProviderResponse`.
//!
//! A plugin is called for images that one of its patterns matches, once for callers at the same time, and
//! what it answers is kept for as long and for as many images as it says. With `tokenAttributes` it is given
//! a token of the pod's service account, and what it answers is kept for that account or that token alone.
//!
//! Nothing that a plugin writes is ever logged, but for words that cannot be a secret.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod config;
mod error;
mod exec;
mod metrics;
mod protocol;
mod provider;
mod urls;
mod validation;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::future::{BoxFuture, join_all};
use longshore_config::Config;
use longshore_metrics::Registry;

pub use config::Error;
pub use error::Error as PluginError;
pub use protocol::{Login, Logins};
pub use provider::{AccountReference, ProvideError};
pub use urls::matches_image;

use exec::Program;
use metrics::Metrics;
use provider::Provider;

/// The pod that an image is for.
pub trait Requester: Sync {
    /// Its namespace.
    fn namespace(&self) -> &str;

    /// The name of its service account; empty: it has none.
    fn service_account(&self) -> &str;

    /// Its service account. The error says why it is not to be had.
    fn account(&self) -> BoxFuture<'_, Result<Account, String>>;

    /// A token of its service account with that UID, bound to the pod.
    fn token<'a>(
        &'a self,
        audience: &'a str,
        account_uid: &'a str,
    ) -> BoxFuture<'a, Result<Arc<str>, String>>;
}

/// A service account, as plugins get it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Its UID.
    pub uid: String,
    /// All of its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// What a plugin has given for an image. No `Debug`: it holds passwords.
#[derive(Clone)]
pub struct Given {
    /// Logins by pattern of images.
    pub logins: Arc<Logins>,
    /// The service account that they were given to; `None`: any pod of the node may use them.
    pub account: Option<AccountReference>,
}

/// The outcome of one plugin.
pub struct Answer<'a> {
    /// The plugin's name.
    pub plugin: &'a str,
    /// What it has given, or why it has not.
    pub outcome: Result<Given, ProvideError>,
}

/// The plugins of a node, in the order of the configuration. Cheap to clone; clones share what is cached.
#[derive(Clone, Default)]
pub struct CredentialProviders(Arc<Vec<Provider>>);

impl CredentialProviders {
    /// The plugins that a node is configured with; none, if neither flag is given.
    ///
    /// # Errors
    /// The configuration is not valid, or a plugin does not exist.
    pub fn load(config: &Config, registry: &Registry) -> Result<Self, Error> {
        let (file, bin_dir) =
            (&config.image_credential_provider_config, &config.image_credential_provider_bin_dir);
        if file.is_none() && bin_dir.is_none() {
            return Ok(Self::default());
        }
        let bin_dir = bin_dir.clone().unwrap_or_default();
        bin_dir.metadata().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::NoBinDir(bin_dir.clone()),
            _ => Error::BinDir(bin_dir.clone(), error),
        })?;
        let file = file.as_deref().ok_or(Error::NoConfig)?;
        let tokens = config.gates.enabled("KubeletServiceAccountTokenForCredentialProviders");
        let (configured, hash) = config::read(file)?;
        validation::check(&configured, tokens).map_err(Error::Invalid)?;
        let metrics = Metrics::new(registry);
        metrics.configured(&hash);
        let mut providers = Vec::new();
        for provider in configured {
            let program = Program {
                name: provider.name.clone(),
                path: find(&bin_dir, &provider.name)?,
                api_version: provider.api_version.clone(),
                args: provider.args.clone(),
                env: provider.env.clone(),
                timeout: Program::TIMEOUT,
                metrics: metrics.plugins.clone(),
            };
            tracing::debug!(provider = provider.name, "registered credential provider");
            providers.push(Provider::new(provider, Box::new(program)));
        }
        Ok(Self(Arc::new(providers)))
    }

    /// What each plugin gives for an image (host and path), in the order of the configuration; plugins
    /// that are not for the image or the pod are left out. All are called at once.
    pub async fn credentials(&self, image: &str, pod: &dyn Requester) -> Vec<Answer<'_>> {
        let answers = self.0.iter().map(async |provider| {
            let outcome = provider.provide(image, pod).await.transpose()?;
            Some(Answer { plugin: provider.name(), outcome })
        });
        join_all(answers).await.into_iter().flatten().collect()
    }
}

/// The program of a plugin, which can be executed.
fn find(bin_dir: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = bin_dir.join(name);
    let metadata = path.metadata().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::NoBinary(path.clone()),
        _ => Error::Binary(path.clone(), error),
    })?;
    if metadata.is_dir() {
        return Err(Error::Binary(path, io::ErrorKind::IsADirectory.into()));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(Error::Binary(path, io::ErrorKind::PermissionDenied.into()));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use longshore_config::Command;

    use super::*;

    fn load(args: &[String]) -> Result<CredentialProviders, String> {
        let registry = Registry::default();
        let kubelet = ["kubelet", "--fail-cgroupv1=false", "--hostname-override=n"];
        let args = kubelet.into_iter().map(str::to_owned).chain(args.iter().cloned());
        match longshore_config::from_args(args) {
            Ok(Command::Kubelet(config)) => {
                CredentialProviders::load(&config, &registry).map_err(|error| error.to_string())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn credential_providers_are_checked_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, file) = (dir.path().join("bin"), dir.path().join("config.yaml"));
        let flags = |config: &Path, bin: &Path| {
            [
                format!("--image-credential-provider-config={}", config.display()),
                format!("--image-credential-provider-bin-dir={}", bin.display()),
            ]
        };
        let error = |args: &[String]| load(args).err().unwrap_or_default();
        assert!(load(&[]).unwrap().0.is_empty());
        let both = flags(&file, &bin);
        assert_eq!(
            error(&both),
            format!("plugin binary directory {} did not exist", bin.display())
        );
        std::fs::create_dir(&bin).unwrap();
        assert_eq!(error(&both[1..]), "credential provider config path is empty");
        assert_eq!(error(&both[..1]), "plugin binary directory  did not exist");
        assert!(error(&both).starts_with("unable to access path"), "{}", error(&both));
        let text = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n\
            - {name: helper, matchImages: [a.b], defaultCacheDuration: 0s, apiVersion: credentialprovider.kubelet.k8s.io/v1}\n";
        std::fs::write(&file, text.replace("helper", "a/b")).unwrap();
        assert_eq!(
            error(&both),
            "failed to validate credential provider config: providers.name: Invalid value: \"a/b\": \
             provider name cannot contain '/'"
        );
        std::fs::write(&file, text).unwrap();
        let helper = bin.join("helper");
        let path = helper.display().to_string();
        assert_eq!(error(&both), format!("plugin binary executable {path} did not exist"));
        std::fs::write(&helper, "").unwrap();
        std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = format!("error inspecting binary executable {path}: permission denied");
        assert_eq!(error(&both), refused);
        std::fs::set_permissions(&helper, std::fs::Permissions::from_mode(0o755)).unwrap();
        let providers = load(&both).unwrap();
        assert_eq!(providers.0.iter().map(Provider::name).collect::<Vec<_>>(), ["helper"]);
    }
}
