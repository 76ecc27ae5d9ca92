//! Random numbers for the order of addresses and for the IDs of queries to other servers.

/// A generator (xorshift64*) for an order that nobody has to guess: it spreads load, no more.
#[derive(Debug, Clone)]
pub(crate) struct Shuffle(u64);

impl Shuffle {
    /// A generator that starts anywhere.
    pub(crate) fn new() -> Self {
        Self::seeded(u64::from(unpredictable()) | 1 << 40)
    }

    /// A generator that starts there.
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed.max(1))
    }

    /// A number below `bound`; 0 if that is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        let bound = u64::try_from(bound).unwrap_or(u64::MAX);
        usize::try_from(number.checked_rem(bound).unwrap_or_default()).unwrap_or_default()
    }

    /// Puts items into a random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// A number that a stranger cannot predict: forged answers have to guess it.
pub(crate) fn unpredictable() -> u32 {
    getrandom::u32().unwrap_or_else(|_| {
        // Not to be had on Linux after boot; a hash of a random key and the time is the next best.
        use std::hash::{BuildHasher, RandomState};
        let now = std::time::SystemTime::now();
        (RandomState::new().hash_one(now) >> 32).try_into().unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffle_reaches_all_orders() {
        let mut random = Shuffle::seeded(7);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let mut items = [1, 2, 3];
            random.shuffle(&mut items);
            seen.insert(items);
        }
        assert_eq!(seen.len(), 6);
        assert_eq!(random.below(0), 0);
        assert!((0..100).all(|_| random.below(3) < 3));
    }
}
