//! Who calls the port, as far as certificates say: users with certificates of the cluster's CA, and front
//! proxies that name users in headers. What the flags leave open is read from the ConfigMap that the
//! apiserver keeps for this, and follows it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use hyper::HeaderMap;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use longshore_client::reviews::User;
use longshore_serving::tls::{Authorities, Tls, TlsError};
use longshore_serving::{FrontProxyHeaders, Peer};
use longshore_tls::ClientCa;
use parking_lot::RwLock;
use rustls::crypto::CryptoProvider;
use tokio::time::sleep;
use tracing::{info, warn};

/// The ConfigMap.
const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// How often the file of a CA is read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// What the flags say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DelegatedOptions {
    /// `--client-ca-file`: the ConfigMap's is not used.
    pub(crate) client_ca: Option<PathBuf>,
    /// `--requestheader-client-ca-file`: the flags `--requestheader-*` are used, not the ConfigMap.
    pub(crate) front_proxy_ca: Option<PathBuf>,
    /// The other flags `--requestheader-*`.
    pub(crate) headers: FrontProxyHeaders,
    /// `--authentication-skip-lookup`: the ConfigMap is not read.
    pub(crate) skip_lookup: bool,
    /// `--authentication-tolerate-lookup-failure=false`: without the ConfigMap the program does not start.
    pub(crate) requires_lookup: bool,
}

/// The CAs, as PEM, that were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    client_ca: Option<String>,
    front_proxy: Option<(String, FrontProxyHeaders)>,
}

impl Found {
    /// PURE: what the ConfigMap says.
    fn of_map(map: &ConfigMap) -> Result<Self, String> {
        let text = |key: &str| {
            let text = map.data.as_ref().and_then(|data| data.get(key));
            text.filter(|text| !text.is_empty()).cloned()
        };
        let list = |key: &str| match text(key) {
            None => Ok(Vec::new()),
            Some(text) => serde_json::from_str::<Vec<String>>(&text)
                .map_err(|error| format!("{key} is no list of strings: {error}")),
        };
        let headers = FrontProxyHeaders {
            allowed_names: list("requestheader-allowed-names")?,
            username_headers: list("requestheader-username-headers")?,
            uid_headers: list("requestheader-uid-headers")?,
            group_headers: list("requestheader-group-headers")?,
            extra_prefixes: list("requestheader-extra-headers-prefix")?,
        };
        let headers = headers.trimmed().map_err(|why| format!("requestheader-{why}"))?;
        let front_proxy = text("requestheader-client-ca-file").map(|ca| (ca, headers));
        Ok(Self { client_ca: text("client-ca-file"), front_proxy })
    }
}

/// The front proxies that are known now.
struct FrontProxies {
    authority: ClientCa,
    headers: FrontProxyHeaders,
}

/// Authenticates by certificates. Until a CA is found, nobody is known by one of it.
pub(crate) struct DelegatedAuthentication {
    options: DelegatedOptions,
    tls: Arc<Tls>,
    provider: Arc<CryptoProvider>,
    front_proxies: RwLock<Option<Arc<FrontProxies>>>,
}

impl DelegatedAuthentication {
    /// Reads the files of the flags; `tls` has that of `--client-ca-file` already.
    pub(crate) fn new(
        options: DelegatedOptions,
        tls: Arc<Tls>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let own = Self { options, tls, provider, front_proxies: RwLock::default() };
        if let Some(path) = &own.options.front_proxy_ca {
            // the error of a file without certificates names it
            longshore_tls::roots(path)?;
            own.apply(&own.with_file(Found::default())?)?;
        }
        Ok(own)
    }

    /// The user that a front proxy names. Of its headers nothing is left then.
    pub(crate) fn vouched_for(&self, peer: &Peer, headers: &mut HeaderMap) -> Option<User> {
        let known = self.front_proxies.read().clone()?;
        if !known.headers.names_somebody(headers) {
            return None;
        }
        let longshore_tls::User { name, uid, groups, extra } =
            known.headers.user(&peer.verify(&known.authority), headers)?;
        let is_anonymous = name == "system:anonymous"
            || groups.iter().any(|group| group == "system:unauthenticated");
        Some(match is_anonymous {
            true => User { name, uid, groups, extra },
            false => User { uid, extra, ..User::authenticated(name, groups) },
        })
    }

    /// Reads the ConfigMap once, where the flags require that it can be read: for the CAs of front proxies,
    /// if no flag names them. The error says why it cannot.
    pub(crate) async fn look_up(&self, client: Client) -> Result<(), String> {
        let options = &self.options;
        if !options.requires_lookup || options.skip_lookup || options.front_proxy_ca.is_some() {
            return Ok(());
        }
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let map = api.get(NAME).await.map_err(|error| error.to_string())?;
        self.apply(&Found::of_map(&map)?).map_err(|error| error.to_string())
    }

