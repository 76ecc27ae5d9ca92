//! Stops one container: preStop hook, order of termination, stop signal. The grace period covers all
//! of it, and may be shortened meanwhile.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::retry::Delays;
use longshore_base::time;
use longshore_pod::observed::{self, ObservedPod};
use longshore_pod::spec::{self, describe};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::debug;

use super::WorkerContext;
use super::limiter::Slot;

/// Minimum time between the stop signal and the kill, whatever time the preStop hook took.
const LEAST: Duration = Duration::from_secs(2);
/// How long a pod waits for others to be stopped first, at most.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(5);
/// Backoff of failed calls.
const RETRY_BASE: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// How a container is to be stopped.
pub(super) struct StopRequest {
    /// Message of the event.
    pub(super) message: String,
    /// Whether its preStop hook is run.
    pub(super) hook: bool,
    /// The containers that must exit before it gets its stop signal, by name.
    pub(super) after: Vec<String>,
    /// When its grace period ends.
    pub(super) deadline: Deadline,
    /// Acquired before its stop signal is sent.
    pub(super) slot: Arc<Slot>,
}

/// End of a grace period: the container's own or the pod's, whichever is earlier.
pub(super) struct Deadline {
    own: Instant,
    pods: watch::Receiver<Option<Instant>>,
}

impl Deadline {
    /// In `grace` from now.
    pub(super) fn after(grace: Duration, pods: watch::Receiver<Option<Instant>>) -> Self {
        Self { own: time::after(grace), pods }
    }

    fn at(&self) -> Instant {
        let pods = *self.pods.borrow();
        pods.map_or(self.own, |pods| pods.min(self.own))
    }

    fn left(&self) -> Duration {
        self.at().saturating_duration_since(Instant::now())
    }

    /// Until the grace is over.
    async fn passed(&mut self) {
        loop {
            let at = self.at();
            tokio::select! {
                () = sleep_until(at) => return,
                () = self.moved(at) => {}
            }
        }
    }

