//! Runs a scheduler: changes from informers go in, and actions go out to the API, many at once, while
//! attempts go on one after the other.

mod claims;
mod executor;
mod extender;
mod informers;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use longshore_base::{panics, time};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub use self::executor::ApiExecutor;
pub use self::extender::{Extender, ExtenderError, Extenders};
pub use self::informers::Follower;
use crate::model::Uid;
use crate::scheduler::{Action, Change, Outcome, Scheduler};

/// Actions under way, above which no attempt begins.
const MAX_IN_FLIGHT: usize = 256;
/// Changes that are taken in between two attempts.
const MAX_CHANGES: usize = 1000;
/// How often sizes of queues are recorded while attempts go on.
const RECORD_EVERY: u32 = 100;

/// Does to the API what a scheduler wants done. This is the only part that writes.
pub trait Executor: Send + Sync + 'static {
    /// Carries out an action; its outcome, if there is to be one.
    fn carry_out(&self, action: Action) -> impl Future<Output = Option<Outcome>> + Send;
}

/// The pod whose binding hangs on an action.
fn subject(action: &Action) -> Option<Outcome> {
    let failed = |uid: &Uid| Outcome::Failed(uid.clone(), "the scheduler failed".to_owned());
    match action {
        Action::Bind { pod, .. } | Action::PreBind { pod, .. } => Some(failed(&pod.uid)),
        Action::Preempt { pod, .. } => Some(Outcome::Preempted(pod.uid.clone(), false)),
        Action::Report { .. }
        | Action::Unreserve { .. }
        | Action::Deallocate { .. }
        | Action::DeleteClaim { .. } => None,
    }
}

/// Runs a scheduler until the changes end.
pub async fn run<E: Executor>(
    mut scheduler: Scheduler,
    mut changes: mpsc::UnboundedReceiver<Change>,
    executor: Arc<E>,
    extenders: Extenders,
) {
    let start = Instant::now();
    let now = || start.elapsed();
    let (done, mut outcomes) = mpsc::unbounded_channel();
    let mut in_flight = 0usize;
    let mut since_recorded = 0u32;
    loop {
        for _ in 0..MAX_CHANGES {
            let Ok(change) = changes.try_recv() else { break };
            scheduler.apply(change, now());
        }
        while let Ok(outcome) = outcomes.try_recv() {
            in_flight = in_flight.saturating_sub(1);
            if let Some(outcome) = outcome {
                scheduler.outcome(outcome, now());
            }
        }
        scheduler.tick(now());
        let is_free = in_flight < MAX_IN_FLIGHT;
        let attempt = if is_free { scheduler.begin(now()) } else { None };
        let is_busy = attempt.is_some();
        if let Some(mut attempt) = attempt {
            let mut scores = extenders.filter(&scheduler, &mut attempt).await;
            if scheduler.widen(&mut attempt) {
                scores = extenders.filter(&scheduler, &mut attempt).await;
            }
            let candidates = scheduler.candidates(&mut attempt);
            let candidates = extenders.preempt(attempt.pod(), candidates).await;
            scheduler.finish(attempt, candidates, scores, now());
        }
        for action in scheduler.take_actions() {
            in_flight += 1;
            let (executor, done) = (executor.clone(), done.clone());
            tokio::spawn(async move {
                let fallback = subject(&action);
                let outcome = panics::contain(executor.carry_out(action)).await;
                // without a receiver the scheduler has ended
                let _ = done.send(outcome.unwrap_or(fallback));
            });
        }
        since_recorded += 1;
        if !is_busy || since_recorded >= RECORD_EVERY {
            since_recorded = 0;
            scheduler.record_sizes();
        }
        if is_busy {
            tokio::task::yield_now().await;
            continue;
        }
        let wake = scheduler.wake_at().filter(|_| is_free);
        // Pods that are active while too much is under way wait for an outcome.
        let until = time::later(start, wake.unwrap_or(time::FOREVER));
        let pause = tokio::time::sleep_until(until.max(time::after(Duration::from_millis(1))));
        tokio::select! {
            change = changes.recv() => match change {
                Some(change) => scheduler.apply(change, now()),
                None => return,
            },
            Some(outcome) = outcomes.recv() => {
                in_flight = in_flight.saturating_sub(1);
                if let Some(outcome) = outcome {
                    scheduler.outcome(outcome, now());
                }
            }
            () = pause => {}
        }
    }
}
