use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use crate::model::{Service, State};

use super::batch::Batch;
use super::existing::{Existing, Order, Table};
use super::fixed::{self, JUMPS, Shared};
use super::names::ChainName;
use super::rule::Chain;
use super::service::{chains, shared_rules};
use super::settings::Settings;
use super::stale::Stale;

/// How many rules a state has and how many of them were written, by table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Rules in table filter.
    pub filter: usize,
    /// Rules in table nat.
    pub nat: usize,
    /// Rules written in table filter.
    pub filter_written: usize,
    /// Rules written in table nat.
    pub nat_written: usize,
}

/// The transactions of a full sync, in order, made one at a time: bring what exists to what a
/// state requires. There is none when nothing is missing and nothing differs.
pub struct Full<'a> {
    settings: &'a Settings,
    existing: &'a Existing,
    services: Box<dyn Iterator<Item = &'a Arc<Service>> + Send + 'a>,
    brief: bool,
    filter: Batch,
    nat: Batch,
    shared: Vec<Chain>,
    ready: VecDeque<String>,
    used: HashSet<ChainName>,
    totals: Totals,
    done: bool,
}

impl<'a> Full<'a> {
    /// Begins with the chains that others jump to.
    pub fn new(state: &'a State, settings: &'a Settings, existing: &'a Existing) -> Self {
        let mut full = Self {
            settings,
            existing,
            services: Box::new(state.services()),
            brief: state.is_large(),
            filter: Batch::default(),
            nat: Batch::default(),
            shared: Shared::ALL.map(|shared| Chain::new(shared.chain())).into(),
            ready: Default::default(),
            used: HashSet::new(),
            totals: Totals::default(),
            done: false,
        };
        for chain in fixed::nat_chains(settings) {
            full.top(Table::Nat, &chain, Order::AsIs);
        }
        full
    }

    /// What there is to count, and the chains that are to be removed; after the last transaction.
    pub fn finish(mut self) -> (Totals, Stale) {
        while self.next().is_some() {}
        self.totals.filter_written = self.filter.lines();
        self.totals.nat_written = self.nat.lines();
        let is_used =
            |chain: &str| ChainName::parse(chain).is_some_and(|name| self.used.contains(&name));
        let stale = |chain: &&str| ChainName::is_ours(chain) && !is_used(chain);
        let mut found = Stale::default();
        found.add(self.existing.chains(Table::Nat).filter(stale));
        (self.totals, found)
    }

    /// The own chains of a service, and its share of the others.
    fn add(&mut self, service: &Service) {
        let Self { settings, existing, nat, used, totals, ready, shared, .. } = self;
        chains(service, settings, self.brief, &mut |name, chain| {
            used.insert(name);
            totals.nat += chain.count;
            if !existing.is_same(Table::Nat, chain, Order::AsIs) {
                nat.chain(chain);
                if nat.is_full() {
                    ready.push_back(nat.take(Table::Nat));
                }
            }
        });
        shared_rules(service, settings, &mut |chain, rule| {
            shared[chain as usize].add_text(&rule);
        });
    }

    /// The last transaction: the top-level chains, and the jumps to them.
    fn switch(&mut self) {
        self.ready.push_back(self.nat.take(Table::Nat));
        for (shared, mut chain) in Shared::ALL.into_iter().zip(std::mem::take(&mut self.shared)) {
            let order = if shared == Shared::NatServices {
                fixed::add_node_ports(&mut chain, self.settings);
                Order::LastIsLast
            } else {
                Order::Any
            };
            self.top(shared.table(), &chain, order);
        }
        self.top(Table::Filter, &fixed::forward_chain(self.settings), Order::AsIs);
        match fixed::guard_chain(self.settings) {
            Some(chain) => self.top(Table::Filter, &chain, Order::AsIs),
            None if self.existing.has(Table::Filter, fixed::FIREWALL_CHAIN) => {}
            None => self.filter.declare(fixed::FIREWALL_CHAIN),
        }
        for jump in &JUMPS {
            if !self.existing.has_jump(jump.table, jump.from, jump.rule) {
                let batch = if jump.table == Table::Nat { &mut self.nat } else { &mut self.filter };
                batch.edit("-I", jump.from, jump.rule);
            }
        }
        let text = self.filter.take(Table::Filter) + &self.nat.take(Table::Nat);
        self.ready.push_back(text);
        self.ready.retain(|text| !text.is_empty());
    }

    fn top(&mut self, table: Table, chain: &Chain, order: Order) {
        let (batch, total) = match table {
            Table::Filter => (&mut self.filter, &mut self.totals.filter),
            Table::Nat => (&mut self.nat, &mut self.totals.nat),
        };
        *total += chain.count;
        if !self.existing.is_same(table, chain, order) {
            batch.chain(chain);
        }
    }
}

impl Iterator for Full<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        while self.ready.is_empty() && !self.done {
            match self.services.next() {
                Some(service) => self.add(service),
                None => {
                    self.done = true;
                    self.switch();
                }
            }
        }
        self.ready.pop_front()
    }
}
