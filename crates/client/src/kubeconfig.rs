//! What a kubeconfig says: everything that upstream's may hold is read by kube's own types; here is
//! what a node makes of it.
//!
//! A cluster may name more servers than one, each the same cluster: in an extension of its entry,
//! which other programs pass over.
//!
//! ```yaml
//! clusters:
//! - name: kubernetes
//!   cluster:
//!     server: https://10.0.0.1:6443
//!     extensions:
//!     - name: longshore/servers
//!       extension: [https://10.0.0.2:6443, https://10.0.0.3:6443]
//! ```

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use kube::Config;
use kube::config::{AuthInfo, Cluster, Context, KubeConfigOptions, Kubeconfig};
use longshore_base::proxies::ProxyEnvironment;
use longshore_exec_credentials::{ClusterInfo, Credential, ExecConfig, ExecPlugin};

use super::connection_pool::ConnectionPool;
use super::{ClientError, ConfigSource, CredentialState, Credentials, Limits, READ_TIMEOUT};

/// The extension of a cluster's entry that names its further servers.
const SERVERS: &str = "longshore/servers";
/// How long one of several servers may take to let us in.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// One server, and the connections to it.
pub(super) struct Endpoint {
    pub(super) url: String,
    /// `host:port` of the URL.
    pub(super) host: String,
    pub(super) connections: ConnectionPool,
}

/// All servers, the preferred one first; at least one. Also what a plugin gave for them.
pub(super) async fn endpoints(
    credentials: &Credentials,
    state: &CredentialState,
    limits: Limits,
) -> Result<(Vec<Endpoint>, Option<Credential>), ClientError> {
    let config_source = &credentials.config_source;
    let error = |source| ClientError::Kubeconfig {
        config_source: config_source.clone(),
        source: Box::new(source),
    };
    let invalid = |reason| ClientError::Invalid { config_source: config_source.clone(), reason };
    let mut kubeconfig = config_source.kubeconfig()?;
    if let (Some(identity), CredentialState::Certificate(_)) = (&credentials.identity, state) {
        show(&mut kubeconfig, &identity.path).map_err(invalid)?;
    }
    if credentials.anonymous {
        kubeconfig.auth_infos.iter_mut().for_each(|user| user.auth_info = None);
    }
    read_tokens(&mut kubeconfig).map_err(invalid)?;
    let directory = config_source.file().and_then(Path::parent).unwrap_or(Path::new(""));
    let plugin = plugin(&mut kubeconfig, directory).map_err(invalid)?;
    let issued = match plugin {
        None => None,
        Some(plugin) => Some(plugin.credential().await.map_err(|source| ClientError::Plugin {
            config_source: config_source.clone(),
            source,
        })?),
    };
    let issued = issued.map(|credential| Credential::clone(&credential));
    if let Some(credential) = &issued {
        show_issued(&mut kubeconfig, credential).map_err(invalid)?;
    }
    let cluster = current_cluster(&kubeconfig).map_err(invalid)?;
    let servers = servers(&cluster).map_err(invalid)?;
    let given_proxy = cluster.proxy_url.unwrap_or_default();
    let environment = ProxyEnvironment::of_process();
    let several = servers.len() > 1;
    let base = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(error)?;
    let mut endpoints = Vec::new();
    for url in servers {
        let mut config = base.clone();
        config.cluster_url =
            url.parse().map_err(|error| invalid(format!("server {url:?}: {error}")))?;
        config.proxy_url =
            proxy(&given_proxy, &environment, &config.cluster_url).map_err(invalid)?;
        let host = config.cluster_url.authority().map_or("", |authority| authority.as_str());
        let host = host.to_owned();
        let connect = if several { CONNECT_TIMEOUT.min(limits.timeout) } else { limits.timeout };
        config.connect_timeout = Some(connect);
        config.write_timeout = Some(limits.timeout);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        // callers know best what may be sent twice, and each retry would pass by the rate limit
        config.default_retry = false;
        let connections =
            ConnectionPool::new(config).map_err(|source| ClientError::Connection {
                config_source: config_source.clone(),
                source: Box::new(source),
            })?;
        endpoints.push(Endpoint { url, host, connections });
    }
    Ok((endpoints, issued))
}

/// The proxy on the way to a server: the kubeconfig's, or else the environment's. Kube would compare
/// `NO_PROXY` with the name of the proxy.
fn proxy(given: &str, environment: &ProxyEnvironment, server: &Uri) -> Result<Option<Uri>, String> {
    let is_tls = server.scheme_str() != Some("http");
    let port = server.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let url = match given {
        "" if !environment.applies_to(server.host().unwrap_or_default(), port) => None,
        "" if is_tls => environment.https(),
        "" => environment.http(),
        given => Some(given),
    };
    // a user in it may have a password, which no message quotes
    url.map(|url| url.parse().map_err(|_| "the URL of the proxy is not valid".to_owned()))
        .transpose()
}

