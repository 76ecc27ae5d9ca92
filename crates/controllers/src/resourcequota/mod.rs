//! The status of resource quotas: what is used of each limit. The apiserver's admission counts what
//! is created; this corrects it, above all when something is deleted.

mod counts;
mod usage;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaSpec, ResourceQuotaStatus, Service,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use longshore_informer::{Event, Informer, Object, WorkQueue, key_of, run_workers, split_key};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::counts::Counts;
use self::usage::Objects;
use crate::Context;
use crate::workload::{Error, replace_status};
use crate::writes::{is_conflict, unless_replaced, unless_stopped};

/// After a creation, which admission has counted already.
const SETTLE: Duration = Duration::from_millis(500);

struct Controller {
    client: kube::Client,
    quotas: Informer<ResourceQuota>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    claims: Informer<PersistentVolumeClaim>,
    counts: Counts,
    /// When the status of quotas changed last.
    counted: Arc<Mutex<HashMap<String, Instant>>>,
    queue: WorkQueue<String>,
    period: Duration,
}

/// Queues the quotas of a namespace.
fn queue_namespace(
    quotas: &Informer<ResourceQuota>,
    queue: &WorkQueue<String>,
    namespace: &str,
    wait: Duration,
) {
    for quota in quotas.store().list_namespace(namespace) {
        queue.add_after(key_of(&*quota), wait);
    }
}

fn follow<K: Object>(
    objects: &Informer<K>,
    quotas: &Informer<ResourceQuota>,
    queue: &WorkQueue<String>,
    is_relevant: fn(&K, &K) -> bool,
) {
    let (quotas, queue) = (quotas.clone(), queue.clone());
    objects.subscribe(move |event: &Event<K>| {
        let wait = match event {
            Event::Updated { old, new } if !is_relevant(old, new) => return,
            Event::Added(_) => SETTLE,
            _ => Duration::ZERO,
        };
        let metadata = k8s_openapi::Metadata::metadata(&**event.latest());
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        queue_namespace(&quotas, &queue, namespace, wait);
    });
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("resourcequota_primary", &context.queues);
    let informers = &context.informers;
    let quotas = informers.get::<ResourceQuota>();
    let counted = Arc::new(Mutex::new(HashMap::new()));
    quotas.subscribe({
        let (queue, counted) = (queue.clone(), counted.clone());
        move |event: &Event<ResourceQuota>| {
            let key = key_of(&**event.latest());
            match event {
                Event::Deleted(_) => drop(counted.lock().remove(&key)),
                Event::Updated { old, new } if old.spec == new.spec => {
                    counted.lock().insert(key.clone(), Instant::now());
                    // What is used was counted by admission, or written by somebody.
                    queue.add_after(key, SETTLE.saturating_mul(4));
                }
                _ => queue.add(key),
            }
        }
    });
    let (pods, services, claims) = (informers.get(), informers.get(), informers.get());
    follow(&pods, &quotas, &queue, usage::counts_otherwise);
    follow(&services, &quotas, &queue, |old: &Service, new: &Service| old.spec != new.spec);
    follow(&claims, &quotas, &queue, |old: &PersistentVolumeClaim, new| old.spec != new.spec);
    let all = async {
        quotas.synced().await;
        pods.synced().await;
        services.synced().await;
        claims.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let changed = {
        let (quotas, queue) = (quotas.clone(), queue.clone());
        Arc::new(move |namespace: &str, is_new: bool| {
            let wait = if is_new { SETTLE } else { Duration::ZERO };
            queue_namespace(&quotas, &queue, namespace, wait);
        })
    };
    let settings = &context.settings.cluster;
    let controller = Controller {
        client: context.client.clone(),
        quotas,
        pods,
        services,
        claims,
        counts: Counts::new(context.informers.client().clone(), changed),
        counted,
        queue: queue.clone(),
        period: settings.resource_quota_period,
    };
    let workers = settings.resource_quota_workers;
    run_workers("resourcequota-controller", &queue, workers, &context.stop, |key| {
        controller.sync(key)
    })
    .await;
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(quota) = self.quotas.store().get(&key) else { return Ok(()) };
        let Some(spec) = &quota.spec else { return Ok(()) };
        let (namespace, _) = split_key(&key);
        let names = spec.hard.iter().flatten().filter_map(|(name, _)| usage::counted(name));
        for (plural, group) in names {
            if !self.counts.ensure(plural, group).await? {
                self.queue.add_after(key, Duration::from_millis(50));
                return Ok(());
            }
        }
        let used = self.used(spec, namespace);
        let old = quota.status.as_ref();
        let is_same = usage::is_same(old.and_then(|old| old.hard.as_ref()), spec.hard.as_ref())
            && usage::is_same(old.and_then(|old| old.used.as_ref()), Some(&used));
        if usage::is_less(&used, old.and_then(|old| old.used.as_ref())) && self.is_counting(&key) {
            self.queue.add_after(key, SETTLE);
            return Ok(());
        }
        self.queue.add_after(key.clone(), self.period);
        if is_same {
            return Ok(());
        }
        let mut new = (*quota).clone();
        new.status = Some(ResourceQuotaStatus { hard: spec.hard.clone(), used: Some(used) });
        match replace_status(&self.client, &new).await {
            Err(error) if is_conflict(&error) => {
                self.queue.add_after(key, Duration::from_millis(50));
                Ok(())
            }
            written => Ok(unless_replaced(written).map(drop)?),
        }
    }

    /// Whether admission has just counted something, which may not be known here yet. What is released
    /// can wait; what is forgotten would admit more than the limit.
    fn is_counting(&self, key: &str) -> bool {
        self.counted.lock().get(key).is_some_and(|at| at.elapsed() < SETTLE)
    }

    fn used(&self, spec: &ResourceQuotaSpec, namespace: &str) -> BTreeMap<String, Quantity> {
        let pods = self.pods.store().list_namespace(namespace);
        let services = self.services.store().list_namespace(namespace);
        let claims = self.claims.store().list_namespace(namespace);
        let pods: Vec<&Pod> = pods.iter().map(|pod| &**pod).collect();
        let services: Vec<&Service> = services.iter().map(|service| &**service).collect();
        let claims: Vec<&PersistentVolumeClaim> = claims.iter().map(|claim| &**claim).collect();
        let objects = Objects {
            pods: &pods,
            services: &services,
            claims: &claims,
            count: &|plural, group| self.counts.get(plural, group, namespace),
        };
        usage::used(spec, &objects, Timestamp::now())
    }
}
