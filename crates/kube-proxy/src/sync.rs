//! The main loop: watches update the engines, each engine is synced at its own frequency, and the
//! results go to health, metrics and events.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::Client;
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_config::ProxyConfig;
use longshore_proxy::apply;
use longshore_proxy::bounded_frequency::{self, Periods, Reason};
use longshore_proxy::config::Machine;
use longshore_proxy::health::{Health, Time};
use longshore_proxy::model::{Tracker, Warning};
use longshore_proxy::proxier::Failed;
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::{info, warn};

use super::Error;
use super::engine::Engine;
use super::health_ports::HealthPorts;
use super::metrics::{Changed, Metrics};
use super::own_node::OwnNode;
use super::server::{self, Port, SharedHealth};
use super::start::{Parts, follow_node};
use super::watches::{self, Listener, Update};

/// The pause after a first failure.
const RETRY: Duration = Duration::from_secs(1);

/// What the tasks share.
struct Proxy<'a> {
    config: &'a ProxyConfig,
    engines: Vec<Engine>,
    machine: Mutex<Machine>,
    node: watch::Receiver<Option<Node>>,
    health: SharedHealth,
    metrics: &'a Metrics,
    recorder: &'a Recorder,
}

/// Works until a port that must be open cannot be, or a part ends.
pub(super) async fn run_proxy(
    config: &Arc<ProxyConfig>,
    metrics: &Metrics,
    client: Client,
    parts: Parts,
    recorder: &Recorder,
) -> Result<(), Error> {
    let (min, max) = config.settings.sync_periods();
    let Parts { node, machine, engines } = parts;
    let (engines, tables): (Vec<_>, Vec<_>) = engines.into_iter().unzip();
    let families = engines.iter().map(Engine::family);
    let health = SharedHealth::new(Health::new(max.saturating_mul(2), families, Time::now()));
    let machine = Mutex::new(machine);
    let proxy = Proxy { config, engines, machine, node, health, metrics, recorder };

    let (listed_services, mut services) = watch::channel(false);
    let (listed_endpoints, mut endpoints) = watch::channel(false);
    let periods = Periods { min, max, retry: RETRY };
    let follow = async {
        // Rules of objects that are not listed yet would be removed.
        let _ = services.wait_for(|listed| *listed).await;
        let _ = endpoints.wait_for(|listed| *listed).await;
        info!("services and endpoints are synced");
        let about = node_reference(&config.node_name);
        recorder.event(about, EventType::Normal, "Starting", "Starting kube-proxy.");
        let syncs = proxy.engines.iter().map(|engine| proxy.follow(engine, periods).boxed());
        let watches = proxy.engines.iter().zip(&tables).map(|(engine, tables)| {
            apply::watch(tables, apply::CANARY, max, || engine.resync()).boxed()
        });
        // None of them returns.
        select_all(syncs.chain(watches)).await;
    };
    tokio::select! {
        error = proxy.serve() => Err(error.into()),
        () = follow => Err(Error::Task("sync of the rules")),
        () = watches::services(client.clone(), &proxy, listed_services).boxed() => {
            Err(Error::Task("watch of services"))
        }
        () = watches::endpoints(client, &proxy, listed_endpoints).boxed() => {
            Err(Error::Task("watch of endpoints"))
        }
        () = proxy.follow_node() => Err(Error::Task("watch of the node")),
    }
}

impl Listener for Proxy<'_> {
    fn service(&self, event: Update<'_>) {
        self.update(Changed::Service, event);
    }

    fn endpoints(&self, event: Update<'_>) {
        self.update(Changed::Endpoints, event);
    }
}

