//! Stats endpoints: `/stats/summary`, `/metrics/resource` for metrics-server, `/metrics/cadvisor`,
//! and the cAdvisor API on its own port.
//!
//! With the gate PodAndContainerStatsFromCRI pods and containers are as the runtime reports them, and
//! `/metrics/cadvisor` has its metrics.
//!
//! Otherwise all are written from one [`Snapshot`](longshore_resources::stats::Snapshot), which is cached for
//! ten seconds, or for one second after containers were started or stopped. Nothing is collected
//! without requests, but for the conditions of volumes with the gate CSIVolumeHealth.
//!
//! Current limitations: no accelerator or custom metrics, which upstream does not have any more.

mod api;
mod cadvisor;
mod facts;
mod logs;
mod resource;
mod summary;
mod volumes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use k8s_openapi::api::core::v1::Pod;
use longshore_config::Config;
use longshore_cri::Runtime;
use longshore_metrics::{CONTENT_TYPE, Registry};
use longshore_pod::spec;
use longshore_podstate::desired::Desired;
use longshore_resources::stats::{Ages, Detail, Error, Freshness, RuntimePod, Snapshot, Stats};
use longshore_volumes::Volumes;
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use self::facts::Facts;
use super::Refusal;
use super::compress::compressed;

/// Maximum age of a snapshot after containers were started or stopped.
const CHANGED_MAX_AGE: Duration = Duration::from_secs(1);
/// Maximum ages of a snapshot. Upstream collects at the longer interval.
const AGES: Ages = Ages { same: Duration::from_secs(10), changed: CHANGED_MAX_AGE };
/// Maximum age of disk usage, or less if configured...
const DISK_AGE: Duration = Duration::from_secs(10);
/// ...and the timeout of waiting for it if it is older than configured.
const DISK_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum age of log sizes for metrics.
const LOGS_AGE: Duration = Duration::from_secs(60);

/// The data of the stats endpoints. Cheap to clone.
#[derive(Clone)]
pub struct StatsEndpoints {
    shared: Arc<Shared>,
}

struct Shared {
    stats: Stats,
    desired: Desired,
    volumes: Volumes,
    persistent_volumes: volumes::VolumeStatsCache,
    facts: Facts,
    node_name: String,
    /// The runtime that reports pods and containers (gate PodAndContainerStatsFromCRI).
    reporter: Option<Runtime>,
    /// Freshness of disk usage.
    disks: Freshness,
    /// Whether volume stats are reported.
    reports_volumes: bool,
}

/// Whether the runtime reports pods and containers.
fn reports_pods(config: &Config) -> bool {
    config.gates.enabled("PodAndContainerStatsFromCRI")
}

/// Registers `kubelet_metrics_provider`.
pub fn register_provider(registry: &Registry, config: &Config) {
    let help = "Where the stats of containers are from: 'cadvisor' (cgroups) or 'cri'";
    let provider = if reports_pods(config) { "cri" } else { "cadvisor" };
    registry.gauges("kubelet_metrics_provider", help, ["provider"]).with([provider]).set(1.0);
}

/// What the runtime reports of pods: nothing if it is not asked, or has no such call.
#[derive(Default)]
struct RuntimePods(Option<Arc<Option<Vec<RuntimePod>>>>);

impl RuntimePods {
    fn pods(&self) -> Option<&[RuntimePod]> {
        self.0.as_deref()?.as_deref()
    }
}