/// The plugin of the current user, which has nothing else to show. It is taken out of the kubeconfig, as
/// kube would call it too.
fn plugin(kubeconfig: &mut Kubeconfig, directory: &Path) -> Result<Option<ExecPlugin>, String> {
    let cluster = current_cluster(kubeconfig)?;
    let name = current_context(kubeconfig)?.user;
    let users = kubeconfig.auth_infos.iter_mut().filter(|named| Some(&named.name) == name.as_ref());
    let Some(user) = users.filter_map(|named| named.auth_info.as_mut()).next() else {
        return Ok(None);
    };
    let Some(exec) = user.exec.take() else { return Ok(None) };
    let has_other = user.token.is_some()
        || user.username.is_some()
        || user.client_certificate.is_some()
        || user.client_certificate_data.is_some();
    if has_other {
        return Ok(None);
    }
    let read = serde_json::to_value(exec).and_then(serde_json::from_value::<ExecConfig>);
    let config = read.map_err(|error| format!("exec: {error}"))?;
    let authority = match (&cluster.certificate_authority_data, &cluster.certificate_authority) {
        (Some(data), _) => decoded(data)?,
        (None, Some(path)) => std::fs::read(path).map_err(|error| format!("{path}: {error}"))?,
        (None, None) => Vec::new(),
    };
    let extensions = cluster.extensions.iter().flatten();
    let info = ClusterInfo {
        server: cluster.server.clone().unwrap_or_default(),
        tls_server_name: cluster.tls_server_name.clone().unwrap_or_default(),
        insecure_skip_tls_verify: cluster.insecure_skip_tls_verify.unwrap_or(false),
        certificate_authority: authority,
        proxy_url: cluster.proxy_url.clone().unwrap_or_default(),
        disable_compression: cluster.disable_compression.unwrap_or(false),
        config: ClusterInfo::config_of(extensions.map(|one| (one.name.as_str(), &one.extension))),
    };
    ExecPlugin::new(config, directory, info).map(Some).map_err(|error| error.to_string())
}

/// Makes what a plugin gave what the current user shows.
fn show_issued(kubeconfig: &mut Kubeconfig, credential: &Credential) -> Result<(), String> {
    let name = current_context(kubeconfig)?.user;
    let users = kubeconfig.auth_infos.iter_mut().filter(|named| Some(&named.name) == name.as_ref());
    for user in users.filter_map(|named| named.auth_info.as_mut()) {
        user.token = credential.token.clone().map(Into::into);
        if let Some((certificate, key)) = &credential.certificate {
            user.client_certificate_data = Some(STANDARD.encode(certificate));
            user.client_key_data = Some(STANDARD.encode(key).into());
        }
    }
    Ok(())
}

/// Makes the pair in that file what the current user shows, and nothing else.
fn show(kubeconfig: &mut Kubeconfig, pair: &Path) -> Result<(), String> {
    let user = current_context(kubeconfig)?.user.unwrap_or_default();
    let pair = Some(pair.display().to_string());
    let shown =
        AuthInfo { client_certificate: pair.clone(), client_key: pair, ..AuthInfo::default() };
    for named in kubeconfig.auth_infos.iter_mut().filter(|named| named.name == user) {
        named.auth_info = Some(shown.clone());
    }
    Ok(())
}

/// Puts the token of a file in place of the file's name, without the end of its line, which kube
/// would send too. A token beside it is used when the file cannot be read.
fn read_tokens(kubeconfig: &mut Kubeconfig) -> Result<(), String> {
    let name = current_context(kubeconfig)?.user;
    let users = kubeconfig.auth_infos.iter_mut().filter(|named| Some(&named.name) == name.as_ref());
    for user in users.filter_map(|named| named.auth_info.as_mut()) {
        let Some(file) = user.token_file.take().filter(|file| !file.is_empty()) else { continue };
        match std::fs::read_to_string(&file) {
            Ok(token) => user.token = Some(token.trim().to_owned().into()),
            Err(_) if user.token.is_some() => {}
            Err(error) => return Err(format!("tokenFile {file}: {error}")),
        }
    }
    Ok(())
}

