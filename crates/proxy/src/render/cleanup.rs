use super::batch::Batch;
use super::existing::{Existing, Table};
use super::fixed::{CANARY_CHAIN, FORWARD_CHAIN, JUMPS, MARK_CHAIN, POSTROUTING_CHAIN, Shared};
use super::names::ChainName;
use super::stale::Stale;

/// The transactions that take all that is ours out of tables filter and nat, in order. What the
/// kubelet has there stays: KUBE-FIREWALL and its jumps.
pub fn cleanup(existing: &Existing) -> Vec<String> {
    let mut texts = Vec::new();
    for table in [Table::Filter, Table::Nat] {
        let mut batch = Batch::default();
        for jump in JUMPS.iter().filter(|jump| jump.table == table && !jump.kubelet) {
            if existing.has_jump(table, jump.from, jump.rule) {
                batch.edit("-D", jump.from, jump.rule);
            }
        }
        let shared = Shared::ALL.iter().filter(|s| s.table() == table).map(|s| s.chain());
        let others = match table {
            Table::Filter => [FORWARD_CHAIN, CANARY_CHAIN].as_slice(),
            Table::Nat => &[POSTROUTING_CHAIN, CANARY_CHAIN],
        };
        let fixed = shared.chain(others.iter().copied());
        fixed.filter(|chain| existing.has(table, chain)).for_each(|chain| batch.remove(chain));
        texts.push(batch.take(table));
    }
    let mut chains = Stale::default();
    chains.add(existing.chains(Table::Nat).filter(|chain| ChainName::is_ours(chain)));
    texts.extend(chains.take());
    // last: the chains of endpoints led to it
    let mut mark = Batch::default();
    if existing.has(Table::Nat, MARK_CHAIN) {
        mark.remove(MARK_CHAIN);
    }
    texts.push(mark.take(Table::Nat));
    texts.retain(|text| !text.is_empty());
    texts
}
