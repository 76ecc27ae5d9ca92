//! What the rooms of a node are made with, as the config says it.

use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_config::Config;
use longshore_cri::{Options, Runtime};
use longshore_metrics::Registry;
use longshore_pod::backoff::RESTART_MAX;
use longshore_pod::resize::Rules;
use longshore_pod::spec::Gates;
use longshore_podstate::sources;
use longshore_podstate::sources::{Source, Update};
use longshore_runtime as runtime;
use longshore_runtime::Settings;
use tokio::sync::mpsc;
use tracing::warn;

use super::{Error, Rooms};
use crate::lock::Lock;

/// Waits for the lock file, if there is to be one; `None`: told to stop meanwhile.
pub(super) async fn hold_lock(
    config: &Config,
    rooms: &mut Rooms,
) -> Result<Option<Option<Lock>>, Error> {
    let Some(path) = &config.lock_file else { return Ok(Some(None)) };
    let lock = Lock::acquire(path, &rooms.stop).await?;
    if let Some(lock) = lock.as_ref().filter(|_| config.exit_on_lock_contention) {
        let (contention, stop) = (lock.contention()?, rooms.stop.clone());
        rooms.open(async move {
            contention.await;
            stop.cancel();
        });
    }
    Ok(lock.map(Some))
}

pub(super) fn connect_runtime(config: &Config, registry: &Registry) -> Result<Runtime, Error> {
    let settings = &config.kubelet;
    let image_endpoint =
        Some(settings.image_service_endpoint.clone()).filter(|path| !path.is_empty());
    Ok(Runtime::new(Options {
        image_endpoint,
        request_timeout: settings.runtime_request_timeout.get(),
        observer: Some(Arc::new(runtime::Calls::new(registry))),
        ..Options::new(settings.container_runtime_endpoint.as_str())
    })?)
}

/// The runtime's name in container ids. One that is away now gets the usual one.
pub(super) async fn runtime_name(runtime: &Runtime) -> String {
    match runtime.version().await {
        Ok(version) => version.runtime_name,
        Err(_) => "containerd".to_owned(),
    }
}

pub(super) fn max_restart_delay(config: &Config) -> SignedDuration {
    let own = config.kubelet.crash_loop_back_off.max_container_restart_period;
    own.map_or(RESTART_MAX, |period| SignedDuration::from_nanos(period.as_nanos()))
}

/// The feature gates that change what is done for pods.
pub(super) fn pod_gates(config: &Config) -> Gates {
    Gates {
        container_restart_rules: config.gates.enabled("ContainerRestartRules"),
        restart_all_containers: config.gates.enabled("RestartAllContainersOnContainerExits"),
        container_stop_signals: config.gates.enabled("ContainerStopSignals"),
        resize_pods: config.gates.enabled("InPlacePodLevelResourcesVerticalScaling"),
        resize_init_containers: config.gates.enabled("InPlacePodVerticalScalingInitContainers"),
    }
}

/// What of the node forbids a resize in place.
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

/// Open the sources of static pods that the config names.
pub(super) fn open_manifests(
    config: &Config,
    rooms: &mut Rooms,
    complain: sources::Complain,
    updates: mpsc::Sender<(Source, Update)>,
) -> Vec<Source> {
    let (kubelet, node_name) = (&config.kubelet, config.node_name.clone());
    let mut opened = Vec::new();
    if !kubelet.static_pod_path.is_empty() {
        opened.push(Source::File);
        rooms.open(sources::watch_manifests(
            PathBuf::from(&kubelet.static_pod_path),
            node_name.clone(),
            kubelet.file_check_frequency.get(),
            complain.clone(),
            updates.clone(),
        ));
    }
    if !kubelet.static_pod_url.is_empty() {
        opened.push(Source::Http);
        rooms.open(sources::poll_url(
            kubelet.static_pod_url.clone(),
            kubelet.static_pod_url_header.clone(),
            node_name,
            kubelet.http_check_frequency.get(),
            complain,
            updates,
        ));
    }
    opened
}

pub(super) fn complain_about_manifests(recorder: Recorder, node_name: String) -> sources::Complain {
    Arc::new(move |place, reason| {
        let message = format!("manifest {place}: {reason}");
        warn!("{message}");
        recorder.event(node_reference(&node_name), EventType::Warning, "InvalidManifest", &message);
    })
}
