//! What an evaluation has cost, and how much it has done.

use crate::runtime::value::{List, Map, Value};
use crate::{Error, PER_CALL_LIMIT};

/// How many items operations may make or look at in one evaluation. Upstream's costs leave out some of it
/// (the copy of a list, comparing what is nested), which must be bounded all the same.
const MOST_WORK: u64 = 4_000_000;
/// So many bytes count as an item.
const BYTES: usize = 8;
/// What looking at a value within others counts as.
pub(crate) const VISIT: usize = 8;

/// Costs of one evaluation.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    cost: u64,
    work: u64,
}

impl Meter {
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    /// Adds a cost as upstream counts it.
    pub(crate) fn charge(&mut self, cost: u64) -> Result<(), Error> {
        self.cost = self.cost.saturating_add(cost);
        if self.cost > PER_CALL_LIMIT { Err(Error::CostLimit) } else { Ok(()) }
    }

    /// Adds bytes that are about to be made or looked at.
    pub(crate) fn bytes(&mut self, amount: usize) -> Result<(), Error> {
        self.work(amount / BYTES)
    }

    /// Adds items that are about to be made or looked at.
    pub(crate) fn work(&mut self, amount: usize) -> Result<(), Error> {
        self.work = self.work.saturating_add(u64::try_from(amount).unwrap_or(u64::MAX));
        if self.work > MOST_WORK { Err(Error::CostLimit) } else { Ok(()) }
    }

    /// The cost of looking at all of a value.
    pub(crate) fn traversal(&mut self, value: &Value<'_>) -> Result<u64, Error> {
        self.work(1)?;
        Ok(match value {
            Value::String(text) => tenth(text.len()),
            Value::Bytes(bytes) => tenth(bytes.len()),
            Value::List(list) => self.traversal_of(list)?,
            Value::Map(map) => {
                let mut cost: u64 = 0;
                for key in map.keys() {
                    cost = cost.saturating_add(self.traversal(&key)?);
                    if let Some(Ok(value)) = map.get(&key) {
                        cost = cost.saturating_add(self.traversal(&value)?);
                    }
                }
                cost
            }
            _ => 1,
        })
    }

    fn traversal_of(&mut self, list: &List<'_>) -> Result<u64, Error> {
        let mut cost: u64 = 0;
        for item in list.iter() {
            cost = cost.saturating_add(self.traversal(&item?)?);
        }
        Ok(cost)
    }

    /// Whether values are equal. Lists of sets and maps are compared as such.
    pub(crate) fn equal(&mut self, a: &Value<'_>, b: &Value<'_>) -> Result<bool, Error> {
        self.work(VISIT)?;
        Ok(match (a, b) {
            (Value::String(a), Value::String(b)) => **a == **b,
            (Value::Bool(a), Value::Bool(b)) => a == b,
            (Value::Null, Value::Null) => true,
            (Value::Bytes(a), Value::Bytes(b)) => a == b,
            (Value::Duration(a), Value::Duration(b)) => a == b,
            (Value::Timestamp(a), Value::Timestamp(b)) => a == b,
            (Value::Type(a), Value::Type(b)) => a.name() == b.name(),
            (Value::Optional(None), Value::Optional(None)) => true,
            (Value::Optional(Some(a)), Value::Optional(Some(b))) => self.equal(a, b)?,
            (Value::Opaque(a), Value::Opaque(b)) => a == b,
            (Value::List(a), Value::List(b)) => self.equal_lists(a, b)?,
            (Value::Map(a), Value::Map(b)) => self.equal_maps(a, b)?,
            _ => crate::runtime::functions::numbers::order(a, b).is_some_and(|order| order.is_eq()),
        })
    }

    fn equal_lists(&mut self, a: &List<'_>, b: &List<'_>) -> Result<bool, Error> {
        if a.len() != b.len() {
            return Ok(false);
        }
        match crate::runtime::functions::lists::identity(a) {
            Some(keys) => {
                for item in a.iter() {
                    let item = item?;
                    let mut found = false;
                    for other in b.iter() {
                        let other = other?;
                        let same = match keys {
                            [] => true,
                            keys => crate::runtime::functions::lists::same_keys(
                                self, keys, &item, &other,
                            )?,
                        };
                        if same && self.equal(&item, &other)? {
                            found = true;
                            break;
                        }
                    }
                    if !found {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            None => {
                for (a, b) in a.iter().zip(b.iter()) {
                    if !self.equal(&a?, &b?)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        }
    }

    fn equal_maps(&mut self, a: &Map<'_>, b: &Map<'_>) -> Result<bool, Error> {
        let keys = a.keys();
        self.work(keys.len())?;
        if keys.len() != b.len() {
            return Ok(false);
        }
        for key in &keys {
            let (Some(a), Some(b)) = (a.get(key), b.get(key)) else { return Ok(false) };
            if !self.equal(&a?, &b?)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the list has an item that is equal.
    pub(crate) fn contains(&mut self, list: &List<'_>, value: &Value<'_>) -> Result<bool, Error> {
        for item in list.iter() {
            if self.equal(&item?, value)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// A tenth of a length, rounded down.
fn tenth(length: usize) -> u64 {
    u64::try_from(length / 10).unwrap_or(u64::MAX)
}
