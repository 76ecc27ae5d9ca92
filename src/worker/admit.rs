//! Admission of a pod by its worker: it gets a reservation, waits for the pods that it preempts, and is
//! allocated its resources. A rejected pod fails before anything is started for it.

use longshore_base::clock;
use longshore_pod::admission;
use longshore_pod::status::{self, Verdict};

use super::state::PodState;
use super::task::Task;
use crate::admission::{Refusal, Reservation};

/// Whether the pod may run, and what it holds for that.
#[derive(Default)]
pub(super) struct Admitted {
    state: AdmissionState,
    /// Its reservation on the node, until nothing of it runs.
    reservation: Option<Reservation>,
    /// Whether it was rejected for good.
    refused: bool,
}

/// State of a pod's admission.
#[derive(Default)]
enum AdmissionState {
    /// It was admitted before, or needs no admission any more.
    #[default]
    Known,
    /// It has a reservation, and may have to wait for preempted pods.
    New,
    /// It was rejected at first.
    Refused(Refusal),
}

impl Admitted {
    /// Whether the pod was not on the node before.
    pub(super) fn is_new(&self) -> bool {
        !matches!(self.state, AdmissionState::Known)
    }

    /// Whether the pod was rejected, so that its last status stays.
    pub(super) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Nothing of the pod runs any more.
    pub(super) fn release(&mut self) {
        self.reservation = None;
    }
}

impl Task {
    /// Requests a reservation. A pod that was admitted once stays admitted.
    pub(super) fn admit(&mut self) {
        let ends = self.take_order().is_some();
        let is_known = !ends && admission::was_admitted(&self.state.pod);
        let (is_gone, runs) = {
            let observed = self.state.inputs.observed.borrow();
            let runs = observed.containers.iter().any(|run| run.is_running());
            // What has run once, and is not to run again, needs no devices any more.
            let policy = self.state.pod.spec.as_ref().and_then(|own| own.restart_policy.as_deref());
            let ran = policy == Some("Never") && !observed.containers.is_empty();
            (observed.is_gone(), runs || ran)
        };
        let admission = &self.state.context.admission;
        let must_readmit = !ends && admission.must_readmit(&self.state.pod, runs);
        if (is_known || !is_gone) && !must_readmit {
            self.state.admitted.reservation =
                Some(self.state.context.admission.keep(&self.state.pod));
            if !ends {
                self.state.allocate();
            }
        } else if !ends {
            match self.state.context.admission.admit(&self.state.pod) {
                Ok(reservation) => {
                    self.state.admitted.reservation = Some(reservation);
                    self.state.admitted.state = AdmissionState::New;
                }
                Err(refusal) => self.state.admitted.state = AdmissionState::Refused(refusal),
            }
        }
    }

    /// Waits until the reservation can be used.
    pub(super) async fn wait_for_admission(&mut self) {
        match std::mem::replace(&mut self.state.admitted.state, AdmissionState::Known) {
            AdmissionState::Known => return,
            AdmissionState::New => {}
            AdmissionState::Refused(refusal) => {
                let PodState { context, pod, .. } = &self.state;
                match context.admission.admit_with_current_node(pod, refusal).await {
                    Ok(reservation) => self.state.admitted.reservation = Some(reservation),
                    Err(verdict) => return self.refuse(&verdict),
                }
            }
        }
        if self.wait_for_preemption().await && self.wait_for_devices().await {
            self.state.allocate();
        }
    }

    /// Waits until plugins have allocated the pod's devices. Returns whether it may start.
    async fn wait_for_devices(&mut self) -> bool {
        let (context, pod) = (self.state.context.clone(), self.state.pod.clone());
        let mut allocated = Box::pin(context.admission.allocate_devices(&pod));
        loop {
            tokio::select! {
                allocated = &mut allocated => {
                    return match allocated {
                        Ok(()) => true,
                        Err(verdict) => {
                            self.refuse(&verdict);
                            false
                        }
                    };
                }
                changed = self.state.inputs.order.changed() => {
                    if changed.is_err() || self.take_order().is_some() {
                        return false;
                    }
                }
            }
        }
    }

    /// Waits for the pods that are preempted. Returns whether the pod may start.
    async fn wait_for_preemption(&mut self) -> bool {
        let Some(mut preemption) =
            self.state.admitted.reservation.as_mut().and_then(Reservation::take_preemption_wait)
        else {
            return true;
        };
        loop {
            tokio::select! {
                () = preemption.finished() => return true,
                changed = self.state.inputs.order.changed() => {
                    if changed.is_err() || self.take_order().is_some() {
                        return false;
                    }
                }
            }
        }
    }

    fn refuse(&mut self, verdict: &Verdict) {
        self.state.context.pod_events.pod(&self.state.pod, true, &verdict.reason, &verdict.message);
        self.state.report.last = status::rejected(&self.state.pod, verdict, clock::now());
        self.state.admitted.refused = true;
    }
}
