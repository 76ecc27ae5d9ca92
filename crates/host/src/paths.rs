//! Where everything is, under one root directory: `/`, or another one for a second cluster beside.

use std::path::{Path, PathBuf};

/// The files of one cluster on this machine, in kubeadm's layout where kubeadm has the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    root: PathBuf,
}

macro_rules! paths {
    ($($(#[$doc:meta])* $name:ident = $path:literal;)*) => {
        impl Paths {
            $($(#[$doc])* pub fn $name(&self) -> PathBuf { self.root.join($path) })*
        }
    };
}

paths! {
    /// kubeconfigs, certificates and manifests.
    kubernetes = "etc/kubernetes";
    /// The CAs and the certificates of the control plane.
    pki = "etc/kubernetes/pki";
    /// The CA by which all verify the apiserver.
    ca = "etc/kubernetes/pki/ca.crt";
    /// The administrator's kubeconfig.
    admin = "etc/kubernetes/admin.conf";
    /// The kubeconfig of controllers and scheduler.
    controllers = "etc/kubernetes/controller-manager.conf";
    /// The kubeconfig of the DNS server.
    dns = "etc/kubernetes/dns.conf";
    /// The node's kubeconfig.
    kubelet = "etc/kubernetes/kubelet.conf";
    /// With what a node requests its first certificate.
    bootstrap = "etc/kubernetes/bootstrap-kubelet.conf";
    /// Manifests of static pods.
    manifests = "etc/kubernetes/manifests";
    /// The command lines of the services, as files of environment for systemd.
    environment = "etc/longshore";
    /// What this project keeps.
    state = "var/lib/longshore";
    /// What was set up; its absence says that nothing was.
    settings = "var/lib/longshore/cluster.json";
    /// Volumes of the default StorageClass.
    volumes = "var/lib/longshore/volumes";
    /// The KubeProxyConfiguration.
    proxy_config = "var/lib/longshore/kube-proxy.yaml";
    /// The node's `--root-dir`.
    kubelet_root = "var/lib/kubelet";
    /// The KubeletConfiguration.
    kubelet_config = "var/lib/kubelet/config.yaml";
    /// The node's certificates.
    kubelet_pki = "var/lib/kubelet/pki";
    /// The addresses that CNI's host-local has given out.
    cni_addresses = "var/lib/cni/networks";
    /// Logs of services that run in the foreground.
    logs = "var/log/longshore";
    /// Logs of pods.
    pod_logs = "var/log/pods";
    /// The lock of the commands, with the process that holds it.
    lock = "run/longshore/lock";
    /// What is known of sandboxes on a Docker Engine.
    checkpoints = "var/lib/cri-dockerd";
    /// Results of CNI's plugins, where it is the node that runs these.
    cni_results = "var/lib/cni/cache";
    /// CNI's configurations.
    cni = "etc/cni/net.d";
}

impl Paths {
    /// Everything under `root`.
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether this is the machine itself, so that systemd's units are about it.
    pub fn is_machine(&self) -> bool {
        self.root == Path::new("/")
    }
}
