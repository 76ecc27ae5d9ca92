//! A containerd of the host's own: its configuration, for the line that is installed, and CNI.
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cgroup::CgroupDriver;
use crate::command::run_split;
use crate::error::{AtPath, Error, Result};
use crate::image::PAUSE;
use crate::net::BRIDGE;
use crate::slot::Names;

/// Where distributions (Debian first) and upstream put the CNI plugins.
const CNI_FOLDERS: [&str; 3] = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"];

/// Which configuration language the installed containerd speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// 1.6 and 1.7: `version = 2`, one CRI plugin.
    One,
    /// 2.x: `version = 3`, the CRI plugin in three.
    Two,
}

impl Line {
    pub(crate) fn installed() -> Result<Self> {
        let answer = run_split("containerd", "--version")?;
        Self::parse(&answer).ok_or_else(|| {
            Error::Machine(format!(
                "containerd --version says {:?}: want 1.6 or later",
                answer.trim()
            ))
        })
    }

    /// From `containerd <package> <version> <revision>`.
    fn parse(answer: &str) -> Option<Self> {
        let version = answer.split_whitespace().nth(2)?.trim_start_matches('v');
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        match (parts.next()??, parts.next()??) {
            (1, 6..) => Some(Self::One),
            (2.., _) => Some(Self::Two),
            _ => None,
        }
    }
}

/// Files of a host's containerd, all under the host's directory.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub(crate) config: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) root: PathBuf,
    pub(crate) state: PathBuf,
    runc: PathBuf,
    pub(crate) cni: PathBuf,
    ipam: PathBuf,
    registries: PathBuf,
    /// Descriptions of CDI devices.
    cdi: PathBuf,
}

impl Layout {
    pub(crate) fn under(dir: &Path) -> Self {
        let dir = dir.join("containerd");
        Self {
            config: dir.join("config.toml"),
            socket: dir.join("containerd.sock"),
            root: dir.join("root"),
            state: dir.join("state"),
            runc: dir.join("runc"),
            cni: dir.join("cni"),
            ipam: dir.join("ipam"),
            registries: dir.join("registries"),
            cdi: dir.join("cdi"),
        }
    }
}

/// The folder of the CNI plugins.
pub(crate) fn cni_plugins() -> Result<&'static str> {
    let plugins = CNI_FOLDERS.into_iter().find(|dir| Path::new(dir).join("bridge").exists());
    plugins.ok_or_else(|| Error::Machine(format!("no CNI plugins in {}", CNI_FOLDERS.join(", "))))
}

/// Writes the configuration of containerd and of the pod network.
pub(crate) fn configure(names: Names, layout: &Layout) -> Result<()> {
    let plugins = cni_plugins()?;
    fs::create_dir_all(&layout.cni).at(&layout.cni)?;
    let network = layout.cni.join("10-longshore.conflist");
    fs::write(&network, network_config(names, layout)).at(&network)?;
    let restrict_oom = !may_lower_oom_score();
    let driver = CgroupDriver::of_tests();
    let config = config(Line::installed()?, layout, plugins, restrict_oom, driver);
    fs::write(&layout.config, config).at(&layout.config)
}

/// Lets containerd, from the next pull on, speak plain HTTP to the registry `address` alone.
pub(crate) fn allow_plain_http(layout: &Layout, address: SocketAddr) -> Result<()> {
    let dir = layout.registries.join(address.to_string());
    fs::create_dir_all(&dir).at(&dir)?;
    let hosts = dir.join("hosts.toml");
    let text = format!(
        r#"server = "http://{address}"

[host."http://{address}"]
capabilities = ["pull", "resolve"]
"#
    );
    fs::write(&hosts, text).at(&hosts)
}

/// Describes CDI devices to containerd, if it knows of them. Returns whether it does.
pub(crate) fn describe_devices(layout: &Layout, description: &serde_json::Value) -> Result<bool> {
    if Line::installed()? == Line::One {
        return Ok(false);
    }
    fs::create_dir_all(&layout.cdi).at(&layout.cdi)?;
    let file = layout.cdi.join("devices.json");
    fs::write(&file, description.to_string()).at(&file)?;
    Ok(true)
}

