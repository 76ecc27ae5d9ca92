//! The admitted pods and what is reserved for each, with running totals: a check costs no more with
//! many pods than with few.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::amounts::Amounts;
use super::ports::{self, Port, Ports};
use crate::qos::{self, QosClass};
use crate::spec;

/// Identifies a reservation. Later ones are greater.
pub type Ticket = u64;

/// The resources that a pod has reserved.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub(super) requests: Amounts,
    pub(super) ports: Vec<Port>,
    pub(super) class: QosClass,
    pub(super) critical: bool,
    pub(super) priority: Option<i32>,
    /// Whether the pod is being ended for another one (preempted).
    preempted: bool,
}

impl Reservation {
    /// The reservation of a pod that is admitted.
    pub fn new(pod: &Pod) -> Self {
        let pod_spec = pod.spec.as_ref();
        Self {
            requests: Amounts::of_pod(pod),
            ports: pod_spec.map(ports::of_pod).unwrap_or_default(),
            class: qos::class(pod),
            critical: spec::is_critical(pod),
            priority: pod_spec.and_then(|spec: &PodSpec| spec.priority),
            preempted: false,
        }
    }

    /// The reservation of a running pod once its resize is granted.
    pub fn resized(pod: &Pod) -> Self {
        Self { requests: Amounts::of_resized(pod), ..Self::new(pod) }
    }
}

/// The sum of reservations.
#[derive(Clone, Debug)]
pub(super) struct InUse<'a> {
    pub(super) amounts: Cow<'a, Amounts>,
    pub(super) pods: i64,
    pub(super) ports: &'a Ports,
}

/// All reservations.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    reservations: BTreeMap<Ticket, Reservation>,
    last: Ticket,
    /// Of all pods, including those that are being preempted.
    total: Amounts,
    ports: Ports,
    /// Of the pods that are being preempted.
    preempted_total: Amounts,
    victims: usize,
}

impl Ledger {
    /// Add a pod, whether it fits or not.
    pub fn enter(&mut self, reservation: Reservation) -> Ticket {
        self.last = self.last.saturating_add(1);
        self.put(self.last, reservation);
        self.last
    }

    /// Add a pod under an id that it had before.
    pub fn put(&mut self, ticket: Ticket, reservation: Reservation) {
        self.release(ticket);
        self.total.add(&reservation.requests);
        reservation.ports.iter().for_each(|port| self.ports.take(port));
        if reservation.preempted {
            self.preempted_total.add(&reservation.requests);
            self.victims += 1;
        }
        self.reservations.insert(ticket, reservation);
    }

    /// Remove the reservation of a pod, for good or for the time of a check.
    pub fn release(&mut self, ticket: Ticket) -> Option<Reservation> {
        let reservation = self.reservations.remove(&ticket)?;
        self.total.subtract(&reservation.requests);
        reservation.ports.iter().for_each(|port| self.ports.release(port));
        if reservation.preempted {
            self.preempted_total.subtract(&reservation.requests);
            self.victims -= 1;
        }
        Some(reservation)
    }

    /// The pod is preempted: what it holds will be free.
    pub fn preempt(&mut self, ticket: Ticket) {
        let Some(reservation) =
            self.reservations.get_mut(&ticket).filter(|reservation| !reservation.preempted)
        else {
            return;
        };
        reservation.preempted = true;
        self.preempted_total.add(&reservation.requests);
        self.victims += 1;
    }

    /// The pod has been removed from its source: what it holds counts no more, whatever of it still runs. Who
    /// preempts it waits for its end all the same.
    pub fn leave(&mut self, ticket: Ticket) {
        if self.reservations.get(&ticket).is_some_and(|reservation| !reservation.preempted) {
            self.release(ticket);
        }
    }

    /// Pods that are being preempted.
    pub fn victims(&self) -> impl Iterator<Item = Ticket> {
        self.reservations
            .iter()
            .filter(|(_, reservation)| reservation.preempted)
            .map(|(ticket, _)| *ticket)
    }

    /// Whether the pod still has its reservation.
    pub fn has(&self, ticket: Ticket) -> bool {
        self.reservations.contains_key(&ticket)
    }

    /// The total of all reservations.
    pub fn total(&self) -> &Amounts {
        &self.total
    }

    /// Pods that are not being preempted, in the order of their admission.
    pub(super) fn not_preempted(&self) -> impl Iterator<Item = (Ticket, &Reservation)> {
        self.reservations
            .iter()
            .filter(|(_, reservation)| !reservation.preempted)
            .map(|(ticket, reservation)| (*ticket, reservation))
    }

    /// What is in use now.
    pub(super) fn in_use(&self) -> InUse<'_> {
        InUse {
            amounts: Cow::Borrowed(&self.total),
            pods: count(self.reservations.len()),
            ports: &self.ports,
        }
    }

    /// What will be in use once the preempted pods have ended.
    pub(super) fn in_use_after_preemption(&self) -> InUse<'_> {
        let mut amounts = self.total.clone();
        amounts.subtract(&self.preempted_total);
        InUse {
            amounts: Cow::Owned(amounts),
            pods: count(self.reservations.len() - self.victims),
            ports: &self.ports,
        }
    }
}

fn count(pods: usize) -> i64 {
    i64::try_from(pods).unwrap_or(i64::MAX)
}
