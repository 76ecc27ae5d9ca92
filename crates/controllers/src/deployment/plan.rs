//! The numbers of a rollout: which replica set is scaled to how many replicas.

use std::cmp::Reverse;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::annotations::{desired_replicas, max_replicas};
use crate::workload::{Rounding, count, scaled};

/// The label with the hash of the template, of replica sets and their pods.
pub(super) const HASH_LABEL: &str = "pod-template-hash";

/// The replica sets of a deployment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sets {
    /// That of the current template.
    pub(super) new: Option<Arc<ReplicaSet>>,
    /// All others, the oldest first.
    pub(super) old: Vec<Arc<ReplicaSet>>,
}

impl Sets {
    /// Finds the oldest of the current template.
    pub(super) fn of(deployment: &Deployment, mut sets: Vec<Arc<ReplicaSet>>) -> Self {
        sets.sort_by_cached_key(|set| (created(set), set.metadata.name.clone()));
        let template = deployment.spec.as_ref().map(|spec| &spec.template);
        let position = sets.iter().position(|set| {
            let of_set = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
            template.zip(of_set).is_some_and(|(one, two)| same_but_hash(one, two))
        });
        let new = position.map(|position| sets.remove(position));
        Self { new, old: sets }
    }

    /// All, the new one last.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ReplicaSet>> {
        self.old.iter().chain(&self.new)
    }

    /// The number of pods that they ask for.
    pub(super) fn desired(&self) -> isize {
        self.all().map(|set| desired(set)).sum()
    }

    /// The number of available pods.
    pub(super) fn available(&self) -> isize {
        self.all().map(|set| available(set)).sum()
    }
}

/// Whether two templates differ by the label with the hash at most.
pub(super) fn same_but_hash(one: &PodTemplateSpec, two: &PodTemplateSpec) -> bool {
    fn without_hash(metadata: Option<&ObjectMeta>) -> ObjectMeta {
        let mut metadata = metadata.cloned().unwrap_or_default();
        metadata.labels.get_or_insert_default().remove(HASH_LABEL);
        metadata
    }
    one.spec == two.spec
        && without_hash(one.metadata.as_ref()) == without_hash(two.metadata.as_ref())
}

pub(super) fn created(set: &ReplicaSet) -> Option<Timestamp> {
    set.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// The number of pods that a replica set asks for.
pub(super) fn desired(set: &ReplicaSet) -> isize {
    set.spec.as_ref().map_or(0, |spec| count(Some(spec.replicas.unwrap_or(1))))
}

/// The number of its available pods.
pub(super) fn available(set: &ReplicaSet) -> isize {
    count(set.status.as_ref().and_then(|status| status.available_replicas))
}

/// The number of its available pods that it keeps. The status of a set that was just scaled down counts pods
/// that are about to be deleted: who relied on them would have too few a moment later.
fn kept_available(set: &ReplicaSet) -> isize {
    available(set).min(desired(set))
}

/// The number of its pods.
pub(super) fn actual(set: &ReplicaSet) -> isize {
    count(set.status.as_ref().map(|status| status.replicas))
}

/// The limits of a deployment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The number of pods that it asks for.
    pub(super) replicas: isize,
    /// So many more there may be.
    pub(super) surge: isize,
    /// So many of them may be unavailable.
    pub(super) unavailable: isize,
}

impl Limits {
    pub(super) fn of(deployment: &Deployment) -> Self {
        let spec = deployment.spec.as_ref();
        let replicas = spec.map_or(0, |spec| count(Some(spec.replicas.unwrap_or(1))));
        if !is_rolling(deployment) {
            return Self { replicas, surge: 0, unavailable: 0 };
        }
        let strategy = spec.and_then(|spec| spec.strategy.as_ref()?.rolling_update.as_ref());
        let part = |value, rounding| scaled(value, replicas, rounding).unwrap_or_default().max(0);
        let surge = part(strategy.and_then(|it| it.max_surge.as_ref()), Rounding::Up);
        let unavailable = part(strategy.and_then(|it| it.max_unavailable.as_ref()), Rounding::Down);
        // with neither, no rollout would ever begin
        let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
        Self { replicas, surge, unavailable: unavailable.min(replicas) }
    }

    /// The most pods at any time.
    pub(super) fn most(self) -> isize {
        self.replicas.saturating_add(self.surge)
    }

    /// The fewest available pods at any time.
    pub(super) fn least_available(self) -> isize {
        self.replicas.saturating_sub(self.unavailable)
    }
}

/// Whether the strategy is RollingUpdate.
pub(super) fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref());
    strategy.and_then(|strategy| strategy.type_.as_deref()).is_none_or(|it| it == "RollingUpdate")
}

/// The size of a new replica set of now `size` replicas, with `total` replicas in all sets.
pub(super) fn scaled_up(rolling: bool, limits: Limits, size: isize, total: isize) -> isize {
    if !rolling || size > limits.replicas {
        return limits.replicas;
    }
    let remaining = limits.most().saturating_sub(total);
    if remaining <= 0 { size } else { size.saturating_add(remaining.min(limits.replicas - size)) }
}

