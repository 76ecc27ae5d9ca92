//! Requests of pods against what nodes can give.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::{PluginError, arguments, invalid};
use crate::events::ClusterEvent;
use crate::framework::{
    Code, Cycle, FILTERS, MAX_SCORE, NodeFilter, NodeScore, Plugin, Points, PreFilter, Reasons,
    SCORES, Status,
};
use crate::model::{Atom, Node, NodeInfo, Pod, Resources, class_of, is_extended};

const FIT: &str = "NodeResourcesFit";
const BALANCED: &str = "NodeResourcesBalancedAllocation";

/// A resource with its weight in scores.
#[derive(Debug, Clone, Deserialize)]
struct ResourceSpec {
    name: String,
    #[serde(default)]
    weight: i64,
}

/// A point of a function of utilization.
#[derive(Debug, Clone, Copy, Deserialize)]
struct ShapePoint {
    utilization: i64,
    score: i64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Strategy {
    #[serde(rename = "type")]
    type_: String,
    resources: Vec<ResourceSpec>,
    requested_to_capacity_ratio: Option<Ratio>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ratio {
    shape: Vec<ShapePoint>,
    resources: Vec<ResourceSpec>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FitArgs {
    ignored_resources: Vec<String>,
    ignored_resource_groups: Vec<String>,
    scoring_strategy: Option<Strategy>,
}

/// How a node is scored by its allocation of each resource.
#[derive(Debug, Clone)]
enum Scorer {
    Least,
    Most,
    Ratio(Vec<ShapePoint>),
}

/// Scores nodes by the allocation of resources.
#[derive(Debug)]
pub(super) struct Allocation {
    name: &'static str,
    scorer: Scorer,
    resources: Vec<(Atom, i64)>,
}

impl Allocation {
    pub(super) fn least(args: &Value) -> Result<Self, PluginError> {
        const NAME: &str = "NodeResourcesLeastAllocated";
        let args: Ratio = arguments(NAME, args)?;
        Ok(Self { name: NAME, scorer: Scorer::Least, resources: specs(NAME, &args.resources)? })
    }

    pub(super) fn most(args: &Value) -> Result<Self, PluginError> {
        const NAME: &str = "NodeResourcesMostAllocated";
        let args: Ratio = arguments(NAME, args)?;
        Ok(Self { name: NAME, scorer: Scorer::Most, resources: specs(NAME, &args.resources)? })
    }

    pub(super) fn ratio(args: &Value) -> Result<Self, PluginError> {
        const NAME: &str = "RequestedToCapacityRatio";
        let args: Ratio = arguments(NAME, args)?;
        Ok(Self {
            name: NAME,
            scorer: Scorer::Ratio(shape(NAME, &args.shape)?),
            resources: specs(NAME, &args.resources)?,
        })
    }

    fn of(strategy: Option<&Strategy>) -> Result<Self, PluginError> {
        let default = Strategy::default();
        let strategy = strategy.unwrap_or(&default);
        let scorer = match strategy.type_.as_str() {
            "" | "LeastAllocated" => Scorer::Least,
            "MostAllocated" => Scorer::Most,
            "RequestedToCapacityRatio" => {
                let own = strategy.requested_to_capacity_ratio.as_ref();
                Scorer::Ratio(shape(FIT, own.map(|own| &*own.shape).unwrap_or_default())?)
            }
            other => {
                return Err(invalid(
                    FIT,
                    format!("scoringStrategy.type: Unsupported value: {other:?}"),
                ));
            }
        };
        Ok(Self { name: FIT, scorer, resources: specs(FIT, &strategy.resources)? })
    }

    fn prepare<'a>(&'a self, pod: &'a Pod) -> Allocated<'a> {
        let requests = self
            .resources
            .iter()
            .map(|(name, _)| amount(name, &pod.requests, Some(&pod.score_requests)))
            .collect();
        Allocated { own: self, requests }
    }
}

/// CPU and memory for weights of 1, or what the configuration names.
fn specs(plugin: &'static str, specs: &[ResourceSpec]) -> Result<Vec<(Atom, i64)>, PluginError> {
    if specs.is_empty() {
        return Ok(vec![(Atom::new("cpu"), 1), (Atom::new("memory"), 1)]);
    }
    let weight = |spec: &ResourceSpec| match spec.weight {
        0 => Ok(1),
        weight @ 1..=100 => Ok(weight),
        weight => Err(invalid(
            plugin,
            format!("weight of resource {}: {weight} is not in valid range [1-100]", spec.name),
        )),
    };
    specs.iter().map(|spec| Ok((Atom::new(&spec.name), weight(spec)?))).collect()
}

fn shape(plugin: &'static str, shape: &[ShapePoint]) -> Result<Vec<ShapePoint>, PluginError> {
    let ascends = shape.windows(2).all(|pair| match pair {
        [before, after] => before.utilization < after.utilization,
        _ => true,
    });
    let in_range = shape
        .iter()
        .all(|point| (0..=100).contains(&point.utilization) && (0..=10).contains(&point.score));
    if shape.is_empty() || !ascends || !in_range {
        return Err(invalid(
            plugin,
            "shape: at least one point, utilizations that ascend from 0 to 100 and scores from 0 to 10 are needed",
        ));
    }
    let scaled = shape.iter().map(|point| ShapePoint {
        utilization: point.utilization,
        score: point.score.saturating_mul(10),
    });
    Ok(scaled.collect())
}

/// The amount of a resource; CPU and memory of `scored` where it is given.
fn amount(name: &Atom, resources: &Resources, scored: Option<&Resources>) -> i64 {
    match name.as_str() {
        "cpu" => scored.unwrap_or(resources).milli_cpu,
        "memory" => scored.unwrap_or(resources).memory,
        "ephemeral-storage" => resources.ephemeral_storage,
        _ => resources.scalar(name),
    }
}

fn is_scalar(name: &Atom) -> bool {
    !matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
}

struct Allocated<'a> {
    own: &'a Allocation,
    requests: Vec<i64>,
}

impl NodeScore for Allocated<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let (mut sum, mut weights) = (0i64, 0i64);
        for ((name, weight), request) in self.own.resources.iter().zip(&self.requests) {
            let capacity = amount(name, &node.allocatable, None);
            if capacity <= 0 || (*request == 0 && is_scalar(name)) {
                continue;
            }
            let used = amount(name, &info.requested, Some(&info.score_requested));
            let requested = used.saturating_add(*request);
            let score = match &self.own.scorer {
                Scorer::Least => percent(capacity.saturating_sub(requested).max(0), capacity),
                Scorer::Most => percent(requested.min(capacity), capacity),
                Scorer::Ratio(shape) => {
                    let utilization =
                        if requested > capacity { 100 } else { percent(requested, capacity) };
                    let score = interpolate(shape, utilization);
                    if score <= 0 {
                        continue;
                    }
                    score
                }
            };
            sum = sum.saturating_add(score.saturating_mul(*weight));
            weights = weights.saturating_add(*weight);
        }
        match &self.own.scorer {
            _ if weights == 0 => 0,
            #[allow(
                clippy::cast_precision_loss,
                clippy::cast_possible_truncation,
                reason = "small"
            )]
            Scorer::Ratio(_) => (sum as f64 / weights as f64).round() as i64,
            _ => sum.checked_div(weights).unwrap_or(0),
        }
    }
}

