//! What the machine and its pods use, as others ask for it: `/stats/summary` for people and
//! autoscalers, `/metrics/resource` for metrics-server, `/metrics/cadvisor` for dashboards, and the
//! interface of cAdvisor itself on a port of its own.
//!
//! All are written from one [`Snapshot`](longshore_resources::stats::Snapshot), which those who ask within ten
//! seconds share, or within one when something was started or ended. Nothing is measured while nobody
//! asks.
//!
//! Current limitations: no figures of accelerators and of applications' own metrics, which upstream
//! has no source for any more; pages are not compressed.

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
use longshore_metrics::CONTENT_TYPE;
use longshore_podstate::desired::Desired;
use longshore_resources::stats::{Ages, Detail, Error, Freshness, Snapshot, Stats};
use longshore_volumes::Volumes;
use serde::Serialize;

use self::facts::Facts;
use super::Refusal;

/// Who asks within this time after another gets the same...
const FRESH: Duration = Duration::from_secs(1);
/// ...and within this as long as the same runs on the node. Upstream reads that seldom whoever asks.
const AGES: Ages = Ages { same: Duration::from_secs(10), changed: FRESH };
/// What is known of disks is found out again after this, or sooner if the config wants it...
const DISK_AGE: Duration = Duration::from_secs(10);
/// ...and an answer waits so long for it if what is known is older than the config wants.
const DISK_PATIENCE: Duration = Duration::from_millis(100);
/// Logs are counted again after this, where nothing else of the disk is asked for.
const LOGS_AGE: Duration = Duration::from_secs(60);

/// Handle to all that is told. Cheap to clone.
#[derive(Clone)]
pub struct StatsEndpoints {
    shared: Arc<Shared>,
}

struct Shared {
    stats: Stats,
    desired: Desired,
    volumes: Volumes,
    lasting: volumes::Known,
    facts: Facts,
    node_name: String,
    /// How old what is told of disks may be.
    disks: Freshness,
    /// Whether volumes are told of.
    tells_volumes: bool,
}

impl StatsEndpoints {
    /// What `stats` measures, of the pods that are `desired`.
    pub fn new(
        config: &Config,
        stats: Stats,
        desired: Desired,
        volumes: Volumes,
        runtime: Runtime,
    ) -> Self {
        let period = config.kubelet.volume_stats_agg_period.get();
        let tells_volumes = !period.is_zero();
        let good = if tells_volumes { period } else { DISK_AGE };
        let shared = Shared {
            stats,
            desired,
            volumes,
            lasting: volumes::Known::new(config.gates.enabled("CSIVolumeHealth")),
            facts: Facts::read(runtime),
            node_name: config.node_name.clone(),
            disks: Freshness { renewed: good.min(DISK_AGE), good, patience: DISK_PATIENCE },
            tells_volumes,
        };
        Self { shared: Arc::new(shared) }
    }

    /// The metrics of what pods have on disks: volumes that outlive them, if they are told of, and
    /// logs.
    pub(super) async fn disk_metrics(&self) -> String {
        let pods = self.shared.desired.pods();
        let terms = self.shared.disks;
        let logs = Freshness { renewed: terms.renewed.max(LOGS_AGE), ..terms };
        let logs = self.shared.stats.logs(pods.clone(), logs);
        let (volumes, logs) = tokio::join!(self.lasting(&pods), logs);
        let logs = logs.map(|logs| logs::page(&pods, &logs)).unwrap_or_default();
        volumes::page(&pods, &volumes) + &logs
    }

    /// The volumes of those pods that outlive them.
    async fn lasting(&self, pods: &[Arc<Pod>]) -> HashMap<String, Vec<volumes::Told>> {
        let Shared { volumes, lasting, disks, tells_volumes, .. } = &*self.shared;
        match tells_volumes {
            true => lasting.read(volumes, pods, *disks).await,
            false => HashMap::new(),
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

/// The endpoints of the node's own ports; none without figures.
pub(super) fn routes(figures: Option<StatsEndpoints>) -> Router {
    let Some(figures) = figures else { return Router::new() };
    Router::new()
        .route("/stats/summary", get(tell_summary).post(tell_summary))
        .route("/metrics/resource", get(tell_resource))
        .route("/metrics/cadvisor", get(tell_cadvisor))
        .with_state(figures)
}

/// The endpoints of the port of cAdvisor.
pub(super) fn cadvisor_routes(figures: StatsEndpoints) -> Router {
    let metrics = Router::new().route("/metrics", get(tell_cadvisor)).with_state(figures.clone());
    metrics.merge(api::routes(figures))
}

async fn tell_summary(
    State(figures): State<StatsEndpoints>,
    Query(query): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut only = query.iter().filter(|(key, _)| key == "only_cpu_and_memory");
    let only = only.next().is_some_and(|(_, value)| value == "true") && only.next().is_none();
    let summary = match only {
        true => summary::brief(&figures).await?,
        false => summary::full(&figures).await?,
    };
    json(&summary)
}

async fn tell_resource(State(figures): State<StatsEndpoints>) -> Response {
    let snapshot = figures.snapshot(Detail::Usage).await;
    let snapshot = snapshot.inspect_err(|error| tracing::warn!(%error, "no figures of resources"));
    let text = resource::page(snapshot.ok().as_deref());
    ([("content-type", CONTENT_TYPE)], text).into_response()
}

async fn tell_cadvisor(State(figures): State<StatsEndpoints>) -> Response {
    let page = cadvisor::page(&figures).await;
    ([("content-type", CONTENT_TYPE)], page).into_response()
}

fn json(value: &impl Serialize) -> Result<Response, Refusal> {
    let text = serde_json::to_vec(value)
        .map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    Ok(([("content-type", "application/json")], text).into_response())
}
