//! What a machine was set up as: kept in a file, so that later starts, `down` and `reset` know it.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::PathBuf;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::args::{JoinArgs, NodeArgs, UpArgs};
use crate::files::read_optional;
use crate::{Error, Paths, Result};

/// The sockets of container runtimes, the first that is there is used.
pub(crate) const RUNTIMES: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];
pub(crate) const PORT: u16 = 6443;
const PODS: &str = "10.244.0.0/16";
const SERVICES: &str = "10.96.0.0/12";
const DOMAIN: &str = "cluster.local";
/// Nodes are given a /24 each; with fewer bits between there would be one node.
const LONGEST_POD_PREFIX: u8 = 24;

/// What this machine is in its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "role")]
pub enum Role {
    /// It has the control plane.
    Server(Server),
    /// It is a node alone.
    Agent,
}

/// The control plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Server {
    /// The port of the apiserver.
    pub port: u16,
    /// The servers of the etcd; none: the embedded store.
    pub etcd: Vec<String>,
    /// The CA of the etcd.
    pub etcd_ca: Option<PathBuf>,
    /// The certificate to show to it.
    pub etcd_certificate: Option<PathBuf>,
    /// Its key.
    pub etcd_key: Option<PathBuf>,
    /// The addresses of services.
    #[serde(with = "as_text")]
    pub services: Ipv4Net,
}

/// What a machine was set up as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// What this machine is.
    #[serde(flatten)]
    pub role: Role,
    /// The node's name.
    pub node_name: String,
    /// The node's address.
    pub address: Ipv4Addr,
    /// The apiserver, as `https://HOST:PORT`.
    pub url: String,
    /// The container runtime, as `unix:///…`; a Docker Engine as `docker:///…`.
    pub runtime: String,
    /// Where the runtime reads its network configuration.
    pub cni: PathBuf,
    /// Fields of the KubeletConfiguration.
    pub node_config: Option<PathBuf>,
    /// Fields of the KubeProxyConfiguration.
    pub proxy_config: Option<PathBuf>,
    /// Further flags of the node.
    pub node_args: Vec<String>,
    /// The addresses of pods.
    #[serde(with = "as_text")]
    pub pods: Ipv4Net,
    /// The domain of the names of services.
    pub domain: String,
    /// Whether all files were written: otherwise a set-up was interrupted.
    pub is_complete: bool,
}

