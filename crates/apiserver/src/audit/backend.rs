//! Handing events on: at once, in the time of the request, or in batches, in a task of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longshore_base::panics;
use longshore_base::rate::TokenBucket;
use longshore_base::time::after;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::event::{Event, Level};
use super::log_file::LogFile;
use super::metrics::{Metrics, Plugin};
use super::webhook::Webhook;
use super::{AuditError, LogConfig, LogFormat, WebhookConfig};

/// The memory of the events that wait for one backend, in bytes. One event alone may be larger.
const MAX_PENDING: usize = 64 << 20;
/// Batches that are on their way at once.
const MAX_DELIVERIES: usize = 32;
/// Batches that wait for the thread of a log.
const LOG_QUEUE: usize = 16;
/// How long a request waits for a log, whose disk may hang.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of the server waits for what is on its way.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest time between two looks at an empty queue.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// When events are handed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// From a queue; what does not fit is dropped.
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

    async fn deliver(&self, events: Vec<Arc<Event>>) -> Result<(), Failure> {
        match self {
            Sink::Log(log) => log.deliver(events).await,
            Sink::Webhook(webhook) => webhook.deliver(&events).await,
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
    events: Vec<Arc<Event>>,
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
            while let Some(Job { events, done }) = queue.blocking_recv() {
                // the caller may have gone
                let _ = done.send(write(&mut file, format, &events));
            }
        };
        std::thread::Builder::new().name("audit-log".to_owned()).spawn(work).map_err(failed)?;
        Ok(LogSink(jobs))
    }

    async fn deliver(&self, events: Vec<Arc<Event>>) -> Result<(), Failure> {
        let count = events.len();
        let failed = |reason: &str| Failure {
            plugin: Plugin::Log,
            reason: reason.to_owned(),
            events: count,
        };
        let (done, written) = oneshot::channel();
        let writing = async {
            if self.0.send(Job { events, done }).await.is_err() {
                return Err(failed("the log is closed"));
            }
            written.await.unwrap_or_else(|_| Err(failed("the log is closed")))
        };
        let late = |_| Err(failed("the log does not take it in time"));
        timeout(LOG_TIMEOUT, writing).await.unwrap_or_else(late)
    }
}

/// Writes each event, whatever became of those before it.
fn write(file: &mut LogFile, format: LogFormat, events: &[Arc<Event>]) -> Result<(), Failure> {
    let mut failure: Option<Failure> = None;
    let mut text = Vec::new();
    for event in events {
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

/// Counts the bytes of waiting events.
#[derive(Default)]
struct Pending(AtomicUsize);

/// The bytes of an event, until it is dropped.
struct Held {
    pending: Arc<Pending>,
    bytes: usize,
}

impl Pending {
    fn take(self: &Arc<Pending>, bytes: usize) -> Option<Held> {
        let more = |held: usize| {
            let sum = held.saturating_add(bytes);
            (held == 0 || sum <= MAX_PENDING).then_some(sum)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Held { pending: self.clone(), bytes })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.pending.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

type Entry = (Arc<Event>, Held);

/// A backend of the audit.
pub(super) struct Backend {
    shared: Arc<Shared>,
    mode: Mode,
    truncate: Option<TruncateConfig>,
    pending: Arc<Pending>,
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
    async fn deliver(&self, events: Vec<Arc<Event>>) -> bool {
        match self.sink.deliver(events).await {
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
        Backend { shared, mode, truncate, pending: Arc::default(), batches: Mutex::new(batches) }
    }

    /// Hands an event on. `false`: it could not be stored, and must be.
    pub(super) async fn process(&self, event: Arc<Event>) -> bool {
        let Some(event) = self.truncated(event) else {
            let reason = "event is too large even after truncating";
            self.shared.report(Plugin::Truncate, reason, 1);
            return true;
        };
        let Some(held) = self.pending.take(event.size()) else {
            self.shared.report(Plugin::Buffered, "audit buffer queue blocked", 1);
            return self.mode != Mode::BlockingStrict;
        };
        if let Mode::Batch(_) = self.mode {
            let sent = match &*self.batches.lock() {
                Some((queue, _)) => {
                    queue.try_send((event, held)).map_err(|_| "audit buffer queue blocked")
                }
                None => Err("audit backend shut down"),
            };
            if let Err(reason) = sent {
                self.shared.report(Plugin::Buffered, reason, 1);
            }
            return true;
        }
        let shared = self.shared.clone();
        // Goes on if the request is dropped, since what it did has happened.
        let stored = panics::task(async move {
            let _held = held;
            shared.deliver(vec![event]).await
        });
        let stored = stored.await.unwrap_or(false);
        stored || self.mode == Mode::Blocking
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
            let (events, held): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            // never closed
            let slot = slots.clone().acquire_owned().await;
            let shared = shared.clone();
            let concurrent = shared.sink.is_concurrent();
            let delivery = panics::contain(async move {
                shared.deliver(events).await;
                drop((held, slot));
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

    #[test]
    fn audit_events_are_bounded_in_memory() {
        let pending = Arc::new(Pending::default());
        let huge = pending.take(2 * MAX_PENDING);
        assert!(huge.is_some() && pending.take(1).is_none(), "one alone may be larger");
        drop(huge);
        let held = pending.take(MAX_PENDING - 10);
        assert!(pending.take(11).is_none() && pending.take(10).is_some());
        drop(held);
        assert_eq!(pending.0.load(Ordering::Relaxed), 0);
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
