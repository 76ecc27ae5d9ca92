use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::rule::Chain;

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

/// How much the order of rules matters when chains are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// It does.
    AsIs,
    /// It does not: services have their rules side by side.
    Any,
    /// It does not, but for the last rule.
    LastIsLast,
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
    /// Of the lines that append rules to a chain.
    fn of(rules: &str) -> Self {
        let mut sum = Self::default();
        rules.lines().for_each(|line| sum.add(line));
        sum
    }

    fn add(&mut self, line: &str) {
        let hash = hash(line);
        self.ordered = self.ordered.rotate_left(5).wrapping_mul(0x517c_c1b7_2722_0a95) ^ hash;
        self.unordered = self.unordered.wrapping_add(hash);
        self.rules += 1;
        self.last = hash;
    }

    fn is_same(&self, other: &Self, order: Order) -> bool {
        match order {
            Order::AsIs => self == other,
            Order::Any => (self.unordered, self.rules) == (other.unordered, other.rules),
            Order::LastIsLast => self.is_same(other, Order::Any) && self.last == other.last,
        }
    }
}

fn hash(rule: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    rule.hash(&mut hasher);
    hasher.finish()
}

/// The rules of a built-in chain that jump to chains of ours, by their hashes.
type Jumps = HashMap<(Table, Box<str>), Vec<u64>>;

/// What is in the kernel, from what `iptables-save` prints; kept as hashes.
#[derive(Debug, Default)]
pub struct Existing {
    chains: [HashMap<Box<str>, Sum>; 2],
    jumps: Jumps,
    /// The table that the lines are of.
    table: Option<Table>,
}

impl Existing {
    /// Reads all that `iptables-save` printed for one table or for several.
    pub fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut existing = Self::default();
        lines.into_iter().for_each(|line| existing.read_line(line));
        existing
    }

    /// Reads the next line. Unknown lines are skipped: they are foreign rules.
    pub fn read_line(&mut self, line: &str) {
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix('*') {
            self.table = [Table::Filter, Table::Nat].into_iter().find(|t| t.as_str() == name);
            return;
        }
        let Some(table) = self.table else { return };
        if let Some(chain) = line.strip_prefix(':') {
            let name = chain.split(' ').next().unwrap_or_default();
            if name.starts_with("KUBE-") {
                self.chains[table as usize].entry(name.into()).or_default();
            }
        } else if let Some((chain, rule)) =
            line.strip_prefix("-A ").and_then(|line| line.split_once(' '))
        {
            if let Some(sum) = self.chains[table as usize].get_mut(chain) {
                sum.add(line);
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
    pub(super) fn is_same(&self, table: Table, chain: &Chain, order: Order) -> bool {
        let sum = self.chains[table as usize].get(chain.name.as_str());
        sum.is_some_and(|sum| sum.is_same(&Sum::of(&chain.lines), order))
    }

    /// Whether a built-in chain has a rule.
    pub(super) fn has_jump(&self, table: Table, chain: &str, rule: &str) -> bool {
        let jumps = self.jumps.get(&(table, chain.into()));
        jumps.is_some_and(|hashes| hashes.contains(&hash(rule)))
    }
}
