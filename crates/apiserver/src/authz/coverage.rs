//! What some rules do not cover of others, as the checks against escalation ask.
//!
//! A rule stands for the product of its verbs, groups, resources and names, whose size its writer
//! chooses: 150 of each are half a billion. So the product is never built. The names of one list
//! that the same rules cover are equivalent, and only one of each is checked; what is then still
//! too much is refused.

use std::collections::{BTreeMap, HashMap};

use super::rule::{ALL, Names, Rule, contains, url_covers};

/// The most steps that one rule is worth: words of bits that are read or kept, and paths compared.
const MAX_STEPS: usize = 1 << 20;

/// What is not covered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Rules of one verb on one thing each.
    pub(crate) rules: Vec<Rule>,
    /// Why these are not all.
    pub(crate) note: Option<&'static str>,
}

impl Missing {
    /// What `owned` does not cover of `wanted`; at most so many rules.
    pub(crate) fn of(owned: &[Rule], wanted: &[Rule], most: usize) -> Missing {
        let mut missing = Missing::default();
        if owned.len().saturating_mul(wanted.len()) > MAX_STEPS {
            missing.note = Some(TOO_LARGE);
            return missing;
        }
        for rule in wanted {
            // Enough is known: what follows can only be refused too.
            if missing.note.is_some() {
                break;
            }
            let parts = [resources(owned, rule), paths(owned, rule)];
            for (part, make) in parts.into_iter().zip([resource_atom, path_atom]) {
                match part {
                    Err(TooLarge) => missing.note = Some(TOO_LARGE),
                    Ok(grid) => missing.add(grid.as_ref(), rule, make, most),
                }
            }
        }
        missing
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.note.is_none()
    }

    fn add(&mut self, grid: Option<&Grid>, rule: &Rule, make: Make, most: usize) {
        let Some(grid) = grid else { return };
        let limit = most - self.rules.len();
        let mut positions = grid.uncovered(limit.saturating_add(1));
        if positions.len() > limit {
            positions.truncate(limit);
            self.note.get_or_insert(MORE);
        }
        positions.sort_unstable();
        self.rules.extend(positions.iter().map(|position| make(rule, position)));
    }
}

const TOO_LARGE: &str = "a rule has too many verbs, groups, resources and names to be compared: \
    write several smaller ones";
const MORE: &str = "there are more";

#[derive(Debug)]
struct TooLarge;

/// Makes the rule of one verb on one thing, from places in the lists of a rule.
type Make = fn(&Rule, &[usize]) -> Rule;

fn one(names: &Names, position: usize) -> Names {
    names.get(position).into_iter().cloned().collect()
}

fn resource_atom(rule: &Rule, position: &[usize]) -> Rule {
    match position {
        [verb, group, resource, name] => Rule {
            verbs: one(&rule.verbs, *verb),
            groups: one(&rule.groups, *group),
            resources: one(&rule.resources, *resource),
            names: one(&rule.names, *name),
            urls: Names::default(),
        },
        _ => Rule::default(),
    }
}

fn path_atom(rule: &Rule, position: &[usize]) -> Rule {
    match position {
        [verb, url] => {
            Rule { verbs: one(&rule.verbs, *verb), urls: one(&rule.urls, *url), ..Rule::default() }
        }
        _ => Rule::default(),
    }
}

/// The places of one list that a rule covers.
enum Hits {
    All,
    These(Vec<usize>),
}

/// One list of the wanted rule: the first place of each of its names.
struct Side<'a> {
    positions: HashMap<&'a str, usize>,
    /// Resources by the name of their subresource.
    by_subresource: HashMap<&'a str, Vec<usize>>,
}

