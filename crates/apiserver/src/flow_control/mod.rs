//! API priority and fairness: each request belongs to a FlowSchema and its priority level, whose requests
//! share a number of seats. Upstream's semantics (KEP-1040), in three parts: what a request belongs to
//! ([`classify`], `objects`), how many seats a level has ([`allocation`], `demand`) and who gets them
//! ([`queue_set`], `shuffle`, `width`). These know no clients; [`FlowControl`] has requests wait for them.
//!
//! The mandatory schemas and levels `exempt` and `catch-all` are in force whatever is stored.
//!
//! Current limitations: sizes of resources are known from the lists of this server, so that the first list
//! of each counts for one seat.

mod allocation;
mod classify;
mod demand;
mod dropped;
mod dump;
mod metrics;
mod objects;
mod queue_set;
mod shuffle;
#[cfg(test)]
mod tests;
mod watches;
mod width;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use jiff::Timestamp;
use longshore_base::time::{later, part};
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

pub(crate) use self::classify::Digest;
pub(crate) use self::objects::{FlowSchema, PriorityLevel};
pub(crate) use self::watches::CountedWatch;
pub(crate) use self::width::Width;

use self::allocation::{Claim, Seats, adjust};
use self::classify::Classifier;
use self::demand::DemandStats;
use self::dropped::Dropped;
use self::metrics::{Capacity, Kinds, LevelMeter, Metrics, Phase, SchemaMeters};
use self::objects::Distinguisher;
use self::queue_set::{Id, QueueSet, Queuing, Rejection, Tracked};
use self::watches::WatchCounts;
use crate::kinds::flow_control::{CATCH_ALL, EXEMPT, bootstrap};
use crate::object;
use crate::registry::Size;
use crate::user::User;

/// How often levels lend and borrow anew.
const ADJUSTMENT: Duration = Duration::from_secs(10);
/// The longest that a request waits.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The headers of answers that say which schema and level a request belongs to.
const SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// A request, for the page of all requests.
pub(crate) trait Describe: Send + Sync {
    fn digest(&self) -> Digest<'_>;
}

/// Has requests wait for seats.
pub(crate) struct FlowControl {
    /// The seats of all levels together.
    total: u32,
    longest_wait: Duration,
    hasher: RandomState,
    shared: Arc<Shared>,
    watches: Arc<WatchCounts>,
    rules: RwLock<Arc<Rules>>,
    levels: Mutex<BTreeMap<String, LevelState>>,
}

/// What all requests count in.
struct Shared {
    metrics: Metrics,
    kinds: Kinds,
}

/// The schemas in force.
struct Rules {
    classifier: Classifier,
    schemas: Vec<Arc<Schema>>,
    catch_all: Arc<Schema>,
}

/// A schema in force.
struct Schema {
    name: Box<str>,
    uid: HeaderValue,
    level_uid: HeaderValue,
    distinguisher: Option<Distinguisher>,
    level: Arc<Level>,
    /// Made for the first request.
    meters: OnceLock<SchemaMeters>,
}

/// A level in force.
struct Level {
    name: Box<str>,
    is_exempt: bool,
    set: Mutex<QueueSet<Held>>,
    capacity: Arc<Capacity>,
    /// The most seats of one request; 0: as many as there may be.
    widest: AtomicU32,
    dropped: Mutex<Dropped>,
}

/// A level and what its seats are made of.
struct LevelState {
    level: Arc<Level>,
    config: PriorityLevel,
    seats: Seats,
    demand: DemandStats,
    current: u32,
    /// It was deleted, and has requests yet.
    is_quiescing: bool,
}

/// What is kept for a request in its level.
struct Held {
    schema: Arc<Schema>,
    shared: Arc<Shared>,
    is_mutating: bool,
    user: Arc<str>,
    request: Arc<dyn Describe>,
    /// Is called when a seat is free.
    notify: Option<oneshot::Sender<()>>,
}

/// What a request belongs to.
#[derive(Clone)]
pub(crate) struct Class {
    schema: Arc<Schema>,
    flow: u64,
}

/// A request that wants seats.
pub(crate) struct Arrival {
    pub(crate) width: Width,
    pub(crate) is_mutating: bool,
    pub(crate) is_watch: bool,
    /// When it came.
    pub(crate) began: Instant,
    pub(crate) user: Arc<str>,
    pub(crate) request: Arc<dyn Describe>,
}

