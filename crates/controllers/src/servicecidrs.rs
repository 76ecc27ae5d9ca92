//! Keeps ServiceCIDRs that services have addresses of from being deleted, by a finalizer, and reports
//! whether addresses of them are given out.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};
use serde_json::{Value, json};

use crate::Context;
use crate::writes::{reference, unless_gone, unless_stopped};

const NAME: &str = "service-cidr-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// How long a ServiceCIDR that is being deleted stays at least, so that all apiservers know of it before
/// it is gone.
const GRACE: Duration = Duration::from_secs(10);
const WORKERS: usize = 5;
const READY: &str = "Kubernetes Service CIDR is ready";
const NOT_READY: &str = "The ServiceCIDR Status can not be set to Ready=True";
const TERMINATING: &str = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

struct Controller {
    client: Client,
    recorder: Recorder,
    queue: WorkQueue<String>,
    cidrs: Informer<ServiceCIDR>,
    addresses: Informer<IPAddress>,
}

fn ranges(cidr: &ServiceCIDR) -> impl Iterator<Item = IpNet> {
    let all = cidr.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
    all.into_iter().flatten().filter_map(|text| text.parse().ok())
}

/// The address, if it is one that apiservers gave to a service.
fn allocated(address: &IPAddress) -> Option<IpAddr> {
    let labels = address.metadata.labels.as_ref()?;
    labels.get(MANAGED_BY).filter(|own| *own == ALLOCATOR)?;
    address.metadata.name.as_ref()?.parse().ok()
}

/// PURE: whether all addresses that are given out are in other ServiceCIDRs too, once this one is gone.
fn is_dispensable(cidr: &ServiceCIDR, others: &[Arc<ServiceCIDR>], given: &[IpAddr]) -> bool {
    let others: Vec<IpNet> = others
        .iter()
        .filter(|other| other.metadata.name != cidr.metadata.name)
        .flat_map(|other| ranges(other).collect::<Vec<_>>())
        .collect();
    ranges(cidr).all(|own| {
        others.iter().any(|other| other.contains(&own))
            || given
                .iter()
                .filter(|address| own.contains(*address))
                .all(|address| others.iter().any(|other| other.contains(address)))
    })
}

/// PURE: the condition to write, if it is not there yet.
fn condition(cidr: &ServiceCIDR, is_blocked: bool) -> Option<Value> {
    let (status, reason, message) = match is_blocked {
        true => ("False", "Terminating", TERMINATING),
        false => ("True", "", READY),
    };
    let conditions = cidr.status.as_ref().and_then(|status| status.conditions.as_ref());
    let known = conditions.into_iter().flatten().find(|one| one.type_ == "Ready");
    if known
        .is_some_and(|own| own.status == status && own.reason == reason && own.message == message)
    {
        return None;
    }
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
    Some(json!({
        "type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": now.to_string(),
    }))
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("ipaddresses", &context.queues);
    let controller = Controller {
        client: context.client.clone(),
        recorder: context.recorder(NAME),
        queue: queue.clone(),
        cidrs: context.informers.get(),
        addresses: context.informers.get(),
    };
    controller.cidrs.subscribe({
        let (queue, cidrs) = (queue.clone(), controller.cidrs.clone());
        move |event: &Event<ServiceCIDR>| {
            let cidr = event.latest();
            queue.add(key_of(&**cidr));
            // Others may be dispensable now.
            if matches!(event, Event::Added(_)) {
                let own: Vec<IpNet> = ranges(cidr).collect();
                let overlaps = |other: &ServiceCIDR| {
                    ranges(other).any(|range| {
                        own.iter().any(|own| own.contains(&range) || range.contains(own))
                    })
                };
                let others = cidrs.store().list();
                others.iter().filter(|own| overlaps(own)).for_each(|own| queue.add(key_of(&**own)));
            }
        }
    });
    controller.addresses.subscribe({
        let (queue, cidrs) = (queue.clone(), controller.cidrs.clone());
        move |event: &Event<IPAddress>| {
            if matches!(event, Event::Updated { .. }) {
                return;
            }
            let Some(address) = allocated(event.latest()) else { return };
            let all = cidrs.store().list();
            all.iter()
                .filter(|own| ranges(own).any(|range| range.contains(&address)))
                .for_each(|own| queue.add(key_of(&**own)));
        }
    });
    let synced = async {
        controller.cidrs.synced().await;
        controller.addresses.synced().await;
    };
    if !unless_stopped(&context, synced).await {
        return;
    }
    run_workers(NAME, &queue, WORKERS, &context.stop, |name| controller.sync(name)).await;
}