/// A part of a whole in percent, rounded down.
fn percent(part: i64, whole: i64) -> i64 {
    let percent = i128::from(part) * 100 / i128::from(whole.max(1));
    i64::try_from(percent).unwrap_or(MAX_SCORE)
}

/// The value of a function of utilization between its points.
fn interpolate(shape: &[ShapePoint], utilization: i64) -> i64 {
    let mut before: Option<&ShapePoint> = None;
    for point in shape {
        if utilization <= point.utilization {
            let Some(before) = before else { return point.score };
            let rise = point.score.saturating_sub(before.score);
            let run = utilization.saturating_sub(before.utilization);
            let width = point.utilization.saturating_sub(before.utilization);
            let part = rise.saturating_mul(run).checked_div(width).unwrap_or(0);
            return before.score.saturating_add(part);
        }
        before = Some(point);
    }
    before.map_or(0, |point| point.score)
}

impl Plugin for Allocation {
    fn name(&self) -> &'static str {
        self.name
    }

    fn points(&self) -> Points {
        SCORES
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        Some(Box::new(self.prepare(cycle.pod)))
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}

/// Rejects nodes without room, and scores by what is left.
#[derive(Debug)]
pub(super) struct Fit {
    ignored: Vec<Atom>,
    ignored_groups: Vec<String>,
    allocation: Allocation,
}

