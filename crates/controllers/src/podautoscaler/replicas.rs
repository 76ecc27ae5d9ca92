//! PURE: how many replicas the use of a resource asks for. Amounts are in thousandths.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::Timestamp;
use longshore_pod::quantity::milli_of;
use longshore_pod::resources;

use crate::workload::{name_of, phase, pod_condition};

/// What a pod used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) value: i128,
    pub(super) at: Timestamp,
    pub(super) window: Duration,
}

pub(super) type Samples = BTreeMap<String, Sample>;

/// How far from its target the use may be without an effect.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tolerances {
    pub(super) up: f64,
    pub(super) down: f64,
}

impl Tolerances {
    fn contains(self, ratio: f64) -> bool {
        (1.0 - self.down) <= ratio && ratio <= (1.0 + self.up)
    }
}

/// Times in which the first samples of a pod do not count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delays {
    pub(super) cpu_initialization: Duration,
    pub(super) initial_readiness: Duration,
}

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A percentage of what the pods request.
    Utilization(i128),
    /// An amount for each pod.
    Average(i128),
}

/// A proposal with what it is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proposal {
    pub(super) replicas: isize,
    /// The percentage that is used of what is requested.
    pub(super) utilization: Option<i128>,
    /// What a pod uses on average.
    pub(super) average: i128,
}

/// The pods of the target and the resource that is looked at.
pub(super) struct Pods<'a> {
    pub(super) pods: &'a [Arc<Pod>],
    pub(super) resource: &'a str,
    /// One container of each pod alone.
    pub(super) container: Option<&'a str>,
}

