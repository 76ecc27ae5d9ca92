//! What the apiserver has, told as it changes: services, slices of their endpoints (endpoints where
//! there are no slices), and the node's own object. Objects are looked at one by one and not kept.
//! Of one that cannot be decoded, what was known before stays in force.
//!
//! `configSyncPeriod` has nothing to do here: a watch that misses something begins with a new list.

use std::fmt::Debug;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use longshore_proxy::model::{ServiceName, Tracker};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::client::{Item, Reports};

/// Objects of one answer, where the apiserver does not send a list as a stream.
const PAGE: u32 = 500;
/// Services that somebody else serves are not ours.
const NOT_ANOTHERS: &str = "!service.kubernetes.io/service-proxy-name";
/// Headless services have no rules.
const WITH_ADDRESS: &str = "spec.clusterIP!=None";
const NOT_HEADLESS: &str = "!service.kubernetes.io/headless";

/// An event of a list or a watch, for one tracker; the answer is whether there is something to do.
pub(super) type Tell<'a> = &'a (dyn Fn(&mut Tracker) -> bool + Sync);

/// What the watches of services are told to.
pub(super) trait Listener: Sync {
    /// A service changed, or a list of them begins or ends.
    fn service(&self, event: Tell<'_>);
    /// Endpoints changed, or a list of them begins or ends.
    fn endpoints(&self, event: Tell<'_>);
}

/// Tells of services until dropped; `listed` is set when all are told for the first time.
pub(super) async fn services(client: Client, to: &dyn Listener, listed: watch::Sender<bool>) {
    let config = watcher::Config::default().labels(NOT_ANOTHERS).fields(WITH_ADDRESS);
    let mut reports = Reports::default();
    let each = |event: Event<Item<Service>>| match event {
        Event::Init => to.service(&|tracker| {
            tracker.begin_list_services();
            false
        }),
        Event::InitApply(it) | Event::Apply(it) => match it.read() {
            Ok(it) => to.service(&|tracker| tracker.apply_service(&it)),
            Err(bad) => {
                reports.log(&bad);
                if let Some(name) = name(&bad.metadata) {
                    to.service(&|tracker| tracker.keep_service(&name));
                }
            }
        },
        Event::InitDone => {
            to.service(&Tracker::end_list_services);
            listed.send_replace(true);
        }
        Event::Delete(it) => {
            if let Some(name) = name(it.meta()) {
                to.service(&|tracker| tracker.delete_service(&name));
            }
        }
    };
    follow(Api::all(client), &config, "services", each).await;
}

/// Tells of endpoints until dropped; `listed` is set when all are told for the first time.
pub(super) async fn endpoints(client: Client, to: &dyn Listener, listed: watch::Sender<bool>) {
    let begin = || {
        to.endpoints(&|tracker| {
            tracker.begin_list_slices();
            false
        });
    };
    let end = || {
        to.endpoints(&Tracker::end_list_slices);
        listed.send_replace(true);
    };
    let config = watcher::Config::default().labels(&format!("{NOT_HEADLESS},{NOT_ANOTHERS}"));
    let mut reports = Reports::default();
    let each = |event: Event<Item<EndpointSlice>>| match event {
        Event::Init => begin(),
        Event::InitApply(it) | Event::Apply(it) => match it.read() {
            Ok(it) => to.endpoints(&|tracker| tracker.apply_slice(&it)),
            Err(bad) => {
                reports.log(&bad);
                if let Some(name) = name(&bad.metadata) {
                    to.endpoints(&|tracker| tracker.keep_slice(&name));
                }
            }
        },
        Event::InitDone => end(),
        Event::Delete(it) => {
            let it = it.known();
            to.endpoints(&|tracker| tracker.delete_slice(&it));
        }
    };
    follow(Api::all(client.clone()), &config, "endpoint slices", each).await;
    info!("the apiserver has no endpoint slices: endpoints are followed in their place");
    let mut reports = Reports::default();
    let each = |event: Event<Item<Endpoints>>| match event {
        Event::Init => begin(),
        Event::InitApply(it) | Event::Apply(it) => match it.read() {
            Ok(it) => to.endpoints(&|tracker| tracker.apply_endpoints(&it)),
            Err(bad) => {
                reports.log(&bad);
                if let Some(name) = name(&bad.metadata) {
                    to.endpoints(&|tracker| tracker.keep_endpoints(&name));
                }
            }
        },
        Event::InitDone => end(),
        Event::Delete(it) => {
            if let Some(name) = name(it.meta()) {
                to.endpoints(&|tracker| tracker.delete_endpoints(&name));
            }
        }
    };
    follow(Api::all(client), &config, "endpoints", each).await;
}

/// Tells of the node's own object until dropped; none while there is none.
pub(super) async fn node(client: Client, name: &str, known: watch::Sender<Option<Node>>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut listed = false;
    let mut reports = Reports::default();
    let each = |event: Event<Item<Node>>| match event {
        Event::Init => listed = false,
        Event::InitApply(it) | Event::Apply(it) => {
            listed = true;
            match it.read() {
                Ok(node) => {
                    known.send_replace(Some(node));
                }
                Err(bad) => {
                    reports.log(&bad);
                }
            }
        }
        Event::InitDone if listed => {}
        Event::InitDone | Event::Delete(_) => {
            if known.send_replace(None).is_some() {
                warn!(name, "the node's object is gone");
            }
        }
    };
    follow(Api::all(client), &config, "the node", each).await;
}

fn name(metadata: &ObjectMeta) -> Option<ServiceName> {
    Some(ServiceName::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?))
}

/// Tells of each event; ends only when the apiserver has no such kind of object.
async fn follow<K>(
    api: Api<Item<K>>,
    config: &watcher::Config,
    what: &str,
    mut each: impl FnMut(Event<Item<K>>),
) where
    K: k8s_openapi::Resource + Resource + Clone + Debug + Default + DeserializeOwned + Send + 'static,
{
    // A list as a stream is one request however long it is, and never whole in memory.
    let mut config = config.clone().streaming_lists();
    let mut streaming = true;
    loop {
        let mut events = watcher(api.clone(), config.clone()).default_backoff().boxed();
        let mut failing = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    failing = false;
                    each(event);
                }
                Err(error) => match refusal(&error) {
                    Some(404) => return,
                    // Older apiservers do not know it, or have it switched off.
                    Some(400 | 422) if streaming => break,
                    _ => {
                        // Told once for each outage.
                        if !failing {
                            warn!(%error, "{what} cannot be watched, trying again");
                        }
                        failing = true;
                    }
                },
            }
        }
        streaming = false;
        config.initial_list_strategy = watcher::InitialListStrategy::ListWatch;
        config = config.page_size(PAGE);
    }
}

/// The status of an answer that refuses to list or watch.
fn refusal(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}