impl Fit {
    pub(super) fn new(args: &Value) -> Result<Self, PluginError> {
        let args: FitArgs = arguments(FIT, args)?;
        Ok(Self {
            allocation: Allocation::of(args.scoring_strategy.as_ref())?,
            ignored: args.ignored_resources.iter().map(Atom::from).collect(),
            ignored_groups: args.ignored_resource_groups,
        })
    }

    fn ignores(&self, name: &Atom) -> bool {
        self.ignored.contains(name)
            || name.split_once('/').is_some_and(|(group, _)| {
                self.ignored_groups.iter().any(|ignored| ignored == group)
            })
    }
}

/// A pod, and the extended resources that devices serve on nodes that do not have them.
struct FitFilter<'a>(&'a Fit, &'a Pod, Vec<&'a Atom>);

impl<'a> FitFilter<'a> {
    /// For a change that may help, where classes of devices are not looked up.
    fn any(fit: &'a Fit, pod: &'a Pod) -> Self {
        let names = pod.requests.scalars.iter().map(|(name, _)| name);
        Self(fit, pod, names.filter(|name| is_extended(name)).collect())
    }
}

impl FitFilter<'_> {
    fn insufficient(&self, info: &NodeInfo, node: &Node) -> (Vec<Cow<'static, str>>, bool) {
        let (pod, allocatable) = (self.1, &node.allocatable);
        let (mut reasons, mut is_resolvable) = (Vec::new(), true);
        if i64::try_from(info.pods.len()).unwrap_or(i64::MAX) >= allocatable.pods {
            reasons.push("Too many pods".into());
        }
        let mut check =
            |wanted: i64, total: i64, used: i64, reason: &dyn Fn() -> Cow<'static, str>| {
                if wanted > 0 && wanted > total.saturating_sub(used) {
                    reasons.push(reason());
                    is_resolvable &= wanted <= total;
                }
            };
        let (wanted, used) = (&pod.requests, &info.requested);
        check(wanted.milli_cpu, allocatable.milli_cpu, used.milli_cpu, &|| {
            "Insufficient cpu".into()
        });
        check(wanted.memory, allocatable.memory, used.memory, &|| "Insufficient memory".into());
        let storage = wanted.ephemeral_storage;
        check(storage, allocatable.ephemeral_storage, used.ephemeral_storage, &|| {
            "Insufficient ephemeral-storage".into()
        });
        for (name, amount) in &wanted.scalars {
            let is_delegated = self.2.contains(&name) && allocatable.scalar(name) <= 0;
            if !self.0.ignores(name) && !is_delegated {
                check(*amount, allocatable.scalar(name), used.scalar(name), &|| {
                    format!("Insufficient {name}").into()
                });
            }
        }
        (reasons, is_resolvable)
    }
}

impl NodeFilter for FitFilter<'_> {
    fn filter(&self, info: &NodeInfo) -> Result<(), Status> {
        let Some(node) = &info.node else { return Ok(()) };
        let (reasons, is_resolvable) = self.insufficient(info, node);
        if reasons.is_empty() {
            return Ok(());
        }
        let code = if is_resolvable { Code::Unschedulable } else { Code::Unresolvable };
        Err(Status { code, reasons: Reasons::Many(reasons), plugin: FIT })
    }
}

