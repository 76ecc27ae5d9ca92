//! The one place that decides whether the node takes a pod in. Decisions are made one after the
//! other and cost no I/O; who is taken in holds a [`Reservation`] until nothing of it runs any more, and
//! a critical pod gets the seats of others, whose workers are asked to end them. Workers ask
//! before they do anything for a pod; a pod that was taken in before is only entered.
//!
//! Current limitations: nothing is asked of devices or a shutdown.

mod abilities;
mod metrics;
mod reservation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use longshore_base::time;
use longshore_client::events::PodEventRecorder;
use longshore_client::{Item, object};
use longshore_pod::admission::{
    self as rules, Abilities, AdmissionContext, Decision, Ledger, NodePressure, NodeView, Ticket,
};
use longshore_pod::spec;
use longshore_pod::status::Verdict;
use longshore_resources::managers::Managers;
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, info};

pub use abilities::abilities;
pub use reservation::{PreemptionWait, Reservation};

use crate::terminator::{PodTerminator, Termination};

/// How long the node's object may take to come when it is asked for anew.
const NODE: Duration = Duration::from_secs(5);

/// What a decision needs to know.
#[derive(Debug)]
pub struct Sources {
    /// What can be done for pods here.
    pub abilities: Abilities,
    /// The node as it registers itself; the truth for as long as no other is told.
    pub own: Node,
    /// The node as the apiserver tells it; `None`: there is none.
    pub told: Option<Told>,
    /// What the node is short of.
    pub pressure: watch::Receiver<NodePressure>,
    /// Events about pods that have to make way.
    pub pod_events: PodEventRecorder,
    /// Ends them.
    pub terminator: PodTerminator,
    /// Who gives pods CPUs and memory of their own. What a pod got that is refused for something
    /// else, its worker gives back.
    pub managers: Managers,
}

/// What the apiserver says of the node.
#[derive(Debug)]
pub struct Told {
    /// Its object, if there is one.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Where that is asked for anew.
    pub api: Api<Item<Node>>,
}

/// Decides about pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sources: Sources,
    state: Mutex<State>,
    /// Changes whenever a pod gives back what it held.
    released: watch::Sender<Freed>,
}

/// How a pod gave something back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// It has ended.
    ByEnd,
    /// It was given less, or has something else than before.
    ByResize,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    pods: HashMap<Ticket, Known>,
    counts: Counts,
}

/// What is kept of a pod that was taken in.
#[derive(Clone, Debug)]
struct Known {
    namespace: String,
    name: String,
    uid: String,
    grace: Duration,
}

/// What was decided so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Refused pods, by reason.
    pub rejections: BTreeMap<String, u64>,
    /// Pods that had to make way, by the resource that was short.
    pub preemptions: BTreeMap<String, u64>,
}

/// A pod that is not taken in.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// What its status says.
    pub verdict: Verdict,
    /// Whether other labels of the node would let it in, which are to be asked for anew.
    pub by_labels: bool,
}

impl Admission {
    /// Nobody is taken in yet.
    pub fn new(sources: Sources) -> Self {
        let (state, released) = (Mutex::default(), watch::Sender::new(Freed::ByEnd));
        Self { shared: Arc::new(Shared { sources, state, released }) }
    }

    /// Decide about a new pod. Who is taken in holds a seat from now on, and has to wait for
    /// [`Reservation::way`] to be clear before it uses it.
    pub fn admit(&self, pod: &Pod) -> Result<Reservation, Refusal> {
        let told = self.told();
        self.admit_to(pod, told.as_deref().unwrap_or(&self.shared.sources.own))
    }

    /// Decide once more about a pod that only labels keep out, by the labels of this moment: who
    /// has set them may have been faster than our watch of the node. Counts the refusal.
    pub async fn admit_anew(&self, pod: &Pod, refusal: Refusal) -> Result<Reservation, Verdict> {
        let outcome = match &self.shared.sources.told {
            Some(Told { api, .. }) if refusal.by_labels => {
                let name = self.shared.sources.own.metadata.name.as_deref().unwrap_or_default();
                match timeout(NODE, object(api.get(name))).await {
                    Ok(Ok(node)) => self.admit_to(pod, &node),
                    _ => Err(refusal),
                }
            }
            _ => Err(refusal),
        };
        outcome.map_err(|refusal| {
            let reason = rules::counted_reason(&refusal.verdict.reason).to_owned();
            let mut state = self.state();
            let count = state.counts.rejections.entry(reason).or_default();
            *count = count.saturating_add(1);
            refusal.verdict
        })
    }

    /// Enter a pod that has been taken in before, whatever the node would say now.
    pub fn keep(&self, pod: &Pod) -> Reservation {
        self.shared.sources.managers.adopt(pod);
        let ticket = self.state().enter(pod);
        Reservation::new(self.shared.clone(), ticket, None)
    }

