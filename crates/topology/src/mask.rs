//! Sets of NUMA nodes.

use std::fmt;

/// A set of NUMA nodes, 0 to 63, ordered by its lower nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NumaMask(u64);

impl NumaMask {
    /// Higher nodes are ignored.
    pub const MOST: u32 = 64;

    /// Whether the node is in it.
    pub fn contains(self, node: u32) -> bool {
        1_u64.checked_shl(node).is_some_and(|bit| self.0 & bit != 0)
    }

    /// The number of nodes.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its nodes in ascending order.
    pub fn nodes(self) -> impl Iterator<Item = u32> {
        (0..Self::MOST).filter(move |node| self.contains(*node))
    }

    /// The intersection.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether it is a subset of the other.
    pub fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    /// Whether it has fewer nodes, or as many and more of the lower ones.
    pub fn is_narrower(self, other: Self) -> bool {
        (self.len(), self) < (other.len(), other)
    }
}

impl FromIterator<u32> for NumaMask {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let bits = nodes.into_iter().filter_map(|node| 1_u64.checked_shl(node));
        Self(bits.fold(0, |mask, bit| mask | bit))
    }
}

/// In the format of `cpuset.mems`: `0,2`.
impl fmt::Display for NumaMask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.nodes().enumerate() {
            write!(out, "{}{node}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}
