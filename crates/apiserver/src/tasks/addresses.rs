//! Repairs the IPAddress objects of services, as upstream's `ipallocator-repair-controller` does: an
//! address that a service has and that has no object gets one; an object for a service that does not
//! have the address goes, once no write for which it was made can be under way any more.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::events::Recorder;
use super::keep;
use crate::admission::services::{Allocation, Holder, address_of, is_managed};
use crate::api_types::Resource;
use crate::cidr::family_of;
use crate::kinds::{core, known};
use crate::object;
use crate::operations::{Api, DeleteOptions};
use crate::registry::{Change, refusal};
use crate::schema::value::text;
use crate::status::StatusError;
use crate::user::User;

/// How long an object may be there before its service is.
const GRACE: Duration = Duration::from_secs(60);
/// How often objects without their service are looked at.
const CHECK: Duration = Duration::from_secs(5);

const CONTROLLER: &str = "ipallocator-repair-controller";
const SERVICE_ACTION: &str = "ClusterIPAllocation";
const OBJECT_ACTION: &str = "IPAddressAllocation";

/// Runs until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    let repair = Repair::new();
    keep(stop, "cannot repair the addresses of services", || repair.follow(api)).await;
}

/// Makes the objects that services lack, before any address is given out.
pub(crate) async fn load(api: &Api) -> Result<(), StatusError> {
    let repair = Repair::new();
    for service in api.list_all(core("services")?, "").await? {
        repair.service(api, &service).await?;
    }
    Ok(())
}

fn addresses() -> Result<&'static Resource, StatusError> {
    known("networking.k8s.io", "ipaddresses")
}

/// Names of objects whose service may be under way, or gone, and whether that was so before.
type Open = BTreeMap<String, bool>;

struct Repair {
    recorder: Recorder,
}

impl Repair {
    fn new() -> Repair {
        Repair { recorder: Recorder::new(CONTROLLER) }
    }

