//! Graceful shutdown of the node (`shutdownGracePeriod…`): when logind announces that the machine shuts
//! down, the node is not ready any more, takes no pods, and ends its pods by their priority while an
//! inhibitor lock delays the shutdown.

mod levels;
mod logind;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use longshore_base::retry::Delays;
use longshore_base::{clock, files, panics};
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_config::Config;
use longshore_metrics::{Gauge, Registry};
use longshore_pod::spec::{self, describe};
use longshore_pod::status::Verdict;
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::levels::Level;
use self::logind::{Announcer, Logind};
use crate::status::StatusWriter;
use crate::terminator::{PodTerminator, Termination, released};

/// Reason of pods that are not admitted during a shutdown, and of events about the node.
pub const REASON: &str = "NodeShutdown";
/// Message of pods that are not admitted.
pub const NOT_ADMITTED: &str = "Pod was rejected as the node is shutting down.";
/// Reason and message of pods that are ended.
const ENDED: &str = "Terminated";
const ENDED_MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";
/// Delay before the bus is connected again.
const RECONNECT: Duration = Duration::from_secs(1);
/// Checks of a new delay of logind, and the pauses between them.
const DELAY_CHECKS: u32 = 5;
const DELAY_PAUSE: Duration = Duration::from_millis(100);
/// The file with the times of the last shutdown, as upstream has it.
const STATE_FILE: &str = "graceful_node_shutdown_state";
/// Go's zero time.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// Why shutdowns are not noticed.
#[derive(Debug, thiserror::Error)]
enum Error {
    /// logind cannot be used.
    #[error(transparent)]
    Logind(#[from] logind::Error),
    /// logind does not wait for long enough.
    #[error(
        "node shutdown manager was timed out after {DELAY_CHECKS} attempts waiting for logind \
         InhibitDelayMaxSec to update to {wanted:?} (ShutdownGracePeriod), current value is {found:?}"
    )]
    Delay {
        /// How long the pods may take.
        wanted: Duration,
        /// For how long logind waits.
        found: Duration,
    },
    /// The connection has ended.
    #[error("the connection to the system bus has ended")]
    Ended,
}

/// What a shutdown needs.
pub struct Parts {
    /// Desired pods.
    pub desired: Desired,
    /// Observed pods.
    pub observer: Observer,
    /// Statuses of pods.
    pub status: StatusWriter,
    /// Ends pods.
    pub terminator: PodTerminator,
    /// Events about the node.
    pub recorder: Recorder,
    /// Becomes true when the machine shuts down.
    pub shutting_down: watch::Sender<bool>,
    /// Metrics.
    pub metrics: Metrics,
}

/// Times of the last shutdown, in seconds since 1970; 0: none.
#[derive(Clone, Debug)]
pub struct Metrics {
    start: Gauge,
    end: Gauge,
}

impl Metrics {
    /// Registers the gauges.
    pub fn new(registry: &Registry) -> Self {
        let start = "Last graceful shutdown start time since unix epoch in seconds";
        let end = "Last graceful shutdown end time since unix epoch in seconds";
        Self {
            start: registry.gauge("kubelet_graceful_shutdown_start_time_seconds", start),
            end: registry.gauge("kubelet_graceful_shutdown_end_time_seconds", end),
        }
    }
}

/// The file's content.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Times {
    start_time: String,
    end_time: String,
}

/// Handles shutdowns; returns at once if none is configured. Never ends otherwise; drop it to stop.
pub async fn run(config: Arc<Config>, parts: Parts) {
    let levels = levels::levels(&config);
    if levels.is_empty() {
        return;
    }
    info!(?levels, "the node waits for its pods when the machine shuts down");
    let mut shutdown = Shutdown::new(&config, levels, parts);
    shutdown.restore_metrics().await;
    let mut last_error = String::new();
    loop {
        let watched = async {
            let logind = Logind::connect().await?;
            shutdown.watch(&logind).await
        };
        let error = match watched.await {
            Ok(never) => match never {},
            Err(error) => error.to_string(),
        };
        if error != last_error {
            warn!(error, "cannot watch the node for shutdown events, trying again");
            last_error = error;
        }
        sleep(RECONNECT).await;
    }
}

struct Shutdown {
    node_name: String,
    state_file: PathBuf,
    pods_dir: PathBuf,
    levels: Vec<Level>,
    parts: Parts,
}

impl Shutdown {
    fn new(config: &Config, levels: Vec<Level>, parts: Parts) -> Self {
        Self {
            node_name: config.node_name.clone(),
            state_file: config.root_dir.join(STATE_FILE),
            pods_dir: config.root_dir.join("pods"),
            levels,
            parts,
        }
    }

