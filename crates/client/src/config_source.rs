//! Where the address and the credentials of the apiserver come from: in each case a kubeconfig, read
//! or generated.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use kube::config::{
    AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext,
};

use super::ClientError;
use super::kubeconfig::replace_server;

/// Where a pod finds what its service account may show.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The only entry of a generated kubeconfig.
const ENTRY: &str = "default";

/// Where the address and the credentials of the apiserver come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigSource {
    /// A kubeconfig file.
    Kubeconfig(PathBuf),
    /// A kubeconfig file with another server (`--kubeconfig` and `--master`).
    Redirected {
        /// The kubeconfig file.
        kubeconfig: PathBuf,
        /// The server's URL.
        master: String,
    },
    /// The server of this URL without credentials (`--master`).
    Master(String),
    /// In-cluster: the service account of the pod that this runs in.
    Pod,
}

impl ConfigSource {
    /// The kubeconfig file, if there is one.
    pub(super) fn file(&self) -> Option<&Path> {
        match self {
            Self::Kubeconfig(path) | Self::Redirected { kubeconfig: path, .. } => Some(path),
            Self::Master(_) | Self::Pod => None,
        }
    }

    /// All of it as a kubeconfig.
    pub(super) fn kubeconfig(&self) -> Result<Kubeconfig, ClientError> {
        let invalid = |reason| ClientError::Invalid { config_source: self.clone(), reason };
        let mut kubeconfig = match self {
            Self::Kubeconfig(path) | Self::Redirected { kubeconfig: path, .. } => {
                Kubeconfig::read_from(path).map_err(|source| ClientError::Kubeconfig {
                    config_source: self.clone(),
                    source: Box::new(source),
                })?
            }
            Self::Master(master) => of(master.clone(), None, AuthInfo::default()),
            Self::Pod => {
                let variable = |name: &str| std::env::var(name).unwrap_or_default();
                of_pod(&variable("KUBERNETES_SERVICE_HOST"), &variable("KUBERNETES_SERVICE_PORT"))
                    .map_err(invalid)?
            }
        };
        if let Self::Redirected { master, .. } = self {
            replace_server(&mut kubeconfig, master).map_err(invalid)?;
        }
        Ok(kubeconfig)
    }
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(path) | Self::Redirected { kubeconfig: path, .. } => {
                write!(f, "kubeconfig {}", path.display())
            }
            Self::Master(master) => write!(f, "apiserver {master}"),
            Self::Pod => f.write_str("service account of this pod"),
        }
    }
}

/// What the environment of a pod and the files of its service account say.
fn of_pod(host: &str, port: &str) -> Result<Kubeconfig, String> {
    if host.is_empty() || port.is_empty() {
        return Err(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not both set, so this \
                    is no pod of a cluster; give a kubeconfig"
                .to_owned(),
        );
    }
    let host = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(ip)) => bracketed(ip),
        _ => host.to_owned(),
    };
    let file = |name: &str| format!("{SERVICE_ACCOUNT}/{name}");
    let user = AuthInfo { token_file: Some(file("token")), ..AuthInfo::default() };
    Ok(of(format!("https://{host}:{port}"), Some(file("ca.crt")), user))
}

fn bracketed(ip: Ipv6Addr) -> String {
    format!("[{ip}]")
}

fn of(server: String, certificate_authority: Option<String>, user: AuthInfo) -> Kubeconfig {
    let cluster = Cluster { server: Some(server), certificate_authority, ..Cluster::default() };
    let context =
        Context { cluster: ENTRY.to_owned(), user: Some(ENTRY.to_owned()), ..Context::default() };
    Kubeconfig {
        clusters: vec![NamedCluster {
            name: ENTRY.to_owned(),
            cluster: Some(cluster),
            ..Default::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: ENTRY.to_owned(),
            auth_info: Some(user),
            ..Default::default()
        }],
        contexts: vec![NamedContext {
            name: ENTRY.to_owned(),
            context: Some(context),
            ..Default::default()
        }],
        current_context: Some(ENTRY.to_owned()),
        ..Kubeconfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::kubeconfig::{current_cluster, current_user, servers};
    use super::*;

    #[test]
    fn in_cluster_config_is_read_from_the_environment() {
        for (host, port, expected) in [
            ("10.96.0.1", "443", "https://10.96.0.1:443"),
            ("fd00::1", "6443", "https://[fd00::1]:6443"),
            ("api.example", "443", "https://api.example:443"),
        ] {
            let kubeconfig = of_pod(host, port).unwrap();
            let cluster = current_cluster(&kubeconfig).unwrap();
            assert_eq!(cluster.server.as_deref(), Some(expected));
            assert!(cluster.certificate_authority.unwrap().ends_with("/serviceaccount/ca.crt"));
            let user = current_user(&kubeconfig).unwrap();
            assert!(user.token_file.unwrap().ends_with("/serviceaccount/token"));
        }
        for (host, port) in [("", "443"), ("10.96.0.1", "")] {
            let error = of_pod(host, port).unwrap_err();
            assert!(error.contains("KUBERNETES_SERVICE_HOST"), "{error}");
        }
    }

    #[test]
    fn master_url_replaces_all_servers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = r#"{"current-context": "x", "contexts": [{"name": "x", "context": {"cluster": "c"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://a", "extensions":
            [{"name": "longshore/servers", "extension": ["https://b"]}]}}]}"#;
        std::fs::write(file.path(), text).unwrap();
        let servers_of = |config_source: ConfigSource| {
            servers(&current_cluster(&config_source.kubeconfig().unwrap()).unwrap())
        };
        let path = file.path().to_owned();
        let both = vec!["https://a".to_owned(), "https://b".to_owned()];
        assert_eq!(servers_of(ConfigSource::Kubeconfig(path.clone())).unwrap(), both);
        let master = "http://m:8080".to_owned();
        let config_source = ConfigSource::Redirected { kubeconfig: path, master: master.clone() };
        assert_eq!(servers_of(config_source).unwrap().join(" "), master);
        assert_eq!(servers_of(ConfigSource::Master(master.clone())).unwrap(), [master]);
    }
}
