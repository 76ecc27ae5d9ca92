//! Sets of completion indexes, as the status of a Job writes them: `1,3-5,7`.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Pod;

/// The annotation and label with the index of a pod.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Intervals of indexes in order, which neither overlap nor touch. Each has its first and last index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(usize, usize)>);

impl Indexes {
    /// Reads what a status says, as far as it is valid, of a number of completions.
    pub(super) fn parse(text: &str, completions: usize) -> Self {
        let mut indexes = Self::default();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                continue;
            };
            if first < completions && first <= last {
                indexes.0.push((first, last.min(completions.saturating_sub(1))));
            }
        }
        indexes.0.sort_unstable();
        indexes.joined()
    }

    /// With more indexes.
    pub(super) fn with(&self, more: impl IntoIterator<Item = usize>) -> Self {
        let more: BTreeSet<usize> = more.into_iter().collect();
        self.merged(&Self(more.into_iter().map(|index| (index, index)).collect()))
    }

    /// Those of either.
    pub(super) fn merged(&self, other: &Self) -> Self {
        let mut all = [self.0.as_slice(), &other.0].concat();
        all.sort_unstable();
        Self(all).joined()
    }

    /// Joins intervals that overlap or touch.
    fn joined(self) -> Self {
        let mut joined: Vec<(usize, usize)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0 {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last)
                }
                _ => joined.push((first, last)),
            }
        }
        Self(joined)
    }

    /// The number of indexes.
    pub(super) fn total(&self) -> usize {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it has the index.
    pub(super) fn has(&self, index: usize) -> bool {
        let position = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(position).is_some_and(|(first, _)| *first <= index)
    }

    /// The number of indexes that both have.
    pub(super) fn common(&self, other: &Self) -> usize {
        let parts = self.0.iter().flat_map(|one| other.0.iter().map(move |two| (one, two)));
        let common = parts.map(|(one, two)| {
            (one.1.min(two.1).saturating_add(1)).saturating_sub(one.0.max(two.0))
        });
        common.sum()
    }

    /// The first indexes below the number of completions that it has not.
    pub(super) fn missing(&self, count: usize, completions: usize) -> Vec<usize> {
        let mut missing = Vec::new();
        let mut next = 0;
        for (first, last) in self.0.iter().copied().chain([(completions, completions)]) {
            missing.extend((next..first.min(completions)).take(count - missing.len()));
            next = next.max(last.saturating_add(1));
        }
        missing
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.0.iter().enumerate() {
            if position > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                1 => write!(f, "{first},{last}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// The completion index of a pod.
pub(super) fn index_of(pod: &Pod) -> Option<usize> {
    pod.metadata.annotations.as_ref()?.get(INDEX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn indexes_read_and_write_as_upstream() {
        for (text, completions, expected) in [
            ("", 9, ""),
            ("1,3-5,7", 9, "1,3-5,7"),
            ("1,2", 9, "1,2"),
            ("1,2,3", 9, "1-3"),
            ("0-4", 3, "0-2"),
            ("5,x,7-y,8", 9, "5,8"),
            ("3-1,99999999999999999999999", 9, ""),
        ] {
            assert_eq!(Indexes::parse(text, completions).to_string(), expected, "{text}");
        }
        let indexes = Indexes::parse("1,3-5", 9);
        assert_eq!(indexes.missing(4, 9), [0, 2, 6, 7]);
        assert_eq!(indexes.missing(9, 7), [0, 2, 6]);
        assert_eq!(indexes.common(&Indexes::parse("0-3", 9)), 2);
    }

    proptest! {
        #[test]
        fn indexes_are_sets(
            one in prop::collection::btree_set(0_usize..40, 0..20),
            two in prop::collection::btree_set(0_usize..40, 0..20),
        ) {
            let (a, b) = (Indexes::default().with(one.clone()), Indexes::default().with(two.clone()));
            let union: BTreeSet<usize> = one.union(&two).copied().collect();
            let merged = a.merged(&b);
            prop_assert_eq!(&merged, &Indexes::default().with(union.clone()));
            prop_assert_eq!(merged.total(), union.len());
            prop_assert_eq!(a.common(&b), one.intersection(&two).count());
            prop_assert_eq!(Indexes::parse(&merged.to_string(), 40), merged.clone());
            for index in 0..40 {
                prop_assert_eq!(merged.has(index), union.contains(&index));
            }
            let missing: Vec<usize> = (0..40).filter(|index| !union.contains(index)).collect();
            prop_assert_eq!(merged.missing(100, 40), missing);
        }
    }
}