impl Proxy<'_> {
    fn update(&self, what: Changed, event: Update<'_>) {
        let changed = |engine: &&Engine| engine.update(|tracker: &mut Tracker| event(tracker));
        let changed: Vec<_> = self.engines.iter().filter(changed).map(Engine::family).collect();
        if changed.is_empty() {
            return;
        }
        self.health.with(|health, now| {
            changed.iter().for_each(|family| health.queued(*family, now));
        });
        self.metrics.changed(what, changed);
    }

    /// The two ports; ends when one fails for good.
    async fn serve(&self) -> server::Error {
        let settings = &self.config.settings;
        let hard = settings.bind_address_hard_fail;
        let health = server::health_routes(&self.health, self.metrics);
        let metrics = server::metrics_routes(self.config, self.metrics);
        let ports = [
            server::serve(Port::Health, &settings.healthz_bind_address, health, hard).boxed(),
            server::serve(Port::Metrics, &settings.metrics_bind_address, metrics, hard).boxed(),
        ];
        let (error, ..) = select_all(ports).await;
        let reason = match error.what {
            Port::Health => "FailedToStartProxierHealthcheck",
            Port::Metrics => "FailedToStartMetricServer",
        };
        let about = node_reference(&self.config.node_name);
        self.recorder.event(about, EventType::Warning, reason, &error.to_string());
        error
    }

    /// Syncs an engine.
    async fn follow(&self, engine: &Engine, periods: Periods) {
        let ports = Mutex::new(HealthPorts::new(self.health.clone()));
        let sync = |reason| self.sync(engine, &ports, reason).boxed();
        bounded_frequency::run(engine.family().as_str(), periods, engine.changes(), sync).await;
    }

    async fn sync(
        &self,
        engine: &Engine,
        ports: &Mutex<HealthPorts>,
        reason: Reason,
    ) -> Result<(), Failed> {
        self.follow_machine();
        self.metrics.sync_started();
        let synced = match engine.sync(reason).await {
            Ok(synced) => synced,
            Err(failed) => {
                self.metrics.failed(&failed);
                return Err(failed);
            }
        };
        self.metrics.synced(&synced);
        self.health.with(|health, now| health.updated(synced.family, synced.began, now));
        synced.warnings.iter().for_each(|warning| self.warn(warning));
        let settings = {
            let machine = self.machine.lock();
            self.config.settings.settings(synced.family, &machine)
        };
        let errors = {
            let mut ports = ports.lock();
            ports.set(&engine.health_checks(), &settings)
        };
        for error in errors {
            warn!(%error, "cannot serve health checks");
            let about = reference("Service", &error.service.namespace, &error.service.name);
            let reason = "FailedToStartServiceHealthcheck";
            self.recorder.event(about, EventType::Warning, reason, &error.to_string());
        }
        Ok(())
    }

    fn warn(&self, warning: &Warning) {
        let Warning { kind, namespace, name, reason, message } = warning;
        warn!(kind, namespace, name, reason, "{message}");
        let about = reference(kind, namespace, name);
        self.recorder.event(about, EventType::Warning, reason, message);
    }

    /// Has rules follow what the node's object and interfaces say now. Upstream ends its process
    /// when the ranges of pods change; here the next sync is a full one.
    fn follow_machine(&self) {
        let settings = &self.config.settings;
        let own = OwnNode::read(self.node.borrow().as_ref(), &settings.bind_address);
        let mut machine = self.machine.lock();
        let before = machine.clone();
        // A node that is gone comes back: its rules stay as they were.
        if self.node.borrow().is_some() {
            follow_node(&mut machine, settings, &own);
        }
        if machine.pod_cidrs != before.pod_cidrs || machine.node_ips != before.node_ips {
            info!(ips = ?machine.node_ips, pod_cidrs = ?machine.pod_cidrs, "the node has changed");
        }
        for engine in &self.engines {
            engine.set_settings(settings.settings(engine.family(), &machine));
        }
    }

    /// Applies changes of the node's object.
    async fn follow_node(&self) {
        let mut node = self.node.clone();
        node.mark_changed();
        while node.changed().await.is_ok() {
            let zone = {
                let node = node.borrow_and_update();
                self.health.with(|health, _| health.set_node(node.as_ref()));
                OwnNode::read(node.as_ref(), &self.config.settings.bind_address).zone
            };
            for engine in &self.engines {
                engine.update(|tracker| tracker.set_zone(zone.as_deref()));
            }
            self.follow_machine();
        }
    }
}

fn reference(kind: &str, namespace: &str, name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}
