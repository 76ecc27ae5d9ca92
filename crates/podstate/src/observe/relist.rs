//! The relist loop and the runtime's event stream.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures::StreamExt;
use longshore_base::panics;
use longshore_cri::v1;
use longshore_pod::labels;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::record::{Record, record};
use super::{Error, Observer};

/// How often everything is listed.
const PERIOD: Duration = Duration::from_secs(1);
/// A node whose runtime has answered no relist for this long is not ready.
pub const PLEG_DEADLINE: Duration = Duration::from_secs(180);
/// How long the first relist waits for looks.
const FIRST_LOOKS: Duration = Duration::from_secs(2);
/// Pause before the event stream is opened again.
const EVENTS_RETRY: Duration = Duration::from_secs(5);

/// Relist and follow events until told to stop.
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
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let began = Instant::now();
        let relisted = relist(&observer).await;
        observer.shared.metrics.relisted(began);
        match relisted {
            Ok(()) => failing = false,
            // A runtime that is away fails each second; saying so once is enough.
            Err(error) if failing => debug!(%error, "relist failed again"),
            Err(error) => {
                warn!(%error, "relist failed");
                failing = true;
            }
        }
    }
}

/// What a relist shows of one pod.
#[derive(Default)]
struct ListedPod {
    name: String,
    namespace: String,
    items: Vec<Listed>,
}

/// One thing that a relist shows.
struct Listed {
    id: String,
    state: i32,
    sandbox_id: Option<String>,
}

/// List all sandboxes and containers, and look closely at those that have changed.
async fn relist(observer: &Observer) -> Result<(), Error> {
    let at = Instant::now();
    let (sandboxes, containers) = tokio::try_join!(
        observer.runtime.list_pod_sandboxes(None),
        observer.runtime.list_containers(None),
    )?;
    let mut listed: HashMap<String, ListedPod> = HashMap::new();
    let mut add = |mut labels: BTreeMap<String, String>, item| {
        // What bears no pod's labels is not ours.
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

    let mut looks = tokio::task::JoinSet::new();
    let first = observer.shared.relisted.borrow().is_none();
    {
        let mut pods = observer.pods();
        pods.retain(|uid, known| {
            let items = listed.get(uid).into_iter().flat_map(|pod| &pod.items);
            let present: HashSet<&str> = items.map(|item| item.id.as_str()).collect();
            if known.drop_absent(&present, at) {
                known.publish(uid);
            }
            !present.is_empty() || !known.is_forgotten()
        });
        for (uid, pod) in listed {
            let record = record(&mut pods, &uid);
            if record.name.is_empty() {
                (record.name, record.namespace) = (pod.name, pod.namespace);
            }
            for item in pod.items {
                if record.wants_look(&item, at) {
                    record.note(&uid, &item.id, at);
                    record.looking.insert(item.id.clone());
                    looks.spawn(look(observer.clone(), uid.clone(), item));
                }
            }
        }
    }
    if first {
        // The first picture is shown when it is complete, so that nobody waits for the rest of it.
        let complete = async { while looks.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(FIRST_LOOKS, complete).await;
    }
    // One that hangs holds up its pod, which is known in part alone, and nothing else.
    looks.detach_all();
    observer.shared.relisted.send_replace(Some(at));
    Ok(())
}

async fn look(observer: Observer, uid: String, item: Listed) {
    // The semaphore is never closed.
    let _turn = observer.shared.looks.acquire().await.ok();
    // One that fails has said so, and the next relist finds the same difference and tries again.
    let looked = panics::contain(async {
        let _ = match &item.sandbox_id {
            None => observer.look_at_sandbox(&uid, &item.id).await,
            Some(sandbox_id) => observer.look_at_container(&uid, &item.id, sandbox_id).await,
        };
    });
    let _ = looked.await;
    if let Some(record) = observer.pods().get_mut(&uid) {
        record.looked(&uid, &item.id);
    }
}

impl Record {
    /// Forget what a list asked for at `at` does not show any more. Tells whether anything went.
    fn drop_absent(&mut self, present: &HashSet<&str>, at: Instant) -> bool {
        let count =
            |known: &Self| known.sandboxes.len() + known.containers.len() + known.unseen.len();
        let before = count(self);
        self.sandboxes.retain(|id, seen| present.contains(id.as_str()) || seen.at >= at);
        self.containers.retain(|id, seen| present.contains(id.as_str()) || seen.at >= at);
        self.unseen.retain(|id, since| present.contains(id.as_str()) || *since >= at);
        self.failures.retain(|id, _| present.contains(id.as_str()));
        before != count(self)
    }

    /// Whether nothing is left of the pod, and nobody asks for it.
    fn is_forgotten(&self) -> bool {
        self.sandboxes.is_empty()
            && self.containers.is_empty()
            && self.published.receiver_count() == 0
    }

    /// Whether a listed thing differs from what is known, and nobody is looking already.
    fn wants_look(&self, item: &Listed, at: Instant) -> bool {
        let known = match item.sandbox_id {
            None => self.sandboxes.get(&item.id).map(|seen| (seen.at, seen.listed)),
            Some(_) => self.containers.get(&item.id).map(|seen| (seen.at, seen.listed)),
        };
        let changed = known.is_none_or(|(seen, state)| state != item.state && seen < at);
        changed && !self.looking.contains(&item.id)
    }
}

/// Follow the runtime's container events, as hints. Never returns; a runtime without them is asked
/// only once.
async fn follow_events(observer: Observer) {
    loop {
        let mut events = pin!(observer.runtime.container_events());
        let mut opened = false; // shows with the first event alone
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    if !opened {
                        opened = true;
                        observer.shared.metrics.streams.inc();
                    }
                    observer.shared.metrics.heard(event.created_at);
                    hint(&observer, event);
                }
                Err(error) if error.is_unimplemented() => {
                    debug!("the runtime has no container events, relists alone have to do");
                    return std::future::pending().await;
                }
                Err(error) => {
                    observer.shared.metrics.stream_failures.inc();
                    debug!(%error, "container events are not to be had");
                }
            }
        }
        tokio::time::sleep(EVENTS_RETRY).await;
    }
}

/// An end that the runtime tells of calls for a look. What a worker did itself, it looks at itself.
fn hint(observer: &Observer, event: v1::ContainerEventResponse) {
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
            // What has ended stays so, and the kernel may have told first.
            Some(seen) if seen.value.finished_at().is_some() => return,
            Some(seen) => Some(seen.value.sandbox_id.clone()),
            None if record.sandboxes.contains_key(&id) => None,
            None => return,
        }
    };
    let listed = Listed { id, state: 0, sandbox_id };
    tokio::spawn(look(observer.clone(), uid, listed));
}
