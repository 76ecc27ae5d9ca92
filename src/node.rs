//! Starts and stops a node.

mod environment;
mod error;
mod parts;
mod task_set;
#[cfg(test)]
mod tests;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::SignedDuration;
use longshore_base::systemd::{self, Watchdog};
use longshore_base::version::KUBERNETES_VERSION;
use longshore_client::certificates;
use longshore_client::events::{EventType, PodEventRecorder, node_reference};
use longshore_client::objects::Objects;
use longshore_client::pod_certificates::PodCertificates;
use longshore_config::Config;
use longshore_credential_provider::CredentialProviders;
use longshore_devices::Devices;
use longshore_devices::pod_resources::PodResources;
use longshore_kube_proxy as proxy;
use longshore_logs::rotation;
use longshore_machine::Machine;
use longshore_machine::process::set_oom_score;
use longshore_machine::projects::ProjectFiles;
use longshore_plugins as plugins;
use longshore_pods_api::PodsApi;
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_podstate::sources::Source;
use longshore_podstate::{desired, observe, sources};
use longshore_resources as resources;
use longshore_resources::managers::Managers;
use longshore_resources::stats::{Stats, SystemNames};
use longshore_runtime as runtime;
use longshore_runtime::handlers::Handlers;
use longshore_runtime::probes::Probes;
use longshore_runtime::services::Services;
use longshore_runtime::{HostIps, Parts, PodRuntime, Settings, host_ips};
use longshore_server::{Host, NodeMetrics, Server, StatsEndpoints};
use longshore_telemetry::Tracer;
use longshore_volumes::Volumes;
use longshore_volumes::plugins::{CsiNode, CsiPlugins, Drivers};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::environment::{Environment, Real};
pub use self::error::Error;
use self::parts::{
    SetupEvents, acquire_lock, claim_gates, clear_network_leftovers, device_settings, known_pods,
    pod_gates, release_stale_devices, report_manifest_errors, resize_rules, restart_delays,
    watch_manifests,
};
pub use self::task_set::TaskError;
use self::task_set::TaskSet;
use crate::admission::{self, Admission};
use crate::allocation::Allocation;
use crate::dashboard;
use crate::device_plugins::DevicePlugins;
use crate::gc;
use crate::health;
use crate::iptables;
use crate::log_rotation;
use crate::oom;
use crate::pod_cidr;
use crate::pod_resources::NodeResources;
use crate::pods_api::NodePods;
use crate::registration::{self, Registration, Startup};
use crate::run_once::{self, ManifestErrors};
use crate::shutdown;
use crate::status::StatusWriter;
use crate::terminator::PodTerminator;
use crate::view::View;
use crate::worker::{self, Limiter, Pool, WorkerContext};
use crate::{allocation, eviction};

/// Capacity of the channels between tasks.
const CHANNEL: usize = 64;
/// How long pending writes may take when the node stops.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs a node until `stop` is cancelled, or once. Containers go on running after it.
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), Error> {
    run_in(&Real, config, stop).await
}

async fn run_in(
    environment: &impl Environment,
    config: Config,
    stop: CancellationToken,
) -> Result<(), Error> {
    let mut setup = SetupEvents::default();
    let outcome = run_with(environment, config, stop, &mut setup).await;
    if let Err(error) = &outcome {
        setup.record(error).await;
    }
    outcome
}

