//! The relist loop and the runtime's event stream.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use longshore_base::{panics, time};
use longshore_cri::v1;
use longshore_pod::labels;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::record::{Record, record};
use super::{Error, Observer};

/// The relist period.
const PERIOD: Duration = Duration::from_secs(1);
/// The period while the runtime tells of events.
const PERIOD_WITH_EVENTS: Duration = Duration::from_secs(5);
/// The node is not ready if no relist has succeeded for this long.
pub const PLEG_DEADLINE: Duration = Duration::from_secs(180);
/// How long the first relist waits for inspections.
const FIRST_INSPECTIONS: Duration = Duration::from_secs(2);
/// Delay before the event stream is opened again.
const EVENTS_RETRY: Duration = Duration::from_secs(5);

/// Relist and follow events until stopped.
pub async fn run(observer: Observer, stop: CancellationToken) {
    let events = follow_events(observer.clone());
    let relists = relist_forever(observer);
    tokio::select! {
        () = stop.cancelled() => {}
        () = events => {}
        () = relists => {}
    }
}

async fn relist_forever(observer: Observer) {
    let mut has_events = observer.shared.has_events.subscribe();
    let mut failing = false;
    loop {
        let began = Instant::now();
        let relisted = relist(&observer).await;
        observer.shared.metrics.relisted(began);
        match relisted {
            Ok(()) => failing = false,
            // A runtime that is unavailable fails each second; it is logged once.
            Err(error) if failing => debug!(%error, "relist failed again"),
            Err(error) => {
                warn!(%error, "relist failed");
                failing = true;
            }
        }
        sleep_until(time::later(began, PERIOD)).await;
        if !failing {
            let at_latest = time::later(began, PERIOD_WITH_EVENTS);
            let early = async {
                tokio::select! {
                    _ = has_events.wait_for(|has_events| !has_events) => {}
                    () = observer.shared.failed.notified() => {}
                }
            };
            let _ = timeout_at(at_latest, early).await;
        }
    }
}

/// One pod in a relist.
#[derive(Default)]
struct ListedPod {
    name: String,
    namespace: String,
    items: Vec<Listed>,
}

/// A sandbox or container in a relist.
struct Listed {
    id: String,
    state: i32,
    sandbox_id: Option<String>,
}

/// List all sandboxes and containers, and inspect those that have changed.
async fn relist(observer: &Observer) -> Result<(), Error> {
    let at = Instant::now();
    let (sandboxes, containers) = tokio::try_join!(
        observer.runtime.list_pod_sandboxes(None),
        observer.runtime.list_containers(None),
    )?;
    let mut listed: HashMap<String, ListedPod> = HashMap::new();
    let mut add = |mut labels: BTreeMap<String, String>, item| {
        // Those without pod labels are not managed by this node.
        let Some(uid) = labels.remove(labels::POD_UID) else { return };
        let pod = listed.entry(uid).or_default();
        pod.name = labels.remove(labels::POD_NAME).unwrap_or_default();
        pod.namespace = labels.remove(labels::POD_NAMESPACE).unwrap_or_default();
        pod.items.push(item);
    };
    for v1::PodSandbox { id, state, labels, .. } in sandboxes {
        add(labels, Listed { id, state, sandbox_id: None });
    }
    for v1::Container { id, pod_sandbox_id, state, labels, .. } in containers {
        add(labels, Listed { id, state, sandbox_id: Some(pod_sandbox_id) });
    }

    let mut inspections = tokio::task::JoinSet::new();
    let first = observer.shared.relisted.borrow().is_none();
    {
        let mut pods = observer.pods();
        pods.retain(|uid, known| {
            let items = listed.get(uid).into_iter().flat_map(|pod| &pod.items);
            let present: HashSet<&str> = items.map(|item| item.id.as_str()).collect();
            if known.drop_absent(&present, at) {
                known.publish(uid);
            }
            !present.is_empty() || !known.is_unused()
        });
        for (uid, pod) in listed {
            let record = record(&mut pods, &uid);
            if record.name.is_empty() {
                (record.name, record.namespace) = (pod.name, pod.namespace);
            }
            for item in pod.items {
                if record.needs_inspection(&item, at) {
                    record.add_uninspected(&uid, &item.id, at);
                    record.inspecting.insert(item.id.clone());
                    inspections.spawn(inspect(observer.clone(), uid.clone(), item));
                }
            }
        }
    }
    if first {
        // The first state is published when it is complete.
        let complete = async { while inspections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FIRST_INSPECTIONS, complete).await;
    }
    // A call that hangs delays its own pod only, which is known in part.
    inspections.detach_all();
    observer.shared.relisted.send_replace(Some(at));
    Ok(())
}

