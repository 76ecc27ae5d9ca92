//! What the service is told: paths, addresses and deadlines.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Settings of the service, with cri-dockerd's defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The engine: `unix:///var/run/docker.sock`.
    pub docker_endpoint: String,
    /// Where checkpoints of sandboxes are kept: `sandbox/ID` below it.
    pub root_dir: PathBuf,
    /// The image of sandboxes. It is pinned.
    pub sandbox_image: String,
    /// The range of the node's pods, until the kubelet says it.
    pub pod_cidr: Option<String>,
    /// Folders of CNI's plugins, searched in this order.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// The folder of CNI's configurations: the first by name is used.
    pub cni_conf_dir: PathBuf,
    /// Where results of CNI's plugins are kept.
    pub cni_cache_dir: PathBuf,
    /// Where exec, attach and port-forward are served.
    pub streaming_address: SocketAddr,
    /// How long a streaming connection may be idle; zero: for ever.
    pub streaming_idle_timeout: Duration,
    /// A pull without progress for so long is ended.
    pub image_pull_progress_deadline: Duration,
    /// How long a request to the engine may take that has no deadline of its own.
    pub request_timeout: Duration,
    /// Whether an event holds how its sandbox and containers stand, and not only whose it is: a caller that takes
    /// events as hints would have the engine asked for nothing.
    pub event_statuses: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            docker_endpoint: "unix:///var/run/docker.sock".to_owned(),
            root_dir: "/var/lib/cri-dockerd".into(),
            sandbox_image: "registry.k8s.io/pause:3.10".to_owned(),
            pod_cidr: None,
            cni_bin_dirs: vec!["/opt/cni/bin".into()],
            cni_conf_dir: "/etc/cni/net.d".into(),
            cni_cache_dir: "/var/lib/cni/cache".into(),
            streaming_address: SocketAddr::from(([127, 0, 0, 1], 0)),
            streaming_idle_timeout: Duration::from_secs(4 * 60 * 60),
            image_pull_progress_deadline: Duration::from_secs(60),
            request_timeout: Duration::from_secs(120),
            event_statuses: true,
        }
    }
}
