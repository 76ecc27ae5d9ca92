//! Handing events on: at once, in the time of the request, or in batches, in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use longshore_base::panics;
use longshore_base::rate::TokenBucket;
use longshore_base::time::after;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::event::{Event, Level};
use super::log_file::LogFile;
use super::metrics::{Metrics, Plugin};
use super::webhook::Webhook;
use super::{AuditError, LogConfig, LogFormat, WebhookConfig};

/// The memory of the events that wait for one backend, in bytes. One event alone may be larger.
const MAX_PENDING: u32 = 64 << 20;
/// The memory beside it of events without bodies, so that bodies do not displace them, in bytes.
const MAX_METADATA: u32 = 16 << 20;
/// Why an event is dropped, in upstream's words.
const BLOCKED: &str = "audit buffer queue blocked";
/// Batches that are on their way at once.
const MAX_DELIVERIES: usize = 32;
/// Batches that wait for the thread of a log.
const LOG_QUEUE: usize = 16;
/// How long a request waits for a log, whose disk may hang, and before that for memory.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of the server waits for what is on its way.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest time between two looks at an empty queue.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// When events are handed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// From a queue. What does not fit into memory loses its bodies; what does not fit nevertheless is
    /// dropped.
    Batch(BatchConfig),
    /// Before the request goes on.
    Blocking,
    /// The same; a request whose first event cannot be stored is refused.
    BlockingStrict,
}

/// The queue of a backend, and batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchConfig {
    /// Events that wait.
    pub buffer_size: usize,
    /// Events of a batch.
    pub max_size: usize,
    /// How long a batch waits to be full.
    pub max_wait: Duration,
    /// Batches per second, and how many may come at once.
    pub throttle: Option<(f32, u32)>,
}

/// The largest event that is handed on whole, in bytes of its JSON text. A larger one loses its bodies, and is
/// dropped if it is too large nevertheless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncateConfig {
    /// In bytes.
    pub max_event_size: usize,
}

/// Where events end.
pub(super) enum Sink {
    Log(LogSink),
    Webhook(Box<Webhook>),
}

/// Events could not be handed on.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub(super) struct Failure {
    pub(super) plugin: Plugin,
    pub(super) reason: String,
    /// How many events.
    pub(super) events: usize,
}

impl Sink {
    pub(super) fn log(config: &LogConfig) -> Result<Sink, AuditError> {
        Ok(Sink::Log(LogSink::start(config)?))
    }

    pub(super) fn webhook(config: &WebhookConfig) -> Result<Sink, AuditError> {
        Ok(Sink::Webhook(Box::new(Webhook::open(config)?)))
    }

    async fn deliver(&self, entries: Vec<Entry>) -> Result<(), Failure> {
        match self {
            Sink::Log(log) => log.deliver(entries).await,
            Sink::Webhook(webhook) => webhook.deliver(&entries).await,
        }
    }

    /// Whether batches may be on their way at the same time.
    fn is_concurrent(&self) -> bool {
        matches!(self, Sink::Webhook(_))
    }
}

/// A log, written by a thread of its own.
pub(super) struct LogSink(mpsc::Sender<Job>);

struct Job {
    entries: Vec<Entry>,
    done: oneshot::Sender<Result<(), Failure>>,
}

impl LogSink {
    fn start(config: &LogConfig) -> Result<LogSink, AuditError> {
        let failed = |source| {
            let path = config.path.clone().unwrap_or_default();
            AuditError::Log { path, source }
        };
        let mut file = LogFile::open(config.path.as_deref(), config.rotation).map_err(failed)?;
        let (jobs, mut queue) = mpsc::channel::<Job>(LOG_QUEUE);
        let format = config.format;
        let work = move || {
            while let Some(Job { entries, done }) = queue.blocking_recv() {
                let written = write(&mut file, format, &entries);
                drop(entries);
                // the caller may have gone
                let _ = done.send(written);
            }
        };
        std::thread::Builder::new().name("audit-log".to_owned()).spawn(work).map_err(failed)?;
        Ok(LogSink(jobs))
    }