/// The size of each of the old replica sets in a rolling update: first those are scaled down that have
/// unavailable pods, then others as far as enough pods stay available. Unlike upstream's, it does not count
/// pods that a set is about to delete.
pub(super) fn scaled_down(limits: Limits, sets: &Sets) -> Vec<isize> {
    let mut sizes: Vec<isize> = sets.old.iter().map(|set| desired(set)).collect();
    let new_unavailable = sets.new.as_ref().map_or(0, |set| desired(set) - kept_available(set));
    let surplus = sets.desired() - limits.least_available() - new_unavailable;
    if sizes.iter().all(|size| *size == 0) || surplus <= 0 {
        return sizes;
    }
    let mut left = surplus;
    for (size, set) in sizes.iter_mut().zip(&sets.old) {
        let unhealthy = (*size - available(set)).clamp(0, left);
        *size -= unhealthy;
        left -= unhealthy;
    }
    let kept: isize = sets.all().map(|set| kept_available(set)).sum();
    let mut left = (kept - limits.least_available()).max(0);
    for size in &mut sizes {
        let part = (*size).min(left);
        *size -= part;
        left -= part;
    }
    sizes
}

/// Whether a scaling of the deployment has not reached all its replica sets.
pub(super) fn is_scaling(limits: Limits, sets: &Sets) -> bool {
    let mut active = sets.all().filter(|set| desired(set) > 0);
    active.any(|set| desired_replicas(set).is_some_and(|desired| desired != limits.replicas))
}

/// The sizes that replica sets get when the deployment was scaled or is paused.
pub(super) fn rescaled(
    rolling: bool,
    limits: Limits,
    sets: &Sets,
    total: isize,
) -> Vec<(Arc<ReplicaSet>, isize)> {
    let mut newest_first = sets.old.clone();
    newest_first.reverse();
    let mut active: Vec<_> = sets.new.iter().chain(&newest_first).cloned().collect();
    active.retain(|set| desired(set) > 0);
    let latest = sets.new.as_ref().or(newest_first.first());
    let Some(latest) = latest else { return Vec::new() };
    if let [] | [_] = active.as_slice() {
        let only = active.first().unwrap_or(latest);
        return vec![(only.clone(), limits.replicas)];
    }
    if sets.new.as_ref().is_some_and(|new| is_saturated(limits, new)) {
        let old = sets.old.iter().filter(|set| desired(set) > 0);
        return old.map(|set| (set.clone(), 0)).collect();
    }
    if !rolling {
        return Vec::new();
    }
    let allowed = if limits.replicas > 0 { limits.most() } else { 0 };
    let to_add = allowed - active.iter().map(|set| desired(set)).sum::<isize>();
    if to_add > 0 {
        active.sort_by_cached_key(|set| {
            (Reverse(desired(set)), Reverse(created(set)), Reverse(set.metadata.name.clone()))
        });
    } else if to_add < 0 {
        active.sort_by_cached_key(|set| {
            (Reverse(desired(set)), created(set), set.metadata.name.clone())
        });
    }
    let mut added = 0;
    let mut sizes: Vec<_> = active
        .into_iter()
        .map(|set| {
            let part = proportion(limits, &set, to_add, added, total);
            added += part;
            let size = desired(&set).saturating_add(part);
            (set, size)
        })
        .collect();
    if let Some((_, first)) = sizes.first_mut()
        && to_add != 0
    {
        *first = first.saturating_add(to_add - added);
    }
    sizes.iter_mut().for_each(|(_, size)| *size = (*size).max(0));
    sizes
}

/// Whether the new replica set has all pods, and knows of the deployment's size.
fn is_saturated(limits: Limits, new: &ReplicaSet) -> bool {
    desired(new) == limits.replicas
        && desired_replicas(new) == Some(limits.replicas)
        && available(new) == limits.replicas
}

/// The part of `to_add` replicas for one replica set, in proportion to its size.
fn proportion(
    limits: Limits,
    set: &ReplicaSet,
    to_add: isize,
    added: isize,
    total: isize,
) -> isize {
    let size = desired(set);
    if size == 0 || to_add == 0 || to_add == added {
        return 0;
    }
    let part = if limits.replicas == 0 {
        size.saturating_neg()
    } else {
        let before = max_replicas(set).filter(|before| *before != 0).unwrap_or(total);
        rounded(size.saturating_mul(limits.most()), before).map_or(0, |new| new - size)
    };
    let allowed = to_add - added;
    if to_add > 0 { part.min(allowed) } else { part.max(allowed) }
}

/// A quotient of non-negative numbers, rounded half up.
fn rounded(dividend: isize, divisor: isize) -> Option<isize> {
    dividend.saturating_mul(2).saturating_add(divisor).checked_div(divisor.saturating_mul(2))
}
