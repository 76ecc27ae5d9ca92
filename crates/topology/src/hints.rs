//! Topology hints of resources, merged by a policy.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::Node;
use crate::mask::NumaMask;

/// A topology hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hint {
    /// The nodes; `None`: any.
    pub nodes: Option<NumaMask>,
    /// Whether it is preferred: no smaller set of nodes could ever suffice.
    pub preferred: bool,
}

/// The hints of one provider, by resource. No resource: no preference. A resource without hints: no
/// nodes can satisfy it.
pub type Hints = BTreeMap<String, Vec<Hint>>;

/// The topology manager's policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Hints are ignored (`none`).
    #[default]
    None,
    /// The best hint is used (`best-effort`).
    BestEffort,
    /// Pods without a preferred hint are rejected (`restricted`).
    Restricted,
    /// Pods that do not fit on one node are rejected (`single-numa-node`).
    SingleNumaNode,
}

/// The nodes, and the comparison of sets of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    all: NumaMask,
    /// Distances by node, if the closest are preferred.
    distances: Option<BTreeMap<u32, Vec<u64>>>,
}

impl Nodes {
    /// With these nodes, preferring the closest if configured.
    pub(crate) fn new(nodes: &[Node], prefer_closest: bool) -> Self {
        let distances = || nodes.iter().map(|node| (node.id, node.distances.clone())).collect();
        Self {
            all: nodes.iter().map(|node| node.id).collect(),
            distances: prefer_closest.then(distances),
        }
    }

    /// Sum of the distances between all pairs of the nodes.
    fn spread(&self, mask: NumaMask, distances: &BTreeMap<u32, Vec<u64>>) -> u64 {
        let from = mask.nodes().filter_map(|node| distances.get(&node));
        let sums = from.map(|row| {
            let to = mask.nodes().filter_map(|node| row.get(node as usize));
            to.fold(0, |sum: u64, distance| sum.saturating_add(*distance))
        });
        sums.fold(0, u64::saturating_add)
    }

    /// Whether the nodes of `candidate` are better than those of `current`.
    fn is_better(&self, candidate: NumaMask, current: NumaMask, policy: Policy) -> bool {
        let distances = self.distances.as_ref().filter(|_| policy != Policy::SingleNumaNode);
        match distances.filter(|_| candidate.len() == current.len()) {
            Some(distances) => {
                let rank = |mask| (self.spread(mask, distances), mask);
                rank(candidate) < rank(current)
            }
            None => candidate.is_narrower(current),
        }
    }
}

impl Policy {
    /// Merges the hints of all providers; returns the best hint and whether the policy admits it.
    pub(crate) fn merge(self, nodes: &Nodes, providers: &[Hints]) -> (Hint, bool) {
        let mut lists = lists(providers);
        if self == Self::SingleNumaNode {
            for list in &mut lists {
                list.retain(|hint| {
                    hint.preferred && hint.nodes.is_none_or(|nodes| nodes.len() == 1)
                });
            }
        }
        let merger = Merger { policy: self, nodes, enough: enough(&lists) };
        let best = merger.best(&lists);
        let mut best = match best {
            Some((mask, preferred)) => Hint { nodes: Some(mask), preferred },
            None => Hint { nodes: Some(nodes.all), preferred: false },
        };
        if self == Self::SingleNumaNode && best.nodes == Some(nodes.all) {
            best.nodes = None;
        }
        let admits = best.preferred || matches!(self, Self::None | Self::BestEffort);
        (best, admits)
    }
}

/// The hints of each resource; a resource without hints gets a non-preferred one.
fn lists(providers: &[Hints]) -> Vec<Vec<Hint>> {
    let any = |preferred| vec![Hint { nodes: None, preferred }];
    let of_provider = |hints: &Hints| match hints.is_empty() {
        true => vec![any(true)],
        false => hints
            .values()
            .map(|list| if list.is_empty() { any(false) } else { list.clone() })
            .collect(),
    };
    providers.iter().flat_map(of_provider).collect()
}

/// The largest minimum number of nodes of any resource.
fn enough(lists: &[Vec<Hint>]) -> usize {
    let narrowest =
        |list: &Vec<Hint>| list.iter().filter_map(|hint| hint.nodes).map(NumaMask::len).min();
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

/// The intersection of hints, and whether it is preferred.
type Merged = (NumaMask, bool);

/// A partial merge. It is preferred if all hints are preferred and have the same nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Partial {
    nodes: NumaMask,
    preferred: bool,
    /// While it is preferred: the nodes of the hints that have any.
    named: Option<NumaMask>,
}

impl Partial {
    /// Without hints, on a machine with these nodes.
    fn of(nodes: NumaMask) -> Self {
        Self { nodes, preferred: true, named: None }
    }

    fn and(self, hint: Hint) -> Self {
        let named = self.named.or(hint.nodes);
        let same = hint.nodes.is_none_or(|nodes| named == Some(nodes));
        let preferred = self.preferred && hint.preferred && same;
        Self {
            nodes: hint.nodes.map_or(self.nodes, |nodes| self.nodes.and(nodes)),
            preferred,
            named: named.filter(|_| preferred),
        }
    }
}

struct Merger<'a> {
    policy: Policy,
    nodes: &'a Nodes,
    enough: usize,
}

impl Merger<'_> {
    /// The best merge of one hint of each list. Equal partial merges are combined, so that the number
    /// of combinations does not grow exponentially.
    fn best(&self, lists: &[Vec<Hint>]) -> Option<Merged> {
        let mut found = BTreeSet::from([Partial::of(self.nodes.all)]);
        for list in lists {
            let together = |partial: &Partial| {
                let partial = *partial;
                list.iter().map(move |hint| partial.and(*hint))
            };
            found = found.iter().flat_map(together).collect();
        }
        let merged = found.into_iter().map(|partial| (partial.nodes, partial.preferred));
        merged
            .filter(|merged| !merged.0.is_empty())
            .reduce(|best, candidate| if self.replaces(best, candidate) { candidate } else { best })
    }

    /// Whether `candidate` is better. Among non-preferred ones, the best has as many nodes as the
    /// resource that needs the most, or is closest to that from below.
    fn replaces(&self, current: Merged, candidate: Merged) -> bool {
        if current.1 != candidate.1 {
            return candidate.1;
        }
        let better = self.nodes.is_better(candidate.0, current.0, self.policy);
        let (now, then) = (current.0.len(), candidate.0.len());
        match () {
            () if current.1 || now > self.enough => better,
            () if now == self.enough => then == self.enough && better,
            () if then > self.enough => false,
            () if then != now => then > now,
            () => better,
        }
    }
}
