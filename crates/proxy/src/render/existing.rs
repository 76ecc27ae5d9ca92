use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A table of rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// What may pass.
    Filter,
    /// Where it goes.
    Nat,
}

impl Table {
    /// As iptables names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Table::Filter => "filter",
            Table::Nat => "nat",
        }
    }
}

/// What two chains with the same rules have in common; small, so that a whole rule set can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sum {
    /// Of the rules in their order.
    ordered: u64,
    /// Of the rules in any order.
    unordered: u64,
    rules: usize,
    /// Of the last rule.
    last: u64,
}

impl Sum {
    /// Of rules without their chain, one on a line.
    pub(super) fn of(rules: &str) -> Self {
        let mut sum = Self::default();
        rules.lines().for_each(|rule| sum.add(rule));
        sum
    }

    fn add(&mut self, rule: &str) {
        let hash = hash(rule);
        self.ordered = self.ordered.rotate_left(5).wrapping_mul(0x517c_c1b7_2722_0a95) ^ hash;
        self.unordered = self.unordered.wrapping_add(hash);
        self.rules += 1;
        self.last = hash;
    }

    /// Whether the same rules are there, and the same one at the end.
    fn is_same_in_any_order(&self, other: &Self) -> bool {
        (self.unordered, self.rules, self.last) == (other.unordered, other.rules, other.last)
    }
}

fn hash(rule: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    rule.hash(&mut hasher);
    hasher.finish()
}

/// The rules of a built-in chain that lead to chains of ours, by their hashes.
type Jumps = HashMap<(Table, Box<str>), Vec<u64>>;

/// What is in the kernel, from what `iptables-save` prints; kept as hashes.
#[derive(Debug, Default)]
pub struct Existing {
    chains: [HashMap<Box<str>, Sum>; 2],
    jumps: Jumps,
}

impl Existing {
    /// Reads the lines that `iptables-save` printed for one table or for several. What it does not
    /// know it skips: such rules are nobody's here.
    pub fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut existing = Self::default();
        let mut table = None;
        lines.into_iter().for_each(|line| existing.read_line(&mut table, line));
        existing
    }

    /// Adds one line; `table` is the one that the lines are of.
    fn read_line(&mut self, table: &mut Option<Table>, line: &str) {
        if let Some(name) = line.strip_prefix('*') {
            *table = [Table::Filter, Table::Nat].into_iter().find(|t| t.as_str() == name.trim_end());
            return;
        }
        let Some(table) = *table else { return };
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap_or_default();
            if name.starts_with("KUBE-") {
                self.chains[table as usize].entry(name.into()).or_default();
            }
        } else if let Some((chain, rule)) =
            line.strip_prefix("-A ").and_then(|line| line.split_once(' '))
        {
            let rule = rule.trim_end();
            if chain.starts_with("KUBE-") {
                self.chains[table as usize].entry(chain.into()).or_default().add(rule);
            } else if rule.contains("-j KUBE-") {
                self.jumps.entry((table, chain.into())).or_default().push(hash(rule));
            }
        }
    }

    /// Whether a chain is there.
    pub fn has(&self, table: Table, chain: &str) -> bool {
        self.chains[table as usize].contains_key(chain)
    }

    /// The chains of a table whose names begin with `KUBE-`.
    pub fn chains(&self, table: Table) -> impl Iterator<Item = &str> {
        self.chains[table as usize].keys().map(|name| &**name)
    }

    /// Whether a chain is there with just these rules.
    pub(super) fn is_same(&self, table: Table, chain: &str, rules: &str) -> bool {
        self.sum(table, chain).is_some_and(|sum| *sum == Sum::of(rules))
    }

    /// Whether a chain is there with these rules in any order, but the same at its end.
    pub(super) fn is_same_in_any_order(&self, table: Table, chain: &str, rules: &str) -> bool {
        self.sum(table, chain).is_some_and(|sum| sum.is_same_in_any_order(&Sum::of(rules)))
    }

    /// Whether a built-in chain has a rule.
    pub(super) fn has_jump(&self, table: Table, chain: &str, rule: &str) -> bool {
        let jumps = self.jumps.get(&(table, chain.into()));
        jumps.is_some_and(|hashes| hashes.contains(&hash(rule)))
    }

    fn sum(&self, table: Table, chain: &str) -> Option<&Sum> {
        self.chains[table as usize].get(chain)
    }
}
