//! Work queues, with the semantics of client-go's.
//!
//! An item is in the queue at most once. An item that is added while it is processed is queued again
//! when its processing is done, so that no two workers have the same item.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use longshore_base::rate::TokenBucket;
use longshore_base::time;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::QueueMetrics;
use crate::queue_metrics::{Metrics, Processing};

/// The pauses before retries of the items of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// The pause before the first retry of an item; it doubles with each.
    pub first: Duration,
    /// The longest pause before a retry of an item.
    pub longest: Duration,
    /// Whether retries of all items are limited to 10 in a second after the first 100.
    pub limits_rate: bool,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(5),
            longest: Duration::from_secs(1000),
            limits_rate: true,
        }
    }
}

/// Retries in a second, of all items.
const RETRY_RATE: f64 = 10.0;
/// Retries at once, of all items.
const RETRY_BURST: f64 = 100.0;

/// A queue of items. Clones are the same queue.
pub struct WorkQueue<T>(Arc<Inner<T>>);

struct Inner<T> {
    state: Mutex<State<T>>,
    /// Wakes one worker for each item that is queued, and all at shutdown.
    wake: Notify,
    metrics: OnceLock<Metrics>,
}

struct State<T> {
    queue: VecDeque<T>,
    /// What is to be processed, with the time since when.
    dirty: HashMap<T, Instant>,
    /// What is being processed, with the time since when.
    processing: HashMap<T, Instant>,
    delayed: BinaryHeap<Reverse<Delayed<T>>>,
    /// When each delayed item is due, of which the heap may have later times too.
    due: HashMap<T, Instant>,
    /// Orders items that are due at the same time.
    sequence: usize,
    failures: HashMap<T, u32>,
    retries: Retries,
    bucket: TokenBucket,
    shutdown: bool,
}

struct Delayed<T> {
    at: Instant,
    sequence: usize,
    item: T,
}

impl<T> PartialEq for Delayed<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<T> Eq for Delayed<T> {}

impl<T> PartialOrd for Delayed<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Delayed<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