/// The servers of a cluster, the preferred one first.
pub(super) fn servers(cluster: &Cluster) -> Result<Vec<String>, String> {
    let first = cluster.server.clone().ok_or("the cluster of its context has no server")?;
    let mut servers = vec![first];
    let extensions = cluster.extensions.iter().flatten();
    for extension in extensions.filter(|extension| extension.name == SERVERS) {
        let more: Vec<String> = serde_json::from_value(extension.extension.clone())
            .map_err(|error| format!("extension {SERVERS} is not a list of URLs: {error}"))?;
        for server in more {
            if !servers.contains(&server) {
                servers.push(server);
            }
        }
    }
    Ok(servers)
}

/// Puts a server in place of all that the current cluster has.
pub(super) fn replace_server(kubeconfig: &mut Kubeconfig, server: &str) -> Result<(), String> {
    let name = current_context(kubeconfig)?.cluster;
    let clusters = kubeconfig.clusters.iter_mut().filter(|named| named.name == name);
    for cluster in clusters.filter_map(|named| named.cluster.as_mut()) {
        cluster.server = Some(server.to_owned());
        cluster.extensions = None;
    }
    Ok(())
}

fn current_context(kubeconfig: &Kubeconfig) -> Result<Context, String> {
    let name = kubeconfig.current_context.as_deref().ok_or("it has no current-context")?;
    let found = kubeconfig.contexts.iter().find(|named| named.name == name);
    let context = found.and_then(|named| named.context.clone());
    context.ok_or_else(|| format!("there is no context {name:?}, its current one"))
}

/// The cluster of the current context.
pub(crate) fn current_cluster(kubeconfig: &Kubeconfig) -> Result<Cluster, String> {
    let name = current_context(kubeconfig)?.cluster;
    let found = kubeconfig.clusters.iter().find(|named| named.name == name);
    let cluster = found.and_then(|named| named.cluster.clone());
    cluster.ok_or_else(|| format!("there is no cluster {name:?}, that of its current context"))
}

/// The user of the current context; one without credentials if it does not exist.
pub(crate) fn current_user(kubeconfig: &Kubeconfig) -> Result<AuthInfo, String> {
    let name = current_context(kubeconfig)?.user;
    let found = kubeconfig.auth_infos.iter().find(|named| Some(&named.name) == name.as_ref());
    Ok(found.and_then(|named| named.auth_info.clone()).unwrap_or_default())
}

/// What a field `…-data` holds.
pub(crate) fn decoded(data: &str) -> Result<Vec<u8>, String> {
    STANDARD.decode(data.trim()).map_err(|error| format!("its certificate data: {error}"))
}

/// The files behind a client with the time that each was changed.
pub(super) type ModificationTimes = Vec<(PathBuf, Option<SystemTime>)>;

pub(super) fn modification_times(config_source: &ConfigSource) -> ModificationTimes {
    let mut files: Vec<PathBuf> = config_source.file().map(Path::to_owned).into_iter().collect();
    if let Ok(content) = config_source.kubeconfig() {
        let clusters = content.clusters.into_iter().filter_map(|named| named.cluster);
        files.extend(
            clusters.filter_map(|cluster| cluster.certificate_authority).map(PathBuf::from),
        );
        for user in content.auth_infos.into_iter().filter_map(|named| named.auth_info) {
            let named = [user.client_certificate, user.client_key, user.token_file];
            files.extend(named.into_iter().flatten().map(PathBuf::from));
        }
    }
    changes(files)
}

pub(super) fn changes(files: impl IntoIterator<Item = PathBuf>) -> ModificationTimes {
    let changed = |path: &Path| path.metadata().and_then(|file| file.modified()).ok();
    files.into_iter().map(|path| (path.clone(), changed(&path))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_proxies_are_chosen_by_the_server() {
        let environment = ProxyEnvironment::of(|name| {
            let value = match name {
                "HTTPS_PROXY" => "https://secure.example:3129",
                "HTTP_PROXY" => "plain.example:3128",
                "NO_PROXY" => "10.0.0.0/8,.internal",
                _ => return None,
            };
            Some(value.to_owned())
        });
        for (given, server, expected) in [
            ("", "https://192.0.2.1:6443", Some("https://secure.example:3129")),
            ("", "http://192.0.2.1:8080", Some("http://plain.example:3128")),
            ("", "https://10.1.2.3:6443", None),
            ("", "https://api.internal:6443", None),
            ("", "https://127.0.0.1:6443", None),
            ("socks5://own:1080", "https://10.1.2.3:6443", Some("socks5://own:1080")),
        ] {
            let found = proxy(given, &environment, &server.parse().unwrap()).unwrap();
            assert_eq!(found, expected.map(|url| url.parse().unwrap()), "{server}");
        }
        let server = "https://192.0.2.1".parse().unwrap();
        let error = proxy("http://u:s3cret@a b", &environment, &server).unwrap_err();
        assert!(!error.contains("s3cret"), "{error}");
    }
}
