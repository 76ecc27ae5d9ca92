use std::collections::BTreeSet;

use super::batch::Batch;
use super::{ChainName, Partial, Table};

/// Chains of table nat that nothing leads to any more. They do no harm, so they are removed when
/// there is time, and in transactions of their own: one that foreign rules refer to cannot be.
#[derive(Debug, Default)]
pub struct Stale(BTreeSet<Box<str>>);

impl Stale {
    /// Adds chains.
    pub fn add<'a>(&mut self, chains: impl IntoIterator<Item = &'a str>) {
        self.0.extend(chains.into_iter().map(Box::from));
    }

    /// After a partial sync: adds chains that became unused, and removes those that are used again.
    pub fn follow(&mut self, partial: &Partial) {
        for chain in &partial.written {
            self.0.remove(chain.to_string().as_str());
        }
        self.0.extend(partial.stale.iter().map(|chain| chain.to_string().into()));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all of them, as transactions that remove them.
    pub fn take(&mut self) -> Vec<String> {
        let chains = std::mem::take(&mut self.0);
        let (endpoints, others): (Vec<_>, Vec<_>) =
            chains.iter().partition(|chain| ChainName::is_endpoint(chain));
        let mut batch = Batch::default();
        // all that may lead to others is emptied first
        others.iter().for_each(|chain| batch.declare(chain));
        let mut texts = vec![batch.take(Table::Nat)];
        for chain in others.into_iter().chain(endpoints) {
            batch.remove(chain);
            if batch.is_full() {
                texts.push(batch.take(Table::Nat));
            }
        }
        texts.push(batch.take(Table::Nat));
        texts.retain(|text| !text.is_empty());
        texts
    }
}