async fn run_with(
    environment: &impl Environment,
    config: Config,
    stop: CancellationToken,
    setup: &mut SetupEvents,
) -> Result<(), Error> {
    let config = Arc::new(config);
    let watchdog = Watchdog::from_env()?;
    let mut tasks = TaskSet::new(stop.clone());
    let Some(_lock) = acquire_lock(&config, &mut tasks).await? else { return Ok(()) };
    let metrics = NodeMetrics::new(&config.node_name);
    config.gates.register_metrics(&metrics.node);
    let registry = &metrics.node;

    let tracer = match parts::tracing_settings(&config) {
        None => Tracer::default(),
        Some(settings) => {
            let (tracer, exporter) = Tracer::new(&settings)?;
            // returns when nothing makes spans any more
            tasks.spawn_finite("export of traces", exporter.run());
            tracer
        }
    };

    // the runtime: one without CRI v1 is an error, one that is not reachable is waited for
    let runtime = environment.runtime(&config, registry, tracer.clone(), &mut tasks).await?;
    match runtime.negotiate().await {
        Ok(version) => {
            info!(name = version.runtime_name, version = version.runtime_version, "runtime")
        }
        Err(error @ longshore_cri::Error::NoV1 { .. }) => return Err(error.into()),
        Err(error) => warn!(%error, "the container runtime is not reachable yet"),
    }

    let credential_providers = CredentialProviders::load(&config, registry)?;

    // the apiserver, if there is one, and the recorder of events
    let once = config.kubelet.run_once;
    let api = match once {
        true => None,
        false => environment.api(&config, &metrics, &mut tasks)?,
    };
    let connect = async |qps, burst| match &api {
        Some(connect) => connect(qps, burst).await.map(Some),
        None => Ok(None),
    };
    let kubelet = &config.kubelet;
    let client = connect(kubelet.kube_api_qps, kubelet.kube_api_burst).await?;
    if client.is_none() {
        info!("no kubeconfig: standalone mode");
    }
    // Events have a rate limit of their own.
    let events = connect(kubelet.event_record_qps, kubelet.event_burst).await?;
    let recorder = setup.start(events, &config.node_name);
    make_dir(&config.root_dir)?;
    environment.prepare_machine(&config)?;

    // cgroups, and the limits of the daemon
    let machine = Machine::read();
    let (cgroups, enforcement) =
        resources::start(&config, &machine, &runtime, &recorder, registry).await?;
    // returns when the limits are set
    tasks.spawn_finite("limits of all pods", enforcement);
    set_oom_score(config.kubelet.oom_score_adj);
    limit_open_files(config.kubelet.max_open_files);
    if config.kubelet.make_iptables_util_chains && !once {
        // returns where there is no iptables
        tasks.spawn_finite("iptables chains", iptables::keep());
    }
    let addresses = environment.addresses(&config).await;
    let (host_ips_sender, host_ips) = HostIps::follow(&addresses);
    let settings = Arc::new(Settings::new(&config, &machine, host_ips, cgroups.clone())?);
    if let Some(why) = runtime::exceeded_resolv_conf_limit(&settings) {
        let node = node_reference(&config.node_name);
        recorder.event(node, EventType::Warning, "CheckLimitsForResolvConf", &why);
    }
    for dir in [settings.root_dir.join("pods"), settings.pod_logs_dir.clone()] {
        make_dir(&dir)?;
    }

    // pod sources, merged into the desired pods
    let (updates, merged) = mpsc::channel(CHANNEL);
    let (changes, changed) = mpsc::channel(CHANNEL);
    let mut sources = Vec::new();
    if client.is_some() {
        sources.push(Source::Api);
    }
    let manifest_errors = ManifestErrors::default();
    let mut report = report_manifest_errors(recorder.clone(), config.node_name.clone());
    if once {
        report = manifest_errors.record(report);
    }
    sources.extend(watch_manifests(&config, &mut tasks, report, updates.clone()));
    // --runonce ignores the apiserver, and keeps pods that may come from it.
    let ignored = once.then_some(Source::Api);
    let desired = Desired::new(sources.into_iter().chain(ignored));
    desired.register_metrics(registry);
    tasks.spawn("desired pods", desired.clone().run(merged, changes));

    // objects that pods refer to, and the observed state
    let pod_events = PodEventRecorder::new(recorder.clone());
    let node_object = watch::Sender::new(None);
    let certificates = client.clone().filter(|_| config.gates.enabled("PodCertificateRequest"));
    let certificates = certificates.map(|client| {
        let (name, node) = (&config.node_name, node_object.subscribe());
        PodCertificates::new(client, name, node, pod_events.clone(), registry)
    });
    if let Some(certificates) = certificates.clone() {
        tasks.spawn_restarting("certificates of pods", move || certificates.clone().run());
    }
    let objects = Objects::of(client.clone(), &config, certificates);
    let drivers = Drivers::new(&config.node_name, registry);
    let parts = longshore_volumes::Parts {
        root: settings.root_dir.clone(),
        objects: objects.clone(),
        allocatable: settings.allocatable.clone(),
        pod_events: pod_events.clone(),
        drivers: drivers.clone(),
        node: client.is_some().then(|| node_object.subscribe()),
        claim_poll_interval: config.kubelet.sync_frequency.get(),
        plugin_dir: PathBuf::from(&config.kubelet.volume_plugin_dir),
        node_name: config.node_name.clone(),
        projects: config
            .gates
            .enabled("LocalStorageCapacityIsolationFSQuotaMonitoring")
            .then(|| ProjectFiles::new(Path::new("/etc"), &settings.root_dir)),
    };
    let volumes = Volumes::new(parts, registry);
    let parts = longshore_dra::Parts {
        root: settings.root_dir.clone(),
        node_name: config.node_name.clone(),
        client: client.clone(),
        node: client.is_some().then(|| node_object.subscribe()),
        gates: claim_gates(&config),
    };
    let claims = longshore_dra::Manager::open(parts, registry)?;
    let device_metrics = longshore_devices::Metrics::new(registry);
    let device_settings = device_settings(&config, &settings);
    let devices = Devices::open(device_settings, device_metrics.clone());
    {
        let devices = devices.clone();
        tasks.spawn_restarting("device plugins", move || devices.clone().run());
    }
    if !once {
        let csi_node = CsiNode::new(&config.node_name, client.clone());
        let handlers = plugins::Handlers::default()
            .with(plugins::CSI_PLUGIN, Arc::new(CsiPlugins::new(drivers, csi_node)))
            .with(plugins::DRA_PLUGIN, claims.handler())
            .with(plugins::DEVICE_PLUGIN, Arc::new(DevicePlugins(devices.clone())));
        tasks.spawn("plugins", plugins::run(&settings.root_dir, handlers, registry));
        // returns when they are deleted
        tasks.spawn_finite("ResourceSlices of earlier drivers", claims.clone().wipe_slices());
        // returns when all is unstaged
        tasks.spawn_finite("unused volumes", volumes.clone().unstage_unused());
    }
    let services = match &client {
        Some(client) => {
            let (services, following) = Services::follow(client.clone());
            tasks.spawn("watch of services", following);
            services
        }
        None => Services::none(),
    };
    let observer = Observer::new(runtime.clone(), registry);
    tasks.spawn("relists", observe::run(observer.clone(), stop.clone()));
    let managers = Managers::start(&config, desired.clone(), observer.clone(), registry)?;
    {
        // Both work from the managers' state.
        let managers = managers.clone();
        tasks.spawn_restarting("state of the managers", move || managers.clone().persist_state());
    }
    {
        let (managers, runtime) = (managers.clone(), runtime.clone());
        tasks.spawn_restarting("CPUs of containers", move || {
            managers.clone().reconcile(runtime.clone())
        });
    }
    // returns when it is known which pods are gone
    let stale = release_stale_devices(devices.clone(), desired.clone(), observer.clone());
    tasks.spawn_finite("devices of removed pods", stale);
    let leftovers = clear_network_leftovers(environment.network_leftovers(), observer.clone());
    tasks.spawn_finite("network files of an earlier boot", leftovers);
    let (root_dir, logs_dir) = (&settings.root_dir, &settings.pod_logs_dir);
    let system = SystemNames::new(&config);
    let stats = Stats::new(runtime.clone(), observer.clone(), cgroups, root_dir, logs_dir, system);

    // the node object
    let (feeds, inputs) = registration::channels(volumes.devices().in_use(), devices.capacity());
    let (pressure_sender, pressure) = (feeds.pressure.clone(), inputs.pressure());
    let (storage, shutting_down) = (feeds.storage.clone(), feeds.shutting_down.clone());
    let runtime_health = inputs.runtime();
    tasks.spawn(
        "range of the node's pods",
        pod_cidr::feed(runtime.clone(), kubelet.pod_cidr.clone(), node_object.subscribe()),
    );
    tasks
        .spawn("addresses of the node", follow_addresses(node_object.subscribe(), host_ips_sender));
    let mut api_node = None;
    tasks.spawn("health of the runtime", health::feed(runtime.clone(), observer.clone(), feeds));
    let status = StatusWriter::new(registry);
    let mut drain = JoinSet::new();
    // Lease renewal has a client of its own.
    if let (Some(client), Some(heartbeat)) = (&client, connect(0, 0).await?) {
        let startup = Startup::new(registry);
        let node = node_object.subscribe();
        let mut registration = Registration::new(
            config.clone(),
            client.clone(),
            recorder.clone(),
            inputs,
            startup,
            node_object,
        );
        if devices.is_new() && config.kubelet.register_node {
            registration = registration.reset_extended();
        }
        let api = kube::Api::all(client.clone());
        api_node = Some(admission::ApiNode { node: node.clone(), api });
        if config.kubelet.enable_server && config.kubelet.server_tls_bootstrap {
            let metrics = metrics.certificates.clone();
            let (client, node) = (client.clone(), node.clone());
            let serving = certificates::keep_serving(&config, client, node, metrics)?;
            tasks.spawn("rotation of the serving certificate", serving);
        }
        let name = config.node_name.clone();
        tasks.spawn(
            "watch of pods",
            sources::watch_pods(client.clone(), name, node.clone(), recorder.clone(), updates),
        );
        tasks.spawn("registration", registration.run());
        let name = config.node_name.clone();
        // returns when the object exists
        tasks.spawn_finite("CSINode", CsiNode::initialize(name, client.clone(), storage));
        {
            let (config, node) = (config.clone(), node.clone());
            tasks.spawn_restarting("node lease", move || {
                let (name, lease) =
                    (config.node_name.clone(), config.kubelet.node_lease_duration_seconds);
                registration::renew_lease(heartbeat.clone(), name, lease, node.clone())
            });
        }
        {
            let (desired, client, recorder) = (desired.clone(), client.clone(), recorder.clone());
            tasks.spawn_restarting("mirror pods", move || {
                let (desired, client, recorder) =
                    (desired.clone(), client.clone(), recorder.clone());
                desired::reconcile_mirrors(desired, client, node.clone(), recorder)
            });
        }
        let writes = status.clone().run(client.clone(), desired.clone(), stop.clone());
        drain.spawn(tasks.supervised("status writer", writes));
    }

    // the server, and the pod workers, which start after the first relist
    let handlers = Handlers::new(runtime.clone());
    let (host_ips, probed) = (settings.host_ips.clone(), &metrics.probes);
    let early = config.early_readiness_probes;
    let probes = Probes::new(handlers.clone(), pod_events.clone(), host_ips, early, probed);
    let pods = PodRuntime::new(Parts {
        cri: runtime.clone(),
        observer: observer.clone(),
        objects: objects.clone(),
        services,
        volumes: volumes.clone(),
        credential_providers,
        pod_events: pod_events.clone(),
        handlers,
        managers: managers.clone(),
        devices: devices.clone(),
        claims: claims.clone(),
        settings: settings.clone(),
        metrics: runtime::Metrics::new(registry),
    });
    let terminator = PodTerminator::default();
    let admission = Admission::new(admission::Sources {
        capabilities: admission::capabilities(&config, &runtime).await?,
        own: registration::initial_node(&config),
        api_node,
        pressure,
        shutting_down: shutting_down.subscribe(),
        pod_events: pod_events.clone(),
        terminator: terminator.clone(),
        managers: managers.clone(),
        devices: devices.clone(),
    });
    admission.register_metrics(registry);
    let given = allocation::Parts {
        desired: desired.clone(),
        pod_events: pod_events.clone(),
        admission: admission.clone(),
        rules: resize_rules(&config, &settings),
        gates: pod_gates(&config),
    };
    let allocation = Allocation::open(&settings.root_dir, given, registry)?;
    tasks.spawn("allocation", allocation.clone().run());
    let collectors = gc::collectors(
        &config,
        gc::Parts {
            cri: runtime.clone(),
            observer: observer.clone(),
            desired: desired.clone(),
            status: status.clone(),
            recorder: recorder.clone(),
            pods: pods.clone(),
            metrics: gc::Metrics::new(registry),
        },
    );
    let context = Arc::new(WorkerContext {
        allocation: allocation.clone(),
        runtime: pods,
        observer: observer.clone(),
        status: status.clone(),
        probes,
        volumes: volumes.clone(),
        claims: claims.clone(),
        pod_events,
        settings,
        objects,
        runtime_health,
        restart_delays: restart_delays(&config),
        resync_period: SignedDuration::from_nanos(kubelet.sync_frequency.as_nanos()),
        gates: pod_gates(&config),
        startup_limiter: Limiter::of_starts(),
        stop_limiter: Limiter::of_stops(),
        garbage: collectors.containers.clone(),
        admission,
        devices: devices.clone(),
        metrics: worker::Metrics::new(registry),
        tracer: tracer.clone(),
    });
    if !once {
        let lists_active = config.gates.enabled("KubeletPodResourcesListUseActivePods");
        let sources = NodeResources {
            desired: desired.clone(),
            status: status.clone(),
            managers: managers.clone(),
            claims: claims.clone(),
        };
        let server = PodResources::new(sources, devices, device_metrics, lists_active);
        let root_dir = config.root_dir.clone();
        tasks.spawn_restarting("PodResources API", move || {
            let (server, root_dir) = (server.clone(), root_dir.clone());
            async move { server.run(&root_dir).await }
        });
        let dropped = longshore_pods_api::dropped_events(registry);
        if config.gates.enabled("PodsAPI") {
            let sources = NodePods { desired: desired.clone(), status: status.clone() };
            let server = PodsApi::new(sources, status.events(), dropped);
            let root_dir = config.root_dir.clone();
            tasks.spawn_restarting("Pods API", move || {
                let (server, root_dir) = (server.clone(), root_dir.clone());
                async move { server.run(&root_dir).await }
            });
        }
    }
    let pool = Pool::new(context, desired.clone(), terminator);
    if !once {
        let known = known_pods(desired.clone(), pool.terminator());
        tasks.spawn_restarting("claims of pods that are gone", move || {
            claims.clone().reconcile(known.clone())
        });
        longshore_server::register_provider(registry, &config);
        let endpoints = StatsEndpoints::new(
            &config,
            stats.clone(),
            desired.clone(),
            volumes.clone(),
            runtime.clone(),
        );
        // returns unless the gate CSIVolumeHealth is on
        tasks.spawn_finite("volume conditions", endpoints.clone().watch_volume_conditions());
        let eviction = eviction::Parts {
            desired: desired.clone(),
            observer: observer.clone(),
            terminator: pool.terminator(),
            recorder: recorder.clone(),
            reclaim: Arc::new(collectors.clone()),
            pressure: pressure_sender,
            metrics: eviction::Metrics::new(registry),
        };
        // returns where there are no thresholds and no limits
        tasks.spawn_finite("eviction", eviction::run(config.clone(), stats, eviction));
        let shutdown = shutdown::Parts {
            desired: desired.clone(),
            observer: observer.clone(),
            status: status.clone(),
            terminator: pool.terminator(),
            recorder: recorder.clone(),
            shutting_down,
            metrics: shutdown::Metrics::new(registry),
        };
        // returns where no grace period is configured
        tasks.spawn_finite("graceful shutdown", shutdown::run(config.clone(), shutdown));
        let gc::Collectors { containers, images, .. } = collectors;
        tasks.spawn_restarting("container garbage collection", move || containers.clone().run());
        tasks.spawn_restarting("image garbage collection", move || images.clone().run());
        let (pulse, metrics) = (pool.pulse(), metrics.clone());
        let view =
            View::new(desired.clone(), status.clone(), observer.clone(), pulse, metrics, endpoints);
        let view = Arc::new(view);
        if let Some(watchdog) = watchdog {
            let view = Arc::clone(&view);
            tasks.spawn("systemd watchdog", watchdog.run(move || view.healthy()));
        }
        // returns, with a warning, where the kernel's log cannot be read
        tasks.spawn_finite("OOM kills", oom::watch(recorder.clone(), config.node_name.clone()));
        let policy = rotation::Policy::new(&config);
        {
            let (runtime, observer) = (runtime.clone(), observer.clone());
            tasks.spawn_restarting("log rotation", move || {
                log_rotation::run(runtime.clone(), observer.clone(), policy)
            });
        }
        // token reviews have a rate limit of their own
        let reviews = connect(kubelet.kube_api_qps, kubelet.kube_api_burst).await?;
        let cri = runtime.clone();
        let server = Server::bind(&config, &addresses, reviews.as_ref(), view, runtime).await?;
        tasks.spawn("server", server.run());
        if let Some(address) = config.dashboard {
            let page = dashboard::bind(&config, address, client.as_ref(), cri)?;
            tasks.spawn("dashboard", page);
        }
    }
    tasks.spawn("pod workers", pool.run(changed, stop.clone()));
    if let Some(proxy) = config.proxy.clone().filter(|_| !once) {
        let kubeconfig = config.kubeconfig.clone();
        // returns where there is no kubeconfig; failures and panics are its own to handle
        let running = proxy::beside_kubelet(*proxy, kubeconfig, client.clone());
        tasks.spawn_finite("kube-proxy", running);
    }

    let events_written = setup.complete();
    recorder.event(
        node_reference(&config.node_name),
        EventType::Normal,
        "Starting",
        "Starting kubelet.",
    );
    systemd::notify_ready();
    info!(node = config.node_name, version = KUBERNETES_VERSION, "node started");

    let url = &config.kubelet.static_pod_url;
    let run = async {
        match once {
            true => Ok(run_once::wait(url, &desired, &status, &manifest_errors, &stop).await?),
            false => {
                stop.cancelled().await;
                Ok(())
            }
        }
    };
    let outcome = tokio::select! {
        outcome = run => outcome,
        error = tasks.failed() => Err(error.into()),
    };
    stop.cancel();
    info!("stopping node; containers keep running");
    tasks.join().await;
    allocation.flush().await;
    let flush = async {
        while drain.join_next().await.is_some() {}
        if let Some(written) = events_written {
            let _ = written.finish().await;
        }
    };
    if tokio::time::timeout(DRAIN, flush).await.is_err() {
        warn!("timeout writing the last statuses and events");
    }
    outcome
}

