//! The requests of one priority level: which of them are executed, and which wait in which queue.
//!
//! A state machine: it is given the time, and knows neither clients nor threads. Its queues are fair in the
//! sense of virtual time: each queue with requests is allotted the same number of seats, the one whose oldest
//! request would end first, if that were kept to, is served next. Only queues with requests exist.
//!
//! Beyond upstream: one flow cannot have all seats of a level. A caller whose requests are slow (a body that
//! comes byte by byte, a webhook that does not answer) would else hold up everybody else of its level.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::demand::{Demand, Observed};
use super::shuffle::Dealer;
use super::width::Width;

/// How long requests are expected to take, until they have ended.
const EXPECTED: f64 = 0.003;
/// A flow may have this many times the seats that are free then. Levels of up to that many seats are not
/// affected; of others one flow gets at most eight ninths.
const FLOW_SHARE: u32 = 8;
/// Virtual time that is set back, before numbers lose precision.
const EPOCH: f64 = 1e9;

/// What is done with requests that find no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Queuing {
    /// All find a seat.
    Exempt,
    /// They are rejected.
    Reject,
    /// They wait.
    Queues {
        /// Who waits where.
        dealer: Dealer,
        /// The most requests of one queue.
        length: usize,
    },
}

/// A request, as long as it waits or is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(u32);

/// Why a request is rejected, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// All seats are taken, and there are no queues.
    ConcurrencyLimit,
    /// Its queue is full.
    QueueFull,
    /// It has waited too long.
    TimeOut,
}

impl Rejection {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Rejection::ConcurrencyLimit => "concurrency-limit",
            Rejection::QueueFull => "queue-full",
            Rejection::TimeOut => "time-out",
        }
    }
}

/// What is kept for a request, and is to know what becomes of it.
pub(super) trait Tracked {
    /// It waits in a queue, which has that many requests now.
    fn queued(&mut self, now: Instant, width: &Width, length: usize);
    /// It waits no longer.
    fn unqueued(&mut self, now: Instant, width: &Width);
    /// It is executed.
    fn dispatched(&mut self, now: Instant, width: &Width);
    /// It has ended, and keeps its seats for a while.
    fn finished(&mut self, now: Instant, width: &Width);
    /// Its seats are free.
    fn released(&mut self, width: &Width);
    /// It is the next one, and there are too few seats.
    fn not_accommodated(&self);
}

/// What a level is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) waiting: u32,
    pub(super) executing: u32,
    pub(super) seats_in_use: u32,
    pub(super) seats_waiting: u32,
}

/// Is shown the load of each span of time.
pub(super) trait Meter: Send {
    fn observe(&mut self, elapsed: Duration, load: &Load);
}

/// Totals since the level exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) dispatched: usize,
    pub(super) rejected: usize,
    pub(super) cancelled: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Executing,
    /// It has ended, and its seats are kept.
    Lingering,
}

struct Request<T> {
    tracked: T,
    state: State,
    /// The queue that it came from, by its index.
    queue: Option<u32>,
    flow: u64,
    width: Width,
    /// In seat-seconds.
    work: f64,
    arrived: Instant,
    /// When it arrived, in virtual time.
    arrived_at: f64,
    started: Option<Instant>,
}

/// A queue with requests.
struct Queue {
    index: u32,
    waiting: VecDeque<Id>,
    executing: u32,
    seats_in_use: u32,
    initial_seats_waiting: u32,
    seats_waiting: u32,
    work_waiting: f64,
    /// When its next request is dispatched, in virtual time.
    next_dispatch: f64,
}

impl Queue {
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.executing == 0
    }
}

/// The requests of a level.
pub(super) struct QueueSet<T> {
    queuing: Queuing,
    /// How many seats there are.
    limit: u32,
    requests: Vec<Option<Request<T>>>,
    /// Unused places in `requests`.
    free: Vec<Id>,
    /// In the order of their indexes.
    queues: Vec<Queue>,
    /// The seats of flows that have some.
    flows: HashMap<u64, u32>,
    load: Load,
    totals: Totals,
    demand: Demand,
    meter: Box<dyn Meter>,
    synced: Instant,
    /// Seat-seconds that each queue was allotted so far.
    virtual_time: f64,
    /// The index of the queue that was served last.
    last_served: u32,
    enqueued: usize,
}