    async fn deliver(&self, entries: Vec<Entry>) -> Result<(), Failure> {
        let count = entries.len();
        let failed = |reason: &str| Failure {
            plugin: Plugin::Log,
            reason: reason.to_owned(),
            events: count,
        };
        let (done, written) = oneshot::channel();
        let writing = async {
            if self.0.send(Job { entries, done }).await.is_err() {
                return Err(failed("the log is closed"));
            }
            written.await.unwrap_or_else(|_| Err(failed("the log is closed")))
        };
        let late = |_| Err(failed("the log does not take it in time"));
        timeout(LOG_TIMEOUT, writing).await.unwrap_or_else(late)
    }
}

/// Writes each event, whatever became of those before it.
fn write(file: &mut LogFile, format: LogFormat, entries: &[Entry]) -> Result<(), Failure> {
    let mut failure: Option<Failure> = None;
    let mut text = Vec::new();
    for (event, _) in entries {
        text.clear();
        match format {
            LogFormat::Json => event.write_json(&mut text),
            LogFormat::Legacy => text.extend_from_slice(event.line().as_bytes()),
        }
        text.push(b'\n');
        if let Err(error) = file.write(&text) {
            let failed = failure.get_or_insert(Failure {
                plugin: Plugin::Log,
                reason: error.to_string(),
                events: 0,
            });
            failed.events += 1;
        }
    }
    failure.map_or(Ok(()), Err)
}

/// An event that waits, and its memory.
pub(super) type Entry = (Arc<Event>, OwnedSemaphorePermit);

/// The memory of waiting events, a permit per byte.
#[derive(Clone)]
struct Memory {
    shared: Arc<Semaphore>,
    /// For events without bodies, when the shared one is full.
    metadata: Arc<Semaphore>,
}

impl Memory {
    fn new() -> Memory {
        let semaphore = |bytes: u32| Arc::new(Semaphore::new(bytes as usize));
        Memory { shared: semaphore(MAX_PENDING), metadata: semaphore(MAX_METADATA) }
    }

    /// Memory for an event, which loses its bodies if they do not fit. `None`: there is none even so.
    fn try_take(&self, event: Arc<Event>) -> Option<Entry> {
        let shared = |event: &Event| {
            let permits = permits(event, MAX_PENDING);
            self.shared.clone().try_acquire_many_owned(permits).ok()
        };
        if let Some(held) = shared(&event) {
            return Some((event, held));
        }
        let event = if event.has_bodies() { Arc::new(event.truncated()) } else { event };
        let metadata = || {
            let permits = permits(&event, MAX_METADATA);
            self.metadata.clone().try_acquire_many_owned(permits).ok()
        };
        let held = shared(&event).or_else(metadata)?;
        Some((event, held))
    }

    /// Memory for a whole event, as soon as there is some: in order, so that large events do not starve.
    /// `None`: there is none for long.
    async fn take(&self, event: Arc<Event>) -> Option<Entry> {
        let held = self.shared.clone().acquire_many_owned(permits(&event, MAX_PENDING));
        let held = timeout(LOG_TIMEOUT, held).await.ok()?.ok()?;
        Some((event, held))
    }
}

/// The permits for an event: its bytes, or all.
fn permits(event: &Event, most: u32) -> u32 {
    u32::try_from(event.size()).map_or(most, |bytes| bytes.min(most))
}

/// A backend of the audit.
pub(super) struct Backend {
    shared: Arc<Shared>,
    mode: Mode,
    truncate: Option<TruncateConfig>,
    memory: Memory,
    /// The queue of batches and what empties it, until it is closed.
    batches: Mutex<Option<(mpsc::Sender<Entry>, JoinHandle<()>)>>,
}

struct Shared {
    sink: Sink,
    metrics: Arc<Metrics>,
    /// Failures are counted all, and logged once a second.
    lines: Mutex<TokenBucket>,
}

impl Shared {
    async fn deliver(&self, entries: Vec<Entry>) -> bool {
        match self.sink.deliver(entries).await {
            Ok(()) => true,
            Err(Failure { plugin, reason, events }) => {
                self.report(plugin, &reason, events);
                false
            }
        }
    }

    fn report(&self, plugin: Plugin, reason: &str, events: usize) {
        self.metrics.failed(plugin, events);
        if self.lines.lock().try_take(std::time::Instant::now()) {
            let plugin = plugin.name();
            tracing::error!(plugin, events, reason, "audit events are lost");
        }
    }
}