impl StatsEndpoints {
    /// Endpoints for the stats of the `desired` pods.
    pub fn new(
        config: &Config,
        stats: Stats,
        desired: Desired,
        volumes: Volumes,
        runtime: Runtime,
    ) -> Self {
        let period = config.kubelet.volume_stats_agg_period.get();
        let reports_volumes = !period.is_zero();
        let acceptable_age = if reports_volumes { period } else { DISK_AGE };
        let shared = Shared {
            stats,
            desired,
            volumes,
            persistent_volumes: volumes::VolumeStatsCache::new(
                config.gates.enabled("CSIVolumeHealth"),
            ),
            reporter: reports_pods(config).then(|| runtime.clone()),
            facts: Facts::read(runtime),
            node_name: config.node_name.clone(),
            disks: Freshness {
                max_age: acceptable_age.min(DISK_AGE),
                acceptable_age,
                timeout: DISK_TIMEOUT,
            },
            reports_volumes,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Records an event about each volume that its driver says to be abnormal, at the interval of
    /// volume stats. Returns if they or the gate CSIVolumeHealth are off; else it never ends.
    pub async fn watch_volume_conditions(self) {
        let Shared { desired, volumes, persistent_volumes, disks, reports_volumes, .. } =
            &*self.shared;
        if !reports_volumes || !persistent_volumes.reports_health {
            return;
        }
        let mut ticks = interval(disks.acceptable_age);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let pods = desired.pods();
            let samples = self.persistent_volumes(&pods).await;
            for pod in &pods {
                for sample in samples.get(spec::uid(pod)).into_iter().flatten() {
                    let condition = sample.reading.stats.condition.as_ref();
                    if let Some(condition) = condition.filter(|condition| condition.abnormal) {
                        volumes.warn_of_condition(pod, &sample.volume, condition);
                    }
                }
            }
        }
    }

    /// Disk metrics of pods: persistent volumes, if enabled, and logs.
    pub(super) async fn disk_metrics(&self) -> String {
        let pods = self.shared.desired.pods();
        let freshness = self.shared.disks;
        let logs = Freshness { max_age: freshness.max_age.max(LOGS_AGE), ..freshness };
        let logs = self.shared.stats.logs(pods.clone(), logs);
        let (volumes, logs) = tokio::join!(self.persistent_volumes(&pods), logs);
        let logs = logs.map(|logs| logs::page(&pods, &logs)).unwrap_or_default();
        volumes::page(&pods, &volumes) + &logs
    }

    /// The persistent volumes of those pods.
    async fn persistent_volumes(
        &self,
        pods: &[Arc<Pod>],
    ) -> HashMap<String, Vec<volumes::VolumeSample>> {
        let Shared { volumes, persistent_volumes, disks, reports_volumes, .. } = &*self.shared;
        match reports_volumes {
            true => persistent_volumes.read(volumes, pods, *disks).await,
            false => HashMap::new(),
        }
    }

    async fn runtime_pods(&self) -> Result<RuntimePods, Error> {
        match self.shared.reporter {
            Some(_) => self
                .shared
                .stats
                .runtime_pods(CHANGED_MAX_AGE)
                .await
                .map(|pods| RuntimePods(Some(pods))),
            None => Ok(RuntimePods::default()),
        }
    }

    async fn snapshot(&self, detail: Detail) -> Result<Arc<Snapshot>, Error> {
        self.shared.stats.snapshot(detail, AGES).await
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}"))
    }
}

/// The stats endpoints of the node's ports, if any.
pub(super) fn routes(endpoints: Option<StatsEndpoints>) -> Router {
    let Some(endpoints) = endpoints else { return Router::new() };
    let metrics = Router::new()
        .route("/metrics/resource", get(serve_resource_metrics))
        .route("/metrics/cadvisor", get(serve_cadvisor_metrics))
        .with_state(endpoints.clone());
    Router::new()
        .route("/stats/summary", get(serve_summary).post(serve_summary))
        .with_state(endpoints)
        .merge(compressed(metrics))
}

/// The endpoints of the cAdvisor port.
pub(super) fn cadvisor_routes(endpoints: StatsEndpoints) -> Router {
    let metrics =
        Router::new().route("/metrics", get(serve_cgroup_metrics)).with_state(endpoints.clone());
    metrics.merge(api::routes(endpoints))
}

async fn serve_summary(
    State(endpoints): State<StatsEndpoints>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut only = query.iter().filter(|(key, _)| key == "only_cpu_and_memory");
    let only = only.next().is_some_and(|(_, value)| value == "true") && only.next().is_none();
    let summary = match only {
        true => summary::cpu_and_memory(&endpoints).await?,
        false => summary::full(&endpoints).await?,
    };
    json(&summary)
}

async fn serve_resource_metrics(State(endpoints): State<StatsEndpoints>) -> Response {
    let read = tokio::try_join!(endpoints.snapshot(Detail::Usage), endpoints.runtime_pods());
    let read =
        read.inspect_err(|error| tracing::warn!(%error, "failed to collect resource metrics"));
    let text = match &read {
        Ok((snapshot, runtime)) => resource::page(snapshot, runtime.pods()),
        Err(_) => resource::failure(),
    };
    ([("content-type", CONTENT_TYPE)], text).into_response()
}

async fn serve_cadvisor_metrics(State(endpoints): State<StatsEndpoints>) -> Response {
    let page = match &endpoints.shared.reporter {
        Some(runtime) => cadvisor::runtime_page(&endpoints, runtime).await.into(),
        None => cadvisor::page(&endpoints).await,
    };
    ([("content-type", CONTENT_TYPE)], page).into_response()
}

/// The cAdvisor port is always of cgroups.
async fn serve_cgroup_metrics(State(endpoints): State<StatsEndpoints>) -> Response {
    ([("content-type", CONTENT_TYPE)], cadvisor::page(&endpoints).await).into_response()
}

fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let text = serde_json::to_vec(value)
        .map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([("content-type", "application/json")], text).into_response())
}