/// A request gets no seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rejected {
    /// In seconds.
    pub(crate) retry_after: u32,
}

impl Tracked for Held {
    fn queued(&mut self, now: Instant, width: &Width, length: usize) {
        let meters = self.schema.meters(&self.shared.metrics);
        meters.inqueue_requests.add(1.0);
        meters.inqueue_seats.add(width.max().into());
        meters.queue_length.observe(length as f64);
        self.shared.kinds.count(now, Phase::Waiting, self.is_mutating, true);
    }

    fn unqueued(&mut self, now: Instant, width: &Width) {
        let meters = self.schema.meters(&self.shared.metrics);
        meters.inqueue_requests.add(-1.0);
        meters.inqueue_seats.add(-f64::from(width.max()));
        self.shared.kinds.count(now, Phase::Waiting, self.is_mutating, false);
    }

    fn dispatched(&mut self, now: Instant, width: &Width) {
        let meters = self.schema.meters(&self.shared.metrics);
        meters.dispatched.inc();
        meters.executing_requests.add(1.0);
        meters.executing_seats.add(width.max().into());
        self.shared.kinds.count(now, Phase::Executing, self.is_mutating, true);
        if let Some(notify) = self.notify.take() {
            // one whose client has just gone gives the seat back
            let _ = notify.send(());
        }
    }

    fn finished(&mut self, now: Instant, _: &Width) {
        self.schema.meters(&self.shared.metrics).executing_requests.add(-1.0);
        self.shared.kinds.count(now, Phase::Executing, self.is_mutating, false);
    }

    fn released(&mut self, width: &Width) {
        let meters = self.schema.meters(&self.shared.metrics);
        meters.executing_seats.add(-f64::from(width.max()));
    }

    fn not_accommodated(&self) {
        self.shared.metrics.not_accommodated(&self.schema.name, &self.schema.level.name);
    }
}

impl Schema {
    fn new(schema: &FlowSchema, level: &LevelState) -> Schema {
        let header =
            |uid: &str| HeaderValue::from_str(uid).unwrap_or_else(|_| HeaderValue::from_static(""));
        Schema {
            name: schema.name.as_str().into(),
            uid: header(&schema.uid),
            level_uid: header(&level.config.uid),
            distinguisher: schema.distinguisher,
            level: level.level.clone(),
            meters: OnceLock::new(),
        }
    }

    fn meters(&self, metrics: &Metrics) -> &SchemaMeters {
        self.meters.get_or_init(|| SchemaMeters::new(metrics, &self.name, &self.level.name))
    }

    fn distinguisher<'a>(&self, user: &'a str, digest: &Digest<'a>) -> &'a str {
        match self.distinguisher {
            Some(Distinguisher::User) => user,
            Some(Distinguisher::Namespace) => digest.namespace,
            None => "",
        }
    }
}

impl Class {
    /// Names schema and level in the headers of an answer.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        headers.insert(SCHEMA_UID, self.schema.uid.clone());
        headers.insert(LEVEL_UID, self.schema.level_uid.clone());
    }
}

impl FlowControl {
    /// With the mandatory levels alone, and `total` seats, at least one.
    pub(crate) fn new(total: u32, request_timeout: Duration) -> FlowControl {
        let now = Instant::now();
        let metrics = Metrics::new();
        let kinds = Kinds::new(&metrics, now);
        let shared = Arc::new(Shared { metrics, kinds });
        let mut levels = BTreeMap::new();
        let mut schemas = Vec::new();
        complete(&mut Vec::new(), &mut schemas).into_iter().for_each(|level| {
            let state = LevelState::new(&shared, level, now);
            levels.insert(state.config.name.clone(), state);
        });
        let total = total.max(1);
        settle(&mut levels, total, now, &shared);
        let rules = RwLock::new(Arc::new(Rules::new(&schemas, &levels, &shared, now)));
        FlowControl {
            total,
            longest_wait: part(request_timeout, 4).min(LONGEST_WAIT),
            hasher: RandomState::new(),
            shared,
            watches: Arc::default(),
            rules,
            levels: Mutex::new(levels),
        }
    }

