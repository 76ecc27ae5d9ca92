//! Makes the ResourceClaims that pods have templates for, and releases claims that no pod uses any
//! more.

mod plan;

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt::{Display, Formatter};

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::{
    ResourceClaim, ResourceClaimConsumerReference, ResourceClaimTemplate,
};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use longshore_client::Item;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{
    Event, Informer, Store, WorkQueue, key_of, object_key, run_workers, split_key,
};
use serde_json::json;

use self::plan::{Reference, reference, references};
use crate::Context;
use crate::pods::{api_of, node_of};
use crate::workload::{Error, api, create, name_of, namespace_of, replace, replace_status, uid_of};
use crate::writes::{reference as about, unless_gone, unless_replaced, unless_stopped};
use longshore_metrics::{Counter, Family};

/// The index of pods by the claims that they have, of claims by the UID of the pod that they were made
/// for, and of pods by the templates of claims that they want.
pub(crate) const BY_CLAIM: &str = "resource claim";
const BY_OWNER: &str = "owner";
const BY_TEMPLATE: &str = "resource claim template";

/// What is synced.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Pod(String),
    Claim(String),
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Pod(key) => write!(f, "pod:{key}"),
            Key::Claim(key) => write!(f, "claim:{key}"),
        }
    }
}

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    claims: Informer<ResourceClaim>,
    templates: Informer<ResourceClaimTemplate>,
    recorder: Recorder,
    /// Names of claims that were made and that the store may not have yet, by UID of the pod and the
    /// pod's name for them.
    made: Mutex<HashMap<String, HashMap<String, String>>>,
    /// By `success` or `failure`, and whether access is for administrators.
    creates: Family<Counter, 2>,
}

/// The keys of the claims that a pod has.
pub(crate) fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    plan::names(pod).map(|name| object_key(namespace_of(pod), name))
}

