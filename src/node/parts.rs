//! Parts of a node, as configured.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::SignedDuration;
use kube::Client;
use longshore_client::events::{
    EventType, PodEventRecorder, Recorder, RecorderTask, node_reference,
};
use longshore_cni::Leftovers;
use longshore_config::Config;
use longshore_devices::Devices;
use longshore_pod::backoff::{RESTART_BASE, RESTART_MAX};
use longshore_pod::resize::Rules;
use longshore_pod::spec::{self, Gates};
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_podstate::sources;
use longshore_podstate::sources::{Invalid, Source, Update};
use longshore_resources::managers;
use longshore_runtime::Settings;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{Error, TaskSet};
use crate::lock::Lock;
use crate::terminator::PodTerminator;
use crate::worker::RestartDelays;

/// Waits for the lock file, if one is configured; `None`: stopped meanwhile.
pub(super) async fn acquire_lock(
    config: &Config,
    tasks: &mut TaskSet,
) -> Result<Option<Option<Lock>>, Error> {
    let Some(path) = &config.lock_file else { return Ok(Some(None)) };
    let lock = Lock::acquire(path, &tasks.stop).await?;
    if let Some(lock) = lock.as_ref().filter(|_| config.exit_on_lock_contention) {
        let (contention, stop) = (lock.contention()?, tasks.stop.clone());
        tasks.spawn_finite("lock contention", async move {
            contention.await;
            stop.cancel();
        });
    }
    Ok(lock.map(Some))
}

/// How long the event about a failed start may take.
const SETUP_EVENT: Duration = Duration::from_secs(3);

/// The recorder of events, while the node starts: why it cannot is an event.
#[derive(Default)]
pub(super) struct SetupEvents(Option<(Recorder, RecorderTask, String)>);

impl SetupEvents {
    /// Events are recorded from here on.
    pub(super) fn start(&mut self, client: Option<Client>, node_name: &str) -> Recorder {
        let (recorder, written) = Recorder::start(client, node_name);
        self.0 = Some((recorder.clone(), written, node_name.to_owned()));
        recorder
    }

    /// The node has started. Returns the task that writes events.
    pub(super) fn complete(&mut self) -> Option<RecorderTask> {
        self.0.take().map(|(_, written, _)| written)
    }

    /// The start has failed, or the node after it.
    pub(super) async fn record(self, error: &Error) {
        let Some((recorder, written, node_name)) = self.0 else { return };
        let message = error.to_string();
        let node = node_reference(&node_name);
        recorder.event(node, EventType::Warning, "KubeletSetupFailed", &message);
        let _ = tokio::time::timeout(SETUP_EVENT, written.finish()).await;
    }
}

/// What is traced, and to where; `None`: nothing.
pub(super) fn tracing_settings(config: &Config) -> Option<longshore_telemetry::Settings> {
    let tracing = config.kubelet.tracing.as_ref()?;
    let endpoint = tracing.endpoint.clone().filter(|endpoint| !endpoint.is_empty());
    let rate = tracing.sampling_rate_per_million.unwrap_or_default();
    Some(longshore_telemetry::Settings {
        endpoint: endpoint
            .unwrap_or_else(|| longshore_telemetry::Settings::DEFAULT_ENDPOINT.to_owned()),
        rate_per_million: u32::try_from(rate).unwrap_or_default(),
        service: "kubelet",
        attributes: vec![("host.name", config.node_name.clone())],
    })
}

/// Delays before containers that have failed are started again.
pub(super) fn restart_delays(config: &Config) -> RestartDelays {
    let (base, max) = match config.gates.enabled("ReduceDefaultCrashLoopBackOffDecay") {
        true => (SignedDuration::from_secs(1), SignedDuration::from_secs(60)),
        false => (RESTART_BASE, RESTART_MAX),
    };
    let own = config.kubelet.crash_loop_back_off.max_container_restart_period;
    let max = own.map_or(max, |period| SignedDuration::from_nanos(period.as_nanos()));
    RestartDelays { base: base.min(max), max }
}

