//! The horizontal pod autoscaler: scales what has a `scale` by the use of resources, which
//! `metrics.k8s.io` reports, and by the metrics of adapters.

mod custom;
mod limits;
mod replicas;
mod selector;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, HPAScalingRules, HorizontalPodAutoscaler,
    HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
    MetricSpec, MetricStatus, MetricTarget, MetricValueStatus, ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DynamicObject, PostParams};
use kube::core::{ApiResource, Request, Selector, SelectorExt};
use kube::{Api, Client};
use longshore_client::error_message;
use longshore_client::events::{EventType, Recorder};
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers, split_key};
use longshore_pod::quantity::milli;
use longshore_pod::resources::format as quantity;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use self::custom::{Source, pods_status};
use self::limits::{History, Range};
use self::replicas::{Delays, Pods, Proposal, Sample, Samples, Target, Tolerances, propose};
use crate::discovery::discover;
use crate::workload::{Error, count, now, number, replace_status};
use crate::writes::{is_conflict, reference, unless_replaced, unless_stopped};
use crate::{ClusterSettings, Context, Metrics};

/// The answer of `metrics.k8s.io`.
#[derive(Debug, Deserialize)]
struct PodMetricsList {
    #[serde(default)]
    items: Vec<PodMetrics>,
}

#[derive(Debug, Deserialize)]
struct PodMetrics {
    metadata: k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    timestamp: Timestamp,
    #[serde(default)]
    window: Option<String>,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Deserialize)]
struct ContainerMetrics {
    name: String,
    #[serde(default)]
    usage: std::collections::BTreeMap<String, Quantity>,
}

/// What each pod used of a resource.
fn samples(list: PodMetricsList, resource: &str, container: Option<&str>) -> Samples {
    let mut samples = Samples::new();
    for pod in list.items {
        let window = pod.window.and_then(|text| text.parse::<SignedDuration>().ok());
        let window = window.and_then(|window| Duration::try_from(window).ok());
        let amounts: Option<Vec<i128>> = pod
            .containers
            .iter()
            .filter(|own| container.is_none_or(|name| own.name == name))
            .map(|own| own.usage.get(resource).and_then(milli))
            .collect();
        // A pod with a container that nothing is known of has no sample.
        let Some(amounts) = amounts.filter(|amounts| !amounts.is_empty()) else { continue };
        let sample = Sample {
            value: amounts.into_iter().fold(0, i128::saturating_add),
            at: pod.timestamp,
            window: window.unwrap_or(Duration::from_secs(60)),
        };
        samples.insert(pod.metadata.name.unwrap_or_default(), sample);
    }
    samples
}

/// What is scaled.
struct Scale {
    resource: ApiResource,
    replicas: isize,
    /// Those that there are.
    status_replicas: isize,
    selector: String,
}

/// What the metrics ask for, and the metric that asks for most.
struct Computed {
    replicas: isize,
    metric: String,
}

struct Controller {
    client: Client,
    autoscalers: Informer<HorizontalPodAutoscaler>,
    pods: Informer<Pod>,
    queue: WorkQueue<String>,
    recorder: Recorder,
    settings: ClusterSettings,
    histories: Mutex<HashMap<String, History>>,
    /// The selectors of the autoscalers' pods, by their keys.
    selectors: Mutex<HashMap<String, Selector>>,
    metrics: Arc<Metrics>,
}

/// What became of the number of replicas, as metrics name it.
fn action(before: isize, after: isize) -> &'static str {
    match after.cmp(&before) {
        Ordering::Greater => "scale_up",
        Ordering::Less => "scale_down",
        Ordering::Equal => "none",
    }
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("horizontalpodautoscaler", &context.queues);
    let autoscalers = context.informers.get::<HorizontalPodAutoscaler>();
    let pods = context.informers.get::<Pod>();
    autoscalers.subscribe({
        let (queue, metrics) = (queue.clone(), context.metrics.clone());
        move |event: &Event<HorizontalPodAutoscaler>| {
            match event {
                Event::Added(_) => metrics.autoscaler.count.add(1.0),
                Event::Deleted(_) => metrics.autoscaler.count.add(-1.0),
                Event::Updated { .. } => {}
            }
            changed(&queue, event);
        }
    });
    fn changed(queue: &WorkQueue<String>, event: &Event<HorizontalPodAutoscaler>) {
        match event {
            // Its own writes of the status wait for the next period.
            Event::Updated { old, new } if old.spec == new.spec => {}
            Event::Deleted(_) | Event::Added(_) | Event::Updated { .. } => {
                queue.add(key_of(&**event.latest()));
            }
        }
    }
    let all = async {
        autoscalers.synced().await;
        pods.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let controller = Controller {
        client: context.client.clone(),
        autoscalers,
        pods,
        queue: queue.clone(),
        recorder: context.recorder("horizontal-pod-autoscaler"),
        settings: context.settings.cluster.clone(),
        histories: Mutex::default(),
        selectors: Mutex::default(),
        metrics: context.metrics.clone(),
    };
    let workers = context.settings.cluster.hpa_workers;
    let name = "horizontal-pod-autoscaler-controller";
    run_workers(name, &queue, workers, &context.stop, |key| controller.sync(key)).await;
}

