//! Admission of a pod by its worker: it gets a reservation, waits for the pods that it preempts, and is
//! allocated its resources. A rejected pod fails before anything is started for it.

use longshore_pod::status::{self, Verdict};
use longshore_pod::{Timestamp, admission};

use super::task::Task;
use crate::admission::{Refusal, Reservation};

/// State of a pod's admission.
pub(super) enum AdmissionState {
    /// It was admitted before, or needs no admission any more.
    Known,
    /// It has a reservation, and may have to wait for preempted pods.
    New,
    /// It was rejected at first.
    Refused(Refusal),
}

impl Task {
    /// Requests a reservation. A pod that was admitted once stays admitted.
    pub(super) fn admit(&mut self) {
        let ends = self.take_order().is_some();
        let is_known = !ends && admission::was_admitted(&self.pod);
        if is_known || !self.observed.borrow().is_gone() {
            self.reservation = Some(self.context.admission.keep(&self.pod));
            if !ends {
                self.allocate();
            }
        } else if !ends {
            match self.context.admission.admit(&self.pod) {
                Ok(reservation) => {
                    self.reservation = Some(reservation);
                    self.admission_state = AdmissionState::New;
                }
                Err(refusal) => self.admission_state = AdmissionState::Refused(refusal),
            }
        }
    }

    /// Waits until the reservation can be used.
    pub(super) async fn wait_for_admission(&mut self) {
        match std::mem::replace(&mut self.admission_state, AdmissionState::Known) {
            AdmissionState::Known => return,
            AdmissionState::New => {}
            AdmissionState::Refused(refusal) => {
                match self.context.admission.admit_with_current_node(&self.pod, refusal).await {
                    Ok(reservation) => self.reservation = Some(reservation),
                    Err(verdict) => return self.refuse(&verdict),
                }
            }
        }
        if self.wait_for_preemption().await {
            self.allocate();
        }
    }

    /// Waits for the pods that are preempted. Returns whether the pod may start.
    async fn wait_for_preemption(&mut self) -> bool {
        let Some(mut preemption) =
            self.reservation.as_mut().and_then(Reservation::take_preemption_wait)
        else {
            return true;
        };
        loop {
            tokio::select! {
                () = preemption.finished() => return true,
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
        self.last_status = status::rejected(&self.pod, verdict, Timestamp::now());
        self.refused = true;
    }
}