/// A range of addresses as `IP/BITS`.
mod as_text {
    use ipnet::Ipv4Net;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(net: &Ipv4Net, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(net)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Ipv4Net, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// What is known of the machine without flags.
#[derive(Debug, Clone)]
pub struct Machine {
    /// Its name.
    pub host_name: String,
    /// The source address of its default route.
    pub address: Option<Ipv4Addr>,
    /// The socket of a container runtime.
    pub runtime: Option<PathBuf>,
}

impl Machine {
    /// Looks at this machine.
    pub fn read() -> Self {
        let name = nix::unistd::gethostname().unwrap_or_default();
        let runtime = RUNTIMES.iter().map(PathBuf::from).find(|socket| socket.exists());
        Self {
            host_name: name.to_string_lossy().to_lowercase(),
            address: default_route_address(),
            runtime,
        }
    }
}

/// Nothing is sent: connecting a datagram socket only looks up the route.
fn default_route_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

impl Settings {
    /// The settings of a machine that was set up, if it was.
    pub fn load(paths: &Paths) -> Result<Option<Self>> {
        let path = paths.settings();
        let Some(text) = read_optional(&path)? else { return Ok(None) };
        let invalid = |error: serde_json::Error| Error::Content { path, reason: error.to_string() };
        serde_json::from_str(&text).map(Some).map_err(invalid)
    }

    /// As JSON.
    pub(crate) fn text(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
        text.map_err(|error| Error::refused(format!("cannot write the settings: {error}")))
    }

    /// PURE: of a new cluster.
    pub fn of_cluster(args: &UpArgs, paths: &Paths, machine: &Machine) -> Result<Self> {
        let pods = args.pod_network_cidr.map_or_else(|| network(PODS), Ok)?;
        let services = args.service_cidr.map_or_else(|| network(SERVICES), Ok)?;
        let port = args.port.unwrap_or(PORT);
        if port == 0 {
            return Err(Error::refused(
                "--port: 0 would be another port at each start, which other machines cannot know",
            ));
        }
        if pods.prefix_len() > LONGEST_POD_PREFIX {
            return Err(Error::refused(format!(
                "--pod-network-cidr: {pods} is too small: each node gets a /{LONGEST_POD_PREFIX} of it"
            )));
        }
        if services.prefix_len() > 28 || services.prefix_len() < 8 {
            return Err(Error::refused(format!(
                "--service-cidr: {services} must have between 8 and 28 bits before its addresses"
            )));
        }
        if pods.contains(&services) || services.contains(&pods) {
            return Err(Error::refused(format!(
                "--pod-network-cidr {pods} and --service-cidr {services} overlap"
            )));
        }
        let domain = args.service_dns_domain.clone().unwrap_or_else(|| DOMAIN.to_owned());
        if !is_name(&domain) {
            return Err(Error::refused(format!(
                "--service-dns-domain: {domain:?} is not a domain in lower case"
            )));
        }
        let server = Server {
            port,
            etcd: args.etcd.clone(),
            etcd_ca: args.etcd_cafile.clone(),
            etcd_certificate: args.etcd_certfile.clone(),
            etcd_key: args.etcd_keyfile.clone(),
            services: services.trunc(),
        };
        let own = Self::of_node(&args.node, paths, machine)?;
        let url = format!("https://{}:{port}", own.address);
        let settings = Self { role: Role::Server(server), url, pods: pods.trunc(), domain, ..own };
        if settings.pods.contains(&settings.address) || services.contains(&settings.address) {
            return Err(Error::refused(format!(
                "the address {} of this machine is among those of pods ({pods}) or services ({services})",
                settings.address
            )));
        }
        Ok(settings)
    }

    /// PURE: of a node of the cluster at `url`.
    pub fn of_agent(args: &JoinArgs, url: &str, paths: &Paths, machine: &Machine) -> Result<Self> {
        Ok(Self { url: url.to_owned(), ..Self::of_node(&args.node, paths, machine)? })
    }

    fn of_node(args: &NodeArgs, paths: &Paths, machine: &Machine) -> Result<Self> {
        let node_name = args.node_name.clone().unwrap_or_else(|| machine.host_name.clone());
        if !is_name(&node_name) {
            return Err(Error::refused(format!(
                "{node_name:?} is not a name of a node (lower-case letters, digits, '-' and '.'): \
                 give one with --node-name"
            )));
        }
        let address = args.address.or(machine.address).ok_or_else(|| {
            Error::refused("this machine has no default route: give its address with --address")
        })?;
        if address.is_loopback() || address.is_unspecified() || address.is_multicast() {
            return Err(Error::refused(format!(
                "{address} is not an address by which others reach this machine"
            )));
        }
        let runtime = match &args.container_runtime_endpoint {
            Some(given) if given.starts_with('/') => format!("unix://{given}"),
            Some(given) if ["unix:///", "docker:///"].iter().any(|is| given.starts_with(is)) => {
                given.clone()
            }
            Some(given) => {
                return Err(Error::refused(format!(
                    "--container-runtime-endpoint: {given:?} is not a socket such as \
                     unix:///run/containerd/containerd.sock or docker:///var/run/docker.sock"
                )));
            }
            None => match &machine.runtime {
                Some(socket) => format!("unix://{}", socket.display()),
                None => {
                    return Err(Error::refused(format!(
                        "there is no container runtime: none of {} is there; start containerd or \
                         give its socket with --container-runtime-endpoint",
                        RUNTIMES.join(", ")
                    )));
                }
            },
        };
        Ok(Self {
            role: Role::Agent,
            node_name,
            address,
            url: String::new(),
            runtime,
            cni: args.cni_conf_dir.clone().unwrap_or_else(|| paths.cni()),
            node_config: args.node_config.clone(),
            proxy_config: args.proxy_config.clone(),
            node_args: args.node_arg.clone(),
            pods: network(PODS)?,
            domain: DOMAIN.to_owned(),
            is_complete: false,
        })
    }

    /// The control plane, if this machine has one.
    pub fn server(&self) -> Option<&Server> {
        match &self.role {
            Role::Server(server) => Some(server),
            Role::Agent => None,
        }
    }
}

impl Server {
    /// The address of the DNS server: the tenth of services, as kubeadm has it.
    pub fn dns_address(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.services.network()).saturating_add(10))
    }
}

fn network(text: &str) -> Result<Ipv4Net> {
    text.parse().map_err(|_| Error::refused(format!("{text} is not a range of addresses")))
}