    /// Takes the levels and schemas that there are now. Schemas without a level have no effect.
    pub(crate) fn configure(&self, mut levels: Vec<PriorityLevel>, mut schemas: Vec<FlowSchema>) {
        let now = Instant::now();
        let configs = complete(&mut levels, &mut schemas);
        let wanted: BTreeSet<String> = configs.iter().map(|level| level.name.clone()).collect();
        let mut states = self.levels.lock();
        for state in states.values_mut() {
            state.is_quiescing = !wanted.contains(&state.config.name);
        }
        for config in configs {
            match states.get_mut(&config.name) {
                Some(state) => state.config = config,
                None => {
                    let state = LevelState::new(&self.shared, config, now);
                    states.insert(state.config.name.clone(), state);
                }
            }
        }
        schemas.retain(|schema| wanted.contains(&schema.level));
        settle(&mut states, self.total, now, &self.shared);
        let rules = Arc::new(Rules::new(&schemas, &states, &self.shared, now));
        *self.rules.write() = rules;
        let names = schemas.iter().map(|schema| schema.name.as_str()).collect();
        let levels = states.keys().map(String::as_str).collect();
        self.shared.metrics.retain(&names, &levels);
    }

    /// Has levels lend and borrow until `stop`.
    pub(crate) async fn run(&self, stop: CancellationToken) {
        while stop.run_until_cancelled(sleep(ADJUSTMENT)).await.is_some() {
            settle(&mut self.levels.lock(), self.total, Instant::now(), &self.shared);
        }
    }

    /// What a request belongs to.
    pub(crate) fn classify(&self, user: &User, digest: &Digest<'_>) -> Class {
        let rules = self.rules.read().clone();
        let found = rules.classifier.find(user, digest);
        let schema = found.and_then(|place| rules.schemas.get(place)).unwrap_or(&rules.catch_all);
        let distinguisher = schema.distinguisher(&user.name, digest);
        Class { schema: schema.clone(), flow: self.hasher.hash_one((&schema.name, distinguisher)) }
    }

    /// The width of a list, or of a watch that begins with one.
    pub(crate) fn width_of_list(
        &self,
        class: &Class,
        size: Option<Size>,
        limit: u64,
        has_name: bool,
    ) -> Width {
        width::of_list(size, limit, has_name, class.schema.level.widest.load(Ordering::Relaxed))
    }

    /// The width of a request that writes.
    pub(crate) fn width_of_write(&self, class: &Class, digest: &Digest<'_>) -> Width {
        let level = &class.schema.level;
        let watches = self.watches.interested(digest);
        self.shared.metrics.watches(&class.schema.name, &level.name, watches);
        width::of_write(watches, level.widest.load(Ordering::Relaxed))
    }

    /// Counts a watch until what is returned is dropped.
    pub(crate) fn count_watch(
        &self,
        digest: &Digest<'_>,
        selects_node: bool,
    ) -> Option<CountedWatch> {
        self.watches.count(digest, selects_node)
    }

    /// Waits for seats, a quarter of the time that the request may take. A request that is cancelled
    /// leaves its queue.
    pub(crate) async fn admit(&self, class: &Class, arrival: Arrival) -> Result<Seat, Rejected> {
        let Class { schema, flow } = class;
        let Arrival { width, is_mutating, is_watch, began, user, request } = arrival;
        let level = &schema.level;
        schema.meters(&self.shared.metrics).estimated_seats.observe(width.max().into());
        let now = Instant::now();
        let (mut seat, waits) = {
            let mut set = level.set.lock();
            let held = Held {
                schema: schema.clone(),
                shared: self.shared.clone(),
                is_mutating,
                user,
                request,
                notify: None,
            };
            let id = match set.arrive(now, *flow, width, held) {
                Ok(id) => id,
                Err(rejection) => {
                    drop(set);
                    self.shared.metrics.waited(&schema.name, &level.name, false, Duration::ZERO);
                    return Err(self.reject(schema, rejection));
                }
            };
            let waits = set.is_waiting(id).then(|| {
                let (sender, waits) = oneshot::channel();
                if let Some(held) = set.tracked_mut(id) {
                    held.notify = Some(sender);
                }
                waits
            });
            let schema = schema.clone();
            let shared = self.shared.clone();
            (Seat { schema, shared, id, is_watch, started: waits.is_none().then_some(now) }, waits)
        };
        let mut waited = Duration::ZERO;
        if let Some(waits) = waits {
            let deadline = later(began, self.longest_wait).max(now);
            let _ = timeout_at(deadline, waits).await;
            let end = Instant::now();
            waited = end.saturating_duration_since(now);
            // it may have been dispatched in the last moment
            if !level.set.lock().is_waiting(seat.id) {
                seat.started = Some(end);
            }
        }
        if !level.is_exempt {
            self.shared.metrics.waited(&schema.name, &level.name, true, waited);
        }
        match seat.started {
            Some(_) => Ok(seat),
            None => {
                drop(seat);
                Err(self.reject(schema, Rejection::TimeOut))
            }
        }
    }

