//! Keeps the node alive when it runs short of memory, disk or process ids: tells so, makes room
//! where it can, and else ends pods, one at a time. What to do follows from [`longshore_pod`]'s
//! rules, figures come from the `stats` room, and workers end their pods themselves.
//!
//! The nearer a threshold, the more often it is looked at, so that it is met at no surprise; the
//! kernel wakes the room when tasks stall for memory. Under pressure, looks and ends of pods
//! follow each other within a second, where upstream looks each ten.
//!
//! Who can make room without ending a pod does so by [`Reclaim`].
//!
//! As upstream, the node tells its conditions and leaves the taints that follow from them to the
//! node lifecycle controller.

mod evictor;
mod limits;
mod metrics;
mod relief;
mod sampler;
mod wake;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_config::Config;
use longshore_pod::eviction::{NodePressure, Tracker, pointless};
use longshore_podstate::desired::Desired;
use longshore_podstate::observe::Observer;
use longshore_resources::stats::Stats;
use tokio::sync::{Notify, watch};
use tokio::time::sleep;
use tracing::{info, warn};

use self::evictor::Evictor;
use self::relief::{Lack, Outcome, Relief};
use self::sampler::SignalSampler;
use crate::terminator::PodTerminator;

pub use self::metrics::Metrics;

/// What the node is short of, for those who tell it or refuse pods for it.
pub type Pressure = watch::Receiver<NodePressure>;

/// How often is looked while something is short.
const WATCHFUL: Duration = Duration::from_secs(1);
/// What a pod has left behind may take this long to show.
const SETTLE: Duration = Duration::from_secs(1);
/// When an attempt that found nothing to do is made again.
const NOTHING: Duration = Duration::from_secs(10);

/// What the node can do before a pod has to go. Garbage collection knows how.
pub trait Reclaim: Send + Sync {
    /// Remove all containers that are dead.
    fn dead_containers(&self) -> BoxFuture<'_, ()>;
    /// Remove all images that nothing uses.
    fn unused_images(&self) -> BoxFuture<'_, ()>;
}

/// A node that can do nothing.
impl Reclaim for () {
    fn dead_containers(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    fn unused_images(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }
}

/// What eviction works with.
pub struct Parts {
    /// Statistics of the machine and its pods.
    pub stats: Stats,
    /// What should run.
    pub desired: Desired,
    /// What does run.
    pub observer: Observer,
    /// The way to end pods.
    pub terminator: PodTerminator,
    /// Events about the node.
    pub recorder: Recorder,
    /// What the node can do first.
    pub reclaim: Arc<dyn Reclaim>,
    /// Where it is told what the node is short of.
    pub pressure: watch::Sender<NodePressure>,
    /// What is counted.
    pub metrics: Metrics,
}

/// Watch over the node. Never ends; drop it to stop.
pub async fn run(config: Arc<Config>, parts: Parts) {
    let Parts { stats, desired, observer, terminator, recorder, reclaim, pressure, metrics } =
        parts;
    for signal in pointless(&config.eviction.thresholds) {
        let signal = signal.as_str();
        warn!(signal, "evictionSoft means nothing there: it is less than evictionHard");
    }
    let pod_events = PodEventRecorder::new(recorder.clone());
    let evictor =
        Evictor::new(desired, observer, terminator, pod_events, &config.root_dir, metrics.clone());
    let relief = Relief {
        stats: stats.clone(),
        evictor: evictor.clone(),
        recorder,
        reclaim,
        node_name: config.node_name.clone(),
        max_pod_grace: config.eviction.max_pod_grace,
        metrics,
    };
    let woken = Notify::new();
    let kernel = config.kubelet.kernel_memcg_notification;
    let isolation = config.kubelet.local_storage_capacity_isolation;
    let guard = Guard { config: &config, stats: &stats, relief: &relief, pressure, woken: &woken };
    tokio::join!(
        guard.watch(),
        wake::watch(&stats, &config.eviction.thresholds, kernel, &woken),
        async {
            if isolation {
                limits::watch(&stats, &evictor).await;
            }
        }
    );
}

/// Watches the thresholds.
struct Guard<'a> {
    config: &'a Config,
    stats: &'a Stats,
    relief: &'a Relief,
    pressure: watch::Sender<NodePressure>,
    woken: &'a Notify,
}

/// An attempt to make room that is under way.
struct Attempt {
    is_hard: bool,
    work: BoxFuture<'static, Outcome>,
}

impl Guard<'_> {
    async fn watch(&self) {
        let settings = &self.config.eviction;
        if settings.thresholds.is_empty() {
            return;
        }
        let mut sampler = SignalSampler::new(self.stats.clone(), &settings.thresholds);
        let mut tracker = Tracker::new(settings.thresholds.clone(), settings.transition);
        let mut layout = None;
        let mut attempt: Option<Attempt> = None;
        let mut rest_until = Instant::now();
        loop {
            let begun = Instant::now();
            sampler.look().await;
            if layout != sampler.layout() {
                layout = sampler.layout();
                let adapted = layout.map(|layout| layout.adapt(&settings.thresholds));
                adapted.into_iter().for_each(|adapted| tracker.adapt(adapted));
            }
            let observations = sampler.observations();
            let finding = tracker.take(observations, Instant::now());
            self.tell(finding.pressure);
            if let Some(worst) = finding.due.first() {
                let idle = attempt.is_none() && begun >= rest_until;
                // A pod that takes its time for a soft threshold is hurried, or another one goes.
                let hurry = worst.is_hard() && attempt.as_ref().is_some_and(|now| !now.is_hard);
                if idle || hurry {
                    let (due, observations) = (finding.due.clone(), observations.clone());
                    let lack = Lack { begun, due, observations, layout };
                    let work = self.relief.clone().attempt(lack, tracker.clone());
                    attempt = Some(Attempt { is_hard: worst.is_hard(), work: work.boxed() });
                }
            }
            let calm = sampler.pause(tracker.thresholds(), WATCHFUL);
            let pause = finding.next.map_or(calm, |next| calm.min(next));
            let done = async {
                match &mut attempt {
                    Some(attempt) => (&mut attempt.work).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = sleep(pause) => {}
                () = self.woken.notified() => {}
                outcome = done => {
                    attempt = None;
                    let rest = match outcome {
                        Outcome::Relieved => SETTLE,
                        Outcome::Nothing => NOTHING,
                    };
                    rest_until = Instant::now().checked_add(rest).unwrap_or(rest_until);
                }
            }
        }
    }

    fn tell(&self, pressure: NodePressure) {
        let news = self.pressure.send_if_modified(|known| {
            let before = std::mem::replace(known, pressure);
            before != pressure
        });
        if news {
            let NodePressure { memory, disk, pid } = pressure;
            info!(memory, disk, pid, "what the node is short of");
        }
    }
}