/// Sends the addresses of the node's object, whenever it has some. Never ends.
async fn follow_addresses(
    mut node: watch::Receiver<Option<Arc<Node>>>,
    addresses: watch::Sender<Arc<[String]>>,
) {
    loop {
        let known = node.borrow_and_update().as_deref().map(host_ips::of_node).unwrap_or_default();
        if !known.is_empty() {
            addresses.send_if_modified(|sent| {
                let changed = **sent != *known;
                *sent = known.into();
                changed
            });
        }
        if node.changed().await.is_err() {
            // Nothing follows: there is no apiserver, or the node stops.
            std::future::pending::<()>().await;
        }
    }
}

/// Sets RLIMIT_NOFILE; the hard limit is raised with CAP_SYS_RESOURCE only. 0 keeps the limit.
fn limit_open_files(wanted: i64) {
    let Some(wanted) = u64::try_from(wanted).ok().filter(|wanted| *wanted > 0) else { return };
    let limit = getrlimit(Resource::Nofile);
    let both = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    let soft = limit.maximum.map_or(wanted, |hard| hard.min(wanted));
    let soft = Rlimit { current: Some(soft), maximum: limit.maximum };
    let set = setrlimit(Resource::Nofile, both).or_else(|_| setrlimit(Resource::Nofile, soft));
    if let Err(error) = set {
        warn!(wanted, %error, "cannot set the limit of open files");
    }
}

fn make_dir(path: &Path) -> Result<(), Error> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o750)
        .create(path)
        .map_err(|source| Error::Directory { path: path.to_owned(), source })
}
