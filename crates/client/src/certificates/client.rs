//! The client certificate of the node: TLS bootstrapping, and the kubeconfig that refers to it.
//!
//! A kubeconfig with a good certificate, or with another credential than one, is used as it is.
//! When it is missing, unreadable or its certificate has ended, and a bootstrap kubeconfig is there,
//! a new one is written that points at the store, and a certificate is requested with the bootstrap
//! credential. Only requests to the apiserver wait for that.

use std::path::{Path, PathBuf};

use futures::FutureExt;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::config::{AuthInfo, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use longshore_base::files;
use longshore_metrics::RestClient;
use tokio::sync::watch;
use tracing::{error, info};

use crate::{CredentialState, Credentials, Identity, Limits};
use longshore_config::Config;

use super::manager::{CertificateManager, Parts};
use super::metrics::CertificateMetrics;
use super::pair;
use super::request::{Signer, Template};
use super::store::{Store, StoreError};

/// Why a node has no client credential.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// No kubeconfig, and nothing to make one of.
    #[error("kubeconfig {}: {reason}; {bootstrap}", path.display())]
    NoCredential {
        /// The kubeconfig.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What is wrong with the bootstrap kubeconfig.
        bootstrap: String,
    },
    /// A kubeconfig cannot be written.
    #[error("kubeconfig {}: {source}", path.display())]
    Write {
        /// The kubeconfig.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The store of certificates is not in order.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The kind of credential in a kubeconfig.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Credential {
    /// The pair of the store, whatever that is.
    Store,
    /// A certificate of its own, or a token or program that gives one.
    Own,
    /// Nothing that can be used, and why.
    Unusable(String),
}

/// The node's certificate as a client, for the lifetime of the daemon.
pub struct ClientCertificate {
    /// The credentials of the node's clients.
    pub credentials: Credentials,
    /// The task that keeps the certificate; `None`: the kubeconfig's own is used to its end.
    pub manager: Option<CertificateManager>,
}

impl ClientCertificate {
    /// Checks the credential, and writes a kubeconfig if there is a bootstrap kubeconfig.
    /// `None`: the node has no apiserver.
    ///
    /// # Errors
    /// When there is no credential at all.
    pub fn prepare(
        config: &Config,
        limits: Limits,
        rest_client: &RestClient,
        metrics: &CertificateMetrics,
    ) -> Result<Option<Self>, BootstrapError> {
        let Some(kubeconfig) = config.kubeconfig.clone() else { return Ok(None) };
        let store = Store::open(&config.cert_dir, "kubelet-client")?;
        let files = Files { kubeconfig, bootstrap: config.bootstrap_kubeconfig.clone(), store };
        let (rotate, now) = (config.kubelet.rotate_certificates, Timestamp::now());
        let kept = files.store.current()?.is_some_and(|leaf| !leaf.is_expired(now));
        let mut credential = files.credential(now);
        if let Credential::Unusable(reason) = &credential {
            match files.adopt_bootstrap() {
                Ok(()) => credential = Credential::Store,
                // static pods can run meanwhile, and no restart is needed once it is repaired
                Err(missing) if Kubeconfig::read_from(&files.kubeconfig).is_ok() => {
                    if !kept {
                        error!(kubeconfig = %files.kubeconfig.display(), "{reason}; {missing}");
                    }
                }
                Err(bootstrap) => {
                    let (path, reason) = (files.kubeconfig, reason.clone());
                    return Err(BootstrapError::NoCredential { path, reason, bootstrap });
                }
            }
        }
        let credentials = Credentials::of(&files.kubeconfig);
        if !rotate && credential == Credential::Own {
            return Ok(Some(Self { credentials, manager: None }));
        }
        let state = watch::Sender::new(CredentialState::Kubeconfig);
        let identity = Identity { path: files.store.current_path(), state: state.subscribe() };
        let credentials = Credentials { identity: Some(identity), ..credentials };
        let template = watch::Sender::new(Some(Template::node(&config.node_name))).subscribe();
        let source = files.clone();
        let state_without = move |missing| match source.credential(Timestamp::now()) {
            Credential::Own => CredentialState::Kubeconfig,
            Credential::Store => CredentialState::Lacking(missing),
            Credential::Unusable(reason) => {
                CredentialState::Lacking(format!("kubeconfig: {reason}; {missing}"))
            }
        };
        let (asked, rest_client) = (credentials.clone(), rest_client.clone());
        let manager = CertificateManager::new(Parts {
            store: files.store.clone(),
            signer: Signer::Client,
            template,
            new_client: Box::new(move |good| {
                let connect = Connect { own: asked.clone(), limits, metrics: rest_client.clone() };
                connect.new_client(files.clone(), good).boxed()
            }),
            renew: rotate,
            state_without: Box::new(state_without),
            state,
            metrics: metrics.clone(),
        });
        Ok(Some(Self { credentials, manager: Some(manager) }))
    }
}

/// Makes the client that sends certificate requests.
struct Connect {
    own: Credentials,
    limits: Limits,
    metrics: RestClient,
}

impl Connect {
    /// The node's own while it has a good credential, or else the bootstrap's.
    async fn new_client(self, files: Files, good: bool) -> Result<Client, String> {
        let credentials = match files.credential(Timestamp::now()) {
            _ if good => self.own,
            Credential::Own => Credentials { identity: None, ..self.own },
            Credential::Store | Credential::Unusable(_) => {
                files.adopt_bootstrap()?;
                let kubeconfig = files.bootstrap.ok_or_else(|| NO_BOOTSTRAP.to_owned())?;
                info!(kubeconfig = %kubeconfig.display(), "requesting with the bootstrap credential");
                Credentials::of(&kubeconfig)
            }
        };
        let client = crate::connect(&credentials, self.limits, self.metrics).await;
        client.map_err(|error| error.to_string())
    }
}

const NO_BOOTSTRAP: &str = "no --bootstrap-kubeconfig is given, so no certificate can be requested: \
     give one with a bootstrap token (kubeadm token create), or put a kubeconfig with a valid \
     client certificate in its place (kubeadm kubeconfig user, or kubeadm certs on a control plane)";

/// The files that the first certificate hangs on.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) kubeconfig: PathBuf,
    pub(super) bootstrap: Option<PathBuf>,
    pub(super) store: Store,
}

