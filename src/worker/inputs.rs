//! What a worker reacts to besides its own steps.

use std::sync::Arc;

use longshore_pod::observed::ObservedPod;
use longshore_pod::probes::ProbeResults;
use tokio::sync::watch;

use super::WorkerContext;
use crate::allocation::Decision;
use crate::registration::RuntimeHealth;
use crate::terminator::Order;

/// The inputs of a worker, each with its newest value.
pub(super) struct Inputs {
    /// Updates of the pod, and requests to terminate it.
    pub(super) order: watch::Receiver<Order>,
    /// The observed state of the runtime.
    pub(super) observed: watch::Receiver<Arc<ObservedPod>>,
    /// The results of its probes.
    pub(super) probes: watch::Receiver<Arc<ProbeResults>>,
    /// The decision about its resize.
    pub(super) decision: watch::Receiver<Decision>,
    /// Changes when the health of its devices does.
    pub(super) health: watch::Receiver<u64>,
    /// The status of the runtime.
    pub(super) runtime: watch::Receiver<RuntimeHealth>,
    /// The node's addresses.
    pub(super) host_ips: watch::Receiver<Arc<[String]>>,
    /// Changes of the health of claimed devices, if the pod has claims.
    claim_health: Option<watch::Receiver<u64>>,
}

impl Inputs {
    pub(super) fn new(context: &WorkerContext, uid: &str, order: watch::Receiver<Order>) -> Self {
        let has_claims =
            order.borrow().pod.spec.as_ref().is_some_and(|spec| spec.resource_claims.is_some());
        let mut inputs = Self {
            claim_health: has_claims.then(|| context.claims.health_changes()).flatten(),
            order,
            observed: context.observer.subscribe(uid),
            probes: context.probes.subscribe(uid),
            decision: context.allocation.subscribe(uid),
            health: context.devices.subscribe(uid),
            runtime: context.runtime_health.clone(),
            host_ips: context.settings.host_ips.subscribe(),
        };
        // What changed before this worker began is not news.
        inputs.runtime.mark_unchanged();
        inputs.host_ips.mark_unchanged();
        inputs
    }

    /// The newest observed state, which counts as read.
    pub(super) fn observed(&mut self) -> Arc<ObservedPod> {
        self.observed.borrow_and_update().clone()
    }

    /// Until one of them has changed. Cancel safe.
    pub(super) async fn changed(&mut self) {
        let claim_health = async {
            match &mut self.claim_health {
                Some(health) => health.changed().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = claim_health => {}
            _ = self.order.changed() => {}
            Ok(()) = self.decision.changed() => {}
            Ok(()) = self.health.changed() => {}
            Ok(()) = self.runtime.changed() => {}
            Ok(()) = self.host_ips.changed() => {}
            _ = self.observed.changed() => {}
            _ = self.probes.changed() => {}
        }
    }
}