#[derive(Debug, Default)]
struct Groups {
    ready: isize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

fn plus(time: Timestamp, wait: Duration) -> i64 {
    time.as_second().saturating_add(i64::try_from(wait.as_secs()).unwrap_or(i64::MAX))
}

fn is_unready(pod: &Pod, sample: &Sample, delays: Delays, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let (Some(started), Some(ready)) = (started, pod_condition(pod, "Ready")) else { return true };
    let changed = ready.last_transition_time.as_ref().map_or(started.0, |time| time.0);
    let is_not = ready.status == "False";
    if plus(started.0, delays.cpu_initialization) > now.as_second() {
        is_not || sample.at.as_second() < plus(changed, sample.window)
    } else {
        is_not && plus(started.0, delays.initial_readiness) > changed.as_second()
    }
}

fn group(of: &Pods<'_>, samples: &Samples, delays: Delays, now: Timestamp) -> Groups {
    let mut groups = Groups::default();
    for pod in of.pods {
        let name = name_of(&**pod).to_owned();
        if pod.metadata.deletion_timestamp.is_some() || phase(pod) == "Failed" {
            groups.ignored.insert(name);
        } else if phase(pod) == "Pending" {
            groups.unready.insert(name);
        } else {
            match samples.get(&name) {
                None => {
                    groups.missing.insert(name);
                }
                Some(sample) if of.resource == "cpu" && is_unready(pod, sample, delays, now) => {
                    groups.unready.insert(name);
                }
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

/// What each pod requests of the resource.
fn requests(of: &Pods<'_>) -> Result<BTreeMap<String, i128>, String> {
    let mut requests = BTreeMap::new();
    for pod in of.pods {
        let name = name_of(&**pod);
        let Some(spec) = &pod.spec else { continue };
        let own = spec.resources.as_ref().and_then(|own| own.requests.as_ref());
        let request = match (own, of.container) {
            (Some(_), None) => milli_of(Some(&resources::requests(spec)), of.resource),
            _ => {
                let sidecars = spec
                    .init_containers
                    .iter()
                    .flatten()
                    .filter(|container| container.restart_policy.as_deref() == Some("Always"));
                let is_counted =
                    |container: &&Container| of.container.is_none_or(|one| container.name == one);
                let mut sum = 0_i128;
                for container in spec.containers.iter().chain(sidecars).filter(is_counted) {
                    let own = container.resources.as_ref().and_then(|own| own.requests.as_ref());
                    let amount = own.and_then(|own| own.get(of.resource));
                    if amount.is_none() {
                        return Err(format!(
                            "missing request for {} in container {} of Pod {name}",
                            of.resource, container.name
                        ));
                    }
                    sum = sum.saturating_add(milli_of(own, of.resource));
                }
                sum
            }
        };
        requests.insert(name.to_owned(), request);
    }
    Ok(requests)
}

/// The ratio of use and target, the percentage, and the average.
fn ratio(
    samples: &BTreeMap<String, i128>,
    requests: &BTreeMap<String, i128>,
    target: Target,
) -> Result<(f64, Option<i128>, i128), String> {
    let known: Vec<(&String, &i128)> = match target {
        Target::Utilization(_) => {
            samples.iter().filter(|(pod, _)| requests.contains_key(*pod)).collect()
        }
        Target::Average(_) => samples.iter().collect(),
    };
    let used = known.iter().fold(0_i128, |sum, (_, value)| sum.saturating_add(**value));
    let count = i128::try_from(known.len()).unwrap_or(i128::MAX);
    let average = used.checked_div(count).unwrap_or_default();
    match target {
        Target::Utilization(target) => {
            let requested = known
                .iter()
                .filter_map(|(pod, _)| requests.get(*pod))
                .fold(0_i128, |sum, value| sum.saturating_add(*value));
            let utilization = used
                .saturating_mul(100)
                .checked_div(requested)
                .ok_or("no metrics returned matched known pods")?;
            Ok((utilization as f64 / target.max(1) as f64, Some(utilization), average))
        }
        Target::Average(target) => Ok((average as f64 / target.max(1) as f64, None, average)),
    }
}

fn up(replicas: f64) -> isize {
    // the cast saturates
    replicas.ceil() as isize
}

/// How many replicas there should be for `usage` to become `target`, which all pods together are to
/// have.
pub(super) fn by_ratio(
    current: isize,
    usage: i128,
    target: i128,
    ready: isize,
    tolerances: Tolerances,
) -> isize {
    let ratio = usage as f64 / target.max(1) as f64;
    match current {
        0 => up(ratio),
        current if tolerances.contains(ratio) => current,
        _ => up(ratio * ready as f64),
    }
}

/// How many replicas there should be for each to have `target` of `usage`, and what each has now.
pub(super) fn per_pod(
    current: isize,
    usage: i128,
    target: i128,
    tolerances: Tolerances,
) -> (isize, i128) {
    let (usage_all, target) = (usage as f64, target.max(1) as f64);
    let count = current.max(1) as f64;
    let replicas = match tolerances.contains(usage_all / (target * count)) {
        true if current > 0 => current,
        _ => up(usage_all / target),
    };
    // the cast saturates
    (replicas, (usage_all / count).ceil() as i128)
}

/// How many replicas there should be for the pods to use what is wanted.
pub(super) fn propose(
    of: &Pods<'_>,
    current: isize,
    samples: &Samples,
    target: Target,
    tolerances: Tolerances,
    delays: Delays,
    now: Timestamp,
) -> Result<Proposal, String> {
    if of.pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".into());
    }
    let groups = group(of, samples, delays, now);
    let mut values: BTreeMap<String, i128> = samples
        .iter()
        .filter(|(pod, _)| !groups.ignored.contains(*pod) && !groups.unready.contains(*pod))
        .map(|(pod, sample)| (pod.clone(), sample.value))
        .collect();
    if values.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".into());
    }
    let requests = match target {
        Target::Utilization(_) => requests(of)?,
        Target::Average(_) => BTreeMap::new(),
    };
    let (first, utilization, average) = ratio(&values, &requests, target)?;
    let proposal = |replicas| Proposal { replicas, utilization, average };
    let with_unready = !groups.unready.is_empty() && first > 1.0;
    if !with_unready && groups.missing.is_empty() {
        return Ok(proposal(match tolerances.contains(first) {
            true => current,
            false => up(first * groups.ready as f64),
        }));
    }
    // What is not known is taken to use little when more are wanted, and much when fewer are.
    for pod in &groups.missing {
        let value = match target {
            _ if first > 1.0 => 0,
            Target::Utilization(target) => {
                let request = requests.get(pod).copied().unwrap_or_default();
                request.saturating_mul(target.max(100)) / 100
            }
            Target::Average(target) => target,
        };
        if first != 1.0 {
            values.insert(pod.clone(), value);
        }
    }
    if with_unready {
        values.extend(groups.unready.iter().map(|pod| (pod.clone(), 0)));
    }
    let (second, _, _) = ratio(&values, &requests, target)?;
    let is_turned = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
    if tolerances.contains(second) || is_turned {
        return Ok(proposal(current));
    }
    let count = values.len() as f64;
    let replicas = up(second * count);
    let is_opposite = (second < 1.0 && replicas > current) || (second > 1.0 && replicas < current);
    Ok(proposal(if is_opposite { current } else { replicas }))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::{Delays, Pods, Sample, Samples, Target, Tolerances, by_ratio, per_pod, propose};
    use crate::workload::length;

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn pod(name: usize, phase: &str, ready: bool) -> Arc<Pod> {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": format!("p{name}")},
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {
                "phase": phase,
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" },
                    "lastTransitionTime": "2026-01-01T00:00:10Z"}],
            },
        }))
        .unwrap();
        Arc::new(pod)
    }

    fn proposed(
        pods: &[Arc<Pod>],
        used: &[Option<i128>],
        target: Target,
    ) -> Result<(isize, Option<i128>), String> {
        let samples: Samples = used
            .iter()
            .enumerate()
            .filter_map(|(at, value)| {
                let sample =
                    Sample { value: (*value)?, at: now(), window: Duration::from_secs(60) };
                Some((format!("p{at}"), sample))
            })
            .collect();
        let of = Pods { pods, resource: "cpu", container: None };
        let delays = Delays {
            cpu_initialization: Duration::from_secs(300),
            initial_readiness: Duration::from_secs(30),
        };
        let tolerances = Tolerances { up: 0.1, down: 0.1 };
        propose(&of, length(pods), &samples, target, tolerances, delays, now())
            .map(|proposal| (proposal.replicas, proposal.utilization))
    }

    #[test]
    fn hpa_proposes_by_the_use_of_ready_pods() {
        let running = |count| -> Vec<_> { (0..count).map(|at| pod(at, "Running", true)).collect() };
        let half = Target::Utilization(50);
        for (used, expected) in [
            (vec![Some(500), Some(500)], (2, 50)),
            (vec![Some(540), Some(540)], (2, 54)),
            (vec![Some(1000), Some(1000)], (4, 100)),
            (vec![Some(600), Some(600)], (3, 60)),
            (vec![Some(100), Some(100)], (1, 10)),
            // one without a sample is taken to use all of its request when fewer are wanted
            (vec![Some(100), None], (2, 10)),
            // and nothing when more are
            (vec![Some(3000), None], (6, 300)),
            (vec![Some(600), None], (2, 60)),
        ] {
            let (replicas, utilization) = proposed(&running(2), &used, half).unwrap();
            assert_eq!((replicas, utilization.unwrap()), expected, "{used:?}");
        }
        let average = Target::Average(500);
        assert_eq!(proposed(&running(2), &[Some(1000), Some(500)], average), Ok((3, None)));
        assert!(proposed(&[], &[], half).is_err());
        assert!(proposed(&running(1), &[None], half).is_err());
    }

    #[test]
    fn hpa_waits_for_pods_that_start() {
        let pods = [pod(0, "Running", true), pod(1, "Pending", false)];
        // without the pending one it would be 4
        assert_eq!(
            proposed(&pods, &[Some(2000), None], Target::Utilization(50)),
            Ok((4, Some(200)))
        );
        assert_eq!(proposed(&pods, &[Some(900), None], Target::Utilization(50)), Ok((2, Some(90))));
        // a pod that was never ready does not count
        let pods = [pod(0, "Running", true), pod(1, "Running", false)];
        let used = [Some(100), Some(9000)];
        assert_eq!(proposed(&pods, &used, Target::Utilization(50)), Ok((1, Some(10))));
    }

    #[test]
    fn hpa_proposes_by_values_of_objects_and_series() {
        let tolerances = Tolerances { up: 0.1, down: 0.1 };
        for (current, usage, target, ready, expected) in [
            (3, 20_000, 10_000, 3, 6),
            (3, 10_500, 10_000, 3, 3),
            (3, 5_000, 10_000, 3, 2),
            (3, 0, 10_000, 3, 0),
            (0, 25_000, 10_000, 0, 3),
            (5, 20_000, 10_000, 2, 4),
            (1, i128::MAX, 1, 1, isize::MAX),
        ] {
            let found = by_ratio(current, usage, target, ready, tolerances);
            assert_eq!(found, expected, "{usage} of {target} with {ready} of {current}");
        }
        for (current, usage, target, expected) in [
            (3, 60_000, 10_000, (6, 20_000)),
            (3, 31_000, 10_000, (3, 10_334)),
            (3, 5_000, 10_000, (1, 1_667)),
            (0, 25_000, 10_000, (3, 25_000)),
        ] {
            assert_eq!(per_pod(current, usage, target, tolerances), expected, "{usage}/{current}");
        }
    }

    #[test]
    fn hpa_needs_requests_for_a_percentage() {
        let mut bare = (*pod(0, "Running", true)).clone();
        bare.spec.as_mut().unwrap().containers[0].resources = None;
        let pods = [Arc::new(bare)];
        assert_eq!(
            proposed(&pods, &[Some(1)], Target::Utilization(50)),
            Err("missing request for cpu in container c of Pod p0".into())
        );
        assert!(proposed(&pods, &[Some(1)], Target::Average(50)).is_ok());
    }
}
