//! How many seats a request takes, and for how long: by the objects that it reads, or the watches that hear
//! of what it writes.

use std::time::Duration;

use crate::registry::Size;

/// Bytes that a request for one seat reads.
const BYTES_PER_SEAT: f64 = 100_000.0;
/// Lists are written as they are read: no more than this is in memory at once.
const BYTES_AT_ONCE: f64 = 1_000_000.0;
/// Watches that one seat serves.
const WATCHES_PER_SEAT: u32 = 10;
/// How long an event occupies that seat.
const EVENT: f64 = 0.005;
/// The most seats of a list, and of a request that writes.
const MAX_SEATS: (u32, u32) = (100, 10);

/// The seats of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Width {
    /// While it is executed.
    pub(super) initial: u32,
    /// Afterwards.
    pub(super) last: u32,
    /// How long that is.
    pub(super) lingers: Duration,
}

impl Width {
    /// The width of a request for one object.
    pub(crate) const ONE: Width = Width { initial: 1, last: 0, lingers: Duration::ZERO };

    /// The seats that are reserved from the beginning to the end.
    pub(super) fn max(&self) -> u32 {
        self.initial.max(self.last)
    }

    /// Seat-seconds, of a request that is executed for `expected` seconds.
    pub(super) fn work(&self, expected: f64) -> f64 {
        f64::from(self.initial) * expected + self.last_work()
    }

    fn last_work(&self) -> f64 {
        f64::from(self.last) * self.lingers.as_secs_f64()
    }

    /// Has the same work done by fewer seats at the end, when there are no more.
    pub(super) fn narrow(&mut self, limit: u32) {
        if self.last > limit && limit > 0 {
            *self = Width { lingers: spread(self.last_work(), limit), last: limit, ..*self };
        }
    }
}

fn spread(work: f64, seats: u32) -> Duration {
    Duration::try_from_secs_f64(work / f64::from(seats)).unwrap_or_default()
}

/// The width of a list, or of a watch that begins with one. `widest`: the most seats of the level, 0 for as
/// many as there may be. `limit`: the most objects that are wanted, 0 for all.
pub(super) fn of_list(size: Option<Size>, limit: u64, has_name: bool, widest: u32) -> Width {
    let Some(size) = size.filter(|size| size.objects > 0) else { return Width::ONE };
    let average = size.bytes as f64 / size.objects as f64;
    let objects = match limit {
        _ if has_name => 1,
        0 => size.objects,
        limit => limit.min(size.objects),
    };
    let bytes = (objects as f64 * average).min(BYTES_AT_ONCE);
    let seats = (bytes / BYTES_PER_SEAT).ceil() as u32;
    Width { initial: seats.clamp(1, most(widest, MAX_SEATS.0)), ..Width::ONE }
}

/// The width of a request that writes what this many watches are about.
pub(super) fn of_write(watches: u32, widest: u32) -> Width {
    if watches < WATCHES_PER_SEAT {
        return Width::ONE;
    }
    let seats = watches.div_ceil(WATCHES_PER_SEAT);
    let last = seats.min(most(widest, MAX_SEATS.1));
    Width { initial: 1, last, lingers: spread(f64::from(seats) * EVENT, last) }
}

fn most(widest: u32, max: u32) -> u32 {
    match widest {
        0 => max,
        widest => widest.min(max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_control_width_of_lists_is_by_bytes() {
        let size = |objects, bytes| Some(Size { objects, bytes });
        for (size, limit, has_name, widest, expected) in [
            (None, 0, false, 10, 1),
            (size(0, 0), 0, false, 10, 1),
            (size(1000, 450_000), 0, false, 10, 5),
            (size(1000, 450_000), 500, false, 10, 3),
            (size(1000, 450_000), 5000, false, 10, 5),
            (size(1000, 450_000), 0, true, 10, 1),
            (size(1000, 450_000), 0, false, 3, 3),
            (size(1_000_000, u64::MAX), 0, false, 0, 10),
            (size(1, u64::MAX), u64::MAX, false, 0, 10),
        ] {
            let width = of_list(size, limit, has_name, widest);
            assert_eq!(width, Width { initial: expected, ..Width::ONE }, "{size:?} {limit}");
        }
    }

    #[test]
    fn flow_control_width_of_writes_is_by_watches() {
        for (watches, widest, last, millis) in [
            (0, 10, 0, 0),
            (9, 10, 0, 0),
            (10, 10, 1, 5),
            (25, 10, 3, 5),
            // the same work by fewer seats
            (200, 10, 10, 10),
            (200, 0, 10, 10),
            (200, 4, 4, 25),
        ] {
            let width = of_write(watches, widest);
            let expected = Width { initial: 1, last, lingers: Duration::from_millis(millis) };
            assert_eq!(width, expected, "{watches} {widest}");
        }
        assert_eq!(of_write(u32::MAX, 1).last, 1);
        let mut width = of_write(200, 0);
        width.narrow(5);
        assert_eq!((width.last, width.lingers), (5, Duration::from_millis(20)));
        width.narrow(0);
        assert_eq!(width.last, 5);
    }
}
