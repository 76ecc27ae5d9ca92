//! Pod admission. Decisions are made one after the other and without I/O. An admitted pod holds a
//! [`Reservation`] until nothing of it runs any more; a critical pod preempts others, which their
//! workers terminate. A pod that was admitted before keeps its reservation without a new decision.
//! A decision that depends on which devices a plugin prefers is not made before the plugin has
//! answered; the plugins of an admitted pod then allocate its devices ([`devices`]).

mod capabilities;
mod devices;
mod metrics;
mod reservation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use longshore_base::time;
use longshore_client::events::PodEventRecorder;
use longshore_client::{Item, object};
use longshore_devices::{Devices, Preferences, Query};
use longshore_pod::admission::{
    self as rules, AdmissionContext, Decision, Ledger, NodeCapabilities, NodePressure, NodeView,
    Ticket,
};
use longshore_pod::spec;
use longshore_pod::status::Verdict;
use longshore_resources::managers::Managers;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::timeout;
use tracing::{debug, info};

pub use capabilities::capabilities;
pub use reservation::{PreemptionWait, Reservation};

use crate::shutdown;
use crate::terminator::{PodTerminator, Termination};

/// Timeout of reading the node object again.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// Inputs of decisions.
#[derive(Debug)]
pub struct Sources {
    /// What the node supports.
    pub capabilities: NodeCapabilities,
    /// The node as it registers itself, used until the apiserver's object is known.
    pub own: Node,
    /// The node object of the apiserver; `None` without an apiserver.
    pub api_node: Option<ApiNode>,
    /// What the node is short of.
    pub pressure: watch::Receiver<NodePressure>,
    /// Whether the machine shuts down.
    pub shutting_down: watch::Receiver<bool>,
    /// Events about preempted pods.
    pub pod_events: PodEventRecorder,
    /// Terminates them.
    pub terminator: PodTerminator,
    /// CPU, memory and topology managers. The worker releases what they allocated to a pod that is
    /// rejected for another reason.
    pub managers: Managers,
    /// The device manager; what it gives to a rejected pod is released likewise.
    pub devices: Devices,
}

/// The node object of the apiserver.
#[derive(Debug)]
pub struct ApiNode {
    /// The object, if it exists.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    /// Client to read it again.
    pub api: Api<Item<Node>>,
}

/// Admits pods. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admission {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    sources: Sources,
    state: Mutex<State>,
    /// Changes whenever a pod releases resources.
    released: watch::Sender<Freed>,
}

/// How resources were released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freed {
    /// The pod has terminated.
    ByEnd,
    /// The pod was resized.
    ByResize,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    pods: HashMap<Ticket, Known>,
    counts: Counts,
}

/// An admitted pod.
#[derive(Clone, Debug)]
struct Known {
    namespace: String,
    name: String,
    uid: String,
    grace: Duration,
}

/// Counts of decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rejected pods, by reason.
    pub rejections: BTreeMap<String, u64>,
    /// Preempted pods, by the insufficient resource.
    pub preemptions: BTreeMap<String, u64>,
}

/// The rejection of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// Reason and message of its status.
    pub verdict: Verdict,
    /// Whether it may be admitted with other node labels, which are then read again.
    pub by_labels: bool,
    /// What a device plugin has to be asked before the decision can be made.
    pub query: Option<Box<Query>>,
}

impl Admission {
    /// Without any pods.
    pub fn new(sources: Sources) -> Self {
        let (state, released) = (Mutex::default(), watch::Sender::new(Freed::ByEnd));
        Self { shared: Arc::new(Shared { sources, state, released }) }
    }

    /// Decides about a new pod. An admitted pod has to wait for the end of
    /// [`Reservation::take_preemption_wait`] before it uses its reservation.
    pub fn admit(&self, pod: &Pod) -> Result<Reservation, Refusal> {
        self.admit_preferring(pod, &Preferences::default())
    }

