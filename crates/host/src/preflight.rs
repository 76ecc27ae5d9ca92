//! What must hold before anything is written: programs, runtime, ports, space, no other cluster.

use std::path::{Path, PathBuf};

use longshore_cri::Runtime;
use longshore_cri::v1::CgroupDriver;
use longshore_machine::FileSystem;
use serde_json::{Map, Value};

use crate::error::At;
use crate::services::{Port, Service, ports};
use crate::settings::Settings;
use crate::{Error, Paths, Result};

/// What a cluster or node needs at least on the file system of its state.
const SPACE: u64 = 256 << 20;

/// The folder of this program, in which the others are.
pub(crate) fn programs() -> Result<PathBuf> {
    let own = std::env::current_exe()
        .map_err(|error| Error::refused(format!("cannot find this program: {error}")))?;
    Ok(own.parent().unwrap_or(&own).to_owned())
}

/// All programs are there.
pub(crate) fn check_programs(folder: &Path, services: &[Service]) -> Result<()> {
    match services.iter().find(|service| !folder.join(service.program).is_file()) {
        None => Ok(()),
        Some(missing) => Err(Error::refused(format!(
            "{} is not in {}: install it beside this program",
            missing.program,
            folder.display()
        ))),
    }
}

/// No other cluster has left its files here.
pub(crate) fn check_foreign(paths: &Paths) -> Result<()> {
    let known = [paths.ca(), paths.admin(), paths.kubelet(), paths.bootstrap()];
    match known.iter().find(|path| path.exists()) {
        None => Ok(()),
        Some(found) => Err(Error::refused(format!(
            "{} is of another cluster, of kubeadm or the like: leave that first (kubeadm reset)",
            found.display()
        ))),
    }
}

/// Nobody listens where the services will.
pub(crate) fn check_ports(settings: &Settings) -> Result<()> {
    for port in ports(Some(settings)) {
        let Port { address, number, is_udp, user } = port;
        if let Err(error) = port.probe() {
            let flag = if is_udp { 'u' } else { 't' };
            return Err(Error::refused(match error.kind() {
                std::io::ErrorKind::AddrInUse => format!(
                    "port {number}, which the {user} needs, is in use: end the program that has it (ss -l{flag}np 'sport = {number}')"
                ),
                std::io::ErrorKind::AddrNotAvailable => {
                    format!("this machine has no address {address}: see --address")
                }
                _ => format!("port {number}, which the {user} needs: {error}"),
            }));
        }
    }
    Ok(())
}

/// PURE: what is swapped to, by the content of `/proc/swaps`.
pub(crate) fn swaps(text: &str) -> Vec<String> {
    let lines = text.lines().skip(1);
    lines.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

/// PURE: with swap a node does not start, unless its configuration allows that: what all nodes have in
/// common, or what the administrator sets.
pub(crate) fn check_swap(swaps: &[String], common: &Value, own: &Map<String, Value>) -> Result<()> {
    let is_allowed = own.get("failSwapOn").unwrap_or(&common["failSwapOn"]) == &Value::Bool(false);
    if swaps.is_empty() || is_allowed {
        return Ok(());
    }
    Err(Error::refused(format!(
        "swap is on ({}), with which a node does not start: swapoff -a, and take it out of /etc/fstab; or \
         allow it by failSwapOn: false in the file of --node-config",
        swaps.join(", ")
    )))
}

/// There is room for what will be written.
pub(crate) fn check_space(paths: &Paths) -> Result<()> {
    let state = paths.state();
    let free = FileSystem::of_nearest(&state).at("look at", &state)?.available;
    if free >= SPACE {
        return Ok(());
    }
    Err(Error::refused(format!(
        "the file system of {} has {} MiB left, and {} MiB are needed",
        state.display(),
        free >> 20,
        SPACE >> 20
    )))
}

/// The cgroup driver of the runtime, which must answer.
pub(crate) async fn cgroup_driver(
    runtime: &Runtime,
) -> std::result::Result<String, longshore_cri::Error> {
    runtime.version().await?;
    if let Ok(config) = runtime.runtime_config().await
        && let Some(linux) = config.linux
    {
        let is_systemd = linux.cgroup_driver == i32::from(CgroupDriver::Systemd);
        return Ok(if is_systemd { "systemd" } else { "cgroupfs" }.to_owned());
    }
    let status = runtime.status(true).await?;
    Ok(driver_of(status.info.get("config").map(String::as_str)).to_owned())
}

/// PURE: the driver in the configuration that containerd shows of itself before 2.0.
pub(crate) fn driver_of(config: Option<&str>) -> &'static str {
    let config: Value = serde_json::from_str(config.unwrap_or_default()).unwrap_or_default();
    let runtimes = &config["containerd"]["runtimes"];
    let default = config["containerd"]["defaultRuntimeName"].as_str().unwrap_or("runc");
    match runtimes[default]["options"]["SystemdCgroup"].as_bool() {
        Some(true) => "systemd",
        _ => "cgroupfs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preflight_driver_of_an_old_containerd() {
        let config = |systemd: bool| {
            format!(
                r#"{{"containerd":{{"defaultRuntimeName":"runc","runtimes":{{"runc":{{"options":{{"SystemdCgroup":{systemd}}}}}}}}}}}"#
            )
        };
        assert_eq!(driver_of(Some(&config(true))), "systemd");
        assert_eq!(driver_of(Some(&config(false))), "cgroupfs");
        for odd in
            [None, Some(""), Some("{}"), Some("[]"), Some("null"), Some(r#"{"containerd":7}"#)]
        {
            assert_eq!(driver_of(odd), "cgroupfs", "{odd:?}");
        }
    }

    #[test]
    fn preflight_swap_is_refused_unless_it_is_allowed() {
        let header = "Filename\tType\tSize\tUsed\tPriority\n";
        assert!(swaps(header).is_empty() && swaps("").is_empty());
        let found = swaps(&format!("{header}/swapfile file 1048572 0 -2\n"));
        assert_eq!(found, ["/swapfile"]);
        let set = |value: Value| Map::from_iter([("failSwapOn".to_owned(), value)]);
        let (none, allowed) = (Map::new(), set(Value::Bool(false)));
        check_swap(&[], &Value::Null, &none).unwrap();
        check_swap(&found, &Value::Null, &allowed).unwrap();
        check_swap(&found, &Value::Object(allowed.clone()), &none).unwrap();
        for own in [none, set(Value::Bool(true)), set(Value::Null)] {
            let common = if own.is_empty() { Value::Null } else { allowed.clone().into() };
            let error = check_swap(&found, &common, &own).unwrap_err().to_string();
            assert!(error.contains("/swapfile") && error.contains("failSwapOn"), "{error}");
        }
    }

    #[test]
    fn preflight_finds_other_clusters() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path());
        check_foreign(&paths).unwrap();
        check_space(&paths).unwrap();
        std::fs::create_dir_all(paths.kubernetes()).unwrap();
        std::fs::write(paths.kubelet(), "").unwrap();
        let error = check_foreign(&paths).unwrap_err().to_string();
        assert!(error.contains("kubelet.conf") && error.contains("kubeadm reset"), "{error}");
    }
}
