//! The steps that a worker has under way. Each is about one thing, and no two are about the same.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use longshore_base::panics;
use longshore_client::objects::Changed;
use longshore_pod::Timestamp;
use longshore_runtime::{Present, StartError};
use longshore_volumes::PodMounts;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// A step that panicked is not begun again before.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// What a step is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// The pod as a whole: its sandboxes, or all its containers at once.
    Pod,
    /// Its volumes.
    Volumes,
    /// The data in its volumes, once they are there.
    Data,
    /// Its resources, and those of its containers.
    Resources,
    /// The image of the container that will be the first.
    Image,
    /// The container of that name: its end, its beginning, or one after the other.
    Container(String),
}

/// What came of a step.
pub(super) enum Outcome {
    /// It is done, and what there is to see can be observed.
    Done,
    /// It was given up half-way, because it was not wanted any more.
    Recalled,
    /// The pod's volumes are mounted.
    Mounted(Arc<PodMounts>),
    /// The data in the pod's volumes is as it should be, but for what is left to do.
    Refreshed { left: Changed, error: Option<String> },
    /// Those sandboxes are stopped, and have given back what they held.
    SandboxesStopped(Vec<String>),
    /// A container's image is there, before its sandbox is.
    Fetched(String, Present),
    /// A container was started.
    Started(String),
    /// A container was not started.
    NotStarted(String, StartError),
    /// A container was not started, for its sandbox had died.
    SandboxLost(String),
    /// Containers have other resources, and the pod too if that was the last of it.
    Resized(Resized),
    /// What the pod as a whole needs is not to be had.
    Failed(Failure),
}

/// What came of a step of a resize.
pub(super) struct Resized {
    /// The generation whose resize it is.
    pub(super) generation: Option<i64>,
    /// Whether the pod may use all that its containers may come to use.
    pub(super) raised: bool,
    /// Whether nothing is left to do, or why it failed.
    pub(super) result: Result<bool, String>,
}

/// Why a step about the whole pod failed: reason and message of its event.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// The reason for which the pod cannot run on this node at all, if it is one.
    pub(super) rejects: Option<&'static str>,
}

impl Failure {
    /// One after which it is tried again.
    pub(super) fn new(reason: &'static str, message: String) -> Self {
        Self { reason, message, rejects: None }
    }
}

/// What is known of a step under way.
struct Known {
    begun: Timestamp,
    /// Says that the step is not wanted any more.
    recall: CancellationToken,
    /// The run of the container that the step begins by stopping.
    stops: Option<String>,
    /// Whether it then begins another.
    replaces: bool,
}

/// The steps under way.
#[derive(Default)]
pub(super) struct Steps {
    running: FuturesUnordered<BoxFuture<'static, (Subject, Outcome)>>,
    known: HashMap<Subject, Known>,
}

impl Steps {
    /// Begin a step, which is given what tells it that it is not wanted any more. It minds that
    /// where it can: what it has asked the runtime to make, it waits for.
    pub(super) fn begin<F>(&mut self, subject: Subject, step: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let recall = CancellationToken::new();
        let step = step(recall.clone());
        let known = Known { begun: Timestamp::now(), recall, stops: None, replaces: false };
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
        self.running.push(Box::pin(contained));
    }

    pub(super) fn is_busy(&self, subject: &Subject) -> bool {
        self.known.contains_key(subject)
    }

    /// Whether a step about that container is under way.
    pub(super) fn is_container_busy(&self, name: &str) -> bool {
        self.containers().any(|busy| busy == name)
    }

    /// The containers that steps are about.
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

    /// The step that is begun for that container stops the run with that id first, and may begin
    /// another in its place.
    pub(super) fn note_stop(&mut self, name: &str, id: &str, replaces: bool) {
        if let Some(step) = self.known.get_mut(&Subject::Container(name.to_owned())) {
            (step.stops, step.replaces) = (Some(id.to_owned()), replaces);
        }
    }

    /// The ids of runs that are stopped to begin others in their place.
    pub(super) fn replaced(&self) -> impl Iterator<Item = &str> {
        self.known.values().filter(|step| step.replaces).filter_map(|step| step.stops.as_deref())
    }

    /// The step about that container is not wanted any more, for the run with that id is to be
    /// stopped; unless that is what the step does.
    pub(super) fn recall_container(&self, name: &str, id: &str) {
        let step = self.known.get(&Subject::Container(name.to_owned()));
        if let Some(step) = step.filter(|step| step.stops.as_deref() != Some(id)) {
            step.recall.cancel();
        }
    }

    /// No step is wanted any more.
    pub(super) fn recall_all(&self) {
        self.known.values().for_each(|step| step.recall.cancel());
    }

    /// The next step that is done. Never, while there is none.
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

    /// Finding 13: a panic in one step is its failure, and the worker goes on.
    #[tokio::test(start_paused = true)]
    async fn a_step_that_panics_has_failed() {
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