    /// The same with the answers of device plugins.
    fn admit_preferring(
        &self,
        pod: &Pod,
        preferences: &Preferences,
    ) -> Result<Reservation, Refusal> {
        let node = self.node();
        self.admit_to(pod, node.as_deref().unwrap_or(&self.shared.sources.own), preferences)
    }

    /// Decides again about a pod that was rejected for node labels, with the current labels, as the
    /// watch of the node may be late. Counts the rejection.
    pub async fn admit_with_current_node(
        &self,
        pod: &Pod,
        refusal: Refusal,
    ) -> Result<Reservation, Verdict> {
        let outcome = match self.ask_plugins(pod, refusal).await {
            Ok(reservation) => return Ok(reservation),
            Err((refusal, preferences)) => self.admit_relabelled(pod, refusal, &preferences).await,
        };
        outcome.map_err(|refusal| {
            self.count(&refusal.verdict);
            refusal.verdict
        })
    }

    /// Counts a rejection.
    fn count(&self, verdict: &Verdict) {
        let reason = rules::counted_reason(&verdict.reason).to_owned();
        let mut state = self.state();
        let count = state.counts.rejections.entry(reason).or_default();
        *count = count.saturating_add(1);
    }

    async fn admit_relabelled(
        &self,
        pod: &Pod,
        refusal: Refusal,
        preferences: &Preferences,
    ) -> Result<Reservation, Refusal> {
        match &self.shared.sources.api_node {
            Some(ApiNode { api, .. }) if refusal.by_labels => {
                let name = self.shared.sources.own.metadata.name.as_deref().unwrap_or_default();
                match timeout(NODE_TIMEOUT, object(api.get(name))).await {
                    Ok(Ok(node)) => self.admit_to(pod, &node, preferences),
                    _ => Err(refusal),
                }
            }
            _ => Err(refusal),
        }
    }

    /// Adds a pod that was admitted before, without a new decision.
    pub fn keep(&self, pod: &Pod) -> Reservation {
        self.shared.sources.managers.adopt(pod);
        let ticket = self.state().enter(pod);
        Reservation::new(self.shared.clone(), ticket, None)
    }

    /// A pod has been removed from its source, as one is whose object is deleted without a grace period. What it
    /// holds counts no more, though it may take time to end: the scheduler has given it to others. What CPU, memory
    /// and device managers have allocated to it stays until then.
    pub fn leave(&self, uid: &str) {
        let mut state = self.state();
        let State { ledger, pods, .. } = &mut *state;
        let tickets = pods.iter().filter(|(_, known)| known.uid == uid).map(|(ticket, _)| *ticket);
        tickets.for_each(|ticket| ledger.leave(ticket));
        drop(state);
        self.shared.released.send_replace(Freed::ByEnd);
    }

    /// Whether an admitted pod can be resized to what its spec requests now. Its reservation is the
    /// maximum of old and new until this is called again after the resize. Never preempts pods.
    pub fn resize(&self, pod: &Pod) -> Result<(), Verdict> {
        let (own, node) = (&self.shared.sources.own, self.node());
        let mut state = self.state();
        let uid = spec::uid(pod);
        let ticket = state.pods.iter().find(|(_, known)| known.uid == uid).map(|(at, _)| *at);
        let Some((ticket, before)) =
            ticket.and_then(|ticket| Some((ticket, state.ledger.release(ticket)?)))
        else {
            return Ok(());
        };
        let node = NodeView::new(node.as_deref().unwrap_or(own), own);
        let verdict = rules::check_resize(pod, &self.context(&node, &state.ledger));
        let seat = if verdict.is_none() { rules::Reservation::resized(pod) } else { before };
        state.ledger.put(ticket, seat);
        drop(state);
        match verdict {
            None => {
                self.shared.released.send_replace(Freed::ByResize); // it may hold less than before
                Ok(())
            }
            Some(verdict) => Err(verdict),
        }
    }

    /// How many pods have a reservation.
    #[cfg(test)]
    pub(crate) fn reserved(&self) -> usize {
        self.state().pods.len()
    }

