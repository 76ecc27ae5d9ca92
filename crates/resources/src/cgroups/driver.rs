//! The cgroup driver, which must be the same for the daemon and the runtime.

use longshore_cri::Runtime;
use longshore_cri::v1::CgroupDriver;
use longshore_metrics::Registry;
use serde_json::Value;
use tracing::{debug, info};

/// The cgroup driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Cgroups are created as directories.
    Cgroupfs,
    /// Cgroups are systemd slices and scopes.
    Systemd,
}

impl Driver {
    /// The driver of that name in the config.
    pub fn named(name: &str) -> Self {
        match name {
            "systemd" => Self::Systemd,
            _ => Self::Cgroupfs,
        }
    }

    /// Its name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cgroupfs => "cgroupfs",
            Self::Systemd => "systemd",
        }
    }
}

/// The runtime uses another driver than configured.
#[derive(Debug, thiserror::Error)]
#[error(
    "cgroupDriver: {} is set, but the container runtime uses {}: set cgroupDriver to {}, or \
     SystemdCgroup to {} in the runtime's configuration",
    .configured.name(), .runtime.name(), .runtime.name(), *.configured == Driver::Systemd
)]
pub struct Mismatch {
    /// The configured driver.
    pub configured: Driver,
    /// The runtime's driver.
    pub runtime: Driver,
}

/// The version that requires `RuntimeConfig` of runtimes, as upstream announces it.
const NEEDS_CONFIG: &str = "1.37.0";

/// The driver to use. `RuntimeConfig` of the runtime takes precedence over the config; if it is not
/// implemented, a metric in `registry` reports the loss of support.
pub async fn choose(
    runtime: &Runtime,
    configured: Driver,
    registry: &Registry,
) -> Result<Driver, Mismatch> {
    let response = runtime.runtime_config().await;
    if response.as_ref().is_err_and(longshore_cri::Error::is_unimplemented) {
        let help = "The version of Kubernetes that this runtime is too old for.";
        let losing = registry.gauges("kubelet_cri_losing_support", help, ["version"]);
        losing.with([NEEDS_CONFIG]).set(1.0);
    }
    let response = response.inspect_err(|error| debug!(%error, "RuntimeConfig failed"));
    if let Some(linux) = response.ok().and_then(|config| config.linux) {
        let driver = match linux.cgroup_driver() {
            CgroupDriver::Systemd => Driver::Systemd,
            CgroupDriver::Cgroupfs => Driver::Cgroupfs,
        };
        info!(driver = driver.name(), "using the cgroup driver of the runtime");
        return Ok(driver);
    }
    let info = runtime.status(true).await.ok().and_then(|mut status| status.info.remove("config"));
    match info.as_deref().and_then(of_containerd) {
        Some(runtime) if runtime != configured => Err(Mismatch { configured, runtime }),
        _ => Ok(configured),
    }
}

/// The driver of containerd's default handler, from its status.
fn of_containerd(config: &str) -> Option<Driver> {
    let config: Value = serde_json::from_str(config).ok()?;
    let containerd = config.get("containerd")?;
    let default = containerd.get("defaultRuntimeName")?.as_str()?;
    let options = containerd.get("runtimes")?.get(default)?.get("options")?;
    // An option that is left out is off.
    let systemd = options.get("SystemdCgroup").and_then(Value::as_bool).unwrap_or(false);
    Some(if systemd { Driver::Systemd } else { Driver::Cgroupfs })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cgroup_driver_from_containerd_config() {
        let config = |options: Value| {
            let runtimes = json!({"runc": {"options": options}, "other": {"options": {}}});
            json!({"containerd": {"defaultRuntimeName": "runc", "runtimes": runtimes}}).to_string()
        };
        for (text, expected) in [
            (config(json!({"SystemdCgroup": true})), Some(Driver::Systemd)),
            (config(json!({"SystemdCgroup": false})), Some(Driver::Cgroupfs)),
            (config(json!({"BinaryName": ""})), Some(Driver::Cgroupfs)),
            (config(Value::Null), Some(Driver::Cgroupfs)),
            ("{}".to_owned(), None),
            ("what".to_owned(), None),
        ] {
            assert_eq!(of_containerd(&text), expected, "{text}");
        }
    }

    #[test]
    fn cgroup_driver_mismatch_error() {
        let text = Mismatch { configured: Driver::Systemd, runtime: Driver::Cgroupfs }.to_string();
        for part in
            ["cgroupDriver: systemd", "set cgroupDriver to cgroupfs", "SystemdCgroup to true"]
        {
            assert!(text.contains(part), "{text}");
        }
    }
}