impl Plugin for Fit {
    fn name(&self) -> &'static str {
        FIT
    }

    fn points(&self) -> Points {
        FILTERS.and(SCORES)
    }

    fn pre_filter<'a>(&'a self, cycle: Cycle<'a>) -> PreFilter<'a> {
        let names = cycle.pod.requests.scalars.iter().map(|(name, _)| name);
        let classes = &cycle.objects.device_classes;
        let served =
            names.filter(|name| is_extended(name) && class_of(classes, name).is_some()).collect();
        PreFilter::Filter(Box::new(FitFilter(self, cycle.pod, served)))
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        Some(Box::new(self.allocation.prepare(cycle.pod)))
    }

    fn may_help(&self, event: ClusterEvent<'_>, pod: &Pod) -> bool {
        match event {
            ClusterEvent::PodDeleted(_) => true,
            ClusterEvent::PodUpdated(old, new) => new.requests.is_below(&old.requests),
            ClusterEvent::UnscheduledPodUpdated(old, new) => {
                new.uid == pod.uid && new.requests.is_below(&old.requests)
            }
            ClusterEvent::DeviceClass(_) => !pod.extended.is_empty(),
            ClusterEvent::NodeAdded(node) => FitFilter::any(self, pod)
                .insufficient(&NodeInfo::new(node.name.clone(), None), node)
                .0
                .is_empty(),
            ClusterEvent::NodeUpdated(old, new) => {
                let (old, own) = (&old.allocatable, &new.allocatable);
                let grows = own.pods > old.pods || old.is_below(own);
                grows
                    && FitFilter::any(self, pod)
                        .insufficient(&NodeInfo::new(new.name.clone(), None), new)
                        .0
                        .is_empty()
            }
            _ => false,
        }
    }
}

/// Prefers nodes on which resources are used in even parts.
#[derive(Debug)]
pub(super) struct BalancedAllocation(Vec<(Atom, i64)>);

impl BalancedAllocation {
    pub(super) fn new(args: &Value) -> Result<Self, PluginError> {
        let args: Ratio = arguments(BALANCED, args)?;
        Ok(Self(specs(BALANCED, &args.resources)?))
    }
}

struct Balance<'a> {
    resources: &'a [(Atom, i64)],
    requests: Vec<i64>,
}

impl NodeScore for Balance<'_> {
    fn score(&self, info: &NodeInfo) -> i64 {
        let Some(node) = &info.node else { return 0 };
        let (mut before, mut after) = (Deviation::default(), Deviation::default());
        for ((name, _), request) in self.resources.iter().zip(&self.requests) {
            let capacity = amount(name, &node.allocatable, None);
            if capacity <= 0 || (*request == 0 && is_scalar(name)) {
                continue;
            }
            let used = amount(name, &info.requested, None);
            before.add(used, capacity);
            after.add(used.saturating_add(*request), capacity);
        }
        let half = MAX_SCORE / 2;
        let better = after.score().saturating_sub(before.score()).saturating_add(half);
        half.saturating_add(better.checked_div(2).unwrap_or(0))
    }
}

/// The standard deviation of the parts of resources that are used.
#[derive(Default)]
struct Deviation {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Deviation {
    #[allow(clippy::cast_precision_loss, reason = "a fraction")]
    fn add(&mut self, used: i64, capacity: i64) {
        let fraction = (used as f64 / capacity as f64).min(1.0);
        self.count += 1.0;
        self.sum += fraction;
        self.squares += fraction * fraction;
    }

    #[allow(clippy::cast_possible_truncation, reason = "from 0 to 100")]
    fn score(&self) -> i64 {
        if self.count < 2.0 {
            return MAX_SCORE;
        }
        let mean = self.sum / self.count;
        let deviation = (self.squares / self.count - mean * mean).max(0.0).sqrt();
        // Rounding must not make 100 of what is 99.99… through the squares alone.
        (((1.0 - deviation) * 100.0) + 1e-9) as i64
    }
}

impl Plugin for BalancedAllocation {
    fn name(&self) -> &'static str {
        BALANCED
    }

    fn points(&self) -> Points {
        SCORES
    }

    fn pre_score<'a>(
        &'a self,
        cycle: Cycle<'a>,
        _: &[&'a NodeInfo],
    ) -> Option<Box<dyn NodeScore + 'a>> {
        let requests: Vec<_> =
            self.0.iter().map(|(name, _)| amount(name, &cycle.pod.requests, None)).collect();
        // Pods that request nothing would all go to one node.
        if requests.iter().all(|request| *request == 0) {
            return None;
        }
        Some(Box::new(Balance { resources: &self.0, requests }))
    }

    fn may_help(&self, _: ClusterEvent<'_>, _: &Pod) -> bool {
        false
    }
}
