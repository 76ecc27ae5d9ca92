#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

/// Names of requests, and what became of them.
type Log = Arc<Mutex<Vec<(&'static str, usize)>>>;

struct Named(usize, Log);

impl Tracked for Named {
    fn queued(&mut self, _: Instant, _: &Width, _: usize) {}

    fn unqueued(&mut self, _: Instant, _: &Width) {}

    fn dispatched(&mut self, _: Instant, _: &Width) {
        self.1.lock().push(("dispatched", self.0));
    }

    fn finished(&mut self, _: Instant, _: &Width) {
        self.1.lock().push(("finished", self.0));
    }

    fn released(&mut self, _: &Width) {
        self.1.lock().push(("released", self.0));
    }

    fn not_accommodated(&self) {
        self.1.lock().push(("waits", self.0));
    }
}

struct NoMeter;

impl Meter for NoMeter {
    fn observe(&mut self, _: Duration, _: &Load) {}
}

struct Level {
    set: QueueSet<Named>,
    log: Log,
    start: Instant,
    count: usize,
}

fn seats(initial: u32) -> Width {
    Width { initial, ..Width::ONE }
}

fn queues(count: u32, hand: u32, length: usize) -> Queuing {
    Queuing::Queues { dealer: Dealer::new(count, hand).unwrap(), length }
}

impl Level {
    fn new(queuing: Queuing, limit: u32) -> Level {
        let start = Instant::now();
        let set = QueueSet::new(queuing, limit, start, Box::new(NoMeter));
        Level { set, log: Log::default(), start, count: 0 }
    }

    fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    fn arrive(&mut self, millis: u64, flow: u64, width: Width) -> Result<Id, Rejection> {
        let named = Named(self.count, self.log.clone());
        self.count += 1;
        self.set.arrive(self.at(millis), flow, width, named)
    }

    fn leave(&mut self, millis: u64, id: Id) -> Option<Duration> {
        self.set.leave(self.at(millis), id)
    }

    fn dispatched(&self) -> Vec<usize> {
        let log = self.log.lock();
        log.iter().filter(|(what, _)| *what == "dispatched").map(|(_, name)| *name).collect()
    }

    /// Whether all sums are those of the requests, and all bounds hold.
    fn check(&self) {
        let set = &self.set;
        let all = || set.requests.iter().flatten();
        let sum = |state: &dyn Fn(&Request<Named>) -> bool| {
            all().filter(|request| state(request)).map(|request| request.width.max()).sum::<u32>()
        };
        let count = |state| all().filter(|request| request.state == state).count() as u32;
        let seats_in_use = sum(&|request| request.state != State::Waiting);
        let expected = Load {
            waiting: count(State::Waiting),
            executing: count(State::Executing),
            seats_in_use,
            seats_waiting: sum(&|request| request.state == State::Waiting),
        };
        assert_eq!(set.load, expected);
        let mut flows = HashMap::new();
        for request in all().filter(|request| request.state != State::Waiting) {
            *flows.entry(request.flow).or_insert(0) += request.width.max();
        }
        assert_eq!(set.flows, flows);
        assert!(set.queues.is_sorted_by_key(|queue| queue.index));
        for queue in &set.queues {
            let own = |request: &Request<Named>| request.queue == Some(queue.index);
            let waiting = |request: &Request<Named>| request.state == State::Waiting;
            assert_eq!(queue.seats_waiting, sum(&|r| own(r) && waiting(r)));
            assert_eq!(queue.seats_in_use, sum(&|r| own(r) && !waiting(r)));
            assert!(!queue.is_idle() || queue.seats_in_use > 0, "an empty queue stays");
        }
    }
}

#[test]
fn flow_control_level_without_queues_rejects() {
    let mut level = Level::new(Queuing::Reject, 3);
    let first = level.arrive(0, 1, seats(2)).unwrap();
    assert_eq!(level.arrive(0, 2, seats(2)), Err(Rejection::ConcurrencyLimit));
    level.arrive(0, 2, seats(1)).unwrap();
    assert_eq!(level.arrive(0, 3, seats(1)), Err(Rejection::ConcurrencyLimit));
    level.leave(1, first);
    level.arrive(1, 3, seats(2)).unwrap();
    assert_eq!(level.set.totals(), Totals { dispatched: 3, rejected: 2, cancelled: 0 });
    level.check();
}

#[test]
fn flow_control_exempt_level_has_no_limit() {
    let mut level = Level::new(Queuing::Exempt, 0);
    let all: Vec<Id> = (0..1000).map(|_| level.arrive(0, 1, seats(10)).unwrap()).collect();
    assert_eq!(level.set.load().seats_in_use, 10_000);
    level.check();
    all.into_iter().for_each(|id| assert_eq!(level.leave(1, id), None));
    assert!(level.set.is_idle() && level.set.load() == Load::default());
}

#[test]
fn flow_control_requests_wait_in_order_and_queues_have_a_length() {
    let mut level = Level::new(queues(1, 1, 2), 1);
    let running = level.arrive(0, 1, seats(1)).unwrap();
    let [second, third] = [1, 2].map(|millis| level.arrive(millis, 1, seats(1)).unwrap());
    assert!(level.set.is_waiting(second) && level.set.is_waiting(third));
    assert_eq!(level.arrive(3, 1, seats(1)), Err(Rejection::QueueFull));
    level.leave(4, running);
    assert!(!level.set.is_waiting(second) && level.set.is_waiting(third));
    // the client of one that waits goes
    level.leave(5, third);
    assert_eq!(level.set.totals().cancelled, 1);
    level.leave(6, second);
    assert_eq!(level.dispatched(), [0, 1]);
    assert!(level.set.is_idle() && level.set.queues.is_empty());
    assert_eq!(level.set.requests.iter().flatten().count(), 0);
}

#[test]
fn flow_control_wide_request_is_not_starved() {
    let mut level = Level::new(queues(8, 1, 50), 4);
    let running: Vec<Id> = (0..4).map(|flow| level.arrive(0, flow, seats(1)).unwrap()).collect();
    let wide = level.arrive(1, 5, seats(4)).unwrap();
    let narrow = level.arrive(2, 6, seats(1)).unwrap();
    for (millis, id) in running.into_iter().enumerate() {
        assert!(level.set.is_waiting(wide));
        level.leave(10 + millis as u64, id);
        level.check();
    }
    // It may be that the narrow one comes first, as it takes less; then the wide one follows.
    if !level.set.is_waiting(narrow) {
        level.leave(20, narrow);
    }
    assert!(!level.set.is_waiting(wide));
    // what is wider than the level is executed alone
    level.leave(30, wide);
    level.leave(30, narrow);
    let huge = level.arrive(40, 7, seats(9)).unwrap();
    assert!(!level.set.is_waiting(huge));
    let other = level.arrive(41, 6, seats(1)).unwrap();
    assert!(level.set.is_waiting(other));
    level.leave(42, huge);
    assert!(!level.set.is_waiting(other));
}

#[test]
fn flow_control_seats_of_writes_linger() {
    let mut level = Level::new(queues(4, 1, 50), 2);
    let lingers = Duration::from_millis(20);
    let write = level.arrive(0, 1, Width { initial: 1, last: 2, lingers }).unwrap();
    let next = level.arrive(1, 2, seats(1)).unwrap();
    assert_eq!(level.leave(5, write), Some(lingers));
    assert!(level.set.is_waiting(next), "the watches are served first");
    assert_eq!(level.leave(6, write), None, "it ends once");
    level.set.release(level.at(25), write);
    assert!(!level.set.is_waiting(next));
    level.check();
    level.leave(26, next);
    // a place that was used again is not released by what comes late
    let other = level.arrive(30, 3, seats(1)).unwrap();
    level.set.release(level.at(31), write);
    assert_eq!(level.set.load().seats_in_use, 1, "{other:?}");
}

#[test]
fn flow_control_one_flow_leaves_seats_for_others() {
    let mut level = Level::new(queues(64, 6, 50), 90);
    let greedy: Vec<Id> = (0..200).map(|_| level.arrive(0, 7, seats(1)).unwrap()).collect();
    assert_eq!(level.set.load().executing, 80);
    assert_eq!(level.set.load().waiting, 120);
    let other = level.arrive(1, 99, seats(1)).unwrap();
    assert!(!level.set.is_waiting(other), "its requests do not wait behind slow ones");
    level.check();
    for id in greedy {
        level.leave(2, id);
        level.check();
    }
    // small levels are not affected
    let mut level = Level::new(queues(64, 6, 50), 8);
    for _ in 0..8 {
        let id = level.arrive(0, 7, seats(1)).unwrap();
        assert!(!level.set.is_waiting(id));
    }
}

#[test]
fn flow_control_change_of_a_level_takes_effect() {
    let mut level = Level::new(queues(16, 4, 50), 1);
    let ids: Vec<Id> = (0..6).map(|flow| level.arrive(0, flow, seats(1)).unwrap()).collect();
    assert_eq!(level.set.load().executing, 1);
    level.set.configure(level.at(1), queues(16, 4, 50), 3);
    assert_eq!(level.set.load().executing, 3);
    // those that wait in queues that are gone are served nevertheless
    level.set.configure(level.at(2), Queuing::Reject, 3);
    assert_eq!(level.arrive(3, 1, seats(1)), Err(Rejection::ConcurrencyLimit));
    for id in ids {
        level.leave(4, id);
        level.check();
    }
    assert!(level.set.is_idle());
    level.set.configure(level.at(5), queues(2, 1, 50), 0);
    let stuck = level.arrive(6, 1, seats(1)).unwrap();
    assert!(level.set.is_waiting(stuck), "there are no seats");
    level.leave(7, stuck);
}

/// The executed requests of flows that have always something to do, where each takes some milliseconds.
fn serve(level: &mut Level, flows: &[(u64, usize, u64)], millis: u64) -> BTreeMap<u64, usize> {
    let mut served = BTreeMap::new();
    let mut open: Vec<(Id, u64, u64)> = Vec::new();
    let mut ends: BTreeMap<usize, u64> = BTreeMap::new();
    for now in 0..millis {
        for (flow, parallel, _) in flows {
            while open.iter().filter(|(_, own, _)| own == flow).count() < *parallel {
                let name = level.count as u64;
                let Ok(id) = level.arrive(now, *flow, seats(1)) else { break };
                open.push((id, *flow, name));
            }
        }
        let mut i = 0;
        while i < open.len() {
            let (id, flow, name) = open[i];
            let takes = flows.iter().find(|(own, ..)| *own == flow).unwrap().2;
            if !level.set.is_waiting(id) {
                let end = *ends.entry(name as usize).or_insert(now + takes);
                if end <= now {
                    level.leave(now, id);
                    open.swap_remove(i);
                    *served.entry(flow).or_insert(0) += 1;
                    continue;
                }
            }
            i += 1;
        }
    }
    served
}

#[test]
fn flow_control_is_fair_between_flows_of_different_load() {
    // two flows in queues of their own
    let mut level = Level::new(queues(64, 1, 1000), 4);
    let served = serve(&mut level, &[(1, 100, 10), (2, 4, 10)], 5000);
    let (many, few) = (served[&1], served[&2]);
    assert!(many + few >= 1600, "no seat is idle: {served:?}");
    assert!(few * 10 >= many * 9, "half for each: {served:?}");
    // one whose requests take five times as long gets as many seats, and a fifth of the requests
    let mut level = Level::new(queues(64, 1, 1000), 4);
    let served = serve(&mut level, &[(1, 50, 50), (2, 50, 10)], 5000);
    let ratio = served[&2] as f64 / served[&1] as f64;
    assert!((4.0..6.5).contains(&ratio), "{served:?}");
}

#[test]
fn flow_control_starves_nobody() {
    let mut level = Level::new(queues(128, 6, 1000), 10);
    let mut flows: Vec<(u64, usize, u64)> = (1..20).map(|flow| (flow * 7919, 40, 8)).collect();
    flows.push((31, 1, 8));
    let served = serve(&mut level, &flows, 2000);
    let least = served.values().min().unwrap();
    assert!(served.len() == 20 && *least > 25, "{served:?}");
}

#[test]
fn flow_control_virtual_time_does_not_run_out() {
    let mut level = Level::new(queues(2, 1, 50), 1);
    level.set.virtual_time = EPOCH - 0.001;
    let first = level.arrive(0, 0, seats(1)).unwrap();
    let [second, third] = [0, 1].map(|flow| level.arrive(1, flow, seats(1)).unwrap());
    level.leave(5000, first);
    assert!(level.set.virtual_time < 10.0);
    assert!(level.set.queues.iter().all(|queue| queue.next_dispatch.abs() < 10.0));
    level.leave(5001, second);
    level.leave(5002, third);
    assert!(level.set.is_idle());
}

proptest! {
    /// Whatever happens in whatever order, no seat is lost, none is given twice, and nobody waits while there
    /// is room.
    #[test]
    fn flow_control_limits_hold_in_any_order(
        kind in 0usize..4,
        limit in 0u32..20,
        steps in proptest::collection::vec(
            (0u8..10, any::<u16>(), 0u64..6, 1u32..6, 0u32..5, 0u64..30), 0..150,
        ),
    ) {
        let kinds = [queues(8, 2, 3), queues(1, 1, 100), queues(64, 6, 5), Queuing::Reject];
        let mut level = Level::new(kinds[kind], limit);
        let (mut open, mut lingering, mut now) = (Vec::new(), Vec::new(), 0);
        let mut limit = limit;
        for (what, which, flow, initial, last, wait) in steps {
            now += wait;
            match what {
                0..5 => {
                    let lingers = Duration::from_millis(if last > 0 { wait } else { 0 });
                    let width = Width { initial, last, lingers };
                    let before = level.set.load();
                    match level.arrive(now, flow, width) {
                        Ok(id) => open.push(id),
                        Err(_) => prop_assert_eq!(level.set.load(), before),
                    }
                }
                5..8 if !open.is_empty() => {
                    let id = open.swap_remove(which as usize % open.len());
                    if level.leave(now, id).is_some() {
                        lingering.push(id);
                    }
                }
                8 if !lingering.is_empty() => {
                    let id = lingering.swap_remove(which as usize % lingering.len());
                    level.set.release(level.at(now), id);
                }
                9 => {
                    limit = u32::from(which % 20);
                    level.set.configure(level.at(now), kinds[usize::from(which) / 20 % 4], limit);
                }
                _ => {}
            }
            level.check();
            let load = level.set.load();
            // one request that is wider than the level is executed alone
            let newest_fits = load.seats_in_use <= limit.max(20) + 6;
            prop_assert!(newest_fits, "{load:?} {limit}");
            if load.waiting > 0 && limit > 0 {
                prop_assert!(load.seats_in_use > 0, "a seat is free, and somebody waits: {load:?}");
            }
        }
        for id in lingering {
            level.set.release(level.at(now), id);
        }
        level.set.configure(level.at(now), kinds[kind], 1);
        for id in open {
            if level.leave(now, id).is_some() {
                level.set.release(level.at(now), id);
            }
            level.check();
        }
        prop_assert_eq!(level.set.load(), Load::default());
        prop_assert!(level.set.flows.is_empty() && level.set.queues.is_empty());
    }
}
