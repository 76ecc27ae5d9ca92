//! The running steps of a worker, at most one for each subject.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use longshore_base::{clock, panics};
use longshore_client::objects::Changed;
use longshore_pod::Timestamp;
use longshore_runtime::{Present, StartError};
use longshore_telemetry::{SpanContext, within};
use longshore_volumes::PodMounts;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Delay after a step that panicked.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// What a step is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// The pod as a whole: its sandboxes, or all its containers at once.
    Pod,
    /// Its volumes.
    Volumes,
    /// The data in its mounted volumes.
    Data,
    /// Its resources, and those of its containers.
    Resources,
    /// The image of its first container.
    Image,
    /// The container of that name: stop, start, or replacement.
    Container(String),
}

/// Result of a step.
pub(super) enum Outcome {
    /// It succeeded.
    Done,
    /// It was cancelled.
    Cancelled,
    /// The pod's volumes are mounted.
    Mounted(Arc<PodMounts>),
    /// The data in the pod's volumes is up to date, except for `left`.
    Refreshed { left: Changed, error: Option<String> },
    /// Those sandboxes are stopped and their resources released.
    SandboxesStopped(Vec<String>),
    /// A container's image was pulled before its sandbox was ready.
    Fetched(String, Present),
    /// A container was started.
    Started(String),
    /// A container was not started.
    NotStarted(String, StartError),
    /// A container was not started because its sandbox had died.
    SandboxLost(String),
    /// A step of a resize was made.
    Resized(Resized),
    /// A step for the whole pod failed.
    Failed(Failure),
}

/// Result of a step of a resize.
pub(super) struct Resized {
    /// The generation of the pod that is resized to.
    pub(super) generation: Option<i64>,
    /// Whether the limits of the pod are raised.
    pub(super) raised: bool,
    /// Whether the resize is complete, or why the step failed.
    pub(super) result: Result<bool, String>,
}

/// Why a step about the whole pod failed: reason and message of its event.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The reason to reject the pod, if it can never run on this node.
    pub(super) rejects: Option<&'static str>,
}

impl Failure {
    /// A failure that is retried.
    pub(super) fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, rejects: None }
    }
}

/// A running step.
struct Known {
    begun: Timestamp,
    /// Cancels the step.
    cancellation: CancellationToken,
    /// The container that the step stops first.
    stops: Option<String>,
    /// Whether it then starts another.
    replaces: bool,
}

/// The steps under way.
#[derive(Default)]
pub(super) struct Steps {
    running: FuturesUnordered<BoxFuture<'static, (Subject, Outcome)>>,
    known: HashMap<Subject, Known>,
    /// The context of steps that begin.
    trace: Option<SpanContext>,
}

impl Steps {
    /// Steps that begin from now on are work within that span.
    pub(super) fn trace(&mut self, context: Option<SpanContext>) {
        self.trace = context;
    }

    /// Starts a step with a cancellation token. The step checks it where it can: calls to the runtime
    /// are not interrupted.
    pub(super) fn begin<F>(&mut self, subject: Subject, step: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let cancellation = CancellationToken::new();
        let step = step(cancellation.clone());
        let known = Known { begun: clock::now(), cancellation, stops: None, replaces: false };
        self.known.insert(subject.clone(), known);
        let contained = async move {
            let outcome = match panics::contain(step).await {
                Ok(outcome) => outcome,
                Err(panicked) => {
                    sleep(AFTER_PANIC).await;
                    let message = format!("error syncing pod: {panicked}");
                    Outcome::Failed(Failure::new("FailedSync", message))
                }
            };
            (subject, outcome)
        };
        self.running.push(Box::pin(within(self.trace, contained)));
    }

    pub(super) fn is_busy(&self, subject: &Subject) -> bool {
        self.known.contains_key(subject)
    }

    /// Whether a step about that container is under way.
    pub(super) fn is_container_busy(&self, name: &str) -> bool {
        self.containers().any(|busy| busy == name)
    }

    /// The containers with a running step.
    pub(super) fn containers(&self) -> impl Iterator<Item = &str> {
        self.known.keys().filter_map(|subject| match subject {
            Subject::Container(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// When the step about that container began.
    pub(super) fn begun(&self, name: &str) -> Option<Timestamp> {
        self.known.get(&Subject::Container(name.to_owned())).map(|step| step.begun)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Notes that the step of that container stops the run with that id first, and may replace it.
    pub(super) fn note_stop(&mut self, name: &str, id: &str, replaces: bool) {
        if let Some(step) = self.known.get_mut(&Subject::Container(name.to_owned())) {
            (step.stops, step.replaces) = (Some(id.to_owned()), replaces);
        }
    }

    /// The ids of containers that are being replaced.
    pub(super) fn replaced(&self) -> impl Iterator<Item = &str> {
        self.known.values().filter(|step| step.replaces).filter_map(|step| step.stops.as_deref())
    }

    /// Cancels the step of that container, because the run with that id is to be stopped; unless that
    /// is what the step does.
    pub(super) fn cancel_container(&self, name: &str, id: &str) {
        let step = self.known.get(&Subject::Container(name.to_owned()));
        if let Some(step) = step.filter(|step| step.stops.as_deref() != Some(id)) {
            step.cancellation.cancel();
        }
    }

    /// Cancels all steps.
    pub(super) fn cancel_all(&self) {
        self.known.values().for_each(|step| step.cancellation.cancel());
    }

    /// Waits for the next result. Pending while there is no step.
    pub(super) async fn next(&mut self) -> Outcome {
        match self.running.next().await {
            Some((subject, outcome)) => {
                self.known.remove(&subject);
                outcome
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic)]

    use tokio::time::Instant;

    use super::*;

    /// Finding 13: a panic in one step is a failure of that step, and the worker goes on.
    #[tokio::test(start_paused = true)]
    async fn worker_step_that_panics_fails() {
        let mut steps = Steps::default();
        let container = Subject::Container("c".to_owned());
        steps.begin(container.clone(), |_| async { panic!("as the test wants it") });
        steps.begin(Subject::Volumes, |_| async { Outcome::Done });
        assert!(matches!(steps.next().await, Outcome::Done));
        let began = Instant::now();
        let Outcome::Failed(failure) = steps.next().await else { panic!("it has failed") };
        assert_eq!(failure.reason, "FailedSync");
        assert!(failure.message.starts_with("error syncing pod: "), "{}", failure.message);
        assert_eq!(began.elapsed(), AFTER_PANIC);
        assert!(!steps.is_busy(&container), "it can be begun again");
    }
}
