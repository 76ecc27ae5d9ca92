//! One attempt to make room: what the node can do by itself, or else the end of one pod.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use longshore_base::time;
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_pod::eviction::{
    Candidate, Layout, Observations, Reclaims, Resource, Threshold, Tracker, explain, rank,
};
use longshore_pod::spec::{self, describe};
use longshore_resources::stats::{Depth, Stats};
use tracing::{debug, info, warn};

use super::evictor::{AT_ONCE, Evictor, Sentence};
use super::sampler::SignalSampler;
use super::{Metrics, Reclaim};

/// How old what pods have on disk may be.
const DISK_AGE: Duration = Duration::from_secs(10);

/// What an attempt has come to.
pub(super) enum Outcome {
    /// There should be more room now.
    Relieved,
    /// There was nothing to be done.
    Nothing,
}

/// What attempts are made with. Cheap to clone.
#[derive(Clone)]
pub(super) struct Relief {
    pub(super) stats: Stats,
    pub(super) evictor: Evictor,
    pub(super) recorder: Recorder,
    pub(super) reclaim: Arc<dyn Reclaim>,
    pub(super) node_name: String,
    pub(super) max_pod_grace: i32,
    pub(super) metrics: Metrics,
}

/// What was found at `begun`.
pub(super) struct Lack {
    pub(super) begun: Instant,
    /// The most pressing first; there is one.
    pub(super) due: Vec<Threshold>,
    pub(super) observations: Observations,
    pub(super) layout: Option<Layout>,
}

impl Relief {
    /// Make room for what is missing.
    pub(super) async fn attempt(self, lack: Lack, tracker: Tracker) -> Outcome {
        let Some(worst) = lack.due.first().copied() else { return Outcome::Nothing };
        let resource = worst.signal.resource();
        let message = format!("Attempting to reclaim {}", resource.as_str());
        warn!(signal = worst.signal.as_str(), hard = worst.is_hard(), "{message}");
        let node = node_reference(&self.node_name);
        self.recorder.event(node, EventType::Warning, "EvictionThresholdMet", &message);

        let reclaims = lack.layout.map(|layout| layout.reclaims(worst.signal)).unwrap_or_default();
        if self.reclaim(reclaims).await && self.is_enough(&tracker).await {
            info!(signal = worst.signal.as_str(), "there is room again, and no pod has to go");
            return Outcome::Relieved;
        }
        let pods = self.evictor.active();
        let depth = match resource {
            Resource::Memory | Resource::Pids => Depth::Processes,
            Resource::EphemeralStorage | Resource::Inodes => Depth::Disk,
        };
        let usages = self.stats.pods(&pods, depth, DISK_AGE).await;
        let candidate = |pod| Candidate { pod, usage: usages.get(spec::uid(pod)) };
        let mut candidates: Vec<_> = pods.iter().map(|pod| candidate(pod)).collect();
        rank(&mut candidates, worst.signal, lack.layout.unwrap_or(Layout::Single));
        for candidate in candidates {
            let explanation = explain(resource, candidate, &lack.due, &lack.observations);
            let grace = self.grace(&worst, candidate.pod);
            let sentence = Sentence {
                signal: worst.signal.as_str(),
                message: explanation.message,
                annotations: explanation.annotations,
                grace,
                disruption: true,
            };
            if self.evictor.evict(candidate.pod, sentence) {
                self.metrics.decided(worst.signal.as_str(), lack.begun);
                let took = lack.begun.elapsed();
                debug!(pod = describe(candidate.pod), ?took, "from the look to the order");
                self.evictor.ended(candidate.pod, grace).await;
                return Outcome::Relieved;
            }
        }
        warn!(pods = pods.len(), "there is no pod that could go");
        Outcome::Nothing
    }

    /// Do what the node can do by itself; tells whether there was anything.
    async fn reclaim(&self, Reclaims { containers, images }: Reclaims) -> bool {
        if containers {
            self.reclaim.dead_containers().await;
        }
        if images {
            self.reclaim.unused_images().await;
        }
        containers || images
    }

    async fn is_enough(&self, tracker: &Tracker) -> bool {
        let thresholds: Vec<Threshold> = tracker.thresholds().copied().collect();
        let mut sampler = SignalSampler::new(self.stats.clone(), &thresholds);
        sampler.look().await;
        tracker.is_made_up_for(sampler.observations())
    }

    /// How long a pod may take for that threshold; `None`: as long as it allows itself.
    fn grace(&self, threshold: &Threshold, pod: &Pod) -> Option<Duration> {
        if threshold.is_hard() {
            return Some(AT_ONCE);
        }
        let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        soft_grace(self.max_pod_grace, own)
    }
}

/// The grace for a soft threshold: the pod's own, but no longer than is configured; 0 is upstream's
/// word for no such bound.
fn soft_grace(longest: i32, own: Option<i64>) -> Option<Duration> {
    let longest = i64::from(longest);
    match own.map_or(longest, |own| own.min(longest)) {
        0 => None,
        seconds if seconds < 0 => Some(Duration::from_secs(1)),
        seconds => Some(time::seconds(seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_thresholds_leave_pods_their_time() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (longest, own, expected) in [
            (0, Some(30), None),
            (0, None, None),
            (60, Some(30), seconds(30)),
            (10, Some(30), seconds(10)),
            (10, None, seconds(10)),
            (-1, Some(30), seconds(1)),
        ] {
            assert_eq!(soft_grace(longest, own), expected, "{longest} {own:?}");
        }
    }
}