impl Backend {
    pub(super) fn new(
        sink: Sink,
        mode: Mode,
        truncate: Option<TruncateConfig>,
        metrics: Arc<Metrics>,
    ) -> Backend {
        let lines = Mutex::new(TokenBucket::new(1.0, 5.0, std::time::Instant::now()));
        let shared = Arc::new(Shared { sink, metrics, lines });
        let batches = match mode {
            Mode::Batch(config) => {
                let size = config.buffer_size.clamp(1, Semaphore::MAX_PERMITS);
                let (queue, entries) = mpsc::channel(size);
                Some((queue, tokio::spawn(run(entries, shared.clone(), config))))
            }
            Mode::Blocking | Mode::BlockingStrict => None,
        };
        let (memory, batches) = (Memory::new(), Mutex::new(batches));
        Backend { shared, mode, truncate, memory, batches }
    }

    /// Hands an event on. `false`: it could not be stored, and must be.
    pub(super) async fn process(&self, event: Arc<Event>) -> bool {
        let Some(event) = self.truncated(event) else {
            let reason = "event is too large even after truncating";
            self.shared.report(Plugin::Truncate, reason, 1);
            return true;
        };
        match self.mode {
            Mode::Batch(_) => {
                self.enqueue(event);
                true
            }
            Mode::Blocking => {
                self.store(event).await;
                true
            }
            Mode::BlockingStrict => self.store(event).await,
        }
    }

    /// Adds an event to the queue of batches, or drops it.
    fn enqueue(&self, event: Arc<Event>) {
        let entry = self.memory.try_take(event);
        let sent = match (&*self.batches.lock(), entry) {
            (Some((queue, _)), Some(entry)) => queue.try_send(entry).map_err(|_| BLOCKED),
            (Some(_), None) => Err(BLOCKED),
            (None, _) => Err("audit backend shut down"),
        };
        if let Err(reason) = sent {
            self.shared.report(Plugin::Buffered, reason, 1);
        }
    }

    /// Stores an event now. `false`: it failed.
    async fn store(&self, event: Arc<Event>) -> bool {
        let (shared, memory) = (self.shared.clone(), self.memory.clone());
        // Goes on if the request is dropped, since what it did has happened.
        let stored = panics::task(async move {
            let Some(entry) = memory.take(event).await else {
                shared.report(Plugin::Buffered, BLOCKED, 1);
                return false;
            };
            shared.deliver(vec![entry]).await
        });
        stored.await.unwrap_or(false)
    }

    fn truncated(&self, event: Arc<Event>) -> Option<Arc<Event>> {
        let Some(TruncateConfig { max_event_size }) = self.truncate else { return Some(event) };
        let fits = |event: &Event| {
            let mut text = Vec::new();
            event.write_json(&mut text);
            // with the end of its line
            text.len() < max_event_size
        };
        if fits(&event) {
            return Some(event);
        }
        let truncated = (event.level >= Level::Request).then(|| event.truncated())?;
        fits(&truncated).then(|| Arc::new(truncated))
    }

    /// Hands on what waits, for a moment.
    pub(super) async fn stop(&self) {
        let Some((queue, worker)) = self.batches.lock().take() else { return };
        drop(queue);
        if timeout(STOP_TIMEOUT, worker).await.is_err() {
            tracing::warn!("audit events are lost: their backend does not take them in time");
        }
    }
}

/// Makes batches of a queue until it is closed and empty.
async fn run(mut queue: mpsc::Receiver<Entry>, shared: Arc<Shared>, config: BatchConfig) {
    let now = || Instant::now().into_std();
    let mut throttle = config
        .throttle
        .map(|(rate, burst)| TokenBucket::new(f64::from(rate), f64::from(burst), now()));
    let slots = Arc::new(Semaphore::new(MAX_DELIVERIES));
    loop {
        let (batch, is_open) = collect(&mut queue, &config).await;
        if !batch.is_empty() {
            if let Some(throttle) = &mut throttle {
                sleep(throttle.reserve(now())).await;
            }
            // never closed
            let slot = slots.clone().acquire_owned().await;
            let shared = shared.clone();
            let concurrent = shared.sink.is_concurrent();
            let delivery = panics::contain(async move {
                shared.deliver(batch).await;
                drop(slot);
            });
            match concurrent {
                true => drop(tokio::spawn(delivery)),
                false => drop(delivery.await),
            }
        }
        if !is_open {
            break;
        }
    }
    let _ = slots.acquire_many(MAX_DELIVERIES as u32).await;
}

