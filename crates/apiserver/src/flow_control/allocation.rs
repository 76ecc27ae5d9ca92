//! How the server's seats are divided among priority levels: by shares, and every ten seconds by what the
//! levels could use, as far as they lend and borrow.

use super::demand::DemandStats;

/// A target that is not zero, to divide by.
const MIN_TARGET: f64 = 0.001;
const EPSILON: f64 = 1e-7;
/// More seats than any server has.
const MOST: f64 = 1e9;

/// What a level asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) nominal: u32,
    /// How much of its seats others may have, in percent.
    pub(super) lendable: u32,
    /// How much it may have of others' seats, in percent of its own; `None`: as much as there is.
    pub(super) borrowing: Option<u32>,
}

/// The seats of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seats {
    pub(super) nominal: u32,
    pub(super) min: u32,
    pub(super) max: u32,
}

impl Seats {
    /// Divides `total` seats by shares. They may add up to a little more, as they are rounded up.
    pub(super) fn of(shares: &Shares, total: u32, sum_of_shares: f64) -> Seats {
        let part = match sum_of_shares > 0.0 {
            true => f64::from(total) * f64::from(shares.nominal) / sum_of_shares,
            false => 0.0,
        };
        let nominal = part.ceil().min(MOST);
        let percent = |percent: u32| (nominal * f64::from(percent) / 100.0).round();
        let lendable = percent(shares.lendable.min(100));
        let borrowing = shares.borrowing.map_or(f64::from(total), percent);
        Seats {
            nominal: nominal as u32,
            min: (nominal - lendable) as u32,
            max: (nominal + borrowing).min(MOST) as u32,
        }
    }

    /// What a new level begins with.
    pub(super) fn initial(&self) -> u32 {
        self.nominal - (self.nominal - self.min) / 2
    }

    /// The most seats of one request of a level whose flows have hands of this size.
    pub(super) fn widest(&self, hand: u32) -> u32 {
        let part = (f64::from(self.nominal) * 0.15).ceil() as u32;
        part.min(self.nominal / hand.max(1)).max(1)
    }
}

/// A level, for the division by demand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) is_exempt: bool,
    pub(super) seats: Seats,
    pub(super) demand: DemandStats,
    /// The seats that it has so far.
    pub(super) current: u32,
}

impl Claim {
    /// The least that it gets: what it has used lately, of its own.
    fn least(&self) -> u32 {
        let used = self.demand.high_watermark;
        match self.is_exempt {
            true => self.seats.min.max(used),
            false => self.seats.min.max(self.seats.nominal.min(used)),
        }
    }

    fn target(&self) -> f64 {
        f64::from(self.least()).max(self.demand.smoothed)
    }
}

/// The seats of one level after an adjustment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Adjusted {
    pub(super) current: u32,
    pub(super) target: f64,
}

/// Divides the seats of all levels by demand. With it: the part of its target that each level gets that has
/// no bound in its way; 0 when there is too little for that.
pub(super) fn adjust(claims: &[Claim]) -> (Vec<Adjusted>, f64) {
    let sum = |of: &dyn Fn(&Claim) -> u32| claims.iter().map(|claim| f64::from(of(claim))).sum();
    let nominal: f64 = sum(&|claim| claim.seats.nominal);
    let exempt: f64 = sum(&|claim| if claim.is_exempt { claim.least() } else { 0 });
    let min: f64 = sum(&|claim| if claim.is_exempt { 0 } else { claim.seats.min });
    let least: f64 = sum(&|claim| if claim.is_exempt { 0 } else { claim.least() });
    let left = nominal - exempt;
    let mut fair_part = 0.0;
    let mut divided = Vec::new();
    if left > least {
        let limited = claims.iter().filter(|claim| !claim.is_exempt);
        let bounds: Vec<Bounds> = limited
            .map(|claim| Bounds {
                target: claim.target(),
                lower: claim.least().into(),
                upper: claim.seats.max.into(),
            })
            .collect();
        if let Some((seats, part)) = divide(nominal, &bounds) {
            (divided, fair_part) = (seats, part);
        }
    }
    let mut divided = divided.into_iter();
    let adjusted = claims.iter().map(|claim| {
        let (own_min, own_least) = (f64::from(claim.seats.min), f64::from(claim.least()));
        let current = match claim.is_exempt {
            true => own_least,
            false if left <= min => own_min,
            false if left <= least => {
                let part = (left - min) / (least - min);
                own_min + ((own_least - own_min) * part).round()
            }
            // no solution: it stays as it is
            false => divided.next().map_or(f64::from(claim.current), f64::round),
        };
        Adjusted { current: current.clamp(0.0, MOST) as u32, target: claim.target() }
    });
    (adjusted.collect(), fair_part)
}

