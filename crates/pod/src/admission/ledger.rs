//! The pods that were taken in and what each of them holds, with running totals: a question costs
//! as much as the pod that is asked about, however many others there are.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::amounts::Amounts;
use super::ports::{self, Port, Ports};
use crate::qos::{self, QosClass};
use crate::spec;

/// Names a pod in the ledger. Later ones are greater.
pub type Ticket = u64;

/// What a pod holds.
#[derive(Clone, Debug)]
pub struct Reservation {
    pub(super) requests: Amounts,
    pub(super) ports: Vec<Port>,
    pub(super) class: QosClass,
    pub(super) critical: bool,
    pub(super) priority: Option<i32>,
    /// Whether the pod ends to make way for another one.
    leaves: bool,
}

impl Reservation {
    /// What the pod holds once it is taken in.
    pub fn new(pod: &Pod) -> Self {
        let pod_spec = pod.spec.as_ref();
        Self {
            requests: Amounts::of_pod(pod),
            ports: pod_spec.map(ports::of_pod).unwrap_or_default(),
            class: qos::class(pod),
            critical: spec::is_critical(pod),
            priority: pod_spec.and_then(|spec: &PodSpec| spec.priority),
            leaves: false,
        }
    }

    /// What a pod that runs holds once its resize is granted.
    pub fn resized(pod: &Pod) -> Self {
        Self { requests: Amounts::of_resized(pod), ..Self::new(pod) }
    }
}

/// What is in use.
#[derive(Clone, Debug)]
pub(super) struct InUse<'a> {
    pub(super) amounts: Cow<'a, Amounts>,
    pub(super) pods: i64,
    pub(super) ports: &'a Ports,
}

/// Who holds what.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    seats: BTreeMap<Ticket, Reservation>,
    last: Ticket,
    /// Of all pods, those that leave among them.
    total: Amounts,
    ports: Ports,
    /// Of the pods that leave.
    leaving: Amounts,
    leavers: usize,
}

impl Ledger {
    /// Enter a pod, whatever is there.
    pub fn enter(&mut self, seat: Reservation) -> Ticket {
        self.last = self.last.saturating_add(1);
        self.put(self.last, seat);
        self.last
    }

    /// Enter a pod under a ticket that it had before.
    pub fn put(&mut self, ticket: Ticket, seat: Reservation) {
        self.release(ticket);
        self.total.add(&seat.requests);
        seat.ports.iter().for_each(|port| self.ports.take(port));
        if seat.leaves {
            self.leaving.add(&seat.requests);
            self.leavers += 1;
        }
        self.seats.insert(ticket, seat);
    }

    /// The pod has ended, or is looked at as if it had: what it held is free.
    pub fn release(&mut self, ticket: Ticket) -> Option<Reservation> {
        let seat = self.seats.remove(&ticket)?;
        self.total.subtract(&seat.requests);
        seat.ports.iter().for_each(|port| self.ports.give_back(port));
        if seat.leaves {
            self.leaving.subtract(&seat.requests);
            self.leavers -= 1;
        }
        Some(seat)
    }

    /// The pod ends to make way for another one: what it holds is promised.
    pub fn leave(&mut self, ticket: Ticket) {
        let Some(seat) = self.seats.get_mut(&ticket).filter(|seat| !seat.leaves) else { return };
        seat.leaves = true;
        self.leaving.add(&seat.requests);
        self.leavers += 1;
    }

    /// Pods that end to make way for others.
    pub fn leavers(&self) -> impl Iterator<Item = Ticket> {
        self.seats.iter().filter(|(_, seat)| seat.leaves).map(|(ticket, _)| *ticket)
    }

    /// Whether the pod is there yet.
    pub fn has(&self, ticket: Ticket) -> bool {
        self.seats.contains_key(&ticket)
    }

    /// What all pods together hold.
    pub fn total(&self) -> &Amounts {
        &self.total
    }

    /// Pods that stay, first come first.
    pub(super) fn staying(&self) -> impl Iterator<Item = (Ticket, &Reservation)> {
        self.seats.iter().filter(|(_, seat)| !seat.leaves).map(|(ticket, seat)| (*ticket, seat))
    }

    /// What is in use now.
    pub(super) fn in_use(&self) -> InUse<'_> {
        InUse {
            amounts: Cow::Borrowed(&self.total),
            pods: count(self.seats.len()),
            ports: &self.ports,
        }
    }

    /// What will be in use once those that leave have left.
    pub(super) fn in_use_later(&self) -> InUse<'_> {
        let mut amounts = self.total.clone();
        amounts.subtract(&self.leaving);
        InUse {
            amounts: Cow::Owned(amounts),
            pods: count(self.seats.len() - self.leavers),
            ports: &self.ports,
        }
    }
}

fn count(pods: usize) -> i64 {
    i64::try_from(pods).unwrap_or(i64::MAX)
}