    fn reject(&self, schema: &Schema, rejection: Rejection) -> Rejected {
        self.shared.metrics.rejected(&schema.name, &schema.level.name, rejection.as_str());
        let second = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        Rejected { retry_after: schema.level.dropped.lock().record(second) }
    }

    /// How many requests are executed, by upstream's names of their kinds.
    pub(crate) fn in_flight(&self) -> [(&'static str, u64); 2] {
        let [reading, mutating] = self.shared.kinds.executing();
        [(metrics::KINDS[0], reading.into()), (metrics::KINDS[1], mutating.into())]
    }

    /// Metrics in Prometheus' text format.
    pub(crate) fn metrics(&self) -> String {
        let now = Instant::now();
        for state in self.levels.lock().values() {
            state.level.set.lock().observe(now);
        }
        self.shared.kinds.observe(now);
        self.shared.metrics.text()
    }
}

/// The levels and schemas with the mandatory ones, which are what they are whatever is stored. Schemas are
/// in the order of precedence.
fn complete(levels: &mut Vec<PriorityLevel>, schemas: &mut Vec<FlowSchema>) -> Vec<PriorityLevel> {
    for object in bootstrap() {
        let name = object::name(&object);
        if name != EXEMPT && name != CATCH_ALL {
            continue;
        }
        if object["kind"] == "FlowSchema" {
            let own = FlowSchema::read(&object);
            match schemas.iter_mut().find(|schema| schema.name == name) {
                Some(schema) => {
                    *schema = FlowSchema { uid: std::mem::take(&mut schema.uid), ..own }
                }
                None => schemas.push(own),
            }
        } else if let Some(own) = PriorityLevel::read(&object) {
            match levels.iter_mut().find(|level| level.name == name) {
                // how many seats it lends is for administrators to say
                Some(level) if name == EXEMPT => level.queuing = own.queuing,
                Some(level) => {
                    *level = PriorityLevel { uid: std::mem::take(&mut level.uid), ..own }
                }
                None => levels.push(own),
            }
        }
    }
    schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
    std::mem::take(levels)
}

impl LevelState {
    fn new(shared: &Shared, config: PriorityLevel, now: Instant) -> LevelState {
        let capacity = Arc::new(Capacity::default());
        let meter = LevelMeter::new(&shared.metrics, &config.name, capacity.clone());
        let level = Level {
            name: config.name.as_str().into(),
            is_exempt: config.queuing == Queuing::Exempt,
            set: Mutex::new(QueueSet::new(config.queuing, 0, now, Box::new(meter))),
            capacity,
            widest: AtomicU32::new(0),
            dropped: Mutex::default(),
        };
        LevelState {
            level: Arc::new(level),
            config,
            seats: Seats::default(),
            demand: DemandStats::default(),
            current: 0,
            is_quiescing: false,
        }
    }
}

/// Divides the seats among the levels, by their shares and by what they could use.
fn settle(levels: &mut BTreeMap<String, LevelState>, total: u32, now: Instant, shared: &Shared) {
    // deleted levels stay until their requests have ended
    levels.retain(|_, state| !(state.is_quiescing && state.level.set.lock().is_idle()));
    let shares = levels.values().map(|state| f64::from(state.config.shares.nominal)).sum();
    for state in levels.values_mut() {
        let is_new = state.seats == Seats::default();
        state.seats = Seats::of(&state.config.shares, total, shares);
        if is_new {
            state.current = state.seats.initial();
        }
        let observed = state.level.set.lock().take_demand(now);
        state.demand.update(observed);
        shared.metrics.limits(&state.level.name, &state.seats);
        let widest = match state.config.queuing {
            Queuing::Queues { .. } => state.seats.widest(state.config.hand),
            Queuing::Exempt | Queuing::Reject => 0,
        };
        state.level.widest.store(widest, Ordering::Relaxed);
    }
    let claims: Vec<Claim> = levels
        .values()
        .map(|state| Claim {
            is_exempt: state.level.is_exempt,
            seats: state.seats,
            demand: state.demand,
            current: state.current,
        })
        .collect();
    let (adjusted, fair_part) = adjust(&claims);
    shared.metrics.fair_part(fair_part);
    for (state, adjusted) in levels.values_mut().zip(adjusted) {
        let LevelState { level, config, demand, .. } = state;
        state.current = adjusted.current;
        shared.metrics.adjusted(&level.name, demand, adjusted.target, adjusted.current);
        let seats = if adjusted.current > 0 { adjusted.current } else { (total / 10).max(1) };
        level.capacity.seats.store(seats, Ordering::Relaxed);
        level.capacity.waiting.store(waiting_capacity(config.queuing), Ordering::Relaxed);
        level.set.lock().configure(now, config.queuing, adjusted.current);
    }
}

/// How many requests may wait.
fn waiting_capacity(queuing: Queuing) -> u32 {
    match queuing {
        Queuing::Queues { dealer, length } => {
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            dealer.queues().saturating_mul(length).max(1)
        }
        Queuing::Exempt | Queuing::Reject => 1,
    }
}

impl Rules {
    fn new(
        schemas: &[FlowSchema],
        levels: &BTreeMap<String, LevelState>,
        shared: &Shared,
        now: Instant,
    ) -> Rules {
        let (mut waiting, mut executing) = (0_u32, 0_u32);
        for state in levels.values() {
            if let Queuing::Queues { .. } = state.config.queuing {
                waiting = waiting.saturating_add(waiting_capacity(state.config.queuing));
            }
            executing = executing.saturating_add(state.seats.nominal);
        }
        shared.kinds.set_most(now, waiting, executing);
        let known = schemas.iter().filter(|schema| levels.contains_key(&schema.level));
        let classifier = Classifier::new(known.clone());
        let own = known.filter_map(|schema| {
            levels.get(&schema.level).map(|level| Arc::new(Schema::new(schema, level)))
        });
        let schemas: Vec<Arc<Schema>> = own.collect();
        let mandatory = schemas.iter().find(|schema| &*schema.name == CATCH_ALL);
        let catch_all =
            mandatory.cloned().unwrap_or_else(|| Arc::new(Schema::fallback(shared, now)));
        Rules { classifier, schemas, catch_all }
    }
}

impl Schema {
    /// A level of one seat, should there be no other.
    fn fallback(shared: &Shared, now: Instant) -> Schema {
        let config = PriorityLevel {
            name: CATCH_ALL.to_owned(),
            uid: String::new(),
            shares: allocation::Shares { nominal: 1, ..allocation::Shares::default() },
            queuing: Queuing::Reject,
            hand: 0,
        };
        let level = LevelState::new(shared, config, now);
        level.level.set.lock().configure(now, Queuing::Reject, 1);
        let schema = FlowSchema {
            name: CATCH_ALL.to_owned(),
            uid: String::new(),
            precedence: i64::MAX,
            level: CATCH_ALL.to_owned(),
            distinguisher: None,
            rules: Vec::new(),
        };
        Schema::new(&schema, &level)
    }
}

/// The seats of a request, until they are dropped.
pub(crate) struct Seat {
    schema: Arc<Schema>,
    shared: Arc<Shared>,
    id: Id,
    is_watch: bool,
    /// `None`: it waits.
    started: Option<Instant>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let level = &self.schema.level;
        let now = Instant::now();
        let lingers = {
            let mut set = level.set.lock();
            if !set.is_waiting(self.id) {
                // it may be dispatched in the moment in which its client goes
                self.started.get_or_insert(now);
            }
            set.leave(now, self.id)
        };
        if let Some(started) = self.started {
            let took = now.saturating_duration_since(started);
            self.schema.meters(&self.shared.metrics).executed(self.is_watch, took);
        }
        let Some(lingers) = lingers else { return };
        let (level, id) = (level.clone(), self.id);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(async move {
                sleep(lingers).await;
                level.set.lock().release(Instant::now(), id);
            })),
            // the server is going
            Err(_) => level.set.lock().release(now, id),
        }
    }
}
