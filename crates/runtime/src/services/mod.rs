//! The services of the cluster, for the environment of containers: only their addresses and ports
//! are kept. The variables are read when a container is created.

mod variables;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::runtime::watcher::{self, Event};
use longshore_pod::spec;
use tokio::sync::watch;
use tracing::warn;

use longshore_client::Reports;
use variables::Entry;

/// Page size of lists, so that not all services of a large cluster are in memory at full size at
/// once.
const PAGE: u32 = 100;
/// How long a pod waits for the first list.
const LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// No program can be started with a larger environment: three quarters of the kernel's _STK_LIM.
const MAX_BYTES: usize = 6 << 20;
/// The service of the apiserver, whose variables all pods get.
const MASTER: (&str, &str) = ("default", "kubernetes");

/// Why the variables of services are not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Services have not been listed yet.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    NotYet,
    /// The variables of the namespace's services exceed the limit.
    #[error(
        "argument list too long: the variables of the namespace's services are longer than \
         {MAX_BYTES} bytes; set enableServiceLinks to false"
    )]
    TooMany,
}

/// Names and values of variables, in the order of their names.
pub type Variables = BTreeMap<String, String>;

/// What is known of the cluster's services. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Services {
    /// `None` on a node without an apiserver, `Some(None)` before the first list.
    known: Option<watch::Receiver<Option<Known>>>,
}

/// Services with an address, by namespace and name.
#[derive(Debug, Default)]
struct Known(BTreeMap<Box<str>, BTreeMap<Box<str>, Entry>>);

impl Services {
    /// Services of a cluster, and the task that follows them.
    pub fn follow(client: Client) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (sender, receiver) = watch::channel(None);
        (Self { known: Some(receiver) }, follow(client, sender))
    }

    /// No services, as a node knows them that has no apiserver.
    pub fn none() -> Self {
        Self { known: None }
    }

    /// The variables of a pod: those of the cluster's API, and if the pod wants links those of its
    /// namespace. A pod that comes before the first list waits a while for it; static pods do not.
    pub async fn variables(&self, pod: &Pod) -> Result<Variables, Error> {
        self.variables_within(LIST_TIMEOUT, pod).await
    }

    async fn variables_within(&self, timeout: Duration, pod: &Pod) -> Result<Variables, Error> {
        let Some(known) = &self.known else { return Ok(Variables::new()) };
        let mut known = known.clone();
        if !spec::is_static(pod) {
            let listed = tokio::time::timeout(timeout, known.wait_for(Option::is_some)).await;
            if !matches!(listed, Ok(Ok(_))) {
                return Err(Error::NotYet);
            }
        }
        let links = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
        let known = known.borrow();
        match known.as_ref() {
            Some(known) => known.variables(spec::namespace(pod), links),
            None => Ok(Variables::new()),
        }
    }
}

impl Known {
    fn set(&mut self, service: &Service) {
        let (namespace, name) = key(&service.metadata);
        let Some(entry) = Entry::of(service) else { return self.remove((namespace, name)) };
        self.0.entry(namespace.into()).or_default().insert(name.into(), entry);
    }

    /// A service whose object cannot be decoded stays as it was known.
    fn keep_last(&mut self, metadata: &ObjectMeta, known: &Self) {
        let (namespace, name) = key(metadata);
        if let Some(entry) = known.0.get(namespace).and_then(|services| services.get(name)) {
            self.0.entry(namespace.into()).or_default().insert(name.into(), entry.clone());
        }
    }

    fn remove(&mut self, (namespace, name): (&str, &str)) {
        if let Some(services) = self.0.get_mut(namespace) {
            services.remove(name);
            if services.is_empty() {
                self.0.remove(namespace);
            }
        }
    }

    fn variables(&self, namespace: &str, links: bool) -> Result<Variables, Error> {
        let mut variables = Variables::new();
        let own = self.0.get(namespace).filter(|_| links);
        // A namespace's own service of that name takes the place of the cluster's.
        let hidden = own.is_some_and(|services| services.contains_key(MASTER.1));
        if !hidden && let Some(master) = self.0.get(MASTER.0).and_then(|all| all.get(MASTER.1)) {
            master.add_to(MASTER.1, &mut variables);
        }
        let mut bytes = 0;
        for (name, entry) in own.into_iter().flatten() {
            bytes += entry.min_bytes(name);
            if bytes > MAX_BYTES {
                return Err(Error::TooMany);
            }
            entry.add_to(name, &mut variables);
        }
        Ok(variables)
    }
}

fn key(metadata: &ObjectMeta) -> (&str, &str) {
    (
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default(),
    )
}

async fn follow(client: Client, known: watch::Sender<Option<Known>>) {
    let config = watcher::Config::default().page_size(PAGE);
    let mut events = longshore_client::watch::<Service>(client, config);
    let mut reports = Reports::default();
    let mut listed = Known::default();
    let mut failing = false;
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listed = Known::default(),
            Ok(Event::InitApply(item)) => match item.read() {
                Ok(service) => listed.set(&service),
                Err(unreadable) => {
                    reports.log(&unreadable);
                    if let Some(known) = known.borrow().as_ref() {
                        listed.keep_last(&unreadable.metadata, known);
                    }
                }
            },
            Ok(Event::InitDone) => {
                let listed = std::mem::take(&mut listed);
                known.send_replace(Some(listed));
            }
            Ok(Event::Apply(item)) => match item.read() {
                Ok(service) => {
                    known.send_modify(|known| known.get_or_insert_default().set(&service));
                }
                // It stays as it is known.
                Err(unreadable) => {
                    reports.log(&unreadable);
                }
            },
            Ok(Event::Delete(item)) => {
                let service = item.known();
                known.send_modify(|known| {
                    known.get_or_insert_default().remove(key(&service.metadata));
                });
            }
            Err(error) => {
                // Logged once for each outage.
                if !std::mem::replace(&mut failing, true) {
                    warn!(%error, "cannot watch services, will retry");
                }
                continue;
            }
        }
        failing = false;
    }
}

#[cfg(test)]
mod tests;
