//! Sets of CPUs, in the kernel's list format: `0-3,8`.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Maximum number of CPUs, to bound the work for invalid lists.
const MOST: u32 = 8192;

/// A set of CPUs. Prints and parses in the kernel's list format; the empty set is "".
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

/// An invalid CPU list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of CPUs such as \"0-3,8\"")]
pub struct CpuSetError(pub String);

impl CpuSet {
    pub(crate) const EMPTY: Self = Self(BTreeSet::new());

    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it contains the CPU.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The union.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    /// The intersection.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// The difference.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Whether it is a subset of the other.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Whether they have no CPU in common.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.0.is_disjoint(&other.0)
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl<const N: usize> From<[u32; N]> for CpuSet {
    fn from(cpus: [u32; N]) -> Self {
        cpus.into_iter().collect()
    }
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    fn from_str(text: &str) -> Result<Self, CpuSetError> {
        let mut cpus = BTreeSet::new();
        let number = |text: &str| text.parse::<u32>().ok().filter(|cpu| *cpu < MOST);
        for item in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
                _ => return Err(CpuSetError(text.to_owned())),
            }
        }
        Ok(Self(cpus))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&last.saturating_add(1)).is_some() {
                last = last.saturating_add(1);
            }
            match first == last {
                true => write!(out, "{separator}{first}")?,
                false => write!(out, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cpuset_lists_have_the_kernel_format() {
        for (text, printed) in [
            ("", ""),
            ("0", "0"),
            ("0-3,8", "0-3,8"),
            ("8,3,2,1,0", "0-3,8"),
            ("1-1", "1"),
            ("0-1,1-2,2", "0-2"),
            ("8191", "8191"),
        ] {
            let set = text.parse::<CpuSet>().map(|set| set.to_string());
            assert_eq!(set.as_deref(), Ok(printed), "{text:?}");
        }
        for text in ["a", "3-1", "1,", ",", "-1", "1-", "0-4294967295", "8192", "1 ", "0-3-5"] {
            assert_eq!(text.parse::<CpuSet>(), Err(CpuSetError(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(cpus: Vec<u16>) {
            let set: CpuSet = cpus.into_iter().map(|cpu| u32::from(cpu) % MOST).collect();
            prop_assert_eq!(set.to_string().parse(), Ok(set));
        }
    }
}
