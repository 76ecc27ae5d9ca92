//! The eviction manager: under memory, disk or PID pressure it reports node conditions, reclaims
//! node-level resources ([`Reclaim`]), and evicts pods, one at a time. The rules are in
//! [`longshore_pod`], statistics come from `stats`, and workers terminate their pods.
//!
//! Signals are sampled the more often the nearer they are to a threshold, and on notifications of the
//! kernel about memory pressure. Under pressure they are sampled every second; upstream's interval is
//! ten seconds.
//!
//! As upstream, taints are left to the node lifecycle controller.

mod evictor;
mod limits;
mod metrics;
mod notifier;
mod reclaimer;
mod sampler;
mod statistics;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_config::Config;
use longshore_pod::eviction::{NodePressure, Tracker, ineffective_soft_thresholds};
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_resources::stats::Stats;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use self::evictor::Evictor;
use self::reclaimer::{Outcome, Reclaimer, Shortage};
use self::sampler::SignalSampler;
use self::statistics::Statistics;
use crate::terminator::PodTerminator;

pub use self::metrics::Metrics;

/// Pressure conditions of the node.
pub type Pressure = watch::Receiver<NodePressure>;

/// Sampling interval under pressure.
const PRESSURE_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after an eviction, until freed resources are visible.
const SETTLE: Duration = Duration::from_secs(1);
/// Delay after an attempt that could not reclaim anything.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Reclaims node-level resources before pods are evicted; implemented by garbage collection.
pub trait Reclaim: Send + Sync {
    /// Removes all dead containers.
    fn dead_containers(&self) -> BoxFuture<'_, ()>;
    /// Removes all unused images.
    fn unused_images(&self) -> BoxFuture<'_, ()>;
}

/// Reclaims nothing.
impl Reclaim for () {
    fn dead_containers(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    fn unused_images(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// Inputs of eviction.
pub struct Parts {
    /// Desired pods.
    pub desired: Desired,
    /// Observed pods.
    pub observer: Observer,
    /// Terminates pods.
    pub terminator: PodTerminator,
    /// Events about the node.
    pub recorder: Recorder,
    /// Reclaims node-level resources.
    pub reclaim: Arc<dyn Reclaim>,
    /// The pressure conditions are published here.
    pub pressure: watch::Sender<NodePressure>,
    /// Metrics.
    pub metrics: Metrics,
}

/// Runs the eviction manager by these statistics of the machine and its pods. Never ends; drop it to
/// stop.
pub async fn run(config: Arc<Config>, stats: Stats, parts: Parts) {
    for signal in ineffective_soft_thresholds(&config.eviction.thresholds) {
        let signal = signal.as_str();
        warn!(signal, "evictionSoft has no effect for this signal: it is below evictionHard");
    }
    let notify = Notify::new();
    let kernel = config.kubelet.kernel_memcg_notification;
    tokio::join!(
        manage(&config, Arc::new(stats.clone()), parts, &notify),
        notifier::watch(&stats, &config.eviction.thresholds, kernel, &notify),
    );
}

/// Signals are also sampled whenever `notify` is notified.
async fn manage(config: &Config, statistics: Arc<dyn Statistics>, parts: Parts, notify: &Notify) {
    let Parts { desired, observer, terminator, recorder, reclaim, pressure, metrics } = parts;
    let pod_events = PodEventRecorder::new(recorder.clone());
    let evictor =
        Evictor::new(desired, observer, terminator, pod_events, &config.root_dir, metrics.clone());
    let reclaimer = Reclaimer {
        statistics: statistics.clone(),
        evictor: evictor.clone(),
        recorder,
        reclaim,
        node_name: config.node_name.clone(),
        max_pod_grace: config.eviction.max_pod_grace,
        metrics,
    };
    let monitor =
        Monitor { config, statistics: &statistics, reclaimer: &reclaimer, pressure, notify };
    tokio::join!(monitor.watch(), async {
        if config.kubelet.local_storage_capacity_isolation {
            limits::watch(&*statistics, &evictor).await;
        }
    });
}

/// Monitors the thresholds.
struct Monitor<'a> {
    config: &'a Config,
    statistics: &'a Arc<dyn Statistics>,
    reclaimer: &'a Reclaimer,
    pressure: watch::Sender<NodePressure>,
    notify: &'a Notify,
}

/// An attempt to reclaim resources in progress.
struct Attempt {
    is_hard: bool,
    work: BoxFuture<'static, Outcome>,
}

impl Monitor<'_> {
    async fn watch(&self) {
        let settings = &self.config.eviction;
        if settings.thresholds.is_empty() {
            return;
        }
        let mut sampler = SignalSampler::new(self.statistics.clone(), &settings.thresholds);
        let mut tracker = Tracker::new(settings.thresholds.clone(), settings.transition);
        let mut layout = None;
        let mut attempt: Option<Attempt> = None;
        let mut paused_until = Instant::now();
        loop {
            let begun = Instant::now();
            sampler.sample().await;
            if layout != sampler.layout() {
                layout = sampler.layout();
                let adapted = layout.map(|layout| layout.adapt(&settings.thresholds));
                adapted.into_iter().for_each(|adapted| tracker.adapt(adapted));
            }
            let observations = sampler.observations();
            let finding = tracker.evaluate(observations, Instant::now().into_std());
            self.set_pressure(finding.pressure);
            if let Some(worst) = finding.due.first() {
                let idle = attempt.is_none() && begun >= paused_until;
                // A hard threshold takes precedence over the grace period of a soft eviction.
                let hurry = worst.is_hard() && attempt.as_ref().is_some_and(|now| !now.is_hard);
                if idle || hurry {
                    let (due, observations) = (finding.due.clone(), observations.clone());
                    let shortage = Shortage { begun, due, observations, layout };
                    let work = self.reclaimer.clone().attempt(shortage, tracker.clone());
                    attempt = Some(Attempt { is_hard: worst.is_hard(), work: work.boxed() });
                }
            }
            let interval = sampler.pause(tracker.thresholds(), PRESSURE_INTERVAL);
            let pause = finding.next.map_or(interval, |next| interval.min(next));
            let done = async {
                match &mut attempt {
                    Some(attempt) => (&mut attempt.work).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.notify.notified() => {}
                outcome = done => {
                    attempt = None;
                    let pause = match outcome {
                        Outcome::Relieved => SETTLE,
                        Outcome::Nothing => RETRY_INTERVAL,
                    };
                    paused_until = Instant::now().checked_add(pause).unwrap_or(paused_until);
                }
            }
        }
    }

    fn set_pressure(&self, pressure: NodePressure) {
        let changed = self.pressure.send_if_modified(|known| {
            let before = std::mem::replace(known, pressure);
            before != pressure
        });
        if changed {
            let NodePressure { memory, disk, pid } = pressure;
            info!(memory, disk, pid, "node pressure conditions changed");
        }
    }
}
