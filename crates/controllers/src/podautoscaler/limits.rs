//! PURE: how much of a proposal is applied now: recent proposals, rates, and the least and most
//! replicas.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior,
};
use longshore_base::time;
use tokio::time::Instant;

use crate::workload::count;

/// What an autoscaler proposed and did before.
#[derive(Debug, Default)]
pub(super) struct History {
    proposals: Vec<(Instant, isize)>,
    added: Vec<(Instant, isize)>,
    removed: Vec<(Instant, isize)>,
}

/// A condition's status, reason and message.
pub(super) type Verdict = (bool, &'static str, &'static str);

/// The outcome.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Limited {
    pub(super) replicas: isize,
    /// Condition `AbleToScale`.
    pub(super) able: Verdict,
    /// Condition `ScalingLimited`.
    pub(super) limited: Verdict,
}

/// The range of replicas.
#[derive(Debug, Clone, Copy)]
pub(super) struct Range {
    pub(super) least: isize,
    pub(super) most: isize,
}

/// The longest time that anything is remembered.
const LONGEST: Duration = Duration::from_secs(3600);

fn window(rules: Option<&HPAScalingRules>, default: Duration) -> Duration {
    let seconds = rules.and_then(|rules| rules.stabilization_window_seconds);
    seconds.map_or(default, |seconds| time::seconds(seconds.into()))
}

fn policies(rules: Option<&HPAScalingRules>, is_up: bool) -> Vec<HPAScalingPolicy> {
    let policy = |type_: &str, value| HPAScalingPolicy {
        type_: type_.to_owned(),
        value,
        period_seconds: 15,
    };
    match rules.and_then(|rules| rules.policies.clone()).filter(|own| !own.is_empty()) {
        Some(policies) => policies,
        None if is_up => vec![policy("Pods", 4), policy("Percent", 100)],
        None => vec![policy("Percent", 100)],
    }
}

fn within(events: &[(Instant, isize)], period: Duration, now: Instant) -> isize {
    let recent = events.iter().filter(|(at, _)| now.saturating_duration_since(*at) < period);
    recent.fold(0, |sum: isize, (_, change)| sum.saturating_add(*change))
}

impl History {
    /// The first proposal, of an autoscaler that is new here, is what there is.
    pub(super) fn start(&mut self, current: isize, now: Instant) {
        if self.proposals.is_empty() {
            self.proposals.push((now, current));
        }
    }

    /// Remembers a change of the number of replicas.
    pub(super) fn scaled(&mut self, from: isize, to: isize, now: Instant) {
        match to > from {
            true => self.added.push((now, to.saturating_sub(from))),
            false => self.removed.push((now, from.saturating_sub(to))),
        }
    }

    fn forget(&mut self, now: Instant) {
        let is_recent = |(at, _): &(Instant, isize)| now.saturating_duration_since(*at) < LONGEST;
        self.proposals.retain(is_recent);
        self.added.retain(is_recent);
        self.removed.retain(is_recent);
    }

    fn recent(&self, window: Duration, now: Instant) -> impl Iterator<Item = isize> {
        self.proposals
            .iter()
            .filter(move |(at, _)| now.saturating_duration_since(*at) <= window)
            .map(|(_, proposal)| *proposal)
    }