fn config(
    line: Line,
    layout: &Layout,
    plugins: &str,
    restrict_oom: bool,
    driver: CgroupDriver,
) -> String {
    let Layout { socket, root, state, runc, cni, registries, cdi, .. } = layout;
    let (socket, root, state) = (socket.display(), root.display(), state.display());
    let (runc, cni, registries) = (runc.display(), cni.display(), registries.display());
    let cdi = cdi.display();
    let version = match line {
        Line::One => 2,
        Line::Two => 3,
    };
    // `opt` would make a folder /opt/containerd. Pod network namespaces belong under the host's
    // own state, where they are distinct from another runtime's.
    let common = format!(
        r#"version = {version}
root = "{root}"
state = "{state}"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
address = "{socket}"
"#
    );
    let options = format!(
        r#"runtime_type = "io.containerd.runc.v2"
[{{}}.containerd.runtimes.runc.options]
Root = "{runc}"
SystemdCgroup = {}
"#,
        driver == CgroupDriver::Systemd
    );
    match line {
        Line::One => {
            let cri = r#"plugins."io.containerd.grpc.v1.cri""#;
            let options = options.replace("{}", cri);
            format!(
                r#"{common}
[{cri}]
sandbox_image = "{PAUSE}"
restrict_oom_score_adj = {restrict_oom}
netns_mounts_under_state_dir = true
stream_server_address = "127.0.0.1"

[{cri}.cni]
bin_dir = "{plugins}"
conf_dir = "{cni}"

[{cri}.registry]
config_path = "{registries}"

[{cri}.containerd.runtimes.runc]
{options}"#
            )
        }
        Line::Two => {
            let runtime = r#"plugins."io.containerd.cri.v1.runtime""#;
            let options = options.replace("{}", runtime);
            format!(
                r#"{common}
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = "{registries}"

[plugins."io.containerd.grpc.v1.cri"]
stream_server_address = "127.0.0.1"

[{runtime}]
restrict_oom_score_adj = {restrict_oom}
netns_mounts_under_state_dir = true
enable_cdi = true
cdi_spec_dirs = ["{cdi}"]

[{runtime}.cni]
bin_dir = "{plugins}"
conf_dir = "{cni}"

[{runtime}.containerd.runtimes.runc]
{options}"#
            )
        }
    }
}

fn network_config(names: Names, layout: &Layout) -> String {
    json!({
        "cniVersion": "0.4.0",
        "name": names.name(),
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": true,
                // A pod may reach itself through its own service.
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": names.pod_cidr() }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                    "dataDir": layout.ipam,
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
    .to_string()
}

/// The addresses that host-local has given out, each with the sandbox that holds it.
pub(crate) fn reservations(names: Names, layout: &Layout) -> Vec<(String, String)> {
    let Ok(entries) = fs::read_dir(layout.ipam.join(names.name())) else { return Vec::new() };
    let reserved = entries.flatten().filter_map(|entry| {
        let address = entry.file_name().into_string().ok()?;
        address.parse::<std::net::IpAddr>().ok()?;
        let owner = fs::read_to_string(entry.path()).ok()?;
        Some((address, owner.lines().next()?.trim().to_owned()))
    });
    reserved.collect()
}

/// Whether this process has CAP_SYS_RESOURCE; without it, runc cannot set a container's score
/// below its own and the CRI plugin must be configured to leave it.
fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .is_some_and(|set| set & (1 << CAP_SYS_RESOURCE) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_release_is_parsed() {
        let table = [
            (
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+b1",
                Some(Line::One),
            ),
            (
                "containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437aae3f4da",
                Some(Line::One),
            ),
            ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b719", Some(Line::Two)),
            ("containerd github.com/containerd/containerd v1.5.9 1407cab", None),
            ("containerd", None),
            ("containerd x y", None),
        ];
        for (answer, line) in table {
            assert_eq!(Line::parse(answer), line, "{answer}");
        }
    }

    #[test]
    fn containerd_configs_are_equivalent() {
        let layout = Layout::under(Path::new("/h"));
        for (line, version) in [(Line::One, "version = 2\n"), (Line::Two, "version = 3\n")] {
            let config = config(line, &layout, "/usr/lib/cni", true, CgroupDriver::Systemd);
            assert!(config.starts_with(version), "{config}");
            for needed in [
                "root = \"/h/containerd/root\"",
                "restrict_oom_score_adj = true",
                "netns_mounts_under_state_dir = true",
                "conf_dir = \"/h/containerd/cni\"",
                "bin_dir = \"/usr/lib/cni\"",
                "Root = \"/h/containerd/runc\"",
                "SystemdCgroup = true",
                "config_path = \"/h/containerd/registries\"",
                PAUSE,
            ] {
                assert!(config.contains(needed), "{needed} is missing in {config}");
            }
            assert!(!config.contains("{}"), "{config}");
        }
    }
}