impl<T: Tracked> QueueSet<T> {
    pub(super) fn new(queuing: Queuing, limit: u32, now: Instant, meter: Box<dyn Meter>) -> Self {
        QueueSet {
            queuing,
            limit,
            requests: Vec::new(),
            free: Vec::new(),
            queues: Vec::new(),
            flows: HashMap::new(),
            load: Load::default(),
            totals: Totals::default(),
            demand: Demand::new(now),
            meter,
            synced: now,
            virtual_time: 0.0,
            last_served: u32::MAX,
            enqueued: 0,
        }
    }

    /// Takes other queues and another number of seats. Queues that are no longer wanted are emptied.
    pub(super) fn configure(&mut self, now: Instant, queuing: Queuing, limit: u32) {
        self.sync(now);
        self.queuing = queuing;
        self.limit = limit;
        self.dispatch(now);
    }

    /// A request arrives: it is executed, or waits ([`QueueSet::is_waiting`]), or is rejected.
    pub(super) fn arrive(
        &mut self,
        now: Instant,
        flow: u64,
        width: Width,
        tracked: T,
    ) -> Result<Id, Rejection> {
        self.sync(now);
        let request = Request {
            tracked,
            state: State::Waiting,
            queue: None,
            flow,
            width,
            work: width.work(EXPECTED),
            arrived: now,
            arrived_at: self.virtual_time,
            started: None,
        };
        match self.queuing {
            Queuing::Exempt => {}
            Queuing::Reject => {
                if !self.accommodates(width.max()) || !self.leaves_room(flow, width.max()) {
                    self.totals.rejected = self.totals.rejected.wrapping_add(1);
                    return Err(Rejection::ConcurrencyLimit);
                }
            }
            Queuing::Queues { dealer, length } => {
                return self.enqueue(now, dealer, length, request);
            }
        }
        let id = self.keep(request);
        self.execute(now, id);
        self.note_demand(now);
        Ok(id)
    }

    fn enqueue(
        &mut self,
        now: Instant,
        dealer: Dealer,
        length: usize,
        mut request: Request<T>,
    ) -> Result<Id, Rejection> {
        // In turn, so that flows with overlapping hands do not all begin with the same queue.
        let start = self.enqueued;
        self.enqueued = self.enqueued.wrapping_add(1);
        let mut best: Option<(u32, f64)> = None;
        for index in dealer.deal(request.flow).from(start) {
            let work = self.queue(index).map_or(0.0, |queue| queue.work_waiting);
            if best.is_none_or(|(_, least)| work < least) {
                best = Some((index, work));
            }
        }
        let Some((index, _)) = best else { return Err(Rejection::QueueFull) };
        let at = self.queues.partition_point(|queue| queue.index < index);
        if self.queues.get(at).is_none_or(|queue| queue.index != index) {
            let queue = Queue {
                index,
                waiting: VecDeque::new(),
                executing: 0,
                seats_in_use: 0,
                initial_seats_waiting: 0,
                seats_waiting: 0,
                work_waiting: 0.0,
                next_dispatch: self.virtual_time,
            };
            self.queues.insert(at, queue);
        }
        let virtual_time = self.virtual_time;
        let Some(queue) = self.queues.get_mut(at) else { return Err(Rejection::QueueFull) };
        if self.load.seats_in_use >= self.limit && queue.waiting.len() >= length {
            self.totals.rejected = self.totals.rejected.wrapping_add(1);
            self.drop_idle(at);
            return Err(Rejection::QueueFull);
        }
        if queue.is_idle() {
            queue.next_dispatch = virtual_time;
        }
        let width = request.width;
        queue.initial_seats_waiting += width.initial;
        queue.seats_waiting += width.max();
        queue.work_waiting += request.work;
        self.load.waiting += 1;
        self.load.seats_waiting += width.max();
        request.tracked.queued(now, &width, queue.waiting.len() + 1);
        request.queue = Some(index);
        let id = self.keep(request);
        if let Some(queue) = self.queues.get_mut(at) {
            queue.waiting.push_back(id);
        }
        self.bound(at);
        self.dispatch(now);
        self.note_demand(now);
        Ok(id)
    }

    /// Whether a request waits.
    pub(super) fn is_waiting(&self, id: Id) -> bool {
        self.request(id).is_some_and(|request| request.state == State::Waiting)
    }

    /// What is kept for a request.
    pub(super) fn tracked_mut(&mut self, id: Id) -> Option<&mut T> {
        let request = self.requests.get_mut(id.0 as usize)?.as_mut()?;
        Some(&mut request.tracked)
    }

