use std::collections::{HashMap, HashSet};

use crate::model::{Change, Service, State};

use super::batch::Batch;
use super::existing::Table;
use super::fixed::{Shared, add_node_ports};
use super::names::ChainName;
use super::rule::Chain;
use super::service::{chains, shared_rules};
use super::settings::Settings;

/// With more rules than this to delete from a shared chain, it is rewritten. At 10,000
/// services iptables-nft takes 9 ms for each, and 700 ms for the whole chain.
const MAX_DELETIONS: usize = 50;

/// The transactions of a partial sync.
#[derive(Debug, Default)]
pub struct Partial {
    /// Their texts, in order.
    pub transactions: Vec<String>,
    /// The chains that were written.
    pub written: Vec<ChainName>,
    /// The chains that nothing leads to any more.
    pub stale: Vec<ChainName>,
    /// How many rules there are more (or less) in table filter.
    pub filter_growth: isize,
    /// How many rules there are more (or less) in table nat.
    pub nat_growth: isize,
    /// How many rules were written or taken out in table filter.
    pub filter_written: usize,
    /// How many rules were written or taken out in table nat.
    pub nat_written: usize,
}

/// All rules of one service.
#[derive(Default)]
struct Rendered {
    chains: Vec<(ChainName, Chain)>,
    shared: Vec<(Shared, String)>,
}

impl Rendered {
    fn of(service: Option<&Service>, settings: &Settings, brief: bool) -> Self {
        let mut rendered = Self::default();
        if let Some(service) = service {
            let Self { chains: own, shared } = &mut rendered;
            chains(service, settings, brief, &mut |name, chain| own.push((name, chain.clone())));
            shared_rules(service, settings, &mut |chain, rule| shared.push((chain, rule)));
        }
        rendered
    }
}

/// What changes in one shared chain.
#[derive(Default)]
struct Edits {
    out: Vec<String>,
    new: Vec<String>,
}

/// Updates a rule set from `state` as it was before `changes` to what `state` requires now.
/// Not where everything changed ([`crate::model::Changes::everything`]): then [`super::Full`] does.
pub fn partial(state: &State, changes: &[Change], settings: &Settings) -> Partial {
    let brief = state.is_large();
    let mut partial = Partial::default();
    let mut nat = Batch::default();
    let mut edits: [Edits; Shared::ALL.len()] = Default::default();
    for change in changes {
        let before = Rendered::of(change.before.as_deref(), settings, brief);
        let after = Rendered::of(change.after.as_deref(), settings, brief);
        let old: HashMap<_, _> = before.chains.iter().map(|(name, chain)| (name, chain)).collect();
        for (name, chain) in &after.chains {
            partial.nat_growth += chain.count.cast_signed();
            if old.get(name) != Some(&chain) {
                nat.chain(chain);
                partial.written.push(*name);
                if nat.is_full() {
                    partial.transactions.push(nat.take(Table::Nat));
                }
            }
        }
        let kept: HashSet<_> = after.chains.iter().map(|(name, _)| name).collect();
        for (name, chain) in &before.chains {
            partial.nat_growth -= chain.count.cast_signed();
            if !kept.contains(name) {
                partial.stale.push(*name);
            }
        }
        let old: HashSet<_> = before.shared.iter().collect();
        let kept: HashSet<_> = after.shared.iter().collect();
        let gone = before.shared.iter().filter(|rule| !kept.contains(rule));
        gone.for_each(|(shared, rule)| edits[*shared as usize].out.push(rule.clone()));
        let new = after.shared.iter().filter(|rule| !old.contains(rule));
        new.for_each(|(shared, rule)| edits[*shared as usize].new.push(rule.clone()));
    }
    let mut filter = Batch::default();
    for (shared, edits) in Shared::ALL.into_iter().zip(&edits) {
        let (batch, growth) = match shared.table() {
            Table::Filter => (&mut filter, &mut partial.filter_growth),
            Table::Nat => (&mut nat, &mut partial.nat_growth),
        };
        *growth += edits.growth();
        edits.write(shared, state, settings, batch);
    }
    let switch = filter.take(Table::Filter) + &nat.take(Table::Nat);
    if !switch.is_empty() {
        partial.transactions.push(switch);
    }
    partial.filter_written = filter.lines();
    partial.nat_written = nat.lines();
    partial
}

impl Edits {
    fn growth(&self) -> isize {
        self.new.len().cast_signed() - self.out.len().cast_signed()
    }

    fn write(&self, shared: Shared, state: &State, settings: &Settings, batch: &mut Batch) {
        let chain = shared.chain();
        if self.out.len() > MAX_DELETIONS {
            batch.chain(&whole(shared, state, settings));
            return;
        }
        self.out.iter().for_each(|rule| batch.edit("-D", chain, rule));
        // what leads to node ports stays at the end
        let how = if shared == Shared::NatServices { "-I" } else { "-A" };
        self.new.iter().for_each(|rule| batch.edit(how, chain, rule));
    }
}

/// A shared chain with the rules of all services.
fn whole(shared: Shared, state: &State, settings: &Settings) -> Chain {
    let mut chain = Chain::new(shared.chain());
    for service in state.services() {
        shared_rules(service, settings, &mut |of, rule| {
            if of == shared {
                chain.add_text(&rule);
            }
        });
    }
    if shared == Shared::NatServices {
        add_node_ports(&mut chain, settings);
    }
    chain
}
