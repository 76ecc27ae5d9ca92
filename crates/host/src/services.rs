//! PURE: the programs of a machine and their command lines.

use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use crate::runtime::Folders;
use crate::settings::{PORT, Server, Settings};
use crate::{Paths, runtime};

/// Where ports are that nobody else needs.
const LOCAL: &str = "127.0.0.1";

/// One program that runs as long as the machine is part of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// What people call it; also the name of its log and of its file of environment.
    pub name: &'static str,
    /// The unit of systemd.
    pub unit: &'static str,
    /// The program, beside this one.
    pub program: &'static str,
    /// Its arguments.
    pub args: Vec<String>,
    /// The first of its arguments names what a program of several roles is.
    pub role: Option<&'static str>,
}

/// The names of all units, in the order of their start.
pub const UNITS: [&str; 5] = [
    "longshore-apiserver.service",
    "longshore-controllers.service",
    "longshore-dns.service",
    "longshore-network.service",
    "longshore.service",
];

/// The apiserver.
pub const APISERVER: &str = "apiserver";
/// The node.
pub const NODE: &str = "node";

/// The services of a machine, in the order of their start.
pub fn services(settings: &Settings, paths: &Paths) -> Vec<Service> {
    let mut all = Vec::new();
    if let Some(server) = settings.server() {
        all.push(apiserver(settings, server, paths));
        all.push(controllers(settings, server, paths));
        all.push(dns(settings, paths));
    }
    all.push(network(settings, paths));
    all.push(node(settings, paths));
    all
}

fn path(flag: &str, path: &std::path::Path) -> String {
    format!("--{flag}={}", path.display())
}

fn apiserver(settings: &Settings, server: &Server, paths: &Paths) -> Service {
    let pki = paths.pki();
    let mut args = vec![
        path("cert-dir", &pki),
        format!("--secure-port={}", server.port),
        format!("--advertise-address={}", settings.address),
        format!("--service-cluster-ip-range={}", server.services),
        path("kubelet-certificate-authority", &pki.join("kubelet-serving-ca.crt")),
    ];
    if server.etcd.is_empty() {
        args.push(path("data-dir", &paths.state()));
    } else {
        args.push(format!("--etcd-servers={}", server.etcd.join(",")));
        let files = [
            ("etcd-cafile", &server.etcd_ca),
            ("etcd-certfile", &server.etcd_certificate),
            ("etcd-keyfile", &server.etcd_key),
        ];
        args.extend(files.into_iter().filter_map(|(flag, file)| Some(path(flag, file.as_ref()?))));
    }
    Service {
        name: APISERVER,
        unit: "longshore-apiserver.service",
        program: "longshore-apiserver",
        args,
        role: None,
    }
}

fn controllers(settings: &Settings, server: &Server, paths: &Paths) -> Service {
    let pki = paths.pki();
    let mut args = vec![
        path("kubeconfig", &paths.controllers()),
        "--use-service-account-credentials".to_owned(),
        "--controllers=*,bootstrap-signer-controller,token-cleaner-controller".to_owned(),
        "--allocate-node-cidrs".to_owned(),
        format!("--cluster-cidr={}", settings.pods),
        format!("--service-cluster-ip-range={}", server.services),
        path("root-ca-file", &pki.join("ca.crt")),
        "--enable-hostpath-provisioner".to_owned(),
        "--approve-kubelet-serving".to_owned(),
        format!("--bind-address={LOCAL}"),
    ];
    for (signer, ca) in [
        ("kubelet-client", "ca"),
        ("kube-apiserver-client", "ca"),
        ("kubelet-serving", "kubelet-serving-ca"),
    ] {
        for (kind, suffix) in [("cert", "crt"), ("key", "key")] {
            let flag = format!("cluster-signing-{signer}-{kind}-file");
            args.push(path(&flag, &pki.join(format!("{ca}.{suffix}"))));
        }
    }
    if server.etcd.is_empty() {
        // There cannot be another.
        args.push("--leader-elect=false".to_owned());
    }
    Service {
        name: "controllers",
        unit: "longshore-controllers.service",
        program: "longshore-controllers",
        args,
        role: None,
    }
}