    /// A request has ended, or its client has gone: it leaves its queue, or its seats. How long it keeps them,
    /// until [`QueueSet::release`].
    pub(super) fn leave(&mut self, now: Instant, id: Id) -> Option<Duration> {
        self.sync(now);
        let state = self.request(id)?.state;
        match state {
            State::Waiting => {
                self.cancel(now, id);
                None
            }
            State::Executing => self.finish(now, id),
            State::Lingering => None,
        }
    }

    fn cancel(&mut self, now: Instant, id: Id) {
        let Some(mut request) = self.forget(id) else { return };
        let at = request.queue.and_then(|index| self.position(index));
        if let Some(at) = at
            && let Some(queue) = self.queues.get_mut(at)
        {
            queue.waiting.retain(|waiting| *waiting != id);
            self.unqueue(now, at, &mut request);
            self.bound(at);
            self.drop_idle(at);
        }
        self.totals.rejected = self.totals.rejected.wrapping_add(1);
        self.totals.cancelled = self.totals.cancelled.wrapping_add(1);
        // it may have been the one that others waited behind
        self.dispatch(now);
        self.note_demand(now);
    }

    /// The sums of a queue without a request that waited there.
    fn unqueue(&mut self, now: Instant, at: usize, request: &mut Request<T>) {
        let Some(queue) = self.queues.get_mut(at) else { return };
        let width = request.width;
        queue.initial_seats_waiting = queue.initial_seats_waiting.saturating_sub(width.initial);
        queue.seats_waiting = queue.seats_waiting.saturating_sub(width.max());
        queue.work_waiting = match queue.waiting.is_empty() {
            true => 0.0,
            false => queue.work_waiting - request.work,
        };
        self.load.waiting = self.load.waiting.saturating_sub(1);
        self.load.seats_waiting = self.load.seats_waiting.saturating_sub(width.max());
        request.tracked.unqueued(now, &width);
    }

    fn finish(&mut self, now: Instant, id: Id) -> Option<Duration> {
        let (queue, width, started) = {
            let request = self.requests.get_mut(id.0 as usize)?.as_mut()?;
            request.state = State::Lingering;
            let width = request.width;
            request.tracked.finished(now, &width);
            (request.queue, width, request.started)
        };
        self.load.executing = self.load.executing.saturating_sub(1);
        if let Some(at) = queue.and_then(|index| self.position(index))
            && let Some(queue) = self.queues.get_mut(at)
        {
            let took = started.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
            queue.executing = queue.executing.saturating_sub(1);
            queue.next_dispatch -= f64::from(width.initial) * (EXPECTED - took);
            self.bound(at);
        }
        if width.lingers.is_zero() {
            self.free_seats(now, id);
            return None;
        }
        self.dispatch(now);
        Some(width.lingers)
    }

    /// The seats of a request that has ended are no longer kept.
    pub(super) fn release(&mut self, now: Instant, id: Id) {
        self.sync(now);
        if self.request(id).is_some_and(|request| request.state == State::Lingering) {
            self.free_seats(now, id);
        }
    }

    fn free_seats(&mut self, now: Instant, id: Id) {
        let Some(mut request) = self.forget(id) else { return };
        let seats = request.width.max();
        request.tracked.released(&request.width);
        self.load.seats_in_use = self.load.seats_in_use.saturating_sub(seats);
        if let Some(held) = self.flows.get_mut(&request.flow) {
            *held = held.saturating_sub(seats);
            if *held == 0 {
                self.flows.remove(&request.flow);
            }
        }
        if let Some(at) = request.queue.and_then(|index| self.position(index))
            && let Some(queue) = self.queues.get_mut(at)
        {
            queue.seats_in_use = queue.seats_in_use.saturating_sub(seats);
            self.drop_idle(at);
        }
        self.dispatch(now);
        self.note_demand(now);
    }

    /// Executes as many requests as there are seats for.
    fn dispatch(&mut self, now: Instant) {
        while self.load.waiting > 0 && self.load.seats_in_use < self.limit {
            let Some((at, id)) = self.next() else { return };
            let limit = self.limit;
            let Some(mut request) = self.requests.get_mut(id.0 as usize).and_then(Option::take)
            else {
                return;
            };
            if let Some(queue) = self.queues.get_mut(at) {
                queue.waiting.pop_front();
                queue.next_dispatch += request.work;
                self.last_served = queue.index;
            }
            self.unqueue(now, at, &mut request);
            request.width.narrow(limit);
            if let Some(place) = self.requests.get_mut(id.0 as usize) {
                *place = Some(request);
            }
            self.execute(now, id);
            self.bound(at);
        }
    }