impl Controller {
    async fn sync(&self, name: String) -> Result<(), kube::Error> {
        let Some(cidr) = self.cidrs.store().get(&name) else { return Ok(()) };
        let finalizers = cidr.metadata.finalizers.iter().flatten();
        let is_protected = finalizers.clone().any(|own| own == FINALIZER);
        let Some(deleted) = &cidr.metadata.deletion_timestamp else {
            if !is_protected {
                self.patch(&name, json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
            }
            let reported = self.report(&name, condition(&cidr, false)).await;
            if reported.is_err() {
                let reason = "KubernetesServiceCIDRError";
                self.recorder.event(reference(&*cidr), EventType::Warning, reason, NOT_READY);
            }
            return reported;
        };
        let all = self.addresses.store().list();
        let given: Vec<IpAddr> = all.iter().filter_map(|own| allocated(own)).collect();
        if !is_dispensable(&cidr, &self.cidrs.store().list(), &given) {
            return self.report(&name, condition(&cidr, true)).await;
        }
        let since = Timestamp::now().duration_since(deleted.0);
        let left = GRACE.saturating_sub(Duration::try_from(since).unwrap_or_default());
        if !left.is_zero() {
            self.queue.add_after(name, left);
        } else if is_protected {
            let gone = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
            self.patch(&name, gone).await?;
        }
        Ok(())
    }

    async fn patch(&self, name: &str, patch: Value) -> Result<(), kube::Error> {
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let patch = Patch::Strategic(patch);
        unless_gone(api.patch(name, &PatchParams::default(), &patch).await).map(drop)
    }

    async fn report(&self, name: &str, condition: Option<Value>) -> Result<(), kube::Error> {
        let Some(condition) = condition else { return Ok(()) };
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let apply = Patch::Apply(json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": name}, "status": {"conditions": [condition]},
        }));
        let parameters = PatchParams::apply(NAME).force();
        unless_gone(api.patch_status(name, &parameters, &apply).await).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidr(name: &str, ranges: &[&str]) -> ServiceCIDR {
        let cidr = json!({"metadata": {"name": name}, "spec": {"cidrs": ranges}});
        serde_json::from_value(cidr).unwrap()
    }

    #[test]
    fn service_cidrs_are_dispensable_when_no_address_is_left_alone() {
        let own = cidr("own", &["10.0.0.0/24", "fd00::/112"]);
        let table: [(&[&str], &[&str], bool); 7] = [
            (&[], &[], true),
            (&[], &["10.0.1.1"], true),
            (&[], &["10.0.0.1"], false),
            (&[], &["fd00::1"], false),
            (&["10.0.0.0/16", "fd00::/64"], &["10.0.0.1", "fd00::1"], true),
            (&["10.0.0.0/16"], &["10.0.0.1", "fd00::1"], false),
            (&["10.0.0.0/28"], &["10.0.0.1"], true),
        ];
        for (others, given, expected) in table {
            let all = [Arc::new(own.clone()), Arc::new(cidr("other", others))];
            let given: Vec<IpAddr> = given.iter().map(|text| text.parse().unwrap()).collect();
            assert_eq!(is_dispensable(&own, &all, &given), expected, "{others:?} {given:?}");
        }
    }

    #[test]
    fn service_cidrs_are_reported_once() {
        let mut own = cidr("own", &["10.0.0.0/24"]);
        let ready = condition(&own, false).unwrap();
        assert_eq!((&ready["status"], &ready["message"]), (&json!("True"), &json!(READY)));
        own.status = serde_json::from_value(json!({"conditions": [ready]})).unwrap();
        assert_eq!(condition(&own, false), None);
        assert_eq!(condition(&own, true).unwrap()["reason"], "Terminating");
    }
}
