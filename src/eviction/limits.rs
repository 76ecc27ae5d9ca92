//! Pods that store more than their limits allow have to go, whatever the node has left.

use std::time::Duration;

use longshore_pod::eviction::{Layout, exceeded, limits_storage, limits_volumes};
use longshore_pod::spec;
use longshore_resources::stats::{Depth, Stats};
use tokio::time::{MissedTickBehavior, interval};

use super::evictor::{AT_ONCE, Evictor, Sentence};

/// How often limits are looked at.
const PERIOD: Duration = Duration::from_secs(10);
/// How old what is known may be: what was read for this in the last turn is too old.
const MAX_AGE: Duration = Duration::from_secs(5);
/// How old may be what is known of where file systems are.
const LAYOUT_AGE: Duration = Duration::from_secs(60);

/// Watch over the limits. Costs nothing for pods without any.
pub(super) async fn watch(stats: &Stats, evictor: &Evictor) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        check(stats, evictor).await;
    }
}

async fn check(stats: &Stats, evictor: &Evictor) {
    let mut pods = evictor.active();
    pods.retain(|pod| limits_storage(pod) || limits_volumes(pod));
    if pods.is_empty() {
        return;
    }
    let depth = match pods.iter().any(|pod| limits_storage(pod)) {
        true => Depth::Disk,
        false => Depth::Files,
    };
    let file_systems = stats.file_systems(LAYOUT_AGE).await.ok();
    let layout = file_systems.and_then(|known| known.layout()).unwrap_or(Layout::Single);
    let usages = stats.pods(&pods, depth, MAX_AGE).await;
    for pod in &pods {
        let usage = usages.get(spec::uid(pod));
        let over = usage.and_then(|usage| exceeded(pod, usage, layout));
        if let Some(over) = over {
            let sentence = Sentence {
                signal: over.signal,
                message: over.message,
                annotations: [].into(),
                grace: Some(AT_ONCE),
                disruption: false,
            };
            evictor.evict(pod, sentence);
        }
    }
}
