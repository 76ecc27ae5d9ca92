//! Watches of services, endpoint slices (endpoints where there are no slices), and the node's own
//! object. Objects are processed one by one and not kept. If one cannot be decoded, its last version
//! stays in force.
//!
//! `configSyncPeriod` has nothing to do here: a watch that misses something begins with a new list.

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Endpoints, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource};
use longshore_client::{Item, Reports};
use longshore_proxy::model::{ServiceName, Tracker};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{info, warn};

/// Objects of one answer, where the apiserver does not send a list as a stream.
const PAGE: u32 = 500;
/// Services of other proxies are ignored.
const NOT_ANOTHERS: &str = "!service.kubernetes.io/service-proxy-name";
/// Headless services have no rules.
const WITH_ADDRESS: &str = "spec.clusterIP!=None";
const NOT_HEADLESS: &str = "!service.kubernetes.io/headless";

/// An event of a list or a watch, to be applied to a tracker; returns whether there is something to
/// sync.
pub(super) type Update<'a> = &'a (dyn Fn(&mut Tracker) -> bool + Sync);

/// Receives the events of the watches.
pub(super) trait Listener: Sync {
    /// A service changed, or a list of them begins or ends.
    fn service(&self, event: Update<'_>);
    /// Endpoints changed, or a list of them begins or ends.
    fn endpoints(&self, event: Update<'_>);
}

/// Watches services until dropped; `listed` is set after the first complete list.
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
    follow(client, &config, "services", each).await;
}

/// Watches endpoints until dropped; `listed` is set after the first complete list.
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
    follow(client.clone(), &config, "endpoint slices", each).await;
    info!("the apiserver has no endpoint slices: watching endpoints instead");
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
    follow(client, &config, "endpoints", each).await;
}

/// Watches the node's own object until dropped; none while there is none.
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
                warn!(name, "the Node object was deleted");
            }
        }
    };
    follow(client, &config, "the node", each).await;
}

fn name(metadata: &ObjectMeta) -> Option<ServiceName> {
    Some(ServiceName::new(metadata.namespace.as_deref()?, metadata.name.as_deref()?))
}

/// Watches a kind of object; ends only when the apiserver does not have it.
async fn follow<K>(
    client: Client,
    config: &watcher::Config,
    what: &str,
    mut each: impl FnMut(Event<Item<K>>),
) where
    K: k8s_openapi::Resource + Resource<DynamicType = ()> + Default + DeserializeOwned,
{
    // A list as a stream is one request however long it is, and never whole in memory.
    let mut config = config.clone().streaming_lists();
    let mut streaming = true;
    loop {
        let mut events = longshore_client::watch::<K>(client.clone(), config.clone());
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
                        // Logged once for each outage.
                        if !failing {
                            warn!(%error, "cannot watch {what}, retrying");
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use longshore_client::scripted::{Scripted, bad_objects};
    use longshore_proxy::Family;
    use longshore_proxy::model::Node as ProxyNode;
    use parking_lot::{Mutex, MutexGuard};

    use super::*;

    struct One(Mutex<Tracker>);

    impl One {
        fn tracker(&self) -> MutexGuard<'_, Tracker> {
            self.0.lock()
        }

        /// The services, each with the number of its endpoints.
        fn seen(&self) -> String {
            let mut tracker = self.tracker();
            tracker.take_changes();
            let services = tracker.state().services();
            let counts = services.map(|service| {
                let endpoints = service.ports().map(|port| port.endpoints.len()).sum::<usize>();
                format!("{}={endpoints}", service.spec.name.name)
            });
            counts.collect::<Vec<_>>().join(" ")
        }
    }

    impl Listener for One {
        fn service(&self, event: Update<'_>) {
            event(&mut self.tracker());
        }

        fn endpoints(&self, event: Update<'_>) {
            event(&mut self.tracker());
        }
    }

    fn good(name: &str, labels: &str, rest: &str) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"x","uid":"{name}","resourceVersion":"6"{labels}}},{rest}}}"#
        )
    }

    /// Finding 13: one bad service or slice kept all others from their rules.
    #[tokio::test]
    async fn undecodable_service_leaves_the_others() {
        let spec = r#""spec":{"clusterIP":"10.0.0.7","ports":[{"port":1,"name":"p"}]}"#;
        let rest = r#""addressType":"IPv4","endpoints":[{"addresses":["10.1.0.1"]}],"ports":[{"name":"p","port":1}]"#;
        let label = r#","labels":{"kubernetes.io/service-name":"a"}"#;
        for streams in [false, true] {
            let mut items = bad_objects(spec);
            items.push(good("a", "", spec));
            let mut slices = bad_objects(rest);
            slices.push(good("a-1", label, rest));
            let (api, of_slices) =
                (Scripted::start(&items, streams).await, Scripted::start(&slices, streams).await);
            let started = "2026-01-01T00:00:00Z".parse().unwrap();
            let node = ProxyNode { name: "node".to_owned(), zone: None };
            let one = One(Mutex::new(Tracker::new(Family::V4, node, started)));
            let (services_listed, mut first) = watch::channel(false);
            let (slices_listed, mut second) = watch::channel(false);
            let following = async {
                tokio::join!(
                    services(api.client(), &one, services_listed),
                    endpoints(of_slices.client(), &one, slices_listed)
                );
            };
            let script = async {
                first.wait_for(|listed| *listed).await.unwrap();
                second.wait_for(|listed| *listed).await.unwrap();
                assert_eq!(one.seen(), "a=1 bad4=0 bad5=0");
                // What is known of one that becomes bad stays in force, until it is deleted.
                let bad = r#""spec":7,"endpoints":7"#;
                api.send("MODIFIED", &good("a", "", bad));
                api.send("DELETED", &good("bad4", "", bad));
                of_slices.send("MODIFIED", &good("a-1", label, bad));
                of_slices.send("ADDED", &good("a-2", label, &rest.replace("10.1.0.1", "10.1.0.2")));
                let until = async |expected: &str| {
                    while one.seen() != expected {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                until("a=2 bad5=0").await;
                of_slices.send("DELETED", &good("a-1", label, bad));
                until("a=1 bad5=0").await;
                api.send("DELETED", &good("a", "", bad));
                until("bad5=0").await;
                let (lists, watches) = if streams { (0, 1) } else { (1, 1) };
                assert_eq!(api.asked(), (lists, watches));
            };
            let script = tokio::time::timeout(Duration::from_secs(20), script);
            tokio::select! {
                () = following => unreachable!("it is followed for ever"),
                result = script => assert!(result.is_ok(), "{}", one.seen()),
            }
        }
    }
}