impl<T> Clone for WorkQueue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Clone + Eq + Hash + Send + Sync + 'static> WorkQueue<T> {
    /// An empty queue.
    pub fn new(name: &'static str, metrics: &QueueMetrics) -> Self {
        Self::with_retries(name, metrics, Retries::default())
    }

    /// An empty queue with other pauses before retries.
    pub fn with_retries(name: &'static str, metrics: &QueueMetrics, retries: Retries) -> Self {
        let now = Instant::now();
        let state = State {
            queue: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            delayed: BinaryHeap::new(),
            due: HashMap::new(),
            sequence: 0,
            failures: HashMap::new(),
            retries,
            bucket: TokenBucket::new(RETRY_RATE, RETRY_BURST, now.into_std()),
            shutdown: false,
        };
        let inner =
            Inner { state: Mutex::new(state), wake: Notify::new(), metrics: OnceLock::new() };
        let inner = Arc::new(inner);
        let processing: Weak<Inner<T>> = Arc::downgrade(&inner);
        inner.metrics.get_or_init(|| metrics.of(name, processing));
        Self(inner)
    }

    /// Queues an item, unless it is queued already.
    pub fn add(&self, item: T) {
        self.add_to(&mut self.state(), item);
    }

    /// Queues an item after a while; of several such, the earliest counts.
    pub fn add_after(&self, item: T, wait: Duration) {
        if wait.is_zero() {
            return self.add(item);
        }
        let mut state = self.state();
        if state.shutdown {
            return;
        }
        if let Some(metrics) = self.0.metrics.get() {
            metrics.retries.inc();
        }
        let at = time::after(wait);
        if state.due.get(&item).is_some_and(|due| *due <= at) {
            return;
        }
        state.due.insert(item.clone(), at);
        state.sequence = state.sequence.wrapping_add(1);
        let sequence = state.sequence;
        state.delayed.push(Reverse(Delayed { at, sequence, item }));
        drop(state);
        // a waiting worker has to wait for this one too
        self.0.wake.notify_one();
    }

    /// Queues an item after its back-off, as [`Retries`] says: by default 5 ms, doubled by each call
    /// until [`forget`], at most 1000 s; and at most 10 items in a second after the first 100.
    ///
    /// [`forget`]: Self::forget
    pub fn add_rate_limited(&self, item: T) {
        let wait = {
            let mut state = self.state();
            let failures = state.failures.entry(item.clone()).or_default();
            let factor = 1_u32.checked_shl(*failures).unwrap_or(u32::MAX);
            *failures = failures.saturating_add(1);
            let Retries { first, longest, limits_rate } = state.retries;
            let backoff = first.saturating_mul(factor).min(longest);
            match limits_rate {
                true => backoff.max(state.bucket.reserve(Instant::now().into_std())),
                false => backoff,
            }
        };
        self.add_after(item, wait);
    }

    /// Resets the back-off of an item.
    pub fn forget(&self, item: &T) {
        self.state().failures.remove(item);
    }

    /// How often the item was queued with back-off since it was forgotten.
    pub fn failures(&self, item: &T) -> u32 {
        self.state().failures.get(item).copied().unwrap_or_default()
    }

    /// The next item, which is being processed until [`done`](Self::done); `None` after shutdown.
    pub async fn get(&self) -> Option<T> {
        loop {
            let wake = self.0.wake.notified();
            let next = {
                let mut state = self.state();
                let now = Instant::now();
                self.queue_due(&mut state, now);
                if let Some(item) = state.queue.pop_front() {
                    let queued = state.dirty.remove(&item);
                    state.processing.insert(item.clone(), now);
                    if !state.queue.is_empty() || !state.delayed.is_empty() {
                        // another worker looks after the rest
                        self.0.wake.notify_one();
                    }
                    if let Some(metrics) = self.0.metrics.get() {
                        metrics.depth.add(-1.0);
                        let waited = queued.map(|queued| now.saturating_duration_since(queued));
                        metrics.waited.took(waited.unwrap_or_default());
                    }
                    return Some(item);
                }
                if state.shutdown {
                    // the others too
                    self.0.wake.notify_waiters();
                    return None;
                }
                state.delayed.peek().map(|Reverse(delayed)| delayed.at)
            };
            match next {
                None => wake.await,
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, wake).await;
                }
            }
        }
    }

    /// Ends the processing of an item; it is queued again if it was added meanwhile.
    pub fn done(&self, item: &T) {
        let mut state = self.state();
        let started = state.processing.remove(item);
        if let (Some(started), Some(metrics)) = (started, self.0.metrics.get()) {
            metrics.worked.took(Instant::now().saturating_duration_since(started));
        }
        if state.dirty.contains_key(item) {
            state.queue.push_back(item.clone());
            self.0.wake.notify_one();
        }
    }

    /// Items that are queued, without those that are delayed.
    pub fn len(&self) -> usize {
        self.state().queue.len()
    }

    /// Whether nothing is queued.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes no more items; workers end when the queue is empty.
    pub fn shutdown(&self) {
        let mut state = self.state();
        state.shutdown = true;
        state.delayed.clear();
        state.due.clear();
        drop(state);
        self.0.wake.notify_waiters();
        // one that is about to wait
        self.0.wake.notify_one();
    }

    fn add_to(&self, state: &mut State<T>, item: T) {
        if state.shutdown || state.dirty.contains_key(&item) {
            return;
        }
        if let Some(metrics) = self.0.metrics.get() {
            metrics.adds.inc();
            metrics.depth.add(1.0);
        }
        state.dirty.insert(item.clone(), Instant::now());
        if !state.processing.contains_key(&item) {
            state.queue.push_back(item);
            self.0.wake.notify_one();
        }
    }

    /// Queues the delayed items that are due.
    fn queue_due(&self, state: &mut State<T>, now: Instant) {
        while let Some(Reverse(delayed)) = state.delayed.peek()
            && delayed.at <= now
            && let Some(Reverse(delayed)) = state.delayed.pop()
        {
            if state.due.get(&delayed.item) == Some(&delayed.at) {
                state.due.remove(&delayed.item);
                self.add_to(state, delayed.item);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.state.lock()
    }
}

impl<T: Send + Sync> Processing for Inner<T> {
    fn unfinished(&self) -> (f64, f64) {
        let now = Instant::now();
        let state = self.state.lock();
        let times = state
            .processing
            .values()
            .map(|started| now.saturating_duration_since(*started).as_secs_f64());
        times.fold((0.0, 0.0), |(sum, longest), time| (sum + time, f64::max(longest, time)))
    }
}
