//! The IPAddress objects of services: one for each address that a service has, as upstream's allocator
//! writes them. The services are the truth; the objects follow.

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::IpAddr;
use tokio_util::sync::CancellationToken;

use super::keep;
use crate::admission::services::{Allocation, MANAGED_BY, is_managed};
use crate::api_types::Resource;
use crate::cidr::family_of;
use crate::kinds::{core, known};
use crate::object;
use crate::operations::{Api, DeleteOptions};
use crate::registry::Change;
use crate::schema::value::text;
use crate::status::StatusError;
use crate::user::User;

/// Runs until `stop`.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    keep(stop, "cannot reconcile the addresses of services", || follow(api)).await;
}

fn addresses() -> Result<&'static Resource, StatusError> {
    known("networking.k8s.io", "ipaddresses")
}

/// Reconciles all services, and then each one with changes, until a change is missed.
async fn follow(api: &Api) -> Result<(), StatusError> {
    // Subscribed before the lists, so that no change in between is missed.
    let after = api.registry.store().revision().await.map_err(crate::registry::refusal)?;
    let mut services = api.registry.feeds().subscribe(core("services")?, after).await?;
    let mut objects = api.registry.feeds().subscribe(addresses()?, after).await?;
    let mut held = BTreeSet::new();
    for service in api.list_all(core("services")?, "").await? {
        held.extend(Allocation::of(&service).addresses);
        ensure(api, &service).await?;
    }
    for object in api.list_all(addresses()?, "").await? {
        let address = object::name(&object).parse::<IpAddr>();
        if is_managed(&object) && !address.is_ok_and(|address| held.contains(&address)) {
            remove(api, object::name(&object)).await?;
        }
    }
    loop {
        tokio::select! {
            change = services.next() => match change? {
                Some(change) => service_changed(api, &change).await?,
                None => return Ok(()),
            },
            change = objects.next() => match change? {
                Some(change) => object_changed(api, &change).await?,
                None => return Ok(()),
            },
        }
    }
}

async fn service_changed(api: &Api, change: &Change) -> Result<(), StatusError> {
    let of = |service: Option<&Value>| service.map(Allocation::of).unwrap_or_default().addresses;
    let current = change.current.as_ref().and_then(|stored| stored.value());
    let previous = change.previous.as_ref().and_then(|stored| stored.value());
    let has = of(current);
    for address in of(previous).difference(&has) {
        let name = address.to_string();
        // Another service may have it by now.
        let object = api.registry.find(addresses()?, "", &name).await?;
        if object.is_some_and(|object| previous.is_some_and(|service| is_of(&object, service))) {
            remove(api, &name).await?;
        }
    }
    match current {
        Some(service) => ensure(api, service).await,
        None => Ok(()),
    }
}

/// An object that goes though its service is there is made again.
async fn object_changed(api: &Api, change: &Change) -> Result<(), StatusError> {
    let gone = change.previous.as_ref().and_then(|stored| stored.value());
    let (None, Some(object)) = (&change.current, gone) else { return Ok(()) };
    let parent = &object["spec"]["parentRef"];
    if !is_managed(object) || parent["resource"] != "services" {
        return Ok(());
    }
    let (namespace, name) = (text(&parent["namespace"]), text(&parent["name"]));
    match api.registry.find(core("services")?, namespace, name).await? {
        Some(service) => ensure(api, &service).await,
        None => Ok(()),
    }
}

fn is_of(object: &Value, service: &Value) -> bool {
    let parent = &object["spec"]["parentRef"];
    is_managed(object)
        && parent["resource"] == "services"
        && parent["namespace"] == object::namespace(service)
        && parent["name"] == object::name(service)
}

async fn ensure(api: &Api, service: &Value) -> Result<(), StatusError> {
    for address in Allocation::of(service).addresses {
        let name = address.to_string();
        match api.registry.find(addresses()?, "", &name).await? {
            Some(object) if is_of(&object, service) || !is_managed(&object) => continue,
            Some(_) => remove(api, &name).await?,
            None => {}
        }
        let object = json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IPAddress",
            "metadata": {
                "name": name,
                "labels": {
                    "ipaddress.kubernetes.io/ip-family": family_of(address),
                    MANAGED_BY.0: MANAGED_BY.1,
                },
            },
            "spec": {
                "parentRef": {
                    "resource": "services",
                    "namespace": object::namespace(service),
                    "name": object::name(service),
                },
            },
        });
        api.ensure(addresses()?, object).await?;
    }
    Ok(())
}

async fn remove(api: &Api, name: &str) -> Result<(), StatusError> {
    let options = DeleteOptions::default();
    match api.delete(&User::apiserver(), addresses()?, "", name, &options).await {
        Err(error) if error.code != 404 => Err(error),
        _ => Ok(()),
    }
}
