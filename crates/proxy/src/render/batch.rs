use std::mem::take;

use super::Table;
use super::rule::Chain;

/// As many chains are written in one transaction: iptables-nft takes time with the square of them.
const MAX_CHAINS: usize = 500;

/// A part of a transaction: chains and rules of one table.
#[derive(Debug, Default)]
pub(super) struct Batch {
    declared: String,
    rules: String,
    chains: usize,
    lines: usize,
}

impl Batch {
    /// Makes a chain, or empties it.
    pub(super) fn declare(&mut self, chain: &str) {
        self.declared.extend([":", chain, " - [0:0]\n"]);
        self.chains += 1;
    }

    /// Writes a chain with its rules.
    pub(super) fn chain(&mut self, chain: &Chain) {
        self.declare(&chain.name);
        self.rules.push_str(&chain.lines);
        self.lines += chain.count;
    }

    /// Changes a chain by one rule: `-A`, `-I`, `-D`.
    pub(super) fn edit(&mut self, how: &str, chain: &str, rule: &str) {
        self.rules.extend([how, " ", chain, " ", rule, "\n"]);
        self.lines += 1;
    }

    /// Removes a chain, emptied before.
    pub(super) fn remove(&mut self, chain: &str) {
        self.declare(chain);
        self.rules.extend(["-X ", chain, "\n"]);
    }

    /// Whether it has as many chains as one transaction should.
    pub(super) fn is_full(&self) -> bool {
        self.chains >= MAX_CHAINS
    }

    pub(super) fn is_empty(&self) -> bool {
        self.declared.is_empty() && self.rules.is_empty()
    }

    /// How many rules it has written in all.
    pub(super) fn lines(&self) -> usize {
        self.lines
    }

    /// Takes what there is as the text of a table; nothing when there is nothing.
    pub(super) fn take(&mut self, table: Table) -> String {
        if self.is_empty() {
            return String::new();
        }
        self.chains = 0;
        let (declared, rules) = (take(&mut self.declared), take(&mut self.rules));
        let mut text = String::with_capacity(declared.len() + rules.len() + 16);
        text.extend(["*", table.as_str(), "\n", &declared, &rules, "COMMIT\n"]);
        text
    }
}
