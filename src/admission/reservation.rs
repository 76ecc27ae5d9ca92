//! The reservation of an admitted pod, and the wait for the pods that it preempts.

use std::sync::Arc;
use std::time::Duration;

use longshore_base::time;
use longshore_pod::admission::Ticket;
use tokio::time::{Instant, timeout_at};

use super::{Freed, Shared, State};

/// Minimum time to wait for preempted pods, however short their grace period.
const LEAST: Duration = Duration::from_secs(10);

/// The resources that a pod holds, released on drop.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    ticket: Ticket,
    preemption_wait: Option<PreemptionWait>,
}

impl Reservation {
    pub(super) fn new(
        shared: Arc<Shared>,
        ticket: Ticket,
        preemption_wait: Option<PreemptionWait>,
    ) -> Self {
        Self { shared, ticket, preemption_wait }
    }

    /// The wait for preempted pods, if there are any. Returned once.
    pub fn take_preemption_wait(&mut self) -> Option<PreemptionWait> {
        self.preemption_wait.take()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.ledger.release(self.ticket);
        state.pods.remove(&self.ticket);
        drop(state);
        self.shared.released.send_replace(Freed::ByEnd);
    }
}

/// Waits for the termination of preempted pods.
#[derive(Debug)]
pub struct PreemptionWait {
    shared: Arc<Shared>,
    victims: Vec<Ticket>,
    pub(super) until: Instant,
}

impl PreemptionWait {
    pub(super) fn new(shared: &Arc<Shared>, state: &State) -> Self {
        let victims: Vec<Ticket> = state.ledger.victims().collect();
        let graces =
            victims.iter().filter_map(|ticket| state.pods.get(ticket)).map(|pod| pod.grace);
        // Half of the grace period more, for the runtime.
        let timeout = graces
            .map(|grace| grace.saturating_add(time::part(grace, 2)))
            .fold(LEAST, Duration::max);
        Self { shared: shared.clone(), victims, until: time::after(timeout) }
    }

    /// Waits until all have terminated, with a timeout in case the runtime hangs. May be dropped and
    /// called again.
    pub async fn finished(&mut self) {
        let mut released = self.shared.released.subscribe();
        let gone = async { while !self.is_finished() && released.changed().await.is_ok() {} };
        if timeout_at(self.until, gone).await.is_ok() {
            return;
        }
        let late: Vec<_> = {
            let state = self.shared.state();
            self.victims.iter().filter_map(|ticket| state.pods.get(ticket).cloned()).collect()
        };
        for pod in late {
            let message = "Container runtime did not kill the pod within specified grace period.";
            let pod_events = &self.shared.sources.pod_events;
            pod_events.pod(&pod.reference(), true, "ExceededGracePeriod", message);
        }
    }

    fn is_finished(&self) -> bool {
        let state = self.shared.state();
        !self.victims.iter().any(|ticket| state.ledger.has(*ticket))
    }
}