impl Files {
    /// What the kubeconfig has to show now.
    pub(super) fn credential(&self, now: Timestamp) -> Credential {
        let path = &self.kubeconfig;
        if !path.exists() {
            return Credential::Unusable("the file does not exist".to_owned());
        }
        let user = match Kubeconfig::read_from(path) {
            Ok(kubeconfig) => match crate::current_user(&kubeconfig) {
                Ok(user) => user,
                Err(reason) => return Credential::Unusable(reason),
            },
            Err(error) => return Credential::Unusable(error.to_string()),
        };
        let certificate = match (&user.client_certificate_data, &user.client_certificate) {
            (Some(data), _) => crate::decoded(data).map(|pem| (pem, "its certificate".to_owned())),
            (None, Some(file)) if Path::new(file) == self.store.current_path() => {
                return Credential::Store;
            }
            (None, Some(file)) => std::fs::read(file)
                .map(|pem| (pem, format!("its certificate {file}")))
                .map_err(|error| format!("its certificate {file}: {error}")),
            // a token, an exec plugin, or none: used as it is
            (None, None) => return Credential::Own,
        };
        let valid = certificate.and_then(|(pem, what)| match pair::leaf(&pem) {
            Ok(leaf) if leaf.is_expired(now) => Err(format!("{what} expired at {}", leaf.until)),
            Ok(_) => Ok(()),
            Err(reason) => Err(format!("{what}: {reason}")),
        });
        valid.map_or_else(Credential::Unusable, |()| Credential::Own)
    }

    /// Sees to it that the kubeconfig points at the store, with the bootstrap's cluster. The error
    /// says what is missing for that.
    pub(super) fn adopt_bootstrap(&self) -> Result<(), String> {
        let path = self.bootstrap.as_deref().ok_or(NO_BOOTSTRAP)?;
        if !path.exists() {
            return Err(format!(
                "the bootstrap kubeconfig {} does not exist, so no certificate can be requested: \
                 put one there with a new bootstrap token (kubeadm token create)",
                path.display()
            ));
        }
        let at = |reason: String| format!("bootstrap kubeconfig {}: {reason}", path.display());
        let bootstrap = Kubeconfig::read_from(path).map_err(|error| at(error.to_string()))?;
        let written = kubeconfig(&bootstrap, &self.store.current_path()).map_err(at)?;
        if self.credential(Timestamp::now()) == Credential::Store {
            return Ok(());
        }
        info!(kubeconfig = %self.kubeconfig.display(), from = %path.display(), "kubeconfig written");
        self.kubeconfig
            .parent()
            .map_or(Ok(()), std::fs::create_dir_all)
            .and_then(|()| files::replace(&self.kubeconfig, written.as_bytes()))
            .map_err(|error| format!("kubeconfig {}: {error}", self.kubeconfig.display()))
    }
}

/// The text of a kubeconfig for the same cluster, with a pair as its user, under upstream's names.
pub(super) fn kubeconfig(bootstrap: &Kubeconfig, pair: &Path) -> Result<String, String> {
    let cluster = crate::current_cluster(bootstrap)?;
    let pair = pair.display().to_string();
    let user = AuthInfo {
        client_certificate: Some(pair.clone()),
        client_key: Some(pair),
        ..AuthInfo::default()
    };
    let context = Context {
        cluster: "default-cluster".to_owned(),
        user: Some("default-auth".to_owned()),
        namespace: Some("default".to_owned()),
        ..Context::default()
    };
    let named = Kubeconfig {
        api_version: Some("v1".to_owned()),
        kind: Some("Config".to_owned()),
        clusters: vec![NamedCluster {
            name: "default-cluster".to_owned(),
            cluster: Some(cluster),
            ..NamedCluster::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: "default-auth".to_owned(),
            auth_info: Some(user),
            ..NamedAuthInfo::default()
        }],
        contexts: vec![NamedContext {
            name: "default-context".to_owned(),
            context: Some(context),
            ..NamedContext::default()
        }],
        current_context: Some("default-context".to_owned()),
        ..Kubeconfig::default()
    };
    serde_saphyr::to_string(&named).map_err(|error| error.to_string())
}