/// PURE: a DNS name in lower case.
fn is_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| inner(byte) || byte == b'-')
            && label.bytes().next().is_some_and(inner)
            && label.bytes().last().is_some_and(inner)
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use super::*;

    pub(crate) fn machine() -> Machine {
        Machine {
            host_name: "box".to_owned(),
            address: Some(Ipv4Addr::new(198, 18, 1, 2)),
            runtime: Some(PathBuf::from(RUNTIMES[0])),
        }
    }

    pub(crate) fn cluster(args: &UpArgs) -> Result<Settings> {
        Settings::of_cluster(args, &Paths::new(Path::new("/")), &machine())
    }

    #[test]
    fn settings_have_kubeadms_defaults() {
        let settings = cluster(&UpArgs::default()).unwrap();
        assert_eq!(settings.url, "https://198.18.1.2:6443");
        assert_eq!(settings.node_name, "box");
        assert_eq!(settings.runtime, "unix:///run/containerd/containerd.sock");
        assert_eq!(settings.cni, PathBuf::from("/etc/cni/net.d"));
        assert_eq!(settings.pods.to_string(), "10.244.0.0/16");
        let server = settings.server().unwrap();
        assert_eq!(server.services.to_string(), "10.96.0.0/12");
        assert_eq!(server.dns_address(), Ipv4Addr::new(10, 96, 0, 10));
    }

    #[test]
    fn settings_survive_their_file() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        assert_eq!(Settings::load(&paths).unwrap(), None);
        std::fs::create_dir_all(paths.state()).unwrap();
        for settings in [
            cluster(&UpArgs { etcd: vec!["http://e:2379".into()], ..UpArgs::default() }).unwrap(),
            Settings::of_agent(&JoinArgs::default(), "https://a:6443", &paths, &machine()).unwrap(),
        ] {
            std::fs::write(paths.settings(), settings.text().unwrap()).unwrap();
            assert_eq!(Settings::load(&paths).unwrap(), Some(settings));
        }
        for broken in ["", "{}", "null", "[]", r#"{"role":"server"}"#] {
            std::fs::write(paths.settings(), broken).unwrap();
            let error = Settings::load(&paths).unwrap_err().to_string();
            assert!(error.contains("cluster.json"), "{error}");
        }
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let cidr = |text: &str| Some(text.parse().unwrap());
        let node = |node: NodeArgs| UpArgs { node, ..UpArgs::default() };
        let table = [
            (UpArgs { pod_network_cidr: cidr("10.1.0.0/25"), ..UpArgs::default() }, "too small"),
            (UpArgs { pod_network_cidr: cidr("10.96.0.0/16"), ..UpArgs::default() }, "overlap"),
            (UpArgs { pod_network_cidr: cidr("198.18.0.0/16"), ..UpArgs::default() }, "198.18.1.2"),
            (UpArgs { service_cidr: cidr("10.0.0.0/30"), ..UpArgs::default() }, "--service-cidr"),
            (UpArgs { service_cidr: cidr("0.0.0.0/0"), ..UpArgs::default() }, "--service-cidr"),
            (UpArgs { port: Some(0), ..UpArgs::default() }, "--port"),
            (
                UpArgs { service_dns_domain: Some("A.b".into()), ..UpArgs::default() },
                "--service-dns-domain",
            ),
            (
                node(NodeArgs { node_name: Some("a_b".into()), ..NodeArgs::default() }),
                "--node-name",
            ),
            (
                node(NodeArgs { node_name: Some("../a".into()), ..NodeArgs::default() }),
                "--node-name",
            ),
            (
                node(NodeArgs { address: Some(Ipv4Addr::LOCALHOST), ..NodeArgs::default() }),
                "127.0.0.1",
            ),
            (
                node(NodeArgs {
                    container_runtime_endpoint: Some("tcp://a:1".into()),
                    ..NodeArgs::default()
                }),
                "--container-runtime-endpoint",
            ),
            (
                node(NodeArgs {
                    container_runtime_endpoint: Some("docker://run/docker.sock".into()),
                    ..NodeArgs::default()
                }),
                "docker:///var/run/docker.sock",
            ),
        ];
        for (args, part) in table {
            let error = cluster(&args).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
        let bare = Machine { runtime: None, address: None, ..machine() };
        let paths = Paths::new(Path::new("/"));
        let error = Settings::of_cluster(&UpArgs::default(), &paths, &bare).unwrap_err();
        assert!(error.to_string().contains("--address"), "{error}");
        let bare = Machine { address: machine().address, ..bare };
        let error = Settings::of_cluster(&UpArgs::default(), &paths, &bare).unwrap_err();
        assert!(error.to_string().contains("no container runtime"), "{error}");
    }
}