async fn inspect(observer: Observer, uid: String, item: Listed) {
    // The semaphore is never closed.
    let _permit = observer.shared.inspections.acquire().await.ok();
    // An error is logged already, and the next relist finds the difference again and retries.
    let inspected = panics::contain(async {
        let _ = match &item.sandbox_id {
            None => observer.inspect_sandbox(&uid, &item.id).await,
            Some(sandbox_id) => observer.inspect_container(&uid, &item.id, sandbox_id).await,
        };
    });
    let _ = inspected.await;
    if let Some(record) = observer.pods().get_mut(&uid) {
        record.inspection_done(&uid, &item.id);
    }
}

impl Record {
    /// Remove what a list requested at `at` does not contain. Returns whether anything was removed.
    fn drop_absent(&mut self, present: &HashSet<&str>, at: Instant) -> bool {
        let count =
            |known: &Self| known.sandboxes.len() + known.containers.len() + known.uninspected.len();
        let before = count(self);
        self.sandboxes
            .retain(|id, observation| present.contains(id.as_str()) || observation.at >= at);
        self.containers
            .retain(|id, observation| present.contains(id.as_str()) || observation.at >= at);
        self.uninspected.retain(|id, since| present.contains(id.as_str()) || *since >= at);
        // Responses to older requests are outdated by this list from now on.
        self.removed.retain(|_, removed| *removed >= at);
        self.failures.retain(|id, _| present.contains(id.as_str()));
        before != count(self)
    }

    /// Whether the pod has no sandboxes, containers or subscribers.
    fn is_unused(&self) -> bool {
        self.sandboxes.is_empty()
            && self.containers.is_empty()
            && self.published.receiver_count() == 0
    }

    /// Whether an item of a list, after [`drop_absent`](Self::drop_absent) for it, differs from the last
    /// observation and is not being inspected.
    fn needs_inspection(&self, item: &Listed, at: Instant) -> bool {
        let known = match item.sandbox_id {
            None => {
                self.sandboxes.get(&item.id).map(|observation| (observation.at, observation.listed))
            }
            Some(_) => self
                .containers
                .get(&item.id)
                .map(|observation| (observation.at, observation.listed)),
        };
        let changed = known.is_none_or(|(time, state)| state != item.state && time < at);
        let removed = self.removed.contains_key(&item.id);
        changed && !removed && !self.inspecting.contains(&item.id)
    }
}

/// Follow the runtime's container events, as hints. Never returns; a runtime without events is
/// called only once.
async fn follow_events(observer: Observer) {
    loop {
        let mut events = pin!(observer.runtime.container_events());
        let mut opened = false; // known with the first event only
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if !opened {
                        opened = true;
                        observer.shared.metrics.streams.inc();
                        observer.shared.has_events.send_replace(true);
                    }
                    observer.shared.metrics.event_received(event.created_at);
                    handle_event(&observer, event);
                }
                Err(error) if error.is_unimplemented() => {
                    debug!("the runtime has no container events, using relists only");
                    return std::future::pending().await;
                }
                Err(error) => {
                    observer.shared.metrics.stream_failures.inc();
                    debug!(%error, "container events are not available");
                }
            }
        }
        observer.shared.has_events.send_replace(false);
        tokio::time::sleep(EVENTS_RETRY).await;
    }
}

/// A stop event requires an inspection. Workers inspect the results of their own actions
/// themselves.
fn handle_event(observer: &Observer, event: v1::ContainerEventResponse) {
    if event.container_event_type() != v1::ContainerEventType::ContainerStoppedEvent {
        return;
    }
    let metadata = event.pod_sandbox_status.and_then(|status| status.metadata);
    let Some(uid) = metadata.map(|metadata| metadata.uid) else { return };
    let id = event.container_id;
    let sandbox_id = {
        let pods = observer.pods();
        let Some(record) = pods.get(&uid) else { return };
        match record.containers.get(&id) {
            // An exit is final, and may have been observed before the event.
            Some(observation) if observation.value.finished_at().is_some() => return,
            Some(observation) => Some(observation.value.sandbox_id.clone()),
            None if record.sandboxes.contains_key(&id) => None,
            None => return,
        }
    };
    let listed = Listed { id, state: 0, sandbox_id };
    tokio::spawn(inspect(observer.clone(), uid, listed));
}
