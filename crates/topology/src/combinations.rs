//! Subsets in the order in which they are tried.

/// All subsets of `count` items, in lexical order of their places.
pub(crate) fn combinations<T: Copy>(items: &[T], count: usize) -> impl Iterator<Item = Vec<T>> {
    let fits = count >= 1 && count <= items.len();
    let mut places: Option<Vec<usize>> = fits.then(|| (0..count).collect());
    std::iter::from_fn(move || {
        let current = places.take()?;
        places = next(&current, items.len());
        Some(current.iter().filter_map(|place| items.get(*place).copied()).collect())
    })
}

fn next(places: &[usize], items: usize) -> Option<Vec<usize>> {
    // The last place that can move on; all after it follow it.
    let room = |at: usize| items - (places.len() - at);
    let at = places.iter().enumerate().rposition(|(at, place)| *place < room(at))?;
    let first = places.get(at)? + 1;
    let moved = (first..).take(places.len() - at);
    Some(places.iter().take(at).copied().chain(moved).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_tried_in_order() {
        let all = |count| combinations(&[1, 2, 3, 4], count).collect::<Vec<_>>();
        assert_eq!(all(2), [[1, 2], [1, 3], [1, 4], [2, 3], [2, 4], [3, 4]]);
        assert_eq!(all(4), [[1, 2, 3, 4]]);
        assert_eq!(all(1), [[1], [2], [3], [4]]);
        assert!(all(0).is_empty() && all(5).is_empty());
    }
}