/// Keeps pods by the keys of their claims.
pub(crate) fn index_by_claim(pods: &Store<Pod>) {
    pods.add_index(BY_CLAIM, |pod| claims_of(pod).collect());
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<Key> = WorkQueue::new("resource_claim", &context.queues);
    let controller = Controller {
        client: context.client.clone(),
        pods: context.informers.get(),
        claims: context.informers.get(),
        templates: context.informers.get(),
        recorder: context.recorder("resource_claim"),
        made: Mutex::default(),
        creates: context.metrics.claim_creates.clone(),
    };
    context.metrics.device_claims.set({
        let claims = controller.claims.clone();
        move |text| plan::count(text, &claims.store().list())
    });
    index_by_claim(controller.pods.store());
    controller.pods.store().add_index(BY_TEMPLATE, |pod| {
        let wanted = references(pod).iter().filter_map(|claim| match reference(pod, claim) {
            Reference::Wanted(template) => Some(object_key(namespace_of(pod), template)),
            Reference::Named { .. } | Reference::Unneeded => None,
        });
        wanted.collect()
    });
    controller.claims.store().add_index(BY_OWNER, |claim| {
        plan::owner(claim).map(|(_, uid)| uid.to_owned()).into_iter().collect()
    });
    controller.subscribe(&queue);
    let all = async {
        controller.pods.synced().await;
        controller.claims.synced().await;
        controller.templates.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let workers = context.settings.cluster.resource_claim_workers;
    run_workers("resourceclaim-controller", &queue, workers, &context.stop, |key| {
        controller.sync(key)
    })
    .await;
}

impl Controller {
    fn subscribe(&self, queue: &WorkQueue<Key>) {
        self.pods.subscribe({
            let (queue, claims) = (queue.clone(), self.claims.clone());
            move |event: &Event<Pod>| {
                let pod = event.latest();
                if references(pod).is_empty() && plan::names(pod).next().is_none() {
                    return;
                }
                if matches!(event, Event::Deleted(_)) || plan::is_done(pod) {
                    let own = claims.store().by_index(BY_OWNER, uid_of(&**pod));
                    own.iter().for_each(|claim| queue.add(Key::Claim(key_of(&**claim))));
                    for name in plan::names(pod) {
                        queue.add(Key::Claim(object_key(namespace_of(&**pod), name)));
                    }
                }
                queue.add(Key::Pod(key_of(&**pod)));
            }
        });
        self.claims.subscribe({
            let (queue, pods) = (queue.clone(), self.pods.clone());
            move |event: &Event<ResourceClaim>| {
                let key = key_of(&**event.latest());
                // A pod may have to be reserved for, or its claim be made again.
                let users = pods.store().by_index(BY_CLAIM, &key);
                users.iter().for_each(|pod| queue.add(Key::Pod(key_of(&**pod))));
                queue.add(Key::Claim(key));
            }
        });
        self.templates.subscribe({
            let (queue, pods) = (queue.clone(), self.pods.clone());
            move |event: &Event<ResourceClaimTemplate>| {
                if let Event::Added(template) = event {
                    let waiting = pods.store().by_index(BY_TEMPLATE, &key_of(&**template));
                    waiting.iter().for_each(|pod| queue.add(Key::Pod(key_of(&**pod))));
                }
            }
        });
    }

    async fn sync(&self, key: Key) -> Result<(), Error> {
        match key {
            Key::Pod(key) => self.sync_pod(&key).await,
            Key::Claim(key) => self.sync_claim(&key).await,
        }
    }

    fn made(&self) -> MutexGuard<'_, HashMap<String, HashMap<String, String>>> {
        self.made.lock()
    }

    async fn sync_pod(&self, key: &str) -> Result<(), Error> {
        let Some(pod) = self.pods.store().get(key) else {
            let live: Vec<_> = self.pods.store().list_namespace(split_key(key).0);
            let is_live = |uid: &str| live.iter().any(|pod| uid_of(&**pod) == uid);
            self.made().retain(|uid, _| is_live(uid));
            return Ok(());
        };
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let mut named = Vec::new();
        for claim in references(&pod) {
            match self.ensure(&pod, claim).await {
                Ok(None) => {}
                Ok(Some(name)) => named.push((claim.name.clone(), name)),
                Err(error) => {
                    let why = format!("PodResourceClaim {}: {error}", claim.name);
                    let reason = "FailedResourceClaimCreation";
                    self.recorder.event(about(&*pod), EventType::Warning, reason, &why);
                    return Err(Error::Invalid(format!("pod {key}, {why}")));
                }
            }
        }
        if !named.is_empty() {
            self.report(&pod, &named).await?;
        }
        if node_of(&pod).is_empty() {
            // The scheduler reserves.
            return Ok(());
        }
        for name in plan::names(&pod) {
            let claim = self.claims.store().get_named(namespace_of(&*pod), name);
            if let Some(new) = claim.and_then(|claim| plan::reserved(&claim, &pod)) {
                self.claims.observe(replace_status(&self.client, &new).await?);
            }
        }
        Ok(())
    }

    /// The name of a claim that the pod's status does not have yet.
    async fn ensure(&self, pod: &Pod, wanted: &PodResourceClaim) -> Result<Option<String>, Error> {
        let namespace = namespace_of(pod);
        match reference(pod, wanted) {
            Reference::Unneeded | Reference::Named { made: false, .. } => return Ok(None),
            Reference::Named { name, made: true } => {
                if let Some(claim) = self.find(namespace, name).await?
                    && plan::is_for(&claim, pod, &wanted.name)
                {
                    return Ok(None);
                }
            }
            Reference::Wanted(_) => {}
        }
        let own = self.claims.store().by_index(BY_OWNER, uid_of(pod));
        if let Some(claim) = own.iter().find(|claim| plan::is_for(claim, pod, &wanted.name)) {
            return Ok(Some(name_of(&**claim).to_owned()));
        }
        let known = self.made().get(uid_of(pod)).and_then(|own| own.get(&wanted.name)).cloned();
        if let Some(name) = known
            && self.find(namespace, &name).await?.is_some()
        {
            return Ok(Some(name));
        }
        let template = wanted.resource_claim_template_name.as_deref().unwrap_or_default();
        let found = self.templates.store().get_named(namespace, template).ok_or_else(|| {
            let why = format!(
                "resource claim template {template:?}: resourceclaimtemplate.resource.k8s.io {template:?} not found"
            );
            Error::Invalid(why)
        })?;
        let new = plan::new_claim(pod, &wanted.name, &found);
        let made = create(&self.client, &new).await;
        let status = if made.is_ok() { "success" } else { "failure" };
        self.creates.with([status, plan::has_admin_access(&new)]).inc();
        let made = made.map_err(|error| {
            Error::Invalid(format!("create ResourceClaim : {}", Error::from(error)))
        })?;
        let name = name_of(&made).to_owned();
        let mut known = self.made();
        known.entry(uid_of(pod).to_owned()).or_default().insert(wanted.name.clone(), name.clone());
        Ok(Some(name))
    }

    /// The claim of that name, if only the apiserver knows it yet.
    async fn find(&self, namespace: &str, name: &str) -> Result<Option<ResourceClaim>, Error> {
        if let Some(claim) = self.claims.store().get_named(namespace, name) {
            return Ok(Some((*claim).clone()));
        }
        let api: Api<Item<ResourceClaim>> = api(&self.client, namespace);
        Ok(api.get_opt(name).await?.map(Item::known))
    }

    /// Writes the names of claims into the pod's status.
    async fn report(&self, pod: &Pod, named: &[(String, String)]) -> Result<(), Error> {
        let statuses: Vec<_> = named
            .iter()
            .map(|(name, claim)| json!({"name": name, "resourceClaimName": claim}))
            .collect();
        let patch = Patch::Strategic(json!({
            "metadata": {"uid": pod.metadata.uid},
            "status": {"resourceClaimStatuses": statuses},
        }));
        let api = api_of(&self.client, pod);
        let patched = api.patch_status(name_of(pod), &PatchParams::default(), &patch).await;
        unless_replaced(patched)?;
        Ok(())
    }

    async fn sync_claim(&self, key: &str) -> Result<(), Error> {
        let Some(claim) = self.claims.store().get(key) else { return Ok(()) };
        let mut remaining = Vec::new();
        for consumer in plan::consumers(&claim) {
            if self.still_uses(namespace_of(&*claim), consumer).await? {
                remaining.push(consumer.clone());
            }
        }
        let is_unused = remaining.is_empty();
        let mut current = (*claim).clone();
        let mut was_released = false;
        if let Some(new) = plan::released(&current, remaining) {
            let Some(written) = unless_gone(replace_status(&self.client, &new).await)? else {
                return Ok(());
            };
            was_released = true;
            self.claims.observe(written.clone());
            current = written;
        }
        if let Some(new) = plan::unprotected(&current, was_released) {
            let Some(written) = unless_gone(replace(&self.client, &new).await)? else {
                return Ok(());
            };
            self.claims.observe(written.clone());
            current = written;
        }
        if is_unused && self.is_abandoned(&current) {
            let api: Api<Item<ResourceClaim>> = api(&self.client, namespace_of(&current));
            let uid = Some(uid_of(&current).to_owned());
            let params = DeleteParams::default()
                .preconditions(Preconditions { uid, resource_version: None });
            unless_replaced(api.delete(name_of(&current), &params).await)?;
        }
        Ok(())
    }

    /// Whether the consumer is there and may run, as the apiserver knows it where the store does not.
    async fn still_uses(
        &self,
        namespace: &str,
        consumer: &ResourceClaimConsumerReference,
    ) -> Result<bool, Error> {
        if !plan::is_pod(consumer) {
            return Ok(true);
        }
        if let Some(pod) = self.pods.store().get_named(namespace, &consumer.name) {
            return Ok(uid_of(&*pod) == consumer.uid && !plan::is_done(&pod));
        }
        let api: Api<Item<Pod>> = api(&self.client, namespace);
        let found = api.get_opt(&consumer.name).await?;
        Ok(found.is_some_and(|pod| uid_of(&pod.known()) == consumer.uid))
    }

    /// Whether the claim was made for a pod that will not run any more. What was made for pods that
    /// are gone is the garbage collector's.
    fn is_abandoned(&self, claim: &ResourceClaim) -> bool {
        let Some((pod, uid)) = plan::owner(claim) else { return false };
        let pod = self.pods.store().get_named(namespace_of(claim), pod);
        claim.metadata.deletion_timestamp.is_none()
            && pod.is_some_and(|pod| uid_of(&*pod) != uid || plan::is_done(&pod))
    }
}
