//! How a pod comes in: it is given a seat, waits for those that make way for it, and is given what
//! it asks for. What the node does not take in ends before anything is done for it.

use longshore_pod::status::{self, Verdict};
use longshore_pod::{Timestamp, admission};

use super::task::Task;
use crate::admission::{Refusal, Reservation};

/// How it stands with a pod's coming in.
pub(super) enum Entry {
    /// It was taken in before, or does not come in any more.
    Known,
    /// It has its seat, and may have to wait for it.
    New,
    /// It was refused when that was asked first.
    Refused(Refusal),
}

impl Task {
    /// Ask for a seat. What the node once took in stays, whatever it would say now.
    pub(super) fn admit(&mut self) {
        let ends = self.take_order().is_some();
        let is_known = !ends && admission::was_admitted(&self.pod);
        if is_known || !self.observed.borrow().is_gone() {
            self.seat = Some(self.context.admission.keep(&self.pod));
            if !ends {
                self.hold();
            }
        } else if !ends {
            match self.context.admission.admit(&self.pod) {
                Ok(seat) => {
                    self.seat = Some(seat);
                    self.entry = Entry::New;
                }
                Err(refusal) => self.entry = Entry::Refused(refusal),
            }
        }
    }

    /// Wait until the pod may take its seat.
    pub(super) async fn enter(&mut self) {
        match std::mem::replace(&mut self.entry, Entry::Known) {
            Entry::Known => return,
            Entry::New => {}
            Entry::Refused(refusal) => {
                match self.context.admission.admit_anew(&self.pod, refusal).await {
                    Ok(seat) => self.seat = Some(seat),
                    Err(verdict) => return self.refuse(&verdict),
                }
            }
        }
        if self.way_is_clear().await {
            self.hold();
        }
    }

    /// Wait for pods that make way. Tells whether the pod may start then.
    async fn way_is_clear(&mut self) -> bool {
        let Some(mut way) = self.seat.as_mut().and_then(Reservation::way) else { return true };
        loop {
            tokio::select! {
                () = way.cleared() => return true,
                changed = self.order.changed() => {
                    if changed.is_err() || self.take_order().is_some() {
                        return false;
                    }
                }
            }
        }
    }

    fn refuse(&mut self, verdict: &Verdict) {
        self.context.pod_events.pod(&self.pod, true, &verdict.reason, &verdict.message);
        self.told = status::rejected(&self.pod, verdict, Timestamp::now());
        self.refused = true;
    }
}