    /// The queue to serve next, by its place, and its oldest request. `None`: there are too few seats.
    fn next(&self) -> Option<(usize, Id)> {
        let start = self.queues.partition_point(|queue| queue.index <= self.last_served);
        let mut best: Option<(usize, Id, f64)> = None;
        for at in (start..self.queues.len()).chain(0..start) {
            let queue = self.queues.get(at)?;
            let Some(id) = queue.waiting.front() else { continue };
            let Some(request) = self.request(*id) else { continue };
            let ends = queue.next_dispatch + request.work;
            if best.is_none_or(|(.., least)| ends < least)
                && self.leaves_room(request.flow, request.width.max())
            {
                best = Some((at, *id, ends));
            }
        }
        let (at, id, _) = best?;
        let request = self.request(id)?;
        if !self.accommodates(request.width.max()) {
            request.tracked.not_accommodated();
            return None;
        }
        Some((at, id))
    }

    /// Whether there are so many seats. A request that is wider than the level waits until it is alone, also
    /// without seats of requests that have ended: else these would add up.
    fn accommodates(&self, seats: u32) -> bool {
        match seats > self.limit {
            true => self.load.seats_in_use == 0,
            false => self.load.seats_in_use.saturating_add(seats) <= self.limit,
        }
    }

    /// Whether a flow that gets so many seats leaves some for others.
    fn leaves_room(&self, flow: u64, seats: u32) -> bool {
        let free = self.limit.saturating_sub(self.load.seats_in_use);
        self.flows
            .get(&flow)
            .is_none_or(|held| held.saturating_add(seats) <= free.saturating_mul(FLOW_SHARE))
    }

    fn execute(&mut self, now: Instant, id: Id) {
        let Some(Some(request)) = self.requests.get_mut(id.0 as usize) else { return };
        request.state = State::Executing;
        request.started = Some(now);
        let (width, flow, index) = (request.width, request.flow, request.queue);
        request.tracked.dispatched(now, &width);
        self.totals.dispatched = self.totals.dispatched.wrapping_add(1);
        self.load.executing += 1;
        self.load.seats_in_use += width.max();
        let held = self.flows.entry(flow).or_default();
        *held = held.saturating_add(width.max());
        if let Some(at) = index.and_then(|index| self.position(index))
            && let Some(queue) = self.queues.get_mut(at)
        {
            queue.executing += 1;
            queue.seats_in_use += width.max();
        }
    }

    /// Nothing is dispatched before it arrives, in virtual time: who used less than its share in the past
    /// does not get more than that now.
    fn bound(&mut self, at: usize) {
        let Some(queue) = self.queues.get(at) else { return };
        let oldest = queue.waiting.front().and_then(|id| self.request(*id));
        if let Some(arrived) = oldest.map(|request| request.arrived_at)
            && let Some(queue) = self.queues.get_mut(at)
        {
            queue.next_dispatch = queue.next_dispatch.max(arrived);
        }
    }

    /// Removes a queue that has neither requests nor seats.
    fn drop_idle(&mut self, at: usize) {
        if self.queues.get(at).is_some_and(|queue| queue.is_idle() && queue.seats_in_use == 0) {
            self.queues.remove(at);
        }
    }

