//! Evicts pods that exceed their ephemeral storage limits.

use std::time::Duration;

use longshore_pod::eviction::{Layout, exceeded, limits_storage, limits_volumes};
use longshore_pod::spec;
use longshore_resources::stats::Depth;
use tokio::time::{MissedTickBehavior, interval};

use super::evictor::{EvictionRequest, Evictor, IMMEDIATE};
use super::statistics::Statistics;

/// Interval of checks.
const PERIOD: Duration = Duration::from_secs(10);
/// Maximum age of statistics, less than the interval.
const MAX_AGE: Duration = Duration::from_secs(5);
/// Maximum age of the file system layout.
const LAYOUT_AGE: Duration = Duration::from_secs(60);

/// Checks the limits. Costs nothing for pods without any.
pub(super) async fn watch(statistics: &dyn Statistics, evictor: &Evictor) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        check(statistics, evictor).await;
    }
}

async fn check(statistics: &dyn Statistics, evictor: &Evictor) {
    let mut pods = evictor.active();
    pods.retain(|pod| limits_storage(pod) || limits_volumes(pod));
    if pods.is_empty() {
        return;
    }
    let depth = match pods.iter().any(|pod| limits_storage(pod)) {
        true => Depth::Disk,
        false => Depth::Files,
    };
    let file_systems = statistics.file_systems(LAYOUT_AGE).await.ok();
    let layout = file_systems.and_then(|known| known.layout()).unwrap_or(Layout::Single);
    let usages = statistics.pods(&pods, depth, MAX_AGE).await;
    for pod in &pods {
        let usage = usages.get(spec::uid(pod));
        let over = usage.and_then(|usage| exceeded(pod, usage, layout));
        if let Some(over) = over {
            let request = EvictionRequest {
                signal: over.signal,
                message: over.message,
                annotations: [].into(),
                grace: Some(IMMEDIATE),
                disruption: false,
            };
            evictor.evict(pod, request);
        }
    }
}
