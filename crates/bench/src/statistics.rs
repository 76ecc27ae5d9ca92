//! Medians and percentiles.
use serde::Serialize;

/// Percentiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let max = *values.last()?;
        // The nearest rank: the smallest value that so many percent do not exceed.
        let rank = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or(max)
        };
        Some(Self { p50: rank(50), p99: rank(99), max })
    }
}

/// The middle value, or the mean of the two in the middle; 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = |index: usize| values.get(index).copied().unwrap_or(0.0);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 0 => f64::midpoint(at(count / 2 - 1), at(count / 2)),
        count => at(count / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        let table: [(&[f64], f64); 4] =
            [(&[], 0.0), (&[3.0], 3.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 2.0, 9.0], 3.0)];
        for (values, expected) in table {
            assert_eq!(median(values.iter().copied()), expected, "{values:?}");
        }
    }

    #[test]
    fn percentiles() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let table = [
            (hundred, Some(Spread { p50: 50.0, p99: 99.0, max: 100.0 })),
            (vec![2.0, 1.0], Some(Spread { p50: 1.0, p99: 2.0, max: 2.0 })),
            (vec![5.0], Some(Spread { p50: 5.0, p99: 5.0, max: 5.0 })),
            (vec![], None),
        ];
        for (values, expected) in table {
            assert_eq!(Spread::of(values.clone()), expected, "{values:?}");
        }
    }
}
