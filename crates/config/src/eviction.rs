//! Settings of eviction, parsed from the configuration.

use std::collections::BTreeMap;
use std::time::Duration;

use longshore_pod::eviction::{Threshold, ThresholdConfig, thresholds};

use super::{GoDuration, KubeletConfiguration};

/// Settings of eviction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Eviction {
    /// Thresholds.
    pub thresholds: Vec<Threshold>,
    /// How long a pressure condition is kept (`evictionPressureTransitionPeriod`).
    pub transition: Duration,
    /// Maximum grace period (seconds) of soft evictions; 0: the pod's own, negative: none.
    pub max_pod_grace: i32,
}

impl Eviction {
    /// Parses the settings; the error lists every fault with field and value.
    pub(super) fn new(
        settings: &KubeletConfiguration,
        allocatable_ignores_eviction: bool,
    ) -> Result<Self, Vec<String>> {
        let mut faults = Vec::new();
        let mut soft_grace = BTreeMap::new();
        for (signal, text) in &settings.eviction_soft_grace_period {
            let period = text.parse().ok().filter(|period| *period >= GoDuration::ZERO);
            if period.is_none() {
                faults.push(format!(
                    "evictionSoftGracePeriod[{signal}]: {text:?} is not a duration of zero or more"
                ));
            }
            soft_grace.insert(signal.clone(), period.unwrap_or(GoDuration::ZERO).get());
        }
        let transition = settings.eviction_pressure_transition_period;
        if transition < GoDuration::ZERO {
            faults.push(format!(
                "evictionPressureTransitionPeriod: {transition} must not be negative"
            ));
        }
        let texts = ThresholdConfig {
            hard: &settings.eviction_hard,
            soft: &settings.eviction_soft,
            soft_grace: &soft_grace,
            minimum_reclaim: &settings.eviction_minimum_reclaim,
        };
        let enforced = settings.enforce_node_allocatable.iter().any(|level| level == "pods");
        let thresholds = thresholds(texts, enforced && !allocatable_ignores_eviction)
            .unwrap_or_else(|more| {
                faults.extend(more);
                Vec::new()
            });
        if !faults.is_empty() {
            return Err(faults);
        }
        let (transition, max_pod_grace) =
            (transition.get(), settings.eviction_max_pod_grace_period);
        Ok(Self { thresholds, transition, max_pod_grace })
    }
}
