//! Bounded resources of a server, such as bytes, requests or connections, shared between callers.
//!
//! A caller may hold as much as is free: half of everything when it is alone, a third when there are
//! two, and so on. So a limit per caller need not be configured (the dynamic threshold of Choudhury and
//! Hahne, 1998). A part is reserved for system callers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::time::later;

/// The part of a budget that a caller may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// Everything except the reserve.
    Ordinary,
    /// Everything: nodes, administrators and the cluster's own controllers.
    System,
}

/// Holder of shares: a user, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    name: Arc<str>,
    priority: Priority,
}

impl Holder {
    /// The holder of this name.
    pub fn new(name: &str, priority: Priority) -> Self {
        Self { name: name.into(), priority }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Which part of a budget it may use.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.priority
    }
}

/// A bounded resource.
#[derive(Debug)]
pub struct Budget {
    ordinary: u64,
    reserved: u64,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    ordinary: u64,
    system: u64,
    holders: HashMap<Arc<str>, u64>,
}

impl Budget {
    /// `ordinary` for all callers, and a reserve for [`Priority::System`].
    #[must_use]
    pub fn new(ordinary: u64, reserved: u64) -> Arc<Self> {
        Arc::new(Self { ordinary, reserved, used: Mutex::default() })
    }

    /// A share of this amount; `None` when the holder would exceed its part.
    pub fn take(self: &Arc<Self>, holder: &Holder, amount: u64) -> Option<Share> {
        let mut share = Share { budget: Arc::clone(self), holder: holder.clone(), amount: 0 };
        share.grow(amount).then_some(share)
    }

    /// The amount of all shares.
    #[must_use]
    pub fn taken(&self) -> u64 {
        let used = self.used();
        used.ordinary.saturating_add(used.system)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock()
    }

    /// The free amount for this priority.
    fn free(&self, used: &Used, priority: Priority) -> u64 {
        let taken = used.ordinary.saturating_add(used.system);
        let free = self.ordinary.saturating_add(self.reserved).saturating_sub(taken);
        match priority {
            Priority::System => free,
            Priority::Ordinary => free.min(self.ordinary.saturating_sub(used.ordinary)),
        }
    }
}

impl Used {
    fn of(&mut self, priority: Priority) -> &mut u64 {
        match priority {
            Priority::Ordinary => &mut self.ordinary,
            Priority::System => &mut self.system,
        }
    }
}

/// A share of a budget, released when it is dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    holder: Holder,
    amount: u64,
}

impl Share {
    /// Its holder.
    #[must_use]
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// Its amount.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// Increases it. `false`, without a change, when the holder would exceed its part.
    #[must_use]
    pub fn grow(&mut self, more: u64) -> bool {
        let mut used = self.budget.used();
        let held = used.holders.get(&self.holder.name).copied().unwrap_or(0);
        if held.saturating_add(more) > self.budget.free(&used, self.holder.priority) {
            return false;
        }
        let sum = used.of(self.holder.priority);
        *sum = sum.saturating_add(more);
        match used.holders.get_mut(&self.holder.name) {
            Some(held) => *held = held.saturating_add(more),
            None if more > 0 => drop(used.holders.insert(Arc::clone(&self.holder.name), more)),
            None => {}
        }
        drop(used);
        self.amount = self.amount.saturating_add(more);
        true
    }