/// The feature gates that affect pods.
pub(super) fn pod_gates(config: &Config) -> Gates {
    Gates {
        container_restart_rules: config.gates.enabled("ContainerRestartRules"),
        restart_all_containers: config.gates.enabled("RestartAllContainersOnContainerExits"),
        container_stop_signals: config.gates.enabled("ContainerStopSignals"),
        image_volume_digests: config.gates.enabled("ImageVolumeWithDigest"),
        resize_pods: config.gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
        resize_init_containers: config.gates.enabled("InPlacePodVerticalScalingInitContainers"),
    }
}

/// The feature gates that affect the claims of pods.
pub(super) fn claim_gates(config: &Config) -> longshore_dra::Gates {
    longshore_dra::Gates {
        extended_resources: config.gates.enabled("DRAExtendedResource"),
        health: config.gates.enabled("ResourceHealthStatus"),
        health_messages: config.gates.enabled("ResourceHealthStatusMessage"),
    }
}

/// The UIDs of the pods that there are, desired or not ended yet; `None` before all sources are synced.
pub(super) fn known_pods(
    desired: Desired,
    terminator: PodTerminator,
) -> impl Fn() -> Option<HashSet<String>> + Clone + Send + Sync {
    let synced = desired.synced();
    move || {
        synced.borrow().then(|| {
            let desired = desired.pods();
            let desired = desired.iter().map(|pod| spec::uid(pod).to_owned());
            desired.chain(terminator.workers().keys().cloned()).collect()
        })
    }
}

/// Properties of the node that forbid resizing in place.
pub(super) fn resize_rules(config: &Config, settings: &Settings) -> Rules {
    let (kubelet, enabled) = (&config.kubelet, |gate| config.gates.enabled(gate));
    let limited_swap = kubelet.memory_swap.swap_behavior == "LimitedSwap" && enabled("NodeSwap");
    Rules {
        limited_swap: limited_swap && settings.cgroups.is_unified(),
        static_cpus: kubelet.cpu_manager_policy == "static"
            && !enabled("InPlacePodVerticalScalingExclusiveCPUs"),
        static_memory: kubelet.memory_manager_policy == "Static"
            && !enabled("InPlacePodVerticalScalingExclusiveMemory"),
        pod_level: enabled("InPlacePodLevelResourcesVerticalScaling"),
    }
}

/// The device manager, as configured.
pub(super) fn device_settings(config: &Config, settings: &Settings) -> longshore_devices::Settings {
    longshore_devices::Settings {
        root_dir: settings.root_dir.clone(),
        reports_health: config.gates.enabled("ResourceHealthStatus"),
        waits_for_plugins: config.wait_for_device_plugins,
        numa_nodes: || {
            let nodes = managers::topology().map(|machine| machine.nodes).unwrap_or_default();
            nodes.into_iter().map(|node| node.id).collect()
        },
    }
}

/// Releases the devices of pods that were removed while the daemon did not run.
pub(super) async fn release_stale_devices(devices: Devices, desired: Desired, observer: Observer) {
    let mut synced = desired.synced();
    let mut relisted = observer.relisted();
    let known = async {
        let _ = synced.wait_for(|synced| *synced).await;
        let _ = relisted.wait_for(|at| at.is_some()).await;
    };
    known.await; // an error: the daemon stops
    devices.retain(|uid| {
        desired.has(uid) || observer.pod(uid).is_some_and(|observed| !observed.is_gone())
    });
}

