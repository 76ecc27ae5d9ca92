//! Shuffle sharding: a flow is dealt a hand of queues, so that two flows seldom share all of them.

use crate::kinds::flow_control::{MAX_HASH_BITS, entropy_bits};

/// The most queues of a hand: 16 queues in hands of 15 need 60 bits.
const MAX_HAND: usize = 15;

/// Deals hands of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dealer {
    queues: usize,
    hand: usize,
}

/// The queues that a flow may use, by their indexes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hand {
    queues: [u32; MAX_HAND],
    size: usize,
}

impl Dealer {
    /// `None` for numbers that make no hands: the rules of the API refuse them.
    pub(super) fn new(queues: u32, hand: u32) -> Option<Dealer> {
        let is_possible = hand > 0 && hand <= queues && hand as usize <= MAX_HAND;
        (is_possible && entropy_bits(queues, hand) <= MAX_HASH_BITS)
            .then_some(Dealer { queues: queues as usize, hand: hand as usize })
    }

    /// How many queues there are.
    pub(super) fn queues(&self) -> u32 {
        self.queues as u32
    }

    /// The hand of a flow with this hash.
    pub(super) fn deal(&self, hash: u64) -> Hand {
        let mut rest = hash as usize;
        let mut picks = [0; MAX_HAND];
        let mut hand = Hand { queues: [0; MAX_HAND], size: self.hand };
        for (i, pick) in picks.iter_mut().enumerate().take(self.hand) {
            let left = self.queues - i;
            *pick = rest % left;
            rest /= left;
        }
        // A pick counts the queues that are left after the picks before it.
        for (i, dealt) in hand.queues.iter_mut().enumerate().take(self.hand) {
            let mut queue = picks[i];
            for earlier in picks[..i].iter().rev() {
                if queue >= *earlier {
                    queue += 1;
                }
            }
            *dealt = queue as u32;
        }
        hand
    }
}

impl Hand {
    /// The queues, from one of them on.
    pub(super) fn from(&self, start: usize) -> impl Iterator<Item = u32> {
        (0..self.size).map(move |i| self.queues[start.wrapping_add(i) % self.size])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn flow_control_hands_need_possible_numbers() {
        for (queues, hand, is_possible) in [
            (0, 0, false),
            (1, 0, false),
            (1, 1, true),
            (1, 2, false),
            (64, 6, true),
            (128, 8, true),
            (128, 9, false),
            (16, 15, true),
            (10_000_000, 2, true),
            (10_000_000, 3, false),
            (u32::MAX, u32::MAX, false),
        ] {
            assert_eq!(Dealer::new(queues, hand).is_some(), is_possible, "{queues} {hand}");
        }
    }

    #[test]
    fn flow_control_hands_are_upstreams() {
        // 4 queues, hands of 2: the hash is (first, second of the three that are left)
        let dealer = Dealer::new(4, 2).unwrap();
        for (hash, expected) in [(0, [0, 1]), (1, [1, 0]), (4, [0, 2]), (7, [3, 1]), (11, [3, 2])] {
            assert_eq!(dealer.deal(hash).from(0).collect::<Vec<_>>(), expected, "{hash}");
        }
        assert_eq!(dealer.deal(4).from(1).collect::<Vec<_>>(), [2, 0]);
    }

    proptest! {
        #[test]
        fn flow_control_hands_are_different_queues(
            hash in any::<u64>(), queues in 1u32..200, hand in 1u32..12, start in any::<usize>(),
        ) {
            let Some(dealer) = Dealer::new(queues, hand) else { return Ok(()) };
            let dealt: BTreeSet<u32> = dealer.deal(hash).from(start).collect();
            prop_assert_eq!(dealt.len(), hand as usize);
            prop_assert!(dealt.iter().all(|queue| *queue < queues));
        }
    }
}