    /// Whether the pod with that UID, which was taken in, may have what its spec requests now. It is
    /// entered with that, and with what it has until then if that is more: ask again when it has
    /// changed. Nobody has to make way for it.
    pub fn resize(&self, pod: &Pod) -> Result<(), Verdict> {
        let (own, told) = (&self.shared.sources.own, self.told());
        let mut state = self.state();
        let uid = spec::uid(pod);
        let ticket = state.pods.iter().find(|(_, known)| known.uid == uid).map(|(at, _)| *at);
        let Some((ticket, before)) =
            ticket.and_then(|ticket| Some((ticket, state.ledger.release(ticket)?)))
        else {
            return Ok(());
        };
        let node = NodeView::new(told.as_deref().unwrap_or(own), own);
        let verdict = rules::refuses_resize(pod, &self.terms(&node, &state.ledger));
        let seat = if verdict.is_none() { rules::Reservation::resized(pod) } else { before };
        state.ledger.put(ticket, seat);
        drop(state);
        match verdict {
            None => {
                self.shared.released.send_replace(Freed::ByResize); // it may have less than before
                Ok(())
            }
            Some(verdict) => Err(verdict),
        }
    }

    /// Changes whenever a pod gives back something of what it held.
    pub fn released(&self) -> watch::Receiver<Freed> {
        self.shared.released.subscribe()
    }

    /// What was decided so far.
    pub fn counts(&self) -> Counts {
        self.state().counts.clone()
    }

    fn told(&self) -> Option<Arc<Node>> {
        self.shared.sources.told.as_ref().and_then(|told| told.node.borrow().clone())
    }

    fn terms<'a>(&'a self, node: &'a NodeView<'a>, ledger: &'a Ledger) -> AdmissionContext<'a> {
        let sources = &self.shared.sources;
        let pressure = *sources.pressure.borrow();
        AdmissionContext { abilities: &sources.abilities, node, ledger, pressure }
    }

    fn admit_to(&self, pod: &Pod, node: &Node) -> Result<Reservation, Refusal> {
        let node = NodeView::new(node, &self.shared.sources.own);
        let mut state = self.state();
        let managers = |pod: &Pod| self.shared.sources.managers.admit(pod);
        let decision = rules::decide(pod, &self.terms(&node, &state.ledger), managers);
        let (victims, waits, lacking) = match decision {
            Decision::Admit { victims, waits, lacking } => (victims, waits, lacking),
            Decision::Refuse { verdict, by_labels } => return Err(Refusal { verdict, by_labels }),
        };
        let victims: Vec<Known> =
            victims.into_iter().filter_map(|ticket| state.leave(ticket)).collect();
        if !victims.is_empty() {
            let count = state.counts.preemptions.entry(lacking.unwrap_or_default()).or_default();
            *count = count.saturating_add(u64::try_from(victims.len()).unwrap_or(u64::MAX));
        }
        let way = waits.then(|| PreemptionWait::new(&self.shared, &state));
        let ticket = state.enter(pod);
        drop(state);
        for victim in victims {
            self.preempt(&victim, pod);
        }
        Ok(Reservation::new(self.shared.clone(), ticket, way))
    }

    fn preempt(&self, victim: &Known, preemptor: &Pod) {
        let Shared { sources, .. } = &*self.shared;
        let verdict = rules::preempted();
        info!(
            pod = victim.name,
            namespace = victim.namespace,
            critical = spec::name(preemptor),
            "pod makes way for a critical one"
        );
        sources.pod_events.pod(&victim.reference(), true, &verdict.reason, &verdict.message);
        if !sources.terminator.terminate(&victim.uid, Termination { verdict, grace: None }) {
            debug!(pod = victim.name, uid = victim.uid, "pod has ended already");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enter(&mut self, pod: &Pod) -> Ticket {
        let ticket = self.ledger.enter(rules::Reservation::new(pod));
        self.pods.insert(ticket, Known::new(pod));
        ticket
    }

    /// The pod is to make way.
    fn leave(&mut self, ticket: Ticket) -> Option<Known> {
        self.ledger.leave(ticket);
        self.pods.get(&ticket).cloned()
    }
}

impl Known {
    fn new(pod: &Pod) -> Self {
        Self {
            namespace: spec::namespace(pod).to_owned(),
            name: spec::name(pod).to_owned(),
            uid: spec::uid(pod).to_owned(),
            grace: time::seconds(spec::termination_grace_seconds(pod)),
        }
    }

    /// Enough of the pod for an event about it.
    fn reference(&self) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some(self.namespace.clone());
        pod.metadata.name = Some(self.name.clone());
        pod.metadata.uid = Some(self.uid.clone());
        pod
    }
}
