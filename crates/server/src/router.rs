//! The routes of each port.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use longshore_config::Config;
use longshore_cri::Runtime;

use super::zpages::{Zpages, zpages};
use super::{
    Host, Refusal, checkpoint, configz, debug, health, logs, metrics, node_logs, pods, stats,
    streaming,
};

/// `/statusz` and `/flagz`.
const ZPAGES: Zpages = Zpages {
    component: "kubelet",
    paths: &["/configz", "/debug", "/flagz", "/healthz", "/metrics"],
};

/// The routes of the read-only port, which are also on the control plane's. Nothing here changes
/// anything or accesses a pod.
pub(super) fn read_only(host: &Arc<dyn Host>) -> Router {
    health::routes(Arc::clone(host))
        .merge(pods::routes(Arc::clone(host)))
        .merge(stats::routes(host.stats_endpoints()))
        .merge(metrics::routes(Arc::clone(host)))
}

/// All routes, for the port with authorization.
pub(super) fn control_plane(config: &Config, host: &Arc<dyn Host>, runtime: Runtime) -> Router {
    let open = read_only(host);
    if !config.kubelet.enable_debugging_handlers {
        return open.merge(disabled());
    }
    open.merge(logs::routes(config, Arc::clone(host)))
        .merge(pods::running_routes(Arc::clone(host)))
        .merge(checkpoint::routes(config, Arc::clone(host), runtime.clone()))
        .merge(streaming::routes(config, Arc::clone(host), runtime))
        .merge(node_logs::routes(&config.kubelet))
        .merge(debug::routes(&config.kubelet))
        .merge(configz::routes(&config.kubelet))
        .merge(zpages(ZPAGES, &config.gates, &config.flags))
}

/// Replaces disabled debugging handlers.
fn disabled() -> Router {
    let refuse = || {
        any(async || {
            Refusal::line(
                StatusCode::METHOD_NOT_ALLOWED,
                "Debug endpoints are disabled.".to_owned(),
            )
        })
    };
    let paths = [
        "run",
        "exec",
        "attach",
        "portForward",
        "containerLogs",
        "runningpods",
        "debug/pprof",
        "logs",
    ];
    paths.iter().fold(Router::new(), |router, path| {
        router.route(&format!("/{path}/"), refuse()).route(&format!("/{path}/{{*rest}}"), refuse())
    })
}