/// The next batch, and whether there may be more.
async fn collect(queue: &mut mpsc::Receiver<Entry>, config: &BatchConfig) -> (Vec<Entry>, bool) {
    let mut batch = Vec::new();
    let end = after(config.max_wait.max(MIN_WAIT));
    while batch.len() < config.max_size.max(1) {
        tokio::select! {
            biased;
            entry = queue.recv() => match entry {
                Some(entry) => batch.push(entry),
                None => return (batch, false),
            },
            () = sleep_until(end), if config.max_size > 1 => break,
        }
    }
    (batch, true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::audit::Rotation;

    fn log(dir: &std::path::Path, mode: Mode, truncate: Option<TruncateConfig>) -> Backend {
        let config = LogConfig {
            path: Some(dir.join("audit.log")),
            rotation: Rotation::default(),
            format: LogFormat::Json,
            mode,
            truncate,
        };
        Backend::new(Sink::log(&config).unwrap(), mode, truncate, Arc::default())
    }

    fn lines(dir: &std::path::Path) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn event(id: &str, body: usize) -> Arc<Event> {
        let body = format!("\"{}\"", "x".repeat(body));
        Arc::new(Event {
            audit_id: id.to_owned(),
            level: Level::Request,
            request: Some(Bytes::from(body)),
            ..Event::default()
        })
    }

    const BATCH: BatchConfig = BatchConfig {
        buffer_size: 4,
        max_size: 1,
        max_wait: Duration::from_secs(30),
        throttle: None,
    };

    #[tokio::test]
    async fn audit_log_in_blocking_mode_is_written_before_the_request_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let backend = log(dir.path(), Mode::Blocking, None);
        for i in 0..3 {
            assert!(backend.process(event(&i.to_string(), 1)).await);
            assert_eq!(lines(dir.path()).len(), i + 1);
        }
        assert_eq!(lines(dir.path())[2]["auditID"], "2");
    }

    #[tokio::test]
    async fn audit_batches_are_written_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let config = BatchConfig { max_size: 100, ..BATCH };
        let backend = log(dir.path(), Mode::Batch(config), None);
        for id in ["a", "b"] {
            assert!(backend.process(event(id, 1)).await);
        }
        backend.stop().await;
        assert_eq!(lines(dir.path()).len(), 2);
        assert!(backend.process(event("c", 1)).await, "it is dropped and counted");
        assert_eq!(backend.shared.metrics.failures(Plugin::Buffered), 1);
    }

    #[tokio::test]
    async fn audit_events_beyond_the_buffer_are_dropped_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        // a batch is not begun before this test yields
        let backend = log(dir.path(), Mode::Batch(BATCH), None);
        for i in 0..10 {
            assert!(backend.process(event(&i.to_string(), 1)).await);
        }
        assert_eq!(backend.shared.metrics.failures(Plugin::Buffered), 6);
        backend.stop().await;
        assert_eq!(lines(dir.path()).len(), 4);
    }

    const MIB: usize = 1 << 20;

    fn is_truncated(event: &Event) -> bool {
        event.annotations.contains_key("audit.k8s.io/truncated")
    }

    #[test]
    fn audit_events_are_bounded_in_memory() {
        let memory = Memory::new();
        let (huge, held) = memory.try_take(event("huge", 70 * MIB)).unwrap();
        assert!(!is_truncated(&huge), "one alone may be larger");
        let (small, beside) = memory.try_take(event("small", 1)).unwrap();
        assert!(is_truncated(&small) && small.request.is_none());
        let metadata = Arc::new(Event { audit_id: "id".to_owned(), ..Event::default() });
        let (whole, _) = memory.try_take(metadata).unwrap();
        assert!(!is_truncated(&whole), "it had no bodies");
        drop((held, beside));
        let held = memory.try_take(event("large", 63 * MIB)).unwrap();
        let (small, _) = memory.try_take(event("small", 1)).unwrap();
        assert!(!is_truncated(&small));
        drop(held);
        assert_eq!(memory.shared.available_permits(), MAX_PENDING as usize);
        assert_eq!(memory.metadata.available_permits(), MAX_METADATA as usize);
    }

    #[test]
    fn audit_events_without_bodies_are_bounded_in_memory() {
        let memory = Memory::new();
        let _bodies = memory.try_take(event("huge", 70 * MIB)).unwrap();
        let large = || event(&"x".repeat(5 * MIB), 1);
        let held: Vec<_> = (0..4).map_while(|_| memory.try_take(large())).collect();
        assert_eq!(held.len(), 3);
        drop(held);
        assert!(memory.try_take(large()).is_some());
    }

    /// The lengths of a log's lines, which may be many MiB of JSON.
    fn lengths(dir: &std::path::Path) -> Vec<usize> {
        let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
        text.lines().map(str::len).collect()
    }

    #[tokio::test]
    async fn audit_log_in_a_blocking_mode_waits_for_memory() {
        for mode in [Mode::Blocking, Mode::BlockingStrict] {
            let dir = tempfile::tempdir().unwrap();
            let backend = log(dir.path(), mode, None);
            let (a, b) = (event("a", 40 * MIB), event("b", 40 * MIB));
            let stored = tokio::join!(backend.process(a), backend.process(b));
            assert_eq!(stored, (true, true));
            let lengths = lengths(dir.path());
            assert!(lengths.len() == 2 && lengths.iter().all(|length| *length > 40 * MIB));
            assert_eq!(backend.shared.metrics.failures(Plugin::Buffered), 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn audit_log_in_a_blocking_mode_gives_up_after_a_while() {
        for (mode, expected) in [(Mode::Blocking, true), (Mode::BlockingStrict, false)] {
            let dir = tempfile::tempdir().unwrap();
            let backend = log(dir.path(), mode, None);
            let _all = backend.memory.take(event("a", 70 * MIB)).await.unwrap();
            let begin = Instant::now();
            assert_eq!(backend.process(event("b", 1)).await, expected);
            assert_eq!(begin.elapsed().as_secs(), LOG_TIMEOUT.as_secs());
            assert_eq!(backend.shared.metrics.failures(Plugin::Buffered), 1);
            assert!(lengths(dir.path()).is_empty());
        }
    }

    #[tokio::test]
    async fn audit_batches_drop_bodies_before_events() {
        let dir = tempfile::tempdir().unwrap();
        // a batch is not begun before this test yields
        let backend = log(dir.path(), Mode::Batch(BATCH), None);
        assert!(backend.process(event("small", 1)).await);
        assert!(backend.process(event("large", 70 * MIB)).await);
        backend.stop().await;
        let lines = lines(dir.path());
        assert_eq!(lines.len(), 2);
        assert!(lines[0]["requestObject"].is_string() && lines[1]["requestObject"].is_null());
        assert_eq!(lines[1]["auditID"], "large");
        assert_eq!(lines[1]["annotations"]["audit.k8s.io/truncated"], "true");
        assert_eq!(backend.shared.metrics.failures(Plugin::Buffered), 0);
    }

    #[tokio::test]
    async fn audit_truncates_large_events() {
        let dir = tempfile::tempdir().unwrap();
        let truncate = Some(TruncateConfig { max_event_size: 1000 });
        let backend = log(dir.path(), Mode::BlockingStrict, truncate);
        assert!(backend.process(event("small", 10)).await);
        assert!(backend.process(event("large", 2000)).await);
        assert!(backend.process(event(&"x".repeat(2000), 1)).await);
        let lines = lines(dir.path());
        assert_eq!(lines.len(), 2);
        assert!(lines[0]["requestObject"].is_string() && lines[1]["requestObject"].is_null());
        assert_eq!(lines[1]["annotations"]["audit.k8s.io/truncated"], "true");
        assert_eq!(backend.shared.metrics.failures(Plugin::Truncate), 1);
    }

    #[tokio::test]
    async fn audit_log_that_fails_refuses_requests_in_strict_mode_only() {
        for (mode, stored) in [(Mode::BlockingStrict, false), (Mode::Blocking, true)] {
            let config = LogConfig {
                path: Some("/dev/full".into()),
                rotation: Rotation { max_size: 0, ..Rotation::default() },
                format: LogFormat::Legacy,
                mode,
                truncate: None,
            };
            let backend = Backend::new(Sink::log(&config).unwrap(), mode, None, Arc::default());
            assert_eq!(backend.process(event("a", 1)).await, stored);
            assert_eq!(backend.shared.metrics.failures(Plugin::Log), 1);
        }
    }
}
