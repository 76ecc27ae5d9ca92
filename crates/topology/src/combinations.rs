//! Subsets in lexical order.

/// All subsets of `count` items, in lexical order of their indices.
pub(crate) fn combinations<T: Copy>(items: &[T], count: usize) -> impl Iterator<Item = Vec<T>> {
    let fits = count >= 1 && count <= items.len();
    let mut indices: Option<Vec<usize>> = fits.then(|| (0..count).collect());
    std::iter::from_fn(move || {
        let current = indices.take()?;
        indices = next(&current, items.len());
        Some(current.iter().filter_map(|index| items.get(*index).copied()).collect())
    })
}

fn next(indices: &[usize], items: usize) -> Option<Vec<usize>> {
    // The last index that can be increased.
    let limit = |at: usize| items - (indices.len() - at);
    let at = indices.iter().enumerate().rposition(|(at, index)| *index < limit(at))?;
    let first = indices.get(at)? + 1;
    let moved = (first..).take(indices.len() - at);
    Some(indices.iter().take(at).copied().chain(moved).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_in_order() {
        let all = |count| combinations(&[1, 2, 3, 4], count).collect::<Vec<_>>();
        assert_eq!(all(2), [[1, 2], [1, 3], [1, 4], [2, 3], [2, 4], [3, 4]]);
        assert_eq!(all(4), [[1, 2, 3, 4]]);
        assert_eq!(all(1), [[1], [2], [3], [4]]);
        assert!(all(0).is_empty() && all(5).is_empty());
    }
}