fn dns(settings: &Settings, paths: &Paths) -> Service {
    let args = vec![
        path("kubeconfig", &paths.dns()),
        format!("--cluster-domain={}", settings.domain),
        format!("--listen={}:53", settings.address),
        format!("--metrics-addr={LOCAL}:9153"),
        "--health-addr=".to_owned(),
        format!("--ready-addr={LOCAL}:8181"),
    ];
    Service {
        name: "dns",
        unit: "longshore-dns.service",
        program: "longshore-dns",
        args,
        role: None,
    }
}

fn network(settings: &Settings, paths: &Paths) -> Service {
    let args = vec![
        path("kubeconfig", &paths.kubelet()),
        format!("--node-name={}", settings.node_name),
        format!("--cluster-cidr={}", settings.pods),
        path("cni-conf-dir", &settings.cni),
        path("cni-data-dir", &paths.cni_addresses()),
    ];
    Service {
        name: "network",
        unit: "longshore-network.service",
        program: "longshore-host",
        args,
        role: Some("network"),
    }
}

fn node(settings: &Settings, paths: &Paths) -> Service {
    let mut args = vec![
        path("config", &paths.kubelet_config()),
        path("proxy-config", &paths.proxy_config()),
        path("kubeconfig", &paths.kubelet()),
        format!("--hostname-override={}", settings.node_name),
        format!("--node-ip={}", settings.address),
        path("root-dir", &paths.kubelet_root()),
        path("cert-dir", &paths.kubelet_pki()),
    ];
    if settings.server().is_none() {
        args.push(path("bootstrap-kubeconfig", &paths.bootstrap()));
    }
    if runtime::is_docker(&settings.runtime) {
        args.extend(Folders::of(paths, Some(settings)).flags());
    }
    args.extend(settings.node_args.iter().cloned());
    Service {
        name: NODE,
        unit: "longshore.service",
        program: "longshore",
        args,
        role: Some("node"),
    }
}

/// A port that a service needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Port {
    /// `0.0.0.0` stands for all.
    pub address: Ipv4Addr,
    /// The number.
    pub number: u16,
    /// UDP, and not TCP.
    pub is_udp: bool,
    /// Who needs it.
    pub user: &'static str,
}

impl Port {
    const fn tcp(address: Ipv4Addr, number: u16, user: &'static str) -> Self {
        Self { address, number, is_udp: false, user }
    }

    /// Takes the port and gives it back.
    ///
    /// # Errors
    /// Something else has it, or the machine has no such address.
    pub fn probe(&self) -> std::io::Result<()> {
        let address = (self.address, self.number);
        match self.is_udp {
            true => UdpSocket::bind(address).map(drop),
            false => TcpListener::bind(address).map(drop),
        }
    }
}

