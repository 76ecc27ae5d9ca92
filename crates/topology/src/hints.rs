//! Which NUMA nodes suit a container: each resource gives hints, a policy merges them.

use std::collections::{BTreeMap, BTreeSet};

use crate::machine::Node;
use crate::mask::NumaMask;

/// A set of nodes that would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    /// The nodes; `None` for any.
    pub(crate) nodes: Option<NumaMask>,
    /// Whether there are no fewer nodes that could ever do.
    pub(crate) preferred: bool,
}

/// The hints of one provider, by resource. No resource at all: it does not matter. A resource
/// without hints: no nodes will do.
pub(crate) type Hints = BTreeMap<String, Vec<Hint>>;

/// The topology manager's policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Hints are not asked for.
    #[default]
    None,
    /// The best hint is followed as far as it goes.
    BestEffort,
    /// What cannot have its preferred nodes is refused.
    Restricted,
    /// What cannot have all from one node is refused.
    SingleNumaNode,
}

/// The nodes, and how one set of them is told to be better than another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nodes {
    all: NumaMask,
    /// Distances by node, if the closest are preferred.
    distances: Option<BTreeMap<u32, Vec<u64>>>,
}

impl Nodes {
    /// These nodes, the closest preferred if so told.
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

    /// Whether `candidate` is to take the place of `current`, by their nodes alone.
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
    /// The best hint of all that the providers agree upon, and whether the policy admits it.
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

/// The hints of each resource. What has none gets one that says so.
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

/// How many nodes the resource needs that needs the most.
fn enough(lists: &[Vec<Hint>]) -> usize {
    let narrowest =
        |list: &Vec<Hint>| list.iter().filter_map(|hint| hint.nodes).map(NumaMask::len).min();
    lists.iter().filter_map(narrowest).max().unwrap_or(0)
}

/// The nodes that all hints name, and whether that is preferred.
type Merged = (NumaMask, bool);

/// What hints come to together. It is preferred if all are and name the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Partial {
    nodes: NumaMask,
    preferred: bool,
    /// While it is preferred: what those name that name any nodes.
    named: Option<NumaMask>,
}

impl Partial {
    /// No hints, on a machine with these nodes.
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
    /// The best of one hint of each list together, of all ways to choose them. Different ways that
    /// come to the same so far go on as one: there are few results, and no end of ways.
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

    /// Whether `candidate` is better. Among those that are not preferred it is best to have as many
    /// nodes as the neediest resource needs, then to come close to that from below.
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
