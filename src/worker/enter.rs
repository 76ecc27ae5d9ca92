//! A pod's beginning: the seat that it asks for, the wait for those who make way, the refusal.

use longshore_pod::status::{self, Verdict};
use longshore_pod::{Timestamp, admission};

use super::task::Task;
use crate::admission::Seat;

impl Task {
    /// Ask for a seat. What the node once took in stays, whatever it would say now.
    pub(super) fn admit(&mut self) {
        let ends = self.take_order().is_some();
        let is_known = !ends && admission::was_admitted(&self.pod);
        if is_known || !self.observed.borrow().is_gone() {
            self.seat = Some(self.tools.admission.keep(&self.pod));
        } else if !ends {
            match self.tools.admission.admit(&self.pod) {
                Ok(seat) => self.seat = Some(seat),
                Err(refusal) => self.refusal = Some(refusal),
            }
        }
    }

    /// Wait until the pod may take its seat. What is not taken in ends before anything is done for
    /// it.
    pub(super) async fn enter(&mut self) {
        if let Some(refusal) = self.refusal.take() {
            match self.tools.admission.admit_anew(&self.pod, refusal).await {
                Ok(seat) => self.seat = Some(seat),
                Err(verdict) => self.refuse(&verdict),
            }
        }
        let Some(mut way) = self.seat.as_mut().and_then(Seat::way) else { return };
        loop {
            tokio::select! {
                () = way.cleared() => return,
                changed = self.order.changed() => {
                    if changed.is_err() || self.take_order().is_some() {
                        return;
                    }
                }
            }
        }
    }

    fn refuse(&mut self, verdict: &Verdict) {
        self.tools.announcer.pod(&self.pod, true, &verdict.reason, &verdict.message);
        self.told = status::rejected(&self.pod, verdict, Timestamp::now());
        self.refused = true;
    }
}