/// PURE: the ports that a machine of these settings needs; without settings those of a cluster, as far as
/// they do not depend on the address.
pub fn ports(settings: Option<&Settings>) -> Vec<Port> {
    let (all, local) = (Ipv4Addr::UNSPECIFIED, Ipv4Addr::LOCALHOST);
    let mut ports = vec![
        Port::tcp(all, 10250, "node"),
        Port::tcp(local, 10248, "node"),
        Port::tcp(all, 10256, "kube-proxy"),
    ];
    let server = match settings {
        Some(settings) => settings.server().map(|server| (server.port, Some(settings.address))),
        None => Some((PORT, None)),
    };
    if let Some((port, address)) = server {
        ports.extend([
            Port::tcp(all, port, "apiserver"),
            Port::tcp(local, 10257, "controllers"),
            Port::tcp(local, 9153, "DNS"),
            Port::tcp(local, 8181, "DNS"),
        ]);
        let dns = address.map(|address| Port::tcp(address, 53, "DNS"));
        ports.extend(dns.into_iter().flat_map(|dns| [dns, Port { is_udp: true, ..dns }]));
    }
    ports
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::args::{JoinArgs, NodeArgs, UpArgs};
    use crate::settings::tests::{cluster, machine};

    fn args<'a>(all: &'a [Service], name: &str) -> &'a [String] {
        &all.iter().find(|service| service.name == name).unwrap().args
    }

    #[test]
    fn services_of_a_server() {
        let node = NodeArgs { node_arg: vec!["--v=4".into()], ..NodeArgs::default() };
        let settings = cluster(&UpArgs { node, ..UpArgs::default() }).unwrap();
        let all = services(&settings, &Paths::new(Path::new("/")));
        assert_eq!(all.iter().map(|one| one.unit).collect::<Vec<_>>(), UNITS);
        let has = |name: &str, arg: &str| {
            assert!(args(&all, name).iter().any(|one| one == arg), "{arg}: {:?}", args(&all, name));
        };
        has("apiserver", "--data-dir=/var/lib/longshore");
        has("apiserver", "--cert-dir=/etc/kubernetes/pki");
        has(
            "controllers",
            "--cluster-signing-kubelet-serving-key-file=/etc/kubernetes/pki/kubelet-serving-ca.key",
        );
        has("controllers", "--leader-elect=false");
        has("dns", "--listen=198.18.1.2:53");
        has("node", "--config=/var/lib/kubelet/config.yaml");
        has("node", "--v=4");
        assert!(!args(&all, "node").iter().any(|arg| arg.starts_with("--bootstrap")));
        assert_eq!(ports(Some(&settings)).len(), 9);
    }

    #[test]
    fn services_on_docker_have_the_folders_of_the_node() {
        let paths = Paths::new(Path::new("/r"));
        let flag = "--cri-dockerd-root-directory=/r/var/lib/cri-dockerd";
        for (endpoint, expected) in
            [("docker:///run/docker.sock", true), ("unix:///run/docker.sock", false)]
        {
            let container_runtime_endpoint = Some(endpoint.to_owned());
            let node = NodeArgs { container_runtime_endpoint, ..NodeArgs::default() };
            let settings = cluster(&UpArgs { node, ..UpArgs::default() }).unwrap();
            let all = services(&settings, &paths);
            assert_eq!(args(&all, "node").iter().any(|arg| arg == flag), expected, "{endpoint}");
        }
    }

    #[test]
    fn services_of_an_etcd_elect_a_leader() {
        let etcd = vec!["https://a:2379".to_owned(), "https://b:2379".to_owned()];
        let ca = Some("/ca".into());
        let settings = cluster(&UpArgs { etcd, etcd_cafile: ca, ..UpArgs::default() }).unwrap();
        let all = services(&settings, &Paths::new(Path::new("/")));
        let apiserver = args(&all, "apiserver").join(" ");
        assert!(
            apiserver.contains("--etcd-servers=https://a:2379,https://b:2379 --etcd-cafile=/ca")
        );
        assert!(!apiserver.contains("--data-dir"));
        assert!(!args(&all, "controllers").iter().any(|arg| arg.starts_with("--leader-elect")));
    }

    #[test]
    fn services_of_an_agent_are_the_node_and_its_network() {
        let paths = Paths::new(Path::new("/r"));
        let settings =
            Settings::of_agent(&JoinArgs::default(), "https://a:6443", &paths, &machine()).unwrap();
        let all = services(&settings, &paths);
        assert_eq!(all.iter().map(|one| one.name).collect::<Vec<_>>(), ["network", "node"]);
        let bootstrap = "--bootstrap-kubeconfig=/r/etc/kubernetes/bootstrap-kubelet.conf";
        assert!(args(&all, "node").iter().any(|arg| arg == bootstrap));
        assert_eq!(ports(Some(&settings)).len(), 3);
        assert_eq!(ports(None).len(), 7);
    }
}