    /// Looks at all services and objects, and then at each one that changes, until a change is missed.
    async fn follow(&self, api: &Api) -> Result<(), StatusError> {
        // Subscribed before the lists, so that no change in between is missed.
        let after = api.registry.store().revision().await.map_err(refusal)?;
        let mut services = api.registry.feeds().subscribe(core("services")?, after).await?;
        let mut objects = api.registry.feeds().subscribe(addresses()?, after).await?;
        let mut held = HashMap::new();
        for service in api.list_all(core("services")?, "").await? {
            let name = (object::namespace(&service).into(), object::name(&service).into());
            for address in Allocation::of(&service).addresses {
                held.insert(address.to_string(), Some(name.clone()));
            }
            self.service(api, &service).await?;
        }
        let mut open = Open::new();
        for object in api.list_all(addresses()?, "").await? {
            let name = object::name(&object);
            if is_managed(&object) && held.get(name) != Some(&Holder::of(&object).service) {
                open.insert(name.to_owned(), false);
            }
        }
        let mut ticks = interval(CHECK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = services.next() => match change? {
                    Some(change) => self.service_changed(api, &change, &mut open).await?,
                    None => return Ok(()),
                },
                change = objects.next() => match change? {
                    Some(change) => self.object_changed(api, &change, &mut open).await?,
                    None => return Ok(()),
                },
                _ = ticks.tick(), if !open.is_empty() => {
                    for (name, was_seen) in std::mem::take(&mut open) {
                        if !self.object(api, &name, was_seen, Timestamp::now()).await? {
                            open.insert(name, true);
                        }
                    }
                }
            }
        }
    }

    async fn service_changed(
        &self,
        api: &Api,
        change: &Change,
        open: &mut Open,
    ) -> Result<(), StatusError> {
        let of =
            |service: Option<&Value>| service.map(Allocation::of).unwrap_or_default().addresses;
        let current = change.current.as_ref().and_then(|stored| stored.value());
        let previous = change.previous.as_ref().and_then(|stored| stored.value());
        let has = of(current);
        open.extend(of(previous).difference(&has).map(|address| (address.to_string(), false)));
        let Some(service) = current else { return Ok(()) };
        self.service(api, service).await?;
        let (namespace, name) = (object::namespace(service), object::name(service));
        for address in has {
            if api.services.holder(address).is_some_and(|holder| holder.is_for(namespace, name)) {
                open.remove(&address.to_string());
            }
        }
        Ok(())
    }

    async fn object_changed(
        &self,
        api: &Api,
        change: &Change,
        open: &mut Open,
    ) -> Result<(), StatusError> {
        let value = |stored: &crate::registry::Stored| stored.value().cloned();
        if let Some(object) = change.current.as_ref().and_then(value) {
            open.insert(object::name(&object).to_owned(), false);
            return Ok(());
        }
        // One that goes though its service is there is made again.
        let Some(gone) = change.previous.as_ref().and_then(value) else { return Ok(()) };
        let Some((namespace, name)) = Holder::of(&gone).service else { return Ok(()) };
        match api.registry.find(core("services")?, &namespace, &name).await {
            // The store is asked, not what the allocator knows: it may not have heard of this change yet.
            Ok(Some(service)) => match object::name(&gone).parse() {
                Ok(address) if Allocation::of(&service).addresses.contains(&address) => {
                    self.address(api, &service, address).await
                }
                _ => Ok(()),
            },
            Ok(None) => Ok(()),
            // A user may have written anything there.
            Err(error) if error.code < 500 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Sees to it that each address of a service has its object.
    async fn service(&self, api: &Api, service: &Value) -> Result<(), StatusError> {
        let (namespace, name) = (object::namespace(service), object::name(service));
        for address in Allocation::of(service).addresses {
            let known = api.services.holder(address);
            if known.is_some_and(|holder| holder.is_for(namespace, name) && holder.has_labels) {
                continue;
            }
            self.address(api, service, address).await?;
        }
        Ok(())
    }

    /// What is known of this address is wrong, or of the past.
    async fn address(
        &self,
        api: &Api,
        service: &Value,
        address: IpAddr,
    ) -> Result<(), StatusError> {
        let (namespace, name) = (object::namespace(service), object::name(service));
        let found = api.registry.find(addresses()?, "", &address.to_string()).await?;
        // Read after that: the service may have lost it, and then the object has gone.
        let now = api.registry.find(core("services")?, namespace, name).await?;
        let now = now.filter(|now| Allocation::of(now).addresses.contains(&address));
        let Some(service) = now else { return Ok(()) };
        let family = family_of(address);
        let warn = async |reason: &str, note: String| {
            self.recorder.warn(api, &service, reason, SERVICE_ACTION, note).await;
        };
        if !api.services.is_in_range(address) {
            warn("ClusterIPOutOfRange", format!(
                "Cluster IP [{family}]: {address} is not within any configured Service CIDR; please recreate service"
            )).await;
            return Ok(());
        }
        let Some(object) = found else {
            warn(
                "ClusterIPNotAllocated",
                format!("Cluster IP [{family}]: {address} is not allocated; repairing"),
            )
            .await;
            return api.ensure(addresses()?, address_of(address, namespace, name)).await;
        };
        let holder = Holder::of(&object);
        if holder.is_for(namespace, name) && holder.has_labels {
            return Ok(());
        }
        if !holder.is_for(namespace, name) {
            let other = match &holder.service {
                Some((namespace, name)) => {
                    api.registry.find(core("services")?, namespace, name).await?
                }
                None => None,
            };
            if other.is_some_and(|other| Allocation::of(&other).addresses.contains(&address)) {
                warn("ClusterIPAlreadyAllocated", format!(
                    "Cluster IP [{family}]:{address} was assigned to multiple services; please recreate service"
                )).await;
                return Ok(());
            }
            warn("ClusterIPNotAllocated", format!(
                "the ClusterIP [{family}]: {address} for Service {namespace}/{name} has a wrong reference; repairing"
            )).await;
        }
        remove(api, &object).await?;
        api.ensure(addresses()?, address_of(address, namespace, name)).await
    }

    /// Sees to it that an object belongs to a service. `false`: it is to be looked at again.
    async fn object(
        &self,
        api: &Api,
        name: &str,
        was_seen: bool,
        now: Timestamp,
    ) -> Result<bool, StatusError> {
        let Some(object) = api.registry.find(addresses()?, "", name).await? else {
            return Ok(true);
        };
        if !is_managed(&object) {
            return Ok(true);
        }
        let warn = async |reason: &str, note: String| {
            self.recorder.warn(api, &object, reason, OBJECT_ACTION, note).await;
        };
        let Some((namespace, service)) = Holder::of(&object).service else {
            let parent = &object["spec"]["parentRef"];
            warn("IPAddressNotAllocated", format!(
                "IPAddress {name} appears to have been modified, not referencing a Service {parent}: cleaning up"
            )).await;
            remove(api, &object).await?;
            return Ok(true);
        };
        let found = api.registry.find(core("services")?, &namespace, &service).await?;
        let has = |service: &Value| {
            name.parse().is_ok_and(|address| Allocation::of(service).addresses.contains(&address))
        };
        if found.as_ref().is_some_and(has) {
            return Ok(true);
        }
        // Who changed the service is about to remove it.
        if !was_seen || !is_older(&object, GRACE, now) {
            return Ok(false);
        }
        match found {
            None => warn("IPAddressNotAllocated", format!(
                "IPAddress: {name} for Service {namespace}/{service} appears to have leaked: cleaning up"
            )).await,
            Some(_) => warn("IPAddressWrongReference", format!(
                "IPAddress: {name} for Service {namespace}/{service} has a wrong reference; cleaning up"
            )).await,
        }
        remove(api, &object).await?;
        Ok(true)
    }
}

fn is_older(object: &Value, age: Duration, now: Timestamp) -> bool {
    let made: Option<Timestamp> = text(&object["metadata"]["creationTimestamp"]).parse().ok();
    // One without a time is old.
    made.and_then(|made| made.checked_add(age).ok()).is_none_or(|end| end <= now)
}

/// Removes an object unless it has changed.
async fn remove(api: &Api, object: &Value) -> Result<(), StatusError> {
    let options = DeleteOptions {
        resource_version: Some(object::resource_version(object).to_owned()),
        ..DeleteOptions::default()
    };
    let removed =
        api.delete(&User::apiserver(), addresses()?, "", object::name(object), &options).await;
    match removed {
        Err(error) if error.code != 404 && error.code != 409 => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn service_addresses_without_service_are_kept_for_a_while() {
        let object = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}});
        for (now, expected) in [
            ("2026-01-01T00:00:59Z", false),
            ("2026-01-01T00:01:00Z", true),
            ("2025-01-01T00:00:00Z", false),
        ] {
            assert_eq!(is_older(&object, GRACE, now.parse().unwrap()), expected, "{now}");
        }
        assert!(is_older(&json!({}), GRACE, Timestamp::UNIX_EPOCH));
    }
}