impl<'a> Side<'a> {
    fn new(names: &'a Names) -> Side<'a> {
        let mut side = Side { positions: HashMap::new(), by_subresource: HashMap::new() };
        for (position, name) in names.iter().enumerate() {
            if side.positions.contains_key(&**name) {
                continue;
            }
            side.positions.insert(name, position);
            if let Some((_, subresource)) = name.split_once('/') {
                side.by_subresource.entry(subresource).or_default().push(position);
            }
        }
        side
    }

    fn hits(&self, own: &Names) -> Hits {
        match contains(own, ALL) {
            true => Hits::All,
            false => Hits::These(
                own.iter().filter_map(|name| self.positions.get(&**name).copied()).collect(),
            ),
        }
    }

    /// `*/log` covers that subresource of all resources.
    fn resource_hits(&self, own: &Names) -> Hits {
        match self.hits(own) {
            Hits::All => Hits::All,
            Hits::These(mut hits) => {
                for name in own.iter().filter_map(|name| name.strip_prefix("*/")) {
                    hits.extend(self.by_subresource.get(name).into_iter().flatten());
                }
                Hits::These(hits)
            }
        }
    }
}

/// The lists of a wanted rule, and of each name which owned rules cover it.
struct Grid {
    /// By list: names that the same rules cover, as a set of bits, with their places.
    classes: Vec<Vec<(Vec<u64>, Vec<usize>)>>,
}

/// Nothing: there is nothing wanted, or one rule covers it all.
type Part = Result<Option<Grid>, TooLarge>;

fn resources(owned: &[Rule], wanted: &Rule) -> Part {
    if wanted.verbs.is_empty() || wanted.groups.is_empty() || wanted.resources.is_empty() {
        return Ok(None);
    }
    let [verbs, groups, resources, names] =
        [&wanted.verbs, &wanted.groups, &wanted.resources, &wanted.names].map(Side::new);
    let hits = owned.iter().map(|own| {
        let of_names = match (own.names.is_empty(), wanted.names.is_empty()) {
            (true, _) => Hits::All,
            (false, true) => Hits::These(Vec::new()),
            (false, false) => Hits::These(
                own.names.iter().filter_map(|name| names.positions.get(&**name).copied()).collect(),
            ),
        };
        vec![
            verbs.hits(&own.verbs),
            groups.hits(&own.groups),
            resources.resource_hits(&own.resources),
            of_names,
        ]
    });
    // All objects are one thing that no name covers.
    let all_names = HashMap::from([("", 0)]);
    let named = if wanted.names.is_empty() { &all_names } else { &names.positions };
    Grid::new(&[&verbs.positions, &groups.positions, &resources.positions, named], hits)
}

fn paths(owned: &[Rule], wanted: &Rule) -> Part {
    if wanted.verbs.is_empty() || wanted.urls.is_empty() {
        return Ok(None);
    }
    let compared: usize = owned.iter().map(|own| own.urls.len()).sum();
    if compared.saturating_mul(wanted.urls.len()) > MAX_STEPS {
        return Err(TooLarge);
    }
    let [verbs, urls] = [&wanted.verbs, &wanted.urls].map(Side::new);
    let hits = owned.iter().filter(|own| own.names.is_empty()).map(|own| {
        let is_covered = |url: &str| own.urls.iter().any(|own| url_covers(own, url));
        let covered = urls.positions.iter().filter(|(url, _)| is_covered(url));
        vec![verbs.hits(&own.verbs), Hits::These(covered.map(|(_, position)| *position).collect())]
    });
    Grid::new(&[&verbs.positions, &urls.positions], hits)
}

impl Grid {
    /// `hits`: by owned rule, what it covers of each list.
    fn new(sides: &[&HashMap<&str, usize>], hits: impl Iterator<Item = Vec<Hits>>) -> Part {
        let is_whole = |hits: &Hits, side: &HashMap<&str, usize>| match hits {
            Hits::All => true,
            Hits::These(positions) => {
                let mut positions = positions.clone();
                positions.sort_unstable();
                positions.dedup();
                positions.len() == side.len()
            }
        };
        let mut related = Vec::new();
        for hits in hits {
            if hits
                .iter()
                .any(|hits| matches!(hits, Hits::These(positions) if positions.is_empty()))
            {
                continue;
            }
            if hits.iter().zip(sides).all(|(hits, side)| is_whole(hits, side)) {
                return Ok(None);
            }
            related.push(hits);
        }
        let words = related.len().div_ceil(64);
        let names: usize = sides.iter().map(|side| side.len()).sum();
        if names.saturating_mul(words) > MAX_STEPS {
            return Err(TooLarge);
        }
        let classes = sides.iter().enumerate().map(|(list, side)| {
            let mut bits: BTreeMap<usize, Vec<u64>> =
                side.values().map(|position| (*position, vec![0; words])).collect();
            for (rule, hits) in related.iter().enumerate() {
                let (word, bit) = (rule / 64, 1 << (rule % 64));
                match &hits[list] {
                    Hits::All => bits.values_mut().for_each(|bits| bits[word] |= bit),
                    Hits::These(positions) => {
                        for position in positions {
                            if let Some(bits) = bits.get_mut(position) {
                                bits[word] |= bit;
                            }
                        }
                    }
                }
            }
            let mut classes: BTreeMap<Vec<u64>, Vec<usize>> = BTreeMap::new();
            for (position, bits) in bits {
                classes.entry(bits).or_default().push(position);
            }
            classes.into_iter().collect::<Vec<_>>()
        });
        let grid = Grid { classes: classes.collect() };
        let combinations =
            grid.classes.iter().fold(words.max(1), |all, list| all.saturating_mul(list.len()));
        if combinations > MAX_STEPS { Err(TooLarge) } else { Ok(Some(grid)) }
    }

