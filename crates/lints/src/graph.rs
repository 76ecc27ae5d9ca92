//! Strongly connected components of the modules of a crate.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::Import;

/// Each set of two or more modules that reach each other by imports, sorted by name.
pub(crate) fn cycles(imports: &[Import]) -> Vec<Vec<&str>> {
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        edges.entry(&import.from).or_default().insert(&import.to);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|module| (*module, reachable(module, &edges))).collect();
    let mut found: Vec<Vec<&str>> = Vec::new();
    for (module, from_it) in &reached {
        if found.iter().flatten().any(|known| known == module) {
            continue;
        }
        let back = |other: &&str| reached.get(other).is_some_and(|set| set.contains(module));
        let component: Vec<&str> = from_it.iter().copied().filter(back).collect();
        if component.len() > 1 {
            found.push(component);
        }
    }
    found
}

fn reachable<'a>(
    module: &'a str,
    edges: &BTreeMap<&'a str, BTreeSet<&'a str>>,
) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next = vec![module];
    while let Some(module) = next.pop() {
        for to in edges.get(module).into_iter().flatten() {
            if seen.insert(*to) {
                next.push(to);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_reach_each_other_are_a_cycle() {
        let import = |(from, to): &(&str, &str)| Import {
            from: (*from).to_owned(),
            to: (*to).to_owned(),
            ..Import::default()
        };
        let graph = |edges: &[(&str, &str)]| edges.iter().map(import).collect::<Vec<_>>();
        let none: [Vec<&str>; 0] = [];
        assert_eq!(cycles(&graph(&[("a", "b"), ("b", "c"), ("a", "c")])), none);
        let two = graph(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c")]);
        assert_eq!(cycles(&two), [vec!["a", "b"], vec!["c", "d", "e"]]);
    }
}