    /// Decreases it, at most to 0.
    pub fn shrink(&mut self, less: u64) {
        let less = less.min(self.amount);
        self.amount = self.amount.saturating_sub(less);
        let mut used = self.budget.used();
        let sum = used.of(self.holder.priority);
        *sum = sum.saturating_sub(less);
        if let Some(held) = used.holders.get_mut(&self.holder.name) {
            *held = held.saturating_sub(less);
            if *held == 0 {
                used.holders.remove(&self.holder.name);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

/// Minimum data rate of a peer.
#[derive(Debug, Clone, Copy)]
pub struct MinRate {
    /// Time before the rate applies.
    pub grace: Duration,
    /// Bytes per second from then on; not zero.
    pub bytes_per_second: u64,
    /// Total timeout.
    pub longest: Duration,
}

impl MinRate {
    /// Deadline for more than `received` bytes of a transfer that began at `start`.
    #[must_use]
    pub fn deadline(&self, start: Instant, received: u64) -> Instant {
        let paid =
            Duration::from_secs(received.checked_div(self.bytes_per_second).unwrap_or(received));
        later(start, self.grace.saturating_add(paid).min(self.longest))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(name: &str) -> Holder {
        Holder::new(name, Priority::Ordinary)
    }

    fn node(name: &str) -> Holder {
        Holder::new(name, Priority::System)
    }

    /// Takes single units until none is available.
    fn exhaust(budget: &Arc<Budget>, holder: &Holder) -> Vec<Share> {
        std::iter::from_fn(|| budget.take(holder, 1)).collect()
    }

    #[test]
    fn budget_leaves_a_share_for_the_next_holder() {
        let budget = Budget::new(100, 0);
        let first = exhaust(&budget, &user("a"));
        assert_eq!(first.len(), 50);
        let second = exhaust(&budget, &user("b"));
        assert_eq!(second.len(), 25);
        assert!(budget.take(&user("c"), 1).is_some());
        drop(first);
        assert_eq!(exhaust(&budget, &user("b")).len(), 25, "what is given back is free again");
    }

    #[test]
    fn budget_reserve_is_for_the_system() {
        let budget = Budget::new(100, 20);
        let crowd: Vec<_> =
            (0..200).flat_map(|i| exhaust(&budget, &user(&i.to_string()))).collect();
        assert_eq!(crowd.len(), 100);
        let nodes = exhaust(&budget, &node("n1"));
        assert_eq!(nodes.len(), 10);
        assert!(budget.take(&node("n2"), 1).is_some());
        drop((crowd, nodes));
        assert!(budget.used().holders.is_empty());
        assert_eq!(exhaust(&budget, &node("n1")).len(), 60, "the reserve and the rest");
    }

    #[test]
    fn budget_shares_grow_and_shrink() {
        let budget = Budget::new(100, 0);
        let mut share = budget.take(&user("a"), 0).unwrap();
        assert!(share.grow(40) && !share.grow(40) && share.grow(10));
        assert_eq!(share.amount(), 50);
        assert!(!share.grow(u64::MAX), "no amount overflows");
        share.shrink(45);
        assert_eq!((share.amount(), budget.used().ordinary), (5, 5));
        share.shrink(u64::MAX);
        assert_eq!((share.amount(), budget.used().ordinary), (0, 0));
        assert!(budget.used().holders.is_empty(), "no holder without a share is kept");
    }

    #[test]
    fn min_rate_applies_after_the_grace_period() {
        let rate = MinRate {
            grace: Duration::from_secs(10),
            bytes_per_second: 1000,
            longest: Duration::from_secs(60),
        };
        let start = Instant::now();
        for (received, seconds) in
            [(0, 10), (999, 10), (1000, 11), (20_000, 30), (1_000_000, 60), (u64::MAX, 60)]
        {
            let deadline = rate.deadline(start, received);
            assert_eq!(deadline - start, Duration::from_secs(seconds), "{received}");
        }
    }

    proptest! {
        /// Whatever is taken and given back in whatever order, the sums are right and in bounds.
        #[test]
        fn budget_sums_are_consistent(steps in proptest::collection::vec((0usize..6, 0u64..60, any::<bool>()), 0..60)) {
            let budget = Budget::new(100, 30);
            let mut shares: Vec<Share> = Vec::new();
            for (who, amount, gives_back) in steps {
                if gives_back && !shares.is_empty() {
                    let chosen = who % shares.len();
                    shares[chosen].shrink(amount);
                    if amount % 2 == 0 {
                        shares.swap_remove(chosen);
                    }
                } else {
                    let priority = [Priority::Ordinary, Priority::System][who % 2];
                    shares.extend(budget.take(&Holder::new(&who.to_string(), priority), amount));
                }
                let sum: u64 = shares.iter().map(Share::amount).sum();
                let used = budget.used();
                prop_assert_eq!(used.ordinary + used.system, sum);
                prop_assert_eq!(used.holders.values().sum::<u64>(), sum);
                prop_assert!(used.ordinary <= 100 && sum <= 130);
            }
            drop(shares);
            prop_assert!(budget.used().holders.is_empty());
        }
    }
}