    /// The state so far was in force until now.
    fn sync(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.synced);
        if elapsed.is_zero() {
            return;
        }
        self.synced = now;
        self.meter.observe(elapsed, &self.load);
        let (mut active, mut wanted) = (0_u32, 0_u32);
        for queue in &self.queues {
            wanted = wanted.saturating_add(queue.seats_in_use).saturating_add(queue.seats_waiting);
            active += u32::from(!queue.is_idle());
        }
        if active > 0 {
            let rate = f64::from(wanted.min(self.limit)) / f64::from(active);
            self.virtual_time += rate * elapsed.as_secs_f64();
        }
        if self.virtual_time >= EPOCH {
            self.virtual_time -= EPOCH;
            self.queues.iter_mut().for_each(|queue| queue.next_dispatch -= EPOCH);
            let waiting = self.requests.iter_mut().flatten();
            waiting.for_each(|request| request.arrived_at -= EPOCH);
        }
    }

    fn note_demand(&mut self, now: Instant) {
        self.demand.set(now, self.load.seats_in_use.saturating_add(self.load.seats_waiting));
    }

    /// The demand of the period that ends now.
    pub(super) fn take_demand(&mut self, now: Instant) -> Observed {
        self.sync(now);
        self.demand.take(now)
    }

    /// Brings the meter up to date.
    pub(super) fn observe(&mut self, now: Instant) {
        self.sync(now);
    }

    pub(super) fn load(&self) -> Load {
        self.load
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn is_idle(&self) -> bool {
        self.load.waiting == 0 && self.load.executing == 0
    }

    fn position(&self, index: u32) -> Option<usize> {
        self.queues.binary_search_by_key(&index, |queue| queue.index).ok()
    }

    fn queue(&self, index: u32) -> Option<&Queue> {
        self.position(index).and_then(|at| self.queues.get(at))
    }

    fn request(&self, id: Id) -> Option<&Request<T>> {
        self.requests.get(id.0 as usize)?.as_ref()
    }

    fn keep(&mut self, request: Request<T>) -> Id {
        match self.free.pop() {
            Some(id) => {
                if let Some(place) = self.requests.get_mut(id.0 as usize) {
                    *place = Some(request);
                }
                id
            }
            None => {
                let id = Id(u32::try_from(self.requests.len()).unwrap_or(u32::MAX));
                self.requests.push(Some(request));
                id
            }
        }
    }

    fn forget(&mut self, id: Id) -> Option<Request<T>> {
        let request = self.requests.get_mut(id.0 as usize)?.take()?;
        self.free.push(id);
        Some(request)
    }
}

/// A request, for whoever looks.
pub(super) struct RequestView<'a, T> {
    pub(super) tracked: &'a T,
    pub(super) width: Width,
    pub(super) arrived: Instant,
    pub(super) started: Option<Instant>,
    /// Its place in its queue; `None` when it is executed.
    pub(super) position: Option<usize>,
}

/// A queue, for whoever looks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct QueueView {
    pub(super) index: u32,
    pub(super) waiting: usize,
    pub(super) executing: u32,
    pub(super) seats_in_use: u32,
    pub(super) next_dispatch: f64,
    pub(super) initial_seats_waiting: u32,
    pub(super) seats_waiting: u32,
    pub(super) work_waiting: f64,
}

impl<T: Tracked> QueueSet<T> {
    /// The queues that have something, in the order of their indexes.
    pub(super) fn queue_views(&self) -> impl Iterator<Item = QueueView> {
        self.queues.iter().map(|queue| QueueView {
            index: queue.index,
            waiting: queue.waiting.len(),
            executing: queue.executing,
            seats_in_use: queue.seats_in_use,
            next_dispatch: queue.next_dispatch,
            initial_seats_waiting: queue.initial_seats_waiting,
            seats_waiting: queue.seats_waiting,
            work_waiting: queue.work_waiting,
        })
    }

    /// How many queues there are to be, and how many have requests that wait.
    pub(super) fn queue_counts(&self) -> (u32, usize) {
        let wanted = match self.queuing {
            Queuing::Queues { dealer, .. } => dealer.queues(),
            Queuing::Exempt | Queuing::Reject => 0,
        };
        (wanted, self.queues.iter().filter(|queue| !queue.waiting.is_empty()).count())
    }

    /// The requests that wait or are executed: by queue (`None`: of no queue), those that wait first.
    pub(super) fn request_views(&self) -> Vec<(Option<u32>, RequestView<'_, T>)> {
        let mut views = Vec::new();
        let view = |request| {
            let Request { tracked, width, arrived, started, .. }: &Request<T> = request;
            RequestView {
                tracked,
                width: *width,
                arrived: *arrived,
                started: *started,
                position: None,
            }
        };
        for queue in &self.queues {
            for (position, id) in queue.waiting.iter().enumerate() {
                if let Some(request) = self.request(*id) {
                    let waiting = RequestView { position: Some(position), ..view(request) };
                    views.push((Some(queue.index), waiting));
                }
            }
        }
        let executing = self.requests.iter().flatten();
        let executing = executing.filter(|request| request.state == State::Executing);
        views.extend(executing.map(|request| (request.queue, view(request))));
        views.sort_by_key(|(queue, view)| {
            (queue.is_none(), *queue, view.position.is_none(), view.position)
        });
        views
    }
}

#[cfg(test)]
#[path = "queue_set_tests.rs"]
mod tests;