    /// Until it is earlier than `known`.
    async fn moved(&mut self, known: Instant) {
        while self.at() >= known {
            if self.pods.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Stops a container. Retries until it has exited.
pub(super) async fn stop(
    context: Arc<WorkerContext>,
    pod: Arc<Pod>,
    run: observed::Container,
    stop_request: StopRequest,
) {
    let StopRequest { message, hook, after, mut deadline, slot } = stop_request;
    let mut overdue = None;
    if run.is_running() {
        if let Some((kind, _)) = spec::container(&pod, &run.name) {
            context.pod_events.container(&pod, kind, &run.name, false, "Killing", &message);
        }
        if hook && !deadline.left().is_zero() {
            let mut running = Box::pin(context.runtime.pre_stop(&pod, &run));
            let succeeded = tokio::select! {
                succeeded = &mut running => Some(succeeded),
                () = deadline.passed() => None,
            };
            if succeeded != Some(true) {
                context.runtime.pre_stop_failed(&pod, &run.name, succeeded.is_none());
            }
            overdue = succeeded.is_none().then_some(running);
        }
    }
    let stopping = stop_after_hook(&context, &pod, &run, &after, deadline, &slot);
    match overdue {
        None => stopping.await,
        // A command of the hook is not killed before its container is: it may still do something.
        Some(hook) => tokio::select! {
            () = stopping => {}
            () = async { hook.await; std::future::pending().await } => {}
        },
    }
}

/// Waits for the containers that stop earlier, then stops the container.
async fn stop_after_hook(
    context: &WorkerContext,
    pod: &Arc<Pod>,
    run: &observed::Container,
    after: &[String],
    mut deadline: Deadline,
    slot: &Slot,
) {
    let mut observed = context.observer.subscribe(spec::uid(pod));
    if run.is_running() {
        let others_stopped = observed.wait_for(|seen| {
            let runs =
                |name: &String| seen.containers.iter().any(|c| c.name == *name && c.may_run());
            !after.iter().any(runs)
        });
        tokio::select! {
            _ = others_stopped => {}
            () = deadline.passed() => {}
        }
    }
    let mut waited = wait_for_slot(slot, &mut deadline).await;
    let mut delays = Delays::doubling(RETRY_BASE, RETRY_MAX);
    loop {
        let at = deadline.at();
        let grace = deadline.left().saturating_add(waited).max(LEAST);
        let call = context.runtime.stop_container(spec::uid(pod), &run.id, &run.sandbox_id, grace);
        let error = tokio::select! {
            stopped = call => match stopped {
                Ok(()) if !may_run(&observed.borrow(), &run.id) => return,
                Ok(()) => "the container runs on after it was stopped".to_owned(),
                Err(error) => error.to_string(),
            },
            // The call in progress has a longer grace period: it is cancelled and made again.
            () = deadline.moved(at), if grace > LEAST => {
                waited = Duration::ZERO;
                continue;
            }
        };
        debug!(pod = describe(pod), container = run.name, error, "container not stopped yet");
        let message = format!("error killing pod: {error}");
        context.pod_events.pod(pod, true, "FailedKillPod", &message);
        tokio::select! {
            () = sleep(delays.next_delay()) => {}
            // It has exited for another reason.
            _ = observed.wait_for(|seen| !may_run(seen, &run.id)) => return,
        }
    }
}

/// Waits for a slot, unless the container is to end at once. Gives the time it took, which does not count
/// as grace: the container has not got its stop signal.
async fn wait_for_slot(slot: &Slot, deadline: &mut Deadline) -> Duration {
    let (start, at) = (Instant::now(), deadline.at());
    if deadline.left().is_zero() {
        return Duration::ZERO;
    }
    tokio::select! {
        () = slot.acquire_within(MAX_WAIT) => start.elapsed(),
        () = deadline.moved(at) => Duration::ZERO,
    }
}

fn may_run(seen: &ObservedPod, id: &str) -> bool {
    seen.containers.iter().any(|run| run.id == id && run.may_run())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deadline(grace: u64) -> (Deadline, watch::Sender<Option<Instant>>) {
        let (pods, receiver) = watch::channel(None);
        (Deadline::after(Duration::from_millis(grace), receiver), pods)
    }

    #[tokio::test(start_paused = true)]
    async fn grace_period_ends_in_time_without_a_worker() {
        let (mut deadline, pods) = deadline(50);
        drop(pods);
        let start = Instant::now();
        deadline.passed().await;
        assert_eq!(start.elapsed(), Duration::from_millis(50));
        assert_eq!(deadline.left(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn grace_period_can_be_shortened_and_not_extended() {
        for (pods_grace, expected) in [(20, 40), (900, 200)] {
            let (mut deadline, pods) = deadline(200);
            let start = Instant::now();
            let shortening = async {
                sleep(Duration::from_millis(20)).await;
                pods.send_replace(Some(Instant::now() + Duration::from_millis(pods_grace)));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = shortening => {}
                () = deadline.passed() => {}
            }
            assert_eq!(start.elapsed(), Duration::from_millis(expected));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn grace_period_does_not_run_while_a_stop_waits_for_others() {
        // grace in ms, the pod's shorter one, and when it is set; what is waited, and for how long
        let cases = [
            (9000, None, 5000, 5000),
            (0, None, 0, 0),
            (9000, Some((1000, 100)), 0, 1000),
            (9000, Some((1000, 9500)), 5000, 5000),
        ];
        for (grace, shorten, waited, took) in cases {
            let limiter = super::super::Limiter::new(1, Duration::from_secs(60), || false);
            let busy = limiter.slot();
            busy.acquire().await;
            let (mut deadline, pods) = deadline(grace);
            let start = Instant::now();
            let slot = limiter.slot();
            let wait = wait_for_slot(&slot, &mut deadline);
            let shortening = async {
                if let Some((at, left)) = shorten {
                    sleep(Duration::from_millis(at)).await;
                    pods.send_replace(Some(Instant::now() + Duration::from_millis(left)));
                }
                std::future::pending::<Duration>().await
            };
            let is = tokio::select! {
                waited = wait => waited,
                waited = shortening => waited,
            };
            assert_eq!(is, Duration::from_millis(waited), "{grace} {shorten:?}");
            assert_eq!(start.elapsed(), Duration::from_millis(took), "{grace} {shorten:?}");
        }
    }
}