    /// Follows the ConfigMap, where it is needed, and the file of the flags. Never returns.
    pub(crate) async fn run(&self, client: Client) {
        let needs_map = self.options.client_ca.is_none() || self.options.front_proxy_ca.is_none();
        let map = async {
            match needs_map && !self.options.skip_lookup {
                true => self.follow_map(client).await,
                false => self.follow_file(Found::default()).await,
            }
        };
        map.await;
    }

    async fn follow_map(&self, client: Client) {
        let api: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        let config = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
        let mut events = watcher(api, config).default_backoff().boxed();
        let (mut latest, mut failed) = (Found::default(), false);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = self.follow_file(latest.clone()) => continue,
            };
            match event {
                Some(Ok(watcher::Event::Apply(map) | watcher::Event::InitApply(map))) => {
                    failed = false;
                    match Found::of_map(&map) {
                        Ok(found) if found != latest => {
                            self.try_apply(&found);
                            latest = found;
                        }
                        Ok(_) => {}
                        Err(why) => warn!("configmap/{NAME} in {NAMESPACE} is not used: {why}"),
                    }
                }
                // what it said last stays in use when it is gone
                Some(Ok(_)) => {}
                Some(Err(error)) if !failed => {
                    failed = true;
                    warn!(
                        "Unable to get configmap/{NAME} in {NAMESPACE}: {error}. Usually fixed by \
                         'kubectl create rolebinding -n {NAMESPACE} ROLEBINDING_NAME \
                         --role=extension-apiserver-authentication-reader \
                         --serviceaccount=YOUR_NS:YOUR_SA'"
                    );
                }
                Some(Err(_)) => {}
                None => return,
            }
        }
    }

    /// Reads the file of the flags again when it has changed. Never returns.
    async fn follow_file(&self, base: Found) {
        let Some(path) = &self.options.front_proxy_ca else {
            return std::future::pending().await;
        };
        let changed = || path.metadata().and_then(|file| file.modified()).ok();
        let mut known = changed();
        loop {
            sleep(RELOAD_INTERVAL).await;
            let now = changed();
            if now != known {
                known = now;
                self.try_apply(&base);
            }
        }
    }

    fn try_apply(&self, found: &Found) {
        match self.with_file(found.clone()).and_then(|found| self.apply(&found)) {
            Ok(()) => info!("the CAs of clients are loaded"),
            Err(error) => warn!("cannot use the CAs of clients, those before stay: {error}"),
        }
    }

    /// With the front proxies of the flags, where these name any.
    fn with_file(&self, found: Found) -> Result<Found, TlsError> {
        let Some(path) = &self.options.front_proxy_ca else { return Ok(found) };
        let unusable = |reason: String| longshore_tls::Error { path: path.clone(), reason };
        let pem = std::fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
        let headers = self.options.headers.clone().trimmed();
        let headers = headers.map_err(|why| unusable(format!("--requestheader-{why}")))?;
        Ok(Found { front_proxy: Some((pem, headers)), ..found })
    }

    /// Either all of it is taken, or nothing.
    fn apply(&self, found: &Found) -> Result<(), TlsError> {
        let roots = |pem: &String| longshore_tls::roots_of(pem).map_err(TlsError::Authorities);
        let own = found.client_ca.as_ref().filter(|_| self.options.client_ca.is_none());
        let clients = own.map(roots).transpose()?;
        let (further, front_proxies) = match &found.front_proxy {
            None => (None, None),
            Some((pem, headers)) => {
                let roots = roots(pem)?;
                let authority = ClientCa::of(roots.clone(), &self.provider);
                let authority = authority.map_err(TlsError::Authorities)?;
                let known = FrontProxies { authority, headers: headers.clone() };
                (Some(roots), Some(Arc::new(known)))
            }
        };
        self.tls.set_authorities(Authorities { clients, further })?;
        *self.front_proxies.write() = front_proxies;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn delegated_authentication_is_read_from_the_config_map() {
        let of = |data| Found::of_map(&from_value(json!({"data": data})).unwrap());
        let found = of(json!({
            "client-ca-file": "A",
            "requestheader-client-ca-file": "B",
            "requestheader-allowed-names": "[\"proxy\"]",
            "requestheader-username-headers": "[\"X-Remote-User\", \"X-User\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "",
        }))
        .unwrap();
        assert_eq!(found.client_ca.as_deref(), Some("A"));
        let (ca, headers) = found.front_proxy.unwrap();
        assert_eq!(
            (ca.as_str(), headers.allowed_names.as_slice()),
            ("B", &["proxy".to_owned()][..])
        );
        assert_eq!(headers.username_headers.len(), 2);
        assert!(headers.uid_headers.is_empty() && headers.extra_prefixes.is_empty());
        assert_eq!(of(json!({})).unwrap(), Found::default());
        let without = of(json!({"requestheader-username-headers": "[\"X-Remote-User\"]"})).unwrap();
        assert_eq!(without.front_proxy, None, "without a CA no header is trusted");
        let error = of(json!({"requestheader-allowed-names": "proxy"})).unwrap_err();
        assert!(error.contains("requestheader-allowed-names"), "{error}");
    }
}
