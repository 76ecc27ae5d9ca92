//! The cAdvisor API, versions 1.0 to 1.3: `machine`, `containers` (cgroups), `subcontainers` (with
//! descendants) and `docker` (containers of the runtime).
//!
//! Current limitations: only the latest stats are returned, whatever number is requested, as
//! nothing is collected without requests; no events.

mod container;
mod machine;

use std::sync::Arc;

use crate::Refusal;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use longshore_resources::stats::{Detail, Snapshot};
use serde_json::{Map, Value};

use self::container::{Entry, entries};
use super::{StatsEndpoints, json};

const VERSIONS: [&str; 4] = ["v1.0", "v1.1", "v1.2", "v1.3"];

/// Upstream's clients send POST requests with the number of samples, which is ignored.
pub(super) fn routes(endpoints: StatsEndpoints) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/api", get(versions))
        .route("/api/", get(versions))
        .route("/api/{version}/{kind}", get(root).post(root))
        .route("/api/{version}/{kind}/", get(root).post(root))
        .route("/api/{version}/{kind}/{*name}", get(named).post(named))
        .with_state(endpoints)
}

async fn versions() -> String {
    format!("Supported API versions: {}", VERSIONS.join(","))
}

async fn root(
    state: State<StatsEndpoints>,
    Path((version, kind)): Path<(String, String)>,
) -> Result<Response, Refusal> {
    named(state, Path((version, kind, String::new()))).await
}

async fn named(
    State(endpoints): State<StatsEndpoints>,
    Path((version, kind, name)): Path<(String, String, String)>,
) -> Result<Response, Refusal> {
    let not_found = |text: String| Refusal(StatusCode::NOT_FOUND, text);
    if !VERSIONS.contains(&version.as_str()) {
        return Err(not_found(format!("unsupported API version {version:?}")));
    }
    if kind == "machine" {
        let file_systems = endpoints.snapshot(Detail::Everything).await?;
        return json(&machine::machine(&endpoints.shared.facts, &file_systems.devices));
    }
    let of: fn(&Snapshot, &str, &str) -> Option<Value> = match kind.as_str() {
        "containers" => container,
        "subcontainers" => subcontainers,
        "docker" => docker,
        _ => return Err(not_found(format!("unknown request type {kind:?}"))),
    };
    let snapshot: Arc<Snapshot> = endpoints.snapshot(Detail::Everything).await?;
    let image = endpoints.shared.facts.sandbox_image().await;
    let info = of(&snapshot, image, &name);
    json(&info.ok_or_else(|| not_found(format!("unknown container {name:?}")))?)
}

fn path(name: &str) -> String {
    format!("/{}", name.trim_matches('/'))
}

fn container(snapshot: &Snapshot, image: &str, name: &str) -> Option<Value> {
    let (entries, path) = (entries(snapshot, image), path(name));
    let entry = entries.iter().find(|entry| entry.group.path == path)?;
    Some(entry.info(snapshot, &entries))
}

fn subcontainers(snapshot: &Snapshot, image: &str, name: &str) -> Option<Value> {
    let (entries, path) = (entries(snapshot, image), path(name));
    let below = |entry: &&Entry<'_>| entry.is(&path) || entry.is_below(&path);
    let infos: Vec<Value> =
        entries.iter().filter(below).map(|entry| entry.info(snapshot, &entries)).collect();
    (!infos.is_empty()).then_some(Value::Array(infos))
}

/// All containers of the runtime, or the one with that ID.
fn docker(snapshot: &Snapshot, image: &str, name: &str) -> Option<Value> {
    let (entries, id) = (entries(snapshot, image), name.trim_matches('/'));
    let is_it =
        |entry: &&Entry<'_>| entry.run.as_ref().is_some_and(|run| id.is_empty() || run.id == id);
    let infos = entries.iter().filter(is_it);
    let infos: Map<String, Value> =
        infos.map(|entry| (entry.group.path.clone(), entry.info(snapshot, &entries))).collect();
    (id.is_empty() || !infos.is_empty()).then_some(Value::Object(infos))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use longshore_resources::stats::fixture::{any_snapshot, name};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

        /// Finding 1: extreme stats and names, and any request.
        #[test]
        fn extremes_of_stats_api(
            snapshot in any_snapshot(),
            image in name(),
            asked in prop_oneof![Just(String::new()), Just("kubepods/pod0".to_owned()), name()],
        ) {
            let groups = snapshot.groups().count();
            let all = docker(&snapshot, &image, "");
            let runs = all.as_ref().and_then(Value::as_object).map(Map::len);
            prop_assert!(runs.is_some_and(|runs| runs < groups));
            prop_assert!(subcontainers(&snapshot, &image, "").is_some());
            for info in [container, subcontainers, docker].map(|of| of(&snapshot, &image, &asked)) {
                prop_assert!(info.is_none_or(|info| info.to_string().len() <= 1 << 20));
            }
        }
    }
}
