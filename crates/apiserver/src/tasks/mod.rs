//! What the apiserver does of its own accord: what a cluster starts with, and forgetting old revisions.

pub(crate) mod addresses;
pub(crate) mod apiservices;
pub(crate) mod bootstrap;
pub(crate) mod compaction;
pub(crate) mod definitions;
pub(crate) mod endpoints;
mod events;
pub(crate) mod flow_control;
pub(crate) mod identity;
pub(crate) mod node_ports;
pub(crate) mod policies;
pub(crate) mod roles;

use std::time::Duration;

use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::status::StatusError;

/// How long a task that ended waits before it is started again.
const RETRY: Duration = Duration::from_secs(1);

/// The name of this machine.
fn hostname() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .unwrap_or_default()
        .to_lowercase()
}

/// Runs a task until `stop`, again whenever it ends. `failure` says in the log what an error means.
async fn keep<F>(stop: CancellationToken, failure: &str, task: impl Fn() -> F)
where
    F: Future<Output = Result<(), StatusError>>,
{
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = task() => ended,
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "{failure}");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    }
}