    /// Places, one of each list, that no rule covers together; at most so many.
    fn uncovered(&self, most: usize) -> Vec<Vec<usize>> {
        let mut found = Vec::new();
        let words = self.classes.first().and_then(|list| list.first()).map_or(0, |(b, _)| b.len());
        self.walk(&vec![u64::MAX; words], &mut Vec::new(), &mut found, most);
        found
    }

    fn walk<'a>(
        &'a self,
        covering: &[u64],
        chosen: &mut Vec<&'a [usize]>,
        found: &mut Vec<Vec<usize>>,
        most: usize,
    ) {
        let Some(list) = self.classes.get(chosen.len()) else {
            if covering.iter().all(|word| *word == 0) {
                product(chosen, &mut Vec::new(), found, most);
            }
            return;
        };
        for (bits, positions) in list {
            if found.len() >= most {
                return;
            }
            let covering: Vec<u64> = covering.iter().zip(bits).map(|(a, b)| a & b).collect();
            chosen.push(positions);
            self.walk(&covering, chosen, found, most);
            chosen.pop();
        }
    }
}

fn product(
    lists: &[&[usize]],
    position: &mut Vec<usize>,
    found: &mut Vec<Vec<usize>>,
    most: usize,
) {
    let Some(list) = lists.get(position.len()) else {
        found.push(position.clone());
        return;
    };
    for one in *list {
        if found.len() >= most {
            return;
        }
        position.push(*one);
        product(lists, position, found, most);
        position.pop();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn words(prefix: &str, count: usize) -> Vec<String> {
        (0..count).map(|number| format!("{prefix}{number}")).collect()
    }

    fn large(count: usize) -> Rule {
        Rule::from_value(&json!({
            "verbs": words("v", count), "apiGroups": words("g", count),
            "resources": words("r", count), "resourceNames": words("n", count),
        }))
    }

    fn path(verbs: &[String], urls: &[String]) -> Rule {
        Rule::from_value(&json!({"verbs": verbs, "nonResourceURLs": urls}))
    }

    /// Finding 13: a rule of 150 verbs, groups, resources and names each is judged at once, whether
    /// it is owned, owned in part, or not at all.
    #[test]
    fn rbac_coverage_of_large_rules_is_fast() {
        let began = Instant::now();
        let wanted = [large(150)];
        assert!(Missing::of(&wanted, &wanted, 100).is_empty());
        let nothing = Missing::of(&[], &wanted, 100);
        assert_eq!((nothing.rules.len(), nothing.note), (100, Some(MORE)));
        let halves = [large(150), large(75)];
        assert!(Missing::of(&halves, &wanted, 100).is_empty());
        assert_eq!(Missing::of(&halves[1..], &wanted, 10).rules.len(), 10);
        // Each name is covered by other rules than each other one: too much, and so not covered.
        let owned: Vec<Rule> = (0..400)
            .map(|seed: usize| {
                let pick = |prefix: &str, step: usize| -> Vec<String> {
                    let picked = (0..150).filter(|n| (n * step + seed * 7) % 13 < 6);
                    picked.map(|n| format!("{prefix}{n}")).collect()
                };
                Rule::from_value(&json!({
                    "verbs": pick("v", 3 + seed), "apiGroups": pick("g", 5 + seed),
                    "resources": pick("r", 7 + seed), "resourceNames": pick("n", 11 + seed),
                }))
            })
            .collect();
        assert!(!Missing::of(&owned, &wanted, 100).is_empty());
        let (verbs, urls) = (words("v", 2000), words("/u", 2000));
        assert!(
            !Missing::of(&[path(&verbs, &urls)], &[path(&verbs, &words("/x", 2000))], 9).is_empty()
        );
        let huge = [large(20_000)];
        assert!(Missing::of(&huge, &huge, 100).is_empty());
        assert!(!Missing::of(&[large(19_999)], &huge, 100).is_empty());
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }

    /// The same by building the product.
    fn plainly(owned: &[Rule], wanted: &Rule) -> Vec<Rule> {
        let none = [Box::<str>::from("")];
        let names = if wanted.names.is_empty() { &none[..] } else { &wanted.names };
        let mut missing = Vec::new();
        let mut add = |atom: Rule| {
            let is_in = |own: &Names, wanted: &Names| {
                contains(own, ALL) || wanted.iter().all(|name| contains(own, name))
            };
            let covers = |own: &Rule| {
                let resource = |wanted: &str| {
                    let below = wanted.split_once('/').map(|(_, below)| format!("*/{below}"));
                    contains(&own.resources, ALL)
                        || contains(&own.resources, wanted)
                        || below.is_some_and(|below| contains(&own.resources, &below))
                };
                is_in(&own.verbs, &atom.verbs)
                    && is_in(&own.groups, &atom.groups)
                    && atom.resources.iter().all(|wanted| resource(wanted))
                    && (own.names.is_empty()
                        || (!atom.names.is_empty()
                            && atom.names.iter().all(|name| contains(&own.names, name))))
            };
            if !owned.iter().any(covers) && !missing.contains(&atom) {
                missing.push(atom);
            }
        };
        for (verb, _) in wanted.verbs.iter().enumerate() {
            for (group, _) in wanted.groups.iter().enumerate() {
                for (resource, _) in wanted.resources.iter().enumerate() {
                    for (name, _) in names.iter().enumerate() {
                        add(resource_atom(wanted, &[verb, group, resource, name]));
                    }
                }
            }
        }
        missing
    }

    fn rule() -> impl Strategy<Value = Rule> {
        let list = |words: &'static [&'static str], least: usize| {
            prop::collection::vec(prop::sample::select(words), least..4)
        };
        (
            list(&["get", "create", "list", "*"], 1),
            list(&["", "apps", "*"], 1),
            list(&["pods", "*", "pods/status", "*/status", "nodes/status"], 1),
            list(&["a", "b", "c"], 0),
        )
            .prop_map(|(verbs, groups, resources, names)| {
                Rule::from_value(&json!({
                    "verbs": verbs, "apiGroups": groups, "resources": resources,
                    "resourceNames": names,
                }))
            })
    }

    proptest! {
        #[test]
        fn rbac_coverage_equals_the_cross_product(
            owned in prop::collection::vec(rule(), 0..6), wanted in rule(),
        ) {
            let missing = Missing::of(&owned, std::slice::from_ref(&wanted), usize::MAX);
            prop_assert_eq!(missing.note, None);
            prop_assert_eq!(missing.rules, plainly(&owned, &wanted));
        }
    }
}
