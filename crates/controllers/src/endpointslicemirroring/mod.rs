//! Endpoint slices of Endpoints that people or programs write for services without a selector.

pub(crate) mod plan;

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{
    Event, Expectations, Informer, WorkQueue, key_of, run_workers, split_key,
};
use parking_lot::Mutex;

use self::plan::MANAGED_BY;
use crate::endpointslice::plan::{Counts, Totals};
use crate::endpointslice::{BY_SERVICE, follow_slices, is_managed_by, service_of};
use crate::writes::{is_terminating, reference, unless_gone, unless_stopped};
use crate::{Context, Metrics};

struct Controller {
    client: kube::Client,
    services: Informer<Service>,
    endpoints: Informer<Endpoints>,
    slices: Informer<EndpointSlice>,
    expectations: Arc<Expectations>,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    totals: Mutex<Totals>,
    /// The most addresses of a subset.
    maximum: usize,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("endpoint_slice_mirroring", &context.queues);
    let services = context.informers.get::<Service>();
    let endpoints = context.informers.get::<Endpoints>();
    let slices = context.informers.get::<EndpointSlice>();
    let expectations: Arc<Expectations> = Arc::default();
    slices.store().add_index(BY_SERVICE, |slice| service_of(slice).into_iter().collect());
    services.subscribe({
        let queue = queue.clone();
        move |event: &Event<Service>| queue.add(key_of(&**event.latest()))
    });
    endpoints.subscribe({
        let queue = queue.clone();
        let batch_period = context.settings.cluster.mirroring_batch_period;
        move |event: &Event<Endpoints>| {
            queue.add_after(key_of(&**event.latest()), batch_period);
        }
    });
    follow_slices(&slices, MANAGED_BY, &expectations, &queue);
    let all = async {
        services.synced().await;
        endpoints.synced().await;
        slices.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let controller = Controller {
        client: context.client.clone(),
        services,
        endpoints,
        slices,
        expectations,
        recorder: context.recorder("endpoint-slice-mirroring-controller"),
        metrics: context.metrics.clone(),
        totals: Mutex::default(),
        maximum: context.settings.cluster.max_mirrored_endpoints,
    };
    let workers = context.settings.cluster.mirroring_workers;
    let name = "endpointslice-mirroring-controller";
    run_workers(name, &queue, workers, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), kube::Error> {
        let start = Instant::now();
        let synced = self.try_sync(key).await;
        self.metrics.mirroring.duration.took(start.elapsed());
        synced
    }

    fn note(&self, key: &str, counts: Option<Counts>) {
        let metrics = &self.metrics.mirroring;
        let mut totals = self.totals.lock();
        totals.set(key, counts);
        let gauges = [&metrics.desired_endpoints, &metrics.slices, &metrics.desired_slices];
        totals.show(gauges);
    }

    async fn try_sync(&self, key: String) -> Result<(), kube::Error> {
        let (namespace, _) = split_key(&key);
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), namespace);
        let existing: Vec<Arc<EndpointSlice>> = self
            .slices
            .store()
            .by_index(BY_SERVICE, &key)
            .into_iter()
            .filter(|slice| is_managed_by(slice, MANAGED_BY))
            .collect();
        let service = self.services.store().get(&key);
        let endpoints = self.endpoints.store().get(&key);
        let endpoints =
            endpoints.filter(|endpoints| plan::is_mirrored(endpoints, service.as_deref()));
        let Some(endpoints) = endpoints else {
            self.expectations.remove(&key);
            self.note(&key, None);
            for slice in existing {
                let name = slice.metadata.name.as_deref().unwrap_or_default();
                unless_gone(api.delete(name, &DeleteParams::default()).await)?;
            }
            return Ok(());
        };
        if !self.expectations.satisfied(&key) {
            return Ok(());
        }
        let mirror = plan::plan(&endpoints, &existing, self.maximum);
        let (metrics, counts) = (&self.metrics.mirroring, mirror.plan.counts);
        self.note(&key, Some(counts));
        metrics.added.observe(counts.added as f64);
        metrics.updated.observe(counts.updated as f64);
        metrics.removed.observe(counts.removed as f64);
        metrics.skipped.observe(mirror.skipped as f64);
        if mirror.invalid > 0 {
            let count = mirror.invalid;
            self.warn(
                &endpoints,
                "InvalidIPAddress",
                &format!("Skipped {count} invalid IP addresses when mirroring to EndpointSlices"),
            );
        }
        if mirror.skipped > mirror.invalid {
            let skipped = mirror.skipped;
            self.warn(
                &endpoints,
                "TooManyAddressesToMirror",
                &format!(
                    "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. {skipped} addresses were skipped",
                    self.maximum
                ),
            );
        }
        let params = PostParams::default();
        let mut left = mirror.plan.create.len();
        if left > 0 {
            self.expectations.expect_creations(&key, left);
        }
        for slice in &mirror.plan.create {
            if let Err(error) = api.create(&params, slice).await {
                self.expectations.creations_observed(&key, left);
                return if is_terminating(&error) { Ok(()) } else { Err(error) };
            }
            metrics.changes.with(["create"]).inc();
            left -= 1;
        }
        for slice in &mirror.plan.update {
            let name = slice.metadata.name.as_deref().unwrap_or_default();
            api.replace(name, &params, slice).await?;
            metrics.changes.with(["update"]).inc();
        }
        for name in &mirror.plan.delete {
            unless_gone(api.delete(name, &DeleteParams::default()).await)?;
            metrics.changes.with(["delete"]).inc();
        }
        Ok(())
    }

    fn warn(&self, endpoints: &Endpoints, reason: &str, message: &str) {
        self.recorder.event(reference(endpoints), EventType::Warning, reason, message);
    }
}