/// What one gets at least and at most, and would get if there were enough.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    target: f64,
    lower: f64,
    upper: f64,
}

impl Bounds {
    /// What it gets when everybody gets `part` of the target.
    fn at(&self, part: f64) -> f64 {
        (part * self.target).min(self.upper).max(self.lower)
    }
}

/// Divides `sum` so that each gets the same part of its target, within its bounds. `None`: there is no
/// such division.
fn divide(sum: f64, items: &[Bounds]) -> Option<(Vec<f64>, f64)> {
    let items: Vec<Bounds> =
        items.iter().map(|item| Bounds { target: item.target.max(MIN_TARGET), ..*item }).collect();
    let is_possible = items.iter().all(|item| 0.0 <= item.lower && item.lower <= item.upper);
    let total_at = |part: f64| items.iter().map(|item| item.at(part)).sum::<f64>();
    let lowest: f64 = items.iter().map(|item| item.lower).sum();
    let highest: f64 = items.iter().map(|item| item.upper).sum();
    if !is_possible || lowest - sum > EPSILON || sum - highest > EPSILON {
        return None;
    }
    // The total grows with the part, in straight lines between the parts at which a bound is met.
    let mut corners: Vec<f64> =
        items.iter().flat_map(|item| [item.lower, item.upper].map(|b| b / item.target)).collect();
    corners.sort_by(f64::total_cmp);
    let end = corners.partition_point(|corner| total_at(*corner) < sum);
    let to = *corners.get(end).or(corners.last())?;
    let from = end.checked_sub(1).map_or(0.0, |before| corners[before]);
    let (below, above) = (total_at(from), total_at(to));
    let part = match above - below > 0.0 {
        true => from + (to - from) * ((sum - below) / (above - below)).clamp(0.0, 1.0),
        false => to,
    };
    Some((items.iter().map(|item| item.at(part)).collect(), part))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limited(nominal: u32, lendable: u32, borrowing: Option<u32>) -> Shares {
        Shares { nominal, lendable, borrowing }
    }

    #[test]
    fn flow_control_seats_by_shares_are_upstreams() {
        for (shares, nominal, min, max) in [
            (limited(30, 33, None), 74, 50, 674),
            (limited(100, 90, None), 245, 24, 845),
            (limited(5, 0, None), 13, 13, 613),
            (limited(20, 50, Some(100)), 49, 24, 98),
            (limited(0, 50, Some(0)), 0, 0, 0),
            (limited(20, 1000, Some(u32::MAX)), 49, 0, 1_000_000_000),
        ] {
            let seats = Seats::of(&shares, 600, 245.0);
            assert_eq!(seats, Seats { nominal, min, max }, "{shares:?}");
        }
        let alone = Seats::of(&limited(1, 0, None), 3, 1e9);
        assert_eq!(alone.nominal, 1, "nobody with a share is left without a seat");
        assert_eq!(Seats::of(&limited(0, 0, None), 600, 0.0).nominal, 0);
        let low = Seats::of(&limited(100, 90, None), 600, 245.0);
        assert_eq!((low.initial(), low.widest(6), low.widest(0)), (135, 37, 37));
        assert_eq!(Seats::default().widest(8), 1);
    }

    fn claim(nominal: u32, min: u32, used: u32, smoothed: f64) -> Claim {
        Claim {
            is_exempt: false,
            seats: Seats { nominal, min, max: nominal + 600 },
            demand: DemandStats { high_watermark: used, smoothed, ..DemandStats::default() },
            current: nominal,
        }
    }

    #[test]
    fn flow_control_levels_lend_what_they_do_not_use() {
        let exempt = |used| Claim { is_exempt: true, ..claim(0, 0, used, 0.0) };
        // nobody wants anything: all by their shares of a small target
        let currents = |claims: &[Claim]| {
            adjust(claims).0.iter().map(|level| level.current).collect::<Vec<_>>()
        };
        assert_eq!(currents(&[claim(50, 50, 0, 0.0), claim(50, 50, 0, 0.0)]), [50, 50]);
        // one is idle and lends half; the other one wants more than there is
        let busy = claim(50, 25, 50, 200.0);
        assert_eq!(currents(&[busy, claim(50, 25, 0, 0.0), exempt(0)]), [75, 25, 0]);
        // what the idle one has used lately it keeps, up to its own
        assert_eq!(currents(&[busy, claim(50, 25, 40, 40.0), exempt(0)])[1], 40);
        // the exempt level takes first, and what is left goes to the bounds
        assert_eq!(currents(&[busy, claim(50, 25, 40, 40.0), exempt(30)]), [38, 33, 30]);
        assert_eq!(currents(&[busy, claim(50, 25, 40, 40.0), exempt(70)]), [25, 25, 70]);
        // borrowing has a limit
        let bound = Claim { seats: Seats { nominal: 50, min: 25, max: 60 }, ..busy };
        assert_eq!(currents(&[bound, claim(50, 25, 0, 0.0)]), [60, 40]);
        assert_eq!(adjust(&[]), (vec![], 0.0));
    }

    proptest! {
        #[test]
        fn flow_control_division_is_fair_within_bounds(
            raw in proptest::collection::vec((0.0f64..100.0, 0.0f64..50.0, 0.0f64..100.0), 1..8),
            at in 0.0f64..1.0,
        ) {
            let items: Vec<Bounds> = raw
                .into_iter()
                .map(|(more, lower, room)| Bounds { target: lower + more, lower, upper: lower + room })
                .collect();
            let (low, high) = items
                .iter()
                .fold((0.0, 0.0), |sum, item| (sum.0 + item.lower, sum.1 + item.upper));
            let sum = low + (high - low) * at;
            let (seats, part) = divide(sum, &items).unwrap();
            prop_assert!((seats.iter().sum::<f64>() - sum).abs() < 1e-3, "{seats:?} {sum}");
            for (got, item) in seats.iter().zip(&items) {
                prop_assert!(*got >= item.lower && *got <= item.upper);
                let fair = part * item.target.max(MIN_TARGET);
                // who gets less than the others has all that it may have, and the other way round
                prop_assert!(*got >= fair - 1e-6 || *got >= item.upper - 1e-6);
                prop_assert!(*got <= fair + 1e-6 || *got <= item.lower + 1e-6);
            }
            prop_assert!(divide(high + 1.0, &items).is_none() && divide(low - 1.0, &items).is_none());
        }

        #[test]
        fn flow_control_adjustment_stays_in_bounds(
            raw in proptest::collection::vec((0u32..300, 0u32..100, 0u32..700, 0.0f64..900.0, any::<bool>()), 0..8),
        ) {
            let claims: Vec<Claim> = raw
                .into_iter()
                .map(|(nominal, lendable, used, smoothed, is_exempt)| Claim {
                    is_exempt,
                    ..claim(nominal, nominal - nominal * lendable / 100, used, smoothed)
                })
                .collect();
            for (level, claim) in adjust(&claims).0.iter().zip(&claims) {
                prop_assert!(level.current >= claim.seats.min, "{level:?} {claim:?}");
                prop_assert!(claim.is_exempt || level.current <= claim.seats.max);
            }
        }
    }
}