    /// The replicas that the policies allow at most, or at least.
    fn rate(
        &self,
        rules: Option<&HPAScalingRules>,
        current: isize,
        is_up: bool,
        now: Instant,
    ) -> isize {
        let select = rules.and_then(|rules| rules.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let limits = policies(rules, is_up).into_iter().map(|policy| {
            let period = time::seconds(policy.period_seconds.into());
            let start = current
                .saturating_sub(within(&self.added, period, now))
                .saturating_add(within(&self.removed, period, now));
            let value = count(Some(policy.value));
            let change = match policy.type_.as_str() {
                "Percent" => {
                    let part = start as f64 * value as f64 / 100.0;
                    // the cast saturates
                    part.ceil() as isize
                }
                _ => value,
            };
            match is_up {
                true => start.saturating_add(change),
                false => start.saturating_sub(change),
            }
        });
        let largest_change = select != "Min";
        let chosen = if is_up == largest_change { limits.max() } else { limits.min() };
        chosen.unwrap_or(current)
    }

    /// What of a proposal is applied.
    pub(super) fn limit(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        current: isize,
        proposed: isize,
        range: Range,
        stabilization: Duration,
        now: Instant,
    ) -> Limited {
        self.forget(now);
        let up = behavior.and_then(|behavior| behavior.scale_up.as_ref());
        let down = behavior.and_then(|behavior| behavior.scale_down.as_ref());
        let least_up = self.recent(window(up, Duration::ZERO), now).fold(proposed, isize::min);
        let most_down = self.recent(window(down, stabilization), now).fold(proposed, isize::max);
        self.proposals.push((now, proposed));
        let stable = match behavior {
            Some(_) => current.max(least_up).min(most_down),
            None => most_down,
        };
        let able = if stable == proposed {
            (true, "ReadyForNewScale", "recommended size matches current size")
        } else if behavior.is_some() && proposed >= current {
            (
                true,
                "ScaleUpStabilized",
                "recent recommendations were lower than current one, applying the lowest recent recommendation",
            )
        } else {
            (
                true,
                "ScaleDownStabilized",
                "recent recommendations were higher than current one, applying the highest recent recommendation",
            )
        };
        let limit_up = match behavior {
            Some(_) => self.rate(up, current, true, now).max(current),
            None => current.saturating_mul(2).max(4),
        };
        let limit_down = match behavior {
            Some(_) => self.rate(down, current, false, now).min(current),
            None => isize::MIN,
        };
        let most = range.most.min(limit_up);
        let least = range.least.max(limit_down);
        let (replicas, limited) = if stable > most && (stable > current || behavior.is_none()) {
            let why = match range.most > limit_up {
                true => (
                    "ScaleUpLimit",
                    "the desired replica count is increasing faster than the maximum scale rate",
                ),
                false => (
                    "TooManyReplicas",
                    "the desired replica count is more than the maximum replica count",
                ),
            };
            (most, Some(why))
        } else if stable < least && (stable < current || behavior.is_none()) {
            let why = match range.least < limit_down {
                true => (
                    "ScaleDownLimit",
                    "the desired replica count is decreasing faster than the maximum scale rate",
                ),
                false => (
                    "TooFewReplicas",
                    "the desired replica count is less than the minimum replica count",
                ),
            };
            (least, Some(why))
        } else {
            (stable, None)
        };
        let limited = match limited {
            Some((reason, message)) => (true, reason, message),
            None => {
                (false, "DesiredWithinRange", "the desired count is within the acceptable range")
            }
        };
        Limited { replicas, able, limited }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::{Value, json};
    use tokio::time::Instant;

    use super::{History, Range};

    const RANGE: Range = Range { least: 1, most: 100 };
    const WINDOW: Duration = Duration::from_secs(300);

    fn behavior(
        value: Value,
    ) -> k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerBehavior {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn hpa_scales_up_at_once_and_down_after_a_while() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut history = History::default();
        history.start(5, start);
        let mut limited = |current, proposed, seconds| {
            let made = history.limit(None, current, proposed, RANGE, WINDOW, at(seconds));
            (made.replicas, made.able.1, made.limited.1)
        };
        assert_eq!(limited(5, 8, 15), (8, "ReadyForNewScale", "DesiredWithinRange"));
        assert_eq!(limited(8, 50, 30), (16, "ReadyForNewScale", "ScaleUpLimit"));
        assert_eq!(limited(16, 500, 45), (32, "ReadyForNewScale", "ScaleUpLimit"));
        assert_eq!(limited(60, 500, 46), (100, "ReadyForNewScale", "TooManyReplicas"));
        assert_eq!(limited(100, 3, 60), (100, "ScaleDownStabilized", "TooManyReplicas"));
        assert_eq!(limited(100, 3, 347), (3, "ReadyForNewScale", "DesiredWithinRange"));
        assert_eq!(limited(3, 0, 700), (1, "ReadyForNewScale", "TooFewReplicas"));
    }

    #[test]
    fn hpa_behavior_limits_by_policies() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let slow = behavior(json!({
            "scaleUp": {"policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]},
            "scaleDown": {"stabilizationWindowSeconds": 0, "policies": [
                {"type": "Percent", "value": 50, "periodSeconds": 60},
                {"type": "Pods", "value": 1, "periodSeconds": 60},
            ], "selectPolicy": "Min"},
        }));
        let mut history = History::default();
        let made = history.limit(Some(&slow), 10, 50, RANGE, WINDOW, at(0));
        assert_eq!((made.replicas, made.limited.1), (12, "ScaleUpLimit"));
        history.scaled(10, 12, at(0));
        assert_eq!(history.limit(Some(&slow), 12, 50, RANGE, WINDOW, at(30)).replicas, 12);
        assert_eq!(history.limit(Some(&slow), 12, 50, RANGE, WINDOW, at(61)).replicas, 14);
        let made = history.limit(Some(&slow), 12, 1, RANGE, WINDOW, at(200));
        assert_eq!((made.replicas, made.limited.1), (11, "ScaleDownLimit"));
        let disabled = behavior(json!({"scaleDown": {"selectPolicy": "Disabled",
            "stabilizationWindowSeconds": 0}}));
        assert_eq!(
            History::default().limit(Some(&disabled), 9, 1, RANGE, WINDOW, at(0)).replicas,
            9
        );
        let waits = behavior(json!({"scaleUp": {"stabilizationWindowSeconds": 60}}));
        let mut history = History::default();
        history.start(5, at(0));
        let made = history.limit(Some(&waits), 5, 9, RANGE, WINDOW, at(30));
        assert_eq!((made.replicas, made.able.1), (5, "ScaleUpStabilized"));
        assert_eq!(history.limit(Some(&waits), 5, 9, RANGE, WINDOW, at(90)).replicas, 9);
    }

    proptest! {
        /// Whatever is proposed: a change goes toward the proposal, and stays in the range.
        #[test]
        fn hpa_stays_in_range(
            proposals in prop::collection::vec((-5..500isize, 1..120u64), 1..20),
            with_behavior in any::<bool>(),
        ) {
            let behavior = behavior(json!({}));
            let behavior = with_behavior.then_some(&behavior);
            let mut history = History::default();
            let mut current = 5;
            let mut now = Instant::now();
            history.start(current, now);
            for (proposed, seconds) in proposals {
                now += Duration::from_secs(seconds);
                let made = history.limit(behavior, current, proposed, RANGE, WINDOW, now);
                prop_assert!((RANGE.least..=RANGE.most).contains(&made.replicas));
                prop_assert!(made.replicas <= current || proposed > current || !with_behavior);
                if made.replicas != current {
                    history.scaled(current, made.replicas, now);
                    current = made.replicas;
                }
            }
        }
    }
}
