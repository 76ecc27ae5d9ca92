//! Makes the claims of pods' ephemeral volumes. The garbage collector deletes them with their pods.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use longshore_informer::{Event, Informer, WorkQueue, key_of, object_key, run_workers};

use super::event::{Events, VolumeEvent};
use super::objects::{BY_CLAIM, ephemeral_name, index_pods, is_deleting, is_made_by, volumes_of};
use crate::Context;
use crate::Metrics;
use crate::workload::{Error, controller_reference, create, name_of, namespace_of};
use crate::writes::{is_already_there, is_terminating, unless_stopped};

struct Controller {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
    events: Events,
    metrics: Arc<Metrics>,
}

/// PURE: the claim of a pod's ephemeral volume, which goes with the pod.
pub(super) fn claim(pod: &Pod, volume: &Volume) -> Option<PersistentVolumeClaim> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let metadata = template.metadata.clone().unwrap_or_default();
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(ephemeral_name(pod, volume)),
            namespace: pod.metadata.namespace.clone(),
            labels: metadata.labels,
            annotations: metadata.annotations,
            owner_references: Some(vec![controller_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    })
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("ephemeral_volume", &context.queues);
    let controller = Controller {
        client: context.client.clone(),
        claims: context.informers.get(),
        pods: context.informers.get(),
        events: Events::new(context.recorder("ephemeral_volume")),
        metrics: context.metrics.clone(),
    };
    index_pods(controller.pods.store());
    controller.pods.subscribe({
        let queue = queue.clone();
        move |event: &Event<Pod>| {
            // Volumes of a pod do not change.
            if let Event::Added(pod) = event
                && volumes_of(pod).iter().any(|volume| volume.ephemeral.is_some())
            {
                queue.add(key_of(&**pod));
            }
        }
    });
    controller.claims.subscribe({
        let (queue, pods) = (queue.clone(), controller.pods.clone());
        move |event: &Event<PersistentVolumeClaim>| {
            if let Event::Deleted(claim) = event {
                for pod in pods.store().by_index(BY_CLAIM, &key_of(&**claim)) {
                    queue.add(key_of(&*pod));
                }
            }
        }
    });
    let all = async {
        controller.claims.synced().await;
        controller.pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let workers = context.settings.cluster.ephemeral_volume_workers;
    run_workers("ephemeral-volume-controller", &queue, workers, &context.stop, |key| {
        controller.sync(key)
    })
    .await;
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(pod) = self.pods.store().get(&key) else { return Ok(()) };
        if is_deleting(&*pod) {
            return Ok(());
        }
        let ephemeral = volumes_of(&pod).iter().filter(|volume| volume.ephemeral.is_some());
        for volume in ephemeral {
            if let Err(why) = self.ensure(&pod, volume).await {
                let why = format!("ephemeral volume {}: {why}", volume.name);
                self.events.record(&*pod, VolumeEvent::warning("FailedBinding", why.clone()));
                return Err(Error::Invalid(why));
            }
        }
        Ok(())
    }

    async fn ensure(&self, pod: &Pod, volume: &Volume) -> Result<(), String> {
        let Some(new) = claim(pod, volume) else { return Ok(()) };
        let (namespace, name) = (namespace_of(pod), name_of(&new));
        match self.claims.store().get(&object_key(namespace, name)) {
            Some(known) if is_made_by(&known, pod) => return Ok(()),
            Some(_) => {
                let pod = name_of(pod);
                return Err(format!(
                    "PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"
                ));
            }
            None => {}
        }
        self.metrics.ephemeral_creates.inc();
        let created = create(&self.client, &new).await;
        if created.is_err() {
            self.metrics.ephemeral_failures.inc();
        }
        match created {
            Ok(_) => Ok(()),
            // The watch reports it.
            Err(error) if is_already_there(&error) || is_terminating(&error) => Ok(()),
            Err(error) => Err(format!("create PVC {name}: {}", Error::from(error))),
        }
    }
}