    /// Why the node cannot follow an update of a pod: features that it does not declare.
    pub fn refusal_of_update(&self, before: &Pod, pod: &Pod) -> Option<String> {
        let capabilities = &self.shared.sources.capabilities;
        let (old, new) = (before.spec.as_ref()?, pod.spec.as_ref()?);
        let missing = capabilities.lacking_for_update(old, new);
        (!missing.is_empty()).then(|| rules::missing_features(missing))
    }

    /// Changes whenever a pod releases resources.
    pub fn released(&self) -> watch::Receiver<Freed> {
        self.shared.released.subscribe()
    }

    /// Counts of decisions.
    pub fn counts(&self) -> Counts {
        self.state().counts.clone()
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.shared.sources.api_node.as_ref().and_then(|api_node| api_node.node.borrow().clone())
    }

    fn context<'a>(&'a self, node: &'a NodeView<'a>, ledger: &'a Ledger) -> AdmissionContext<'a> {
        let sources = &self.shared.sources;
        let pressure = *sources.pressure.borrow();
        AdmissionContext { capabilities: &sources.capabilities, node, ledger, pressure }
    }

    fn admit_to(
        &self,
        pod: &Pod,
        node: &Node,
        preferences: &Preferences,
    ) -> Result<Reservation, Refusal> {
        let Sources { own, managers, devices, shutting_down, .. } = &self.shared.sources;
        if *shutting_down.borrow() {
            let verdict = Verdict::failed(shutdown::REASON, shutdown::NOT_ADMITTED);
            return Err(Refusal { verdict, by_labels: false, query: None });
        }
        let mut state = self.state();
        let mut selection = devices.select(pod, preferences);
        // The device manager has counted its own.
        let node = NodeView::new(node, own).without_limit(selection.resources());
        let managers = |pod: &Pod| managers.admit_with(pod, &mut selection);
        let decision = rules::decide(pod, &self.context(&node, &state.ledger), managers);
        let (victims, waits, insufficient) = match decision {
            Decision::Admit { victims, waits, insufficient } => (victims, waits, insufficient),
            Decision::Reject { verdict, by_labels } => {
                return Err(Refusal { verdict, by_labels, query: selection.query().map(Box::new) });
            }
        };
        selection.commit();
        let victims: Vec<Known> =
            victims.into_iter().filter_map(|ticket| state.preempt(ticket)).collect();
        if !victims.is_empty() {
            let count =
                state.counts.preemptions.entry(insufficient.unwrap_or_default()).or_default();
            *count = count.saturating_add(u64::try_from(victims.len()).unwrap_or(u64::MAX));
        }
        let preemption_wait = waits.then(|| PreemptionWait::new(&self.shared, &state));
        let ticket = state.enter(pod);
        drop(state);
        for victim in victims {
            self.preempt(&victim, pod);
        }
        Ok(Reservation::new(self.shared.clone(), ticket, preemption_wait))
    }

    fn preempt(&self, victim: &Known, preemptor: &Pod) {
        let Shared { sources, .. } = &*self.shared;
        let verdict = rules::preemption_verdict();
        info!(
            pod = victim.name,
            namespace = victim.namespace,
            critical = spec::name(preemptor),
            "pod is preempted by a critical pod"
        );
        sources.pod_events.pod(&victim.reference(), true, &verdict.reason, &verdict.message);
        if !sources.terminator.terminate(&victim.uid, Termination { verdict, grace: None }) {
            debug!(pod = victim.name, uid = victim.uid, "preempted pod has terminated already");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn enter(&mut self, pod: &Pod) -> Ticket {
        let ticket = self.ledger.enter(rules::Reservation::new(pod));
        self.pods.insert(ticket, Known::new(pod));
        ticket
    }

    /// Marks the pod as preempted.
    fn preempt(&mut self, ticket: Ticket) -> Option<Known> {
        self.ledger.preempt(ticket);
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

    /// A reference for events.
    fn reference(&self) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some(self.namespace.clone());
        pod.metadata.name = Some(self.name.clone());
        pod.metadata.uid = Some(self.uid.clone());
        pod
    }
}