/// Removes what a loss of power has left in the files of CNI: pods of before could not end, and addresses would be taken.
/// Once the runtime has said which sandboxes run.
pub(super) async fn clear_network_leftovers(leftovers: Leftovers, observer: Observer) {
    let mut relisted = observer.relisted();
    if relisted.wait_for(|at| at.is_some()).await.is_err() {
        return; // the daemon stops
    }
    let Some(boot) = boot_time() else {
        return warn!(
            "cannot tell when this machine was booted: files of CNI that a loss of power left stay"
        );
    };
    let pods = observer.all();
    let running = pods.iter().flat_map(|pod| &pod.sandboxes).filter(|sandbox| sandbox.ready);
    let running: HashSet<String> = running.map(|sandbox| sandbox.id.clone()).collect();
    let cleared = tokio::task::spawn_blocking(move || leftovers.clear(boot, &running)).await;
    match cleared {
        Ok(Ok(removed)) => {
            for path in removed {
                info!(path = %path.display(), "Removed a file of CNI that an earlier boot left");
            }
        }
        Ok(Err(error)) => warn!(%error, "Cannot remove files of CNI that an earlier boot left"),
        Err(error) => warn!(%error, "Files of CNI that an earlier boot left stay"),
    }
}

/// Not while the kernel's clocks are unreadable.
fn boot_time() -> Option<SystemTime> {
    let uptime = nix::sys::sysinfo::sysinfo().ok()?.uptime();
    SystemTime::now().checked_sub(uptime)
}

/// Starts the configured sources of static pods.
pub(super) fn watch_manifests(
    config: &Config,
    tasks: &mut TaskSet,
    report: sources::ReportInvalid,
    updates: mpsc::Sender<(Source, Update)>,
) -> Vec<Source> {
    let (kubelet, node_name) = (&config.kubelet, config.node_name.clone());
    let mut opened = Vec::new();
    if !kubelet.static_pod_path.is_empty() {
        opened.push(Source::File);
        let watch = sources::watch_manifests(
            PathBuf::from(&kubelet.static_pod_path),
            node_name.clone(),
            kubelet.file_check_frequency.get(),
            report.clone(),
            updates.clone(),
        );
        tasks.spawn("manifests", watch);
    }
    if !kubelet.static_pod_url.is_empty() {
        opened.push(Source::Http);
        let poll = sources::poll_url(
            kubelet.static_pod_url.clone(),
            kubelet.static_pod_url_header.clone(),
            node_name,
            kubelet.http_check_frequency.get(),
            report,
            updates,
        );
        tasks.spawn("manifests from a URL", poll);
    }
    opened
}

pub(super) fn report_manifest_errors(
    recorder: Recorder,
    node_name: String,
) -> sources::ReportInvalid {
    let pod_events = PodEventRecorder::new(recorder.clone());
    Arc::new(move |Invalid { location, reason, duplicate }| {
        let message = format!("manifest {location}: {reason}");
        warn!("{message}");
        let Some((pod, source)) = duplicate else {
            let node = node_reference(&node_name);
            return recorder.event(node, EventType::Warning, "InvalidManifest", &message);
        };
        let message = format!(
            "Error validating pod {} from {} due to duplicate pod name {:?}, ignoring",
            spec::describe(pod),
            source.as_str(),
            spec::name(pod)
        );
        pod_events.pod(pod, true, "FailedValidation", &message);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_delays_of_the_config() {
        let dir = tempfile::tempdir().unwrap();
        for (gates, max, expected) in [
            ("", "", (10, 300)),
            ("", "crashLoopBackOff: {maxContainerRestartPeriod: 30s}", (10, 30)),
            ("", "crashLoopBackOff: {maxContainerRestartPeriod: 1s}", (1, 1)),
            ("ReduceDefaultCrashLoopBackOffDecay: true", "", (1, 300)),
            (
                "ReduceDefaultCrashLoopBackOffDecay: true, KubeletCrashLoopBackOffMax: false",
                "",
                (1, 60),
            ),
        ] {
            let file = dir.path().join("config.yaml");
            let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
            let text = format!("{head}failCgroupV1: false\nfeatureGates: {{{gates}}}\n{max}\n");
            std::fs::write(&file, text).unwrap();
            let args = ["kubelet".to_owned(), format!("--config={}", file.display())];
            let Ok(longshore_config::Command::Kubelet(config)) = longshore_config::from_args(args)
            else {
                panic!("{gates} {max}");
            };
            let RestartDelays { base, max } = restart_delays(&config);
            assert_eq!((base.as_secs(), max.as_secs()), expected, "{gates}");
        }
    }
}