fn set_condition(
    status: &mut HorizontalPodAutoscalerStatus,
    type_: &str,
    is_true: bool,
    reason: &str,
    message: &str,
) {
    let value = if is_true { "True" } else { "False" };
    let conditions = status.conditions.get_or_insert_default();
    let old = conditions.iter_mut().find(|condition| condition.type_ == type_);
    let since = match &old {
        Some(old) if old.status == value => old.last_transition_time.clone(),
        _ => Some(now()),
    };
    let new = HorizontalPodAutoscalerCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: since,
    };
    match old {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// The keys of autoscalers whose selectors match one of the pods.
fn controlling(
    namespace: &str,
    pods: &[Arc<Pod>],
    selectors: &HashMap<String, Selector>,
) -> Vec<String> {
    let no_labels = Default::default();
    let matches = |selector: &Selector| {
        let labels =
            |pod: &Arc<Pod>| selector.matches(pod.metadata.labels.as_ref().unwrap_or(&no_labels));
        pods.iter().any(labels)
    };
    let mut keys: Vec<String> = selectors
        .iter()
        .filter(|(key, selector)| split_key(key).0 == namespace && matches(selector))
        .map(|(key, _)| key.clone())
        .collect();
    keys.sort();
    keys
}

/// The error of a metric as part of the error of all: what its events and condition say, with what it is
/// about.
fn about_metric(metric: &MetricSpec, why: &str) -> String {
    if let Some(source) = &metric.resource {
        return format!("failed to get {} resource metric value: {why}", source.name);
    }
    if let Some(source) = &metric.container_resource {
        return format!("failed to get {} container metric value: {why}", source.container);
    }
    if let Some(source) = &metric.object {
        let name = &source.metric.name;
        return match source.target.average_value {
            Some(_) => format!(
                "failed to get object metric value: failed to get {name} object metric: {why}"
            ),
            None => format!("failed to get object metric value: {why}"),
        };
    }
    if metric.pods.is_some() {
        return format!("failed to get pods metric value: {why}");
    }
    if let Some(source) = &metric.external {
        let name = &source.metric.name;
        let inner = match source.target.average_value {
            Some(_) => format!("failed to get {name} external metric: {why}"),
            None => format!("failed to get external metric {name}: {why}"),
        };
        return format!("failed to get {name} external metric value: {inner}");
    }
    why.to_owned()
}

/// The name of a resource metric in messages.
fn resource_metric_name(resource: &str, is_of_container: bool, wanted: Target) -> String {
    match (wanted, is_of_container) {
        (Target::Average(_), _) => format!("{resource} resource"),
        (Target::Utilization(_), false) => {
            format!("{resource} resource utilization (percentage of request)")
        }
        (Target::Utilization(_), true) => {
            format!("{resource} container resource utilization (percentage of request)")
        }
    }
}

fn target(target: &MetricTarget) -> Result<Target, String> {
    if let Some(average) = target.average_value.as_ref().and_then(milli) {
        return Ok(Target::Average(average));
    }
    let percent = target.average_utilization;
    let percent = percent.ok_or("invalid resource metric source: neither an average utilization target nor an average value (usage) target was set")?;
    Ok(Target::Utilization(percent.into()))
}

fn metric_status(spec: &MetricSpec, resource: &str, proposal: Proposal) -> MetricStatus {
    let current = MetricValueStatus {
        average_utilization: proposal.utilization.map(number),
        average_value: Some(Quantity(quantity(proposal.average, resource == "memory"))),
        value: None,
    };
    let container = spec.container_resource.as_ref();
    MetricStatus {
        type_: spec.type_.clone(),
        resource: container
            .is_none()
            .then(|| ResourceMetricStatus { name: resource.to_owned(), current: current.clone() }),
        container_resource: container.map(|container| ContainerResourceMetricStatus {
            container: container.container.clone(),
            name: resource.to_owned(),
            current: current.clone(),
        }),
        ..MetricStatus::default()
    }
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), Error> {
        let Some(autoscaler) = self.autoscalers.store().get(&key) else {
            self.histories().remove(&key);
            self.selectors.lock().remove(&key);
            let (namespace, name) = split_key(&key);
            self.metrics.autoscaler.desired.remove([namespace, name]);
            return Ok(());
        };
        // The next period, whatever comes of this one.
        self.queue.add_after(key.clone(), self.settings.hpa_period);
        let spec = &autoscaler.spec;
        let mut status = autoscaler.status.clone().unwrap_or_default();
        let start = std::time::Instant::now();
        let reconciled = self.reconcile(&key, &autoscaler, spec, &mut status).await;
        let labels = match &reconciled {
            Ok(action) => [*action, "none"],
            Err(_) => ["none", "internal"],
        };
        self.metrics.autoscaler.reconciliations.with(labels).inc();
        self.metrics.autoscaler.duration.with(labels).took(start.elapsed());
        if reconciled.is_ok() {
            let (namespace, name) = split_key(&key);
            let desired = f64::from(status.desired_replicas);
            self.metrics.autoscaler.desired.with([namespace, name]).set(desired);
        }
        let failed = reconciled.err();
        if autoscaler.status.as_ref() != Some(&status) {
            let mut new = (*autoscaler).clone();
            new.status = Some(status);
            let written = replace_status(&self.client, &new).await;
            if let Err(error) = &written {
                let why = error_message(error);
                self.record(&autoscaler, EventType::Warning, "FailedUpdateStatus", &why);
            }
            unless_replaced(written)?;
        }
        if let Some(failed) = failed {
            // Known to the user by condition and event: the next period is soon enough.
            tracing::debug!(key, "cannot autoscale: {failed}");
        }
        Ok(())
    }

    fn histories(&self) -> parking_lot::MutexGuard<'_, HashMap<String, History>> {
        self.histories.lock()
    }

    fn record(
        &self,
        about: &HorizontalPodAutoscaler,
        kind: EventType,
        reason: &str,
        message: &str,
    ) {
        self.recorder.event(reference(about), kind, reason, message);
    }

    /// Computes and applies the number of replicas; what was done, as metrics name it.
    async fn reconcile(
        &self,
        key: &str,
        autoscaler: &HorizontalPodAutoscaler,
        spec: &HorizontalPodAutoscalerSpec,
        status: &mut HorizontalPodAutoscalerStatus,
    ) -> Result<&'static str, Error> {
        let (namespace, _) = split_key(key);
        let scale = match self.scale(namespace, spec).await {
            Ok(scale) => scale,
            Err(error) => {
                let why = error.to_string();
                self.record(autoscaler, EventType::Warning, "FailedGetScale", &why);
                let message = format!(
                    "the HPA controller was unable to get the target's current scale: {why}"
                );
                set_condition(status, "AbleToScale", false, "FailedGetScale", &message);
                return Err(error);
            }
        };
        set_condition(
            status,
            "AbleToScale",
            true,
            "SucceededGetScale",
            "the HPA controller was able to get the target's current scale",
        );
        let current = scale.replicas;
        self.histories().entry(key.to_owned()).or_default().start(current, Instant::now());
        let least = spec.min_replicas.map_or(1, |least| count(Some(least)));
        let most = count(Some(spec.max_replicas));
        let desired;
        let mut reason = String::new();
        status.current_replicas = Some(number(current));
        status.current_metrics = None;
        status.observed_generation = autoscaler.metadata.generation;
        if current == 0 && least != 0 {
            set_condition(
                status,
                "ScalingActive",
                false,
                "ScalingDisabled",
                "scaling is disabled since the replica count of the target is zero",
            );
            desired = 0;
        } else if current > most {
            reason = "Current number of replicas above Spec.MaxReplicas".into();
            desired = most;
        } else if current < least {
            reason = "Current number of replicas below Spec.MinReplicas".into();
            desired = least;
        } else {
            let computed = match self.compute(key, autoscaler, spec, &scale, status).await {
                Ok(computed) => computed,
                Err(error) => {
                    let why = error.to_string();
                    self.record(
                        autoscaler,
                        EventType::Warning,
                        "FailedComputeMetricsReplicas",
                        &why,
                    );
                    return Err(error);
                }
            };
            if computed.replicas > current {
                reason = format!("{} above target", computed.metric);
            } else if computed.replicas < current {
                reason = "All metrics below target".into();
            }
            let limited = {
                let mut histories = self.histories();
                let history = histories.entry(key.to_owned()).or_default();
                history.limit(
                    spec.behavior.as_ref(),
                    current,
                    computed.replicas,
                    Range { least, most },
                    self.settings.hpa_stabilization,
                    Instant::now(),
                )
            };
            let (able, why, message) = limited.able;
            set_condition(status, "AbleToScale", able, why, message);
            let (is_limited, why, message) = limited.limited;
            set_condition(status, "ScalingLimited", is_limited, why, message);
            desired = limited.replicas;
        }
        status.desired_replicas = number(desired);
        if desired == current {
            return Ok("none");
        }
        match self.rescale(namespace, spec, &scale, desired).await {
            Ok(()) => {
                let message =
                    format!("the HPA controller was able to update the target scale to {desired}");
                set_condition(status, "AbleToScale", true, "SucceededRescale", &message);
                let message = format!("New size: {desired}; reason: {reason}");
                self.record(autoscaler, EventType::Normal, "SuccessfulRescale", &message);
                status.last_scale_time = Some(now());
                let mut histories = self.histories();
                let history = histories.entry(key.to_owned()).or_default();
                history.scaled(current, desired, Instant::now());
                Ok(action(current, desired))
            }
            Err(error) => {
                let message = format!("New size: {desired}; reason: {reason}; error: {error}");
                self.record(autoscaler, EventType::Warning, "FailedRescale", &message);
                let message =
                    format!("the HPA controller was unable to update the target scale: {error}");
                set_condition(status, "AbleToScale", false, "FailedUpdateScale", &message);
                status.desired_replicas = number(current);
                Err(error)
            }
        }
    }

    async fn scale(
        &self,
        namespace: &str,
        spec: &HorizontalPodAutoscalerSpec,
    ) -> Result<Scale, Error> {
        let reference = &spec.scale_target_ref;
        let version = reference.api_version.as_deref().unwrap_or_default();
        let group = version.split_once('/').map_or("", |(group, _)| group);
        let kind = reference.kind.as_str();
        let resource = match known_plural(group, kind) {
            Some(plural) => known(group, kind, plural),
            None => {
                let discovery = discover(&self.client).await?;
                let found = discovery
                    .resources
                    .into_iter()
                    .find(|found| found.resource.group == group && found.resource.kind == kind);
                let found = found.ok_or_else(|| {
                    Error::Invalid(format!("no matches for kind {kind:?} in group {group:?}"))
                })?;
                found.resource
            }
        };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let request = Request::new(api.resource_url())
            .get_subresource("scale", &reference.name)
            .map_err(|error| Error::Invalid(error.to_string()))?;
        let scale: Value = self.client.request(request).await?;
        let count = |replicas: &Value| {
            isize::try_from(replicas.as_i64().unwrap_or_default()).unwrap_or_default().max(0)
        };
        Ok(Scale {
            resource,
            replicas: count(&scale["spec"]["replicas"]),
            status_replicas: count(&scale["status"]["replicas"]),
            selector: scale["status"]["selector"].as_str().unwrap_or_default().to_owned(),
        })
    }

    async fn rescale(
        &self,
        namespace: &str,
        spec: &HorizontalPodAutoscalerSpec,
        scale: &Scale,
        replicas: isize,
    ) -> Result<(), Error> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &scale.resource);
        let name = &spec.scale_target_ref.name;
        let mut attempts = 0_usize;
        loop {
            attempts += 1;
            // replaced, not patched: that is what the controller's role lets it
            let mut scale = api.get_subresource("scale", name).await?;
            scale.data["spec"]["replicas"] = replicas.into();
            let params = PostParams::default();
            match api.replace_subresource("scale", name, &params, &scale).await {
                Err(error) if is_conflict(&error) && attempts < 5 => {}
                written => return Ok(written.map(drop)?),
            }
        }
    }

    /// The largest of what the metrics ask for; an invalid one keeps the others from scaling down. The
    /// status gets that of each metric, empty for one that cannot be had.
    async fn compute(
        &self,
        key: &str,
        autoscaler: &HorizontalPodAutoscaler,
        spec: &HorizontalPodAutoscalerSpec,
        scale: &Scale,
        status: &mut HorizontalPodAutoscalerStatus,
    ) -> Result<Computed, Error> {
        let (namespace, _) = split_key(key);
        let inactive = |status: &mut HorizontalPodAutoscalerStatus, reason: &str, message: &str| {
            self.record(autoscaler, EventType::Warning, reason, message);
            set_condition(status, "ScalingActive", false, reason, message);
            Error::Invalid(message.to_owned())
        };
        if scale.selector.is_empty() {
            let why = "selector is required";
            self.record(autoscaler, EventType::Warning, "SelectorRequired", why);
            let message = "the HPA target's scale is missing a selector";
            set_condition(status, "ScalingActive", false, "InvalidSelector", message);
            return Err(Error::invalid(why));
        }
        let selector: Selector = match selector::parse(&scale.selector) {
            Ok(selector) => selector,
            Err(error) => {
                let message = format!(
                    "couldn't convert selector into a corresponding internal selector object: {error}"
                );
                return Err(inactive(status, "InvalidSelector", &message));
            }
        };
        let mut pods: Vec<Arc<Pod>> = self.pods.store().list_namespace(namespace);
        pods.retain(|pod| selector.matches(&pod.metadata.labels.clone().unwrap_or_default()));
        let others = {
            let mut selectors = self.selectors.lock();
            selectors.insert(key.to_owned(), selector);
            controlling(namespace, &pods, &selectors)
        };
        if others.len() > 1 {
            let message = format!(
                "pods by selector {} are controlled by multiple HPAs: [{}]",
                scale.selector,
                others.join(" ")
            );
            return Err(inactive(status, "AmbiguousSelector", &message));
        }
        let mut best: Option<(isize, String)> = None;
        let mut statuses = Vec::new();
        let mut invalid: Option<(String, String, String)> = None;
        let mut invalid_count = 0_usize;
        let metrics = spec.metrics.as_deref().unwrap_or_default();
        for metric in metrics {
            let start = std::time::Instant::now();
            let computed = self.metric(namespace, spec, metric, scale, &pods).await;
            let labels = match &computed {
                Ok((replicas, ..)) => [action(scale.replicas, *replicas), "none", &metric.type_],
                Err((reason, _)) if reason == "InvalidMetricSourceType" => {
                    ["none", "spec", &metric.type_]
                }
                Err(_) => ["none", "internal", &metric.type_],
            };
            self.metrics.autoscaler.computations.with(labels).inc();
            self.metrics.autoscaler.computation_duration.with(labels).took(start.elapsed());
            match computed {
                Ok((replicas, name, metric_status)) => {
                    statuses.push(metric_status);
                    if best.as_ref().is_none_or(|(most, _)| replicas > *most) {
                        best = Some((replicas, name));
                    }
                }
                Err((reason, message)) => {
                    invalid_count += 1;
                    statuses.push(MetricStatus::default());
                    self.record(autoscaler, EventType::Warning, &reason, &message);
                    let error = about_metric(metric, &message);
                    invalid.get_or_insert((reason, message, error));
                }
            }
        }
        status.current_metrics = Some(statuses);
        let is_usable = best
            .as_ref()
            .is_some_and(|(replicas, _)| invalid_count == 0 || *replicas >= scale.replicas);
        match (best, invalid) {
            (Some((replicas, metric)), _) if is_usable => {
                let message = format!(
                    "the HPA was able to successfully calculate a replica count from {metric}"
                );
                set_condition(status, "ScalingActive", true, "ValidMetricFound", &message);
                Ok(Computed { replicas, metric })
            }
            (_, invalid) => {
                let (reason, message, error) = invalid.unwrap_or_default();
                let total = metrics.len();
                let condition =
                    format!("the HPA was unable to compute the replica count: {message}");
                set_condition(status, "ScalingActive", false, &reason, &condition);
                Err(Error::Invalid(format!(
                    "invalid metrics ({invalid_count} invalid out of {total}), first error is: {error}"
                )))
            }
        }
    }

    async fn metric(
        &self,
        namespace: &str,
        spec: &HorizontalPodAutoscalerSpec,
        metric: &MetricSpec,
        scale: &Scale,
        pods: &[Arc<Pod>],
    ) -> Result<(isize, String, MetricStatus), (String, String)> {
        let behavior = spec.behavior.as_ref();
        let tolerance = |rules: Option<&HPAScalingRules>| {
            let own = rules.and_then(|rules| rules.tolerance.as_ref()).and_then(milli);
            own.map_or(self.settings.hpa_tolerance, |own| own as f64 / 1000.0)
        };
        let tolerances = Tolerances {
            up: tolerance(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
            down: tolerance(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
        };
        let delays = Delays {
            cpu_initialization: self.settings.hpa_cpu_initialization,
            initial_readiness: self.settings.hpa_initial_readiness,
        };
        let of = Pods { pods, resource: "", container: None };
        let source = Source { client: &self.client, namespace, scale, pods: &of, tolerances };
        match (metric.type_.as_str(), &metric.pods) {
            ("Object", _) => return source.object(metric).await,
            ("External", _) => return source.external(metric).await,
            ("Pods", Some(wanted)) => {
                let fail = |why| ("FailedGetPodsMetric".to_owned(), why);
                let samples = source.samples(&wanted.metric).await.map_err(fail)?;
                let average = target(&wanted.target).map_err(fail)?;
                let now = Timestamp::now();
                let proposal =
                    propose(&of, scale.replicas, &samples, average, tolerances, delays, now)
                        .map_err(fail)?;
                let name = format!("pods metric {}", wanted.metric.name);
                return Ok((proposal.replicas, name, pods_status(&wanted.metric, proposal)));
            }
            _ => {}
        }
        let (resource, container, wanted, reason) =
            match (&metric.resource, &metric.container_resource) {
                (Some(source), _) => {
                    (&source.name, None, &source.target, "FailedGetResourceMetric")
                }
                (_, Some(source)) => (
                    &source.name,
                    Some(source.container.as_str()),
                    &source.target,
                    "FailedGetContainerResourceMetric",
                ),
                _ => {
                    let message = format!("unknown metric source type {:?}", metric.type_);
                    return Err(("InvalidMetricSourceType".to_owned(), message));
                }
            };
        let wanted = target(wanted).map_err(|why| (reason.to_owned(), why))?;
        let what = match wanted {
            Target::Utilization(_) => "utilization",
            Target::Average(_) => "usage",
        };
        let fail = |message: String| {
            (reason.to_owned(), format!("failed to get {resource} {what}: {message}"))
        };
        let list = self.pod_metrics(namespace, &scale.selector).await.map_err(|error| {
            let why = Error::from(error);
            fail(format!(
                "unable to get metrics for resource {resource}: unable to fetch metrics from resource metrics API: {why}"
            ))
        })?;
        let samples = samples(list, resource, container);
        let of = Pods { pods, resource, container };
        let proposal =
            propose(&of, scale.replicas, &samples, wanted, tolerances, delays, Timestamp::now())
                .map_err(fail)?;
        let name = resource_metric_name(resource, container.is_some(), wanted);
        Ok((proposal.replicas, name, metric_status(metric, resource, proposal)))
    }

    async fn pod_metrics(
        &self,
        namespace: &str,
        selector: &str,
    ) -> Result<PodMetricsList, kube::Error> {
        let url = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
        let params = kube::api::ListParams::default().labels(selector);
        let request = Request::new(url).list(&params).map_err(kube::Error::BuildRequest)?;
        self.client.request(request).await
    }
}

/// The resource of a kind that is known without a question.
fn known_plural(group: &str, kind: &str) -> Option<&'static str> {
    match (group, kind) {
        ("apps", "Deployment") => Some("deployments"),
        ("apps", "ReplicaSet") => Some("replicasets"),
        ("apps", "StatefulSet") => Some("statefulsets"),
        ("", "ReplicationController") => Some("replicationcontrollers"),
        ("", "Service") => Some("services"),
        ("", "Pod") => Some("pods"),
        ("networking.k8s.io", "Ingress") => Some("ingresses"),
        _ => None,
    }
}

