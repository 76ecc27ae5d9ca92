//! What a pod that was taken in holds, and the way to it.

use std::sync::Arc;
use std::time::Duration;

use longshore_base::time;
use longshore_pod::admission::Ticket;
use tokio::time::{Instant, timeout_at};

use super::{Freed, Shared, State};

/// Pods that make way have at least this long, however short their grace.
const LEAST: Duration = Duration::from_secs(10);

/// What a pod holds: given back when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    shared: Arc<Shared>,
    ticket: Ticket,
    way: Option<PreemptionWait>,
}

impl Reservation {
    pub(super) fn new(shared: Arc<Shared>, ticket: Ticket, way: Option<PreemptionWait>) -> Self {
        Self { shared, ticket, way }
    }

    /// Those that have yet to end before the seat is free, if there are any. Told once.
    pub fn way(&mut self) -> Option<PreemptionWait> {
        self.way.take()
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

/// Pods that end for another one.
#[derive(Debug)]
pub struct PreemptionWait {
    shared: Arc<Shared>,
    leavers: Vec<Ticket>,
    pub(super) until: Instant,
}

impl PreemptionWait {
    pub(super) fn new(shared: &Arc<Shared>, state: &State) -> Self {
        let leavers: Vec<Ticket> = state.ledger.leavers().collect();
        let graces =
            leavers.iter().filter_map(|ticket| state.pods.get(ticket)).map(|pod| pod.grace);
        // Half of the grace once more, for the runtime to do what it is asked for.
        let patience = graces
            .map(|grace| grace.saturating_add(time::part(grace, 2)))
            .fold(LEAST, Duration::max);
        Self { shared: shared.clone(), leavers, until: time::after(patience) }
    }

    /// Until all of them have ended, or long enough: what the node cannot do without waits for no
    /// runtime that hangs. May be dropped and called again.
    pub async fn cleared(&mut self) {
        let mut released = self.shared.released.subscribe();
        let gone = async { while !self.is_clear() && released.changed().await.is_ok() {} };
        if timeout_at(self.until, gone).await.is_ok() {
            return;
        }
        let late: Vec<_> = {
            let state = self.shared.state();
            self.leavers.iter().filter_map(|ticket| state.pods.get(ticket).cloned()).collect()
        };
        for pod in late {
            let message = "Container runtime did not kill the pod within specified grace period.";
            let pod_events = &self.shared.sources.pod_events;
            pod_events.pod(&pod.reference(), true, "ExceededGracePeriod", message);
        }
    }

    fn is_clear(&self) -> bool {
        let state = self.shared.state();
        !self.leavers.iter().any(|ticket| state.ledger.has(*ticket))
    }
}
