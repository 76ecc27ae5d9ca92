//! Parts of a node, as configured.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_config::Config;
use longshore_cri::Runtime;
use longshore_pod::backoff::RESTART_MAX;
use longshore_pod::resize::Rules;
use longshore_pod::spec::Gates;
use longshore_podstate::sources;
use longshore_podstate::sources::{Source, Update};
use longshore_runtime::Settings;
use tokio::sync::mpsc;
use tracing::warn;

use super::{Error, TaskSet};
use crate::lock::Lock;

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

/// The runtime's name in container ids; containerd while it is not reachable.
pub(super) async fn runtime_name(runtime: &Runtime) -> String {
    match runtime.version().await {
        Ok(version) => version.runtime_name,
        Err(_) => "containerd".to_owned(),
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
        host: config.node_name.clone(),
    })
}

pub(super) fn max_restart_delay(config: &Config) -> SignedDuration {
    let own = config.kubelet.crash_loop_back_off.max_container_restart_period;
    own.map_or(RESTART_MAX, |period| SignedDuration::from_nanos(period.as_nanos()))
}

/// The feature gates that affect pods.
pub(super) fn pod_gates(config: &Config) -> Gates {
    Gates {
        container_restart_rules: config.gates.enabled("ContainerRestartRules"),
        restart_all_containers: config.gates.enabled("RestartAllContainersOnContainerExits"),
        container_stop_signals: config.gates.enabled("ContainerStopSignals"),
        resize_pods: config.gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
        resize_init_containers: config.gates.enabled("InPlacePodVerticalScalingInitContainers"),
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
    Arc::new(move |location, reason| {
        let message = format!("manifest {location}: {reason}");
        warn!("{message}");
        recorder.event(node_reference(&node_name), EventType::Warning, "InvalidManifest", &message);
    })
}