fn known(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::replicas::Target;
    use super::{about_metric, controlling, resource_metric_name, samples, selector};

    #[test]
    fn hpa_names_metrics_as_upstream() {
        for (container, wanted, expected) in [
            (false, Target::Utilization(5), "cpu resource utilization (percentage of request)"),
            (
                true,
                Target::Utilization(5),
                "cpu container resource utilization (percentage of request)",
            ),
            (false, Target::Average(5), "cpu resource"),
            (true, Target::Average(5), "cpu resource"),
        ] {
            assert_eq!(resource_metric_name("cpu", container, wanted), expected);
        }
    }

    #[test]
    fn hpa_errors_say_what_metric_they_are_of() {
        let (value, average) = (json!({"type": "Value"}), json!({"averageValue": "1"}));
        let external =
            |target: &Value| json!({"external": {"metric": {"name": "m"}, "target": target}});
        let object = |target: &Value| {
            json!({"object": {"metric": {"name": "m"}, "target": target,
            "describedObject": {"kind": "K", "name": "n"}}})
        };
        for (spec, expected) in [
            (
                json!({"resource": {"name": "cpu", "target": value}}),
                "failed to get cpu resource metric value: why",
            ),
            (
                json!({"containerResource": {"name": "cpu", "container": "app", "target": value}}),
                "failed to get app container metric value: why",
            ),
            (
                json!({"pods": {"metric": {"name": "m"}, "target": average}}),
                "failed to get pods metric value: why",
            ),
            (object(&value), "failed to get object metric value: why"),
            (
                object(&average),
                "failed to get object metric value: failed to get m object metric: why",
            ),
            (
                external(&value),
                "failed to get m external metric value: failed to get external metric m: why",
            ),
            (
                external(&average),
                "failed to get m external metric value: failed to get m external metric: why",
            ),
            (json!({}), "why"),
        ] {
            let mut spec = spec;
            spec["type"] = "x".into();
            fn types(value: &mut Value) {
                if let Some(members) = value.as_object_mut() {
                    members.values_mut().for_each(types);
                    if let Some(target) = members.get_mut("target") {
                        target["type"] = "x".into();
                    }
                }
            }
            types(&mut spec);
            let spec = serde_json::from_value(spec).unwrap();
            assert_eq!(about_metric(&spec, "why"), expected);
        }
    }

    #[test]
    fn hpa_finds_others_that_control_its_pods() {
        let pod = |labels: Value| -> Arc<Pod> {
            Arc::new(serde_json::from_value(json!({"metadata": {"labels": labels}})).unwrap())
        };
        let of = |text: &str| selector::parse(text).unwrap();
        let selectors = HashMap::from([
            ("ns/a".to_owned(), of("app=web")),
            ("ns/b".to_owned(), of("tier=front")),
            ("ns/c".to_owned(), of("app=db")),
            ("other/a".to_owned(), of("app=web")),
        ]);
        let both = [pod(json!({"app": "web", "tier": "front"})), pod(Value::Null)];
        assert_eq!(controlling("ns", &both, &selectors), ["ns/a", "ns/b"]);
        let one = [pod(json!({"app": "web"}))];
        assert_eq!(controlling("ns", &one, &selectors), ["ns/a"]);
        assert!(controlling("ns", &[], &selectors).is_empty());
    }

    #[test]
    fn hpa_samples_are_sums_of_containers() {
        let list = || {
            serde_json::from_value(json!({"items": [
                {"metadata": {"name": "a"}, "timestamp": "2026-01-01T00:00:00Z", "window": "30s",
                    "containers": [
                        {"name": "x", "usage": {"cpu": "250m"}},
                        {"name": "y", "usage": {"cpu": "1"}},
                    ]},
                {"metadata": {"name": "b"}, "timestamp": "2026-01-01T00:00:00Z",
                    "containers": [{"name": "x", "usage": {"memory": "1Mi"}}]},
            ]}))
            .unwrap()
        };
        let all = samples(list(), "cpu", None);
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a"]);
        assert_eq!(all["a"].value, 1250);
        assert_eq!(all["a"].window.as_secs(), 30);
        assert_eq!(samples(list(), "cpu", Some("x"))["a"].value, 250);
    }
}
