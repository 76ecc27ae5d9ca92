//! One attempt to reclaim resources: node-level reclaim, or else the eviction of one pod.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::time;
use longshore_client::events::{EventType, Recorder, node_reference};
use longshore_pod::eviction::{
    Candidate, Layout, Observations, Reclaims, Resource, Threshold, Tracker, eviction_message, rank,
};
use longshore_pod::spec::{self, describe};
use longshore_resources::stats::Depth;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::evictor::{EvictionRequest, Evictor, IMMEDIATE};
use super::sampler::SignalSampler;
use super::statistics::Statistics;
use super::{Metrics, Reclaim};

/// Maximum age of disk statistics of pods.
const DISK_AGE: Duration = Duration::from_secs(10);

/// Result of an attempt.
pub(super) enum Outcome {
    /// Resources were reclaimed.
    Relieved,
    /// Nothing could be reclaimed.
    Nothing,
}

/// Reclaims resources. Cheap to clone.
#[derive(Clone)]
pub(super) struct Reclaimer {
    pub(super) statistics: Arc<dyn Statistics>,
    pub(super) evictor: Evictor,
    pub(super) recorder: Recorder,
    pub(super) reclaim: Arc<dyn Reclaim>,
    pub(super) node_name: String,
    pub(super) max_pod_grace: i32,
    pub(super) metrics: Metrics,
}

/// The thresholds that were met at `begun`.
pub(super) struct Shortage {
    pub(super) begun: Instant,
    /// Thresholds that are met, most urgent first.
    pub(super) due: Vec<Threshold>,
    pub(super) observations: Observations,
    pub(super) layout: Option<Layout>,
}

impl Reclaimer {
    /// Reclaims the resource of the first threshold.
    pub(super) async fn attempt(self, shortage: Shortage, tracker: Tracker) -> Outcome {
        let Some(worst) = shortage.due.first().copied() else { return Outcome::Nothing };
        let resource = worst.signal.resource();
        let message = format!("Attempting to reclaim {}", resource.as_str());
        warn!(signal = worst.signal.as_str(), hard = worst.is_hard(), "{message}");
        let node = node_reference(&self.node_name);
        self.recorder.event(node, EventType::Warning, "EvictionThresholdMet", &message);

        let reclaims =
            shortage.layout.map(|layout| layout.reclaims(worst.signal)).unwrap_or_default();
        if self.reclaim(reclaims).await && self.is_enough(&tracker).await {
            info!(
                signal = worst.signal.as_str(),
                "node-level reclaim was sufficient, no pod is evicted"
            );
            return Outcome::Relieved;
        }
        let pods = self.evictor.active();
        let depth = match resource {
            Resource::Memory | Resource::Pids => Depth::Processes,
            Resource::EphemeralStorage | Resource::Inodes => Depth::Disk,
        };
        let usages = self.statistics.pods(&pods, depth, DISK_AGE).await;
        let candidate = |pod| Candidate { pod, usage: usages.get(spec::uid(pod)) };
        let mut candidates: Vec<_> = pods.iter().map(|pod| candidate(pod)).collect();
        rank(&mut candidates, worst.signal, shortage.layout.unwrap_or(Layout::Single));
        for candidate in candidates {
            let explanation =
                eviction_message(resource, candidate, &shortage.due, &shortage.observations);
            let grace = self.grace(&worst, candidate.pod);
            let request = EvictionRequest {
                signal: worst.signal.as_str(),
                message: explanation.message,
                annotations: explanation.annotations,
                grace,
                disruption: true,
            };
            if self.evictor.evict(candidate.pod, request) {
                self.metrics.decided(worst.signal.as_str(), shortage.begun);
                let took = shortage.begun.elapsed();
                debug!(pod = describe(candidate.pod), ?took, "pod selected for eviction");
                self.evictor.ended(candidate.pod, grace).await;
                return Outcome::Relieved;
            }
        }
        warn!(pods = pods.len(), "no pod can be evicted");
        Outcome::Nothing
    }

    /// Reclaims node-level resources; returns whether there were any to reclaim.
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
        let mut sampler = SignalSampler::new(self.statistics.clone(), &thresholds);
        sampler.sample().await;
        tracker.is_reclaimed(sampler.observations())
    }

    /// Grace period of an eviction for that threshold; `None`: the pod's own.
    fn grace(&self, threshold: &Threshold, pod: &Pod) -> Option<Duration> {
        if threshold.is_hard() {
            return Some(IMMEDIATE);
        }
        let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        soft_grace(self.max_pod_grace, own)
    }
}

/// Grace period of a soft eviction: the pod's own, at most `longest`; 0 means no limit.
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
    fn eviction_soft_thresholds_have_a_grace_period() {
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