    /// Watches one connection until it ends.
    async fn watch<A: Announcer>(
        &mut self,
        announcer: &A,
    ) -> Result<std::convert::Infallible, Error> {
        self.ensure_delay(announcer).await?;
        let mut announcements = announcer.announcements().await?;
        let mut lock = Some(announcer.lock().await?);
        while let Some(shuts_down) = announcements.next().await {
            let message = match shuts_down {
                true => "Shutdown manager detected shutdown event",
                false => "Shutdown manager detected shutdown cancellation",
            };
            info!("{message}");
            let node = node_reference(&self.node_name);
            self.parts.recorder.event(node, EventType::Normal, REASON, message);
            self.parts.shutting_down.send_replace(shuts_down);
            match shuts_down {
                true => {
                    self.end_pods().await;
                    info!("all pods have ended, or their time is over: the machine may shut down");
                    drop(lock.take());
                }
                false => lock = Some(announcer.lock().await?),
            }
        }
        Err(Error::Ended)
    }

    /// Has logind wait for as long as all pods may take.
    async fn ensure_delay<A: Announcer>(&self, announcer: &A) -> Result<(), Error> {
        let wanted = levels::total(&self.levels);
        if announcer.delay().await? >= wanted {
            return Ok(());
        }
        announcer.set_delay(wanted).await?;
        let mut pauses = Delays::doubling(DELAY_PAUSE, Duration::MAX);
        let mut found = Duration::ZERO;
        for _ in 0..DELAY_CHECKS {
            found = announcer.delay().await?;
            if found >= wanted {
                return Ok(());
            }
            sleep(pauses.next_delay()).await;
        }
        Err(Error::Delay { wanted, found })
    }

    /// Ends all pods, level by level, lowest first.
    async fn end_pods(&self) {
        let start = clock::now();
        self.store(start, None).await;
        for (level, pods) in levels::by_level(&self.levels, self.active()) {
            if !pods.is_empty() {
                self.end_level(level, &pods).await;
            }
        }
        self.store(start, Some(clock::now())).await;
    }

    /// Pods that have not come to their end.
    fn active(&self) -> Vec<Arc<Pod>> {
        let mut pods = self.parts.desired.pods();
        pods.retain(|pod| self.parts.status.is_active(pod));
        pods
    }

    /// Ends the pods of a level, and waits until they have released their volumes, so that drivers in
    /// higher levels can unmount them.
    async fn end_level(&self, level: Level, pods: &[Arc<Pod>]) {
        for pod in pods {
            let grace = levels::grace(pod, level);
            info!(pod = describe(pod), ?grace, "the node shuts down: ending pod");
            let mut verdict = Verdict::failed(ENDED, ENDED_MESSAGE);
            verdict.disruption = Some(ENDED_MESSAGE.to_owned());
            let termination = Termination { verdict, grace: Some(grace) };
            self.parts.terminator.terminate(spec::uid(pod), termination);
        }
        let ended =
            pods.iter().map(|pod| released(&self.parts.observer, &self.pods_dir, spec::uid(pod)));
        let limit = longshore_base::time::seconds(level.seconds);
        if timeout(limit, join_all(ended)).await.is_err() {
            let (priority, pods) = (level.priority, levels::names(pods));
            warn!(priority, pods, "pods of this level have not ended in time");
        }
    }

    /// Keeps the times, in metrics and in the file.
    async fn store(&self, start: Timestamp, end: Option<Timestamp>) {
        self.show(start, end);
        let text = |at: Option<Timestamp>| at.map_or(NEVER.to_owned(), |at| at.to_string());
        let times = Times { start_time: text(Some(start)), end_time: text(end) };
        let path = self.state_file.clone();
        let written = panics::try_blocking(move || {
            let content = serde_json::to_vec(&times).map_err(std::io::Error::other)?;
            files::replace(&path, &content)
        });
        if let Err(error) = written.await {
            warn!(path = %self.state_file.display(), %error, "times of the shutdown not kept");
        }
    }

    fn show(&self, start: Timestamp, end: Option<Timestamp>) {
        let seconds = |at: Timestamp| at.as_second() as f64;
        self.parts.metrics.start.set(seconds(start));
        self.parts.metrics.end.set(end.map_or(0.0, seconds));
    }

    /// Shows the times of the last shutdown, which the file has.
    async fn restore_metrics(&mut self) {
        let path = self.state_file.clone();
        let Ok(Ok(text)) = panics::blocking(move || std::fs::read(path)).await else { return };
        let Ok(times) = serde_json::from_slice::<Times>(&text) else {
            warn!(path = %self.state_file.display(), "times of the last shutdown are not readable");
            return;
        };
        let parse = |text: &str| text.parse().ok().filter(|_| text != NEVER);
        if let Some(start) = parse(&times.start_time) {
            self.show(start, parse(&times.end_time));
        }
    }
}
