//! Endpoints of services that have a selector: the form that endpoint slices replace.

pub(crate) mod plan;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers, split_key};
use parking_lot::Mutex;

use crate::Context;
use crate::endpointslice::follow_members;
use crate::endpointslice::membership::Membership;
use crate::endpointslice::trigger::TriggerTimes;
use crate::writes::{is_conflict, is_terminating, reference, unless_gone, unless_stopped};

const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";

struct Controller {
    client: kube::Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Informer<Endpoints>,
    members: Arc<Mutex<Membership>>,
    times: Mutex<TriggerTimes>,
    recorder: Recorder,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("endpoint", &context.queues);
    let services = context.informers.get::<Service>();
    let pods = context.informers.get::<Pod>();
    let endpoints = context.informers.get::<Endpoints>();
    let batch_period = context.settings.cluster.endpoint_batch_period;
    let members = follow_members(&services, &pods, &queue, batch_period);
    endpoints.subscribe({
        let queue = queue.clone();
        move |event: &Event<Endpoints>| {
            if let Event::Deleted(endpoints) = event {
                queue.add(key_of(&**endpoints));
            }
        }
    });
    let all = async {
        services.synced().await;
        pods.synced().await;
        endpoints.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    // Those whose service was deleted while no controller ran.
    for endpoints in endpoints.store().list() {
        let annotations = endpoints.metadata.annotations.as_ref();
        if annotations.is_none_or(|annotations| !annotations.contains_key(LEADER)) {
            queue.add(key_of(&*endpoints));
        }
    }
    let controller = Controller {
        client: context.client.clone(),
        services,
        pods,
        endpoints,
        members,
        times: Mutex::default(),
        recorder: context.recorder("endpoint-controller"),
    };
    let workers = context.settings.cluster.endpoint_workers;
    run_workers("endpoints-controller", &queue, workers, &context.stop, |key| controller.sync(key))
        .await;
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), kube::Error> {
        let (namespace, name) = split_key(&key);
        let api: Api<Endpoints> = Api::namespaced(self.client.clone(), namespace);
        let times = || self.times.lock();
        let Some(service) = self.services.store().get(&key) else {
            times().forget(namespace, name);
            if self.endpoints.store().get(&key).is_some() {
                unless_gone(api.delete(name, &DeleteParams::default()).await)?;
            }
            return Ok(());
        };
        let spec = service.spec.as_ref();
        let is_external = spec.is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"));
        if is_external || spec.is_none_or(|spec| spec.selector.is_none()) {
            return Ok(());
        }
        let members = {
            let members = self.members.lock();
            members.pods_of(namespace, name)
        };
        let pods: Vec<Arc<Pod>> =
            members.iter().filter_map(|pod| self.pods.store().get_named(namespace, pod)).collect();
        let existing = self.endpoints.store().get(&key);
        let trigger = times().observe(&service, &pods);
        let Some(planned) = plan::plan(&service, &pods, existing.as_deref(), trigger) else {
            return Ok(());
        };
        let params = PostParams::default();
        let (written, reason, what) = match &existing {
            None => (
                api.create(&params, &planned).await,
                "FailedToCreateEndpoint",
                format!("Failed to create endpoint for service {key}"),
            ),
            Some(_) => (
                api.replace(name, &params, &planned).await,
                "FailedToUpdateEndpoint",
                format!("Failed to update endpoint {key}"),
            ),
        };
        match written {
            Ok(_) => Ok(()),
            Err(error) if is_terminating(&error) => Ok(()),
            Err(error) => {
                if !is_conflict(&error) {
                    let message = format!("{what}: {error}");
                    self.recorder.event(reference(&planned), EventType::Warning, reason, &message);
                }
                Err(error)
            }
        }
    }
}
