//! Metrics that neither pods' resources nor this cluster's own servers give: those of
//! `custom.metrics.k8s.io` and `external.metrics.k8s.io`, which adapters serve.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{
    CrossVersionObjectReference, ExternalMetricStatus, MetricIdentifier, MetricSpec, MetricStatus,
    MetricTarget, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::core::Selector;
use longshore_pod::quantity::milli;
use longshore_pod::resources::format as quantity;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::replicas::{Pods, Proposal, Sample, Samples, Tolerances, by_ratio, per_pod};
use super::{Scale, known_plural};
use crate::discovery::discover;
use crate::workload::{Error, is_ready, length, phase};
use crate::writes::is_not_found;

/// The window of a sample that says none.
const WINDOW: Duration = Duration::from_secs(60);

/// What a metric asks for: replicas, its name for messages, and its status.
pub(super) type Outcome = (isize, String, MetricStatus);
/// The reason of the condition, and why.
pub(super) type Failure = (String, String);

/// The answer of both APIs: of a metric's series each is an item.
#[derive(Debug, Deserialize)]
struct MetricValueList {
    #[serde(default)]
    items: Vec<MetricValue>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    #[serde(default)]
    described_object: DescribedObject,
    timestamp: Option<Timestamp>,
    /// In seconds; `window` in older versions.
    #[serde(alias = "window")]
    window_seconds: Option<u64>,
    value: Quantity,
}

#[derive(Debug, Default, Deserialize)]
struct DescribedObject {
    #[serde(default)]
    name: String,
}

impl MetricValueList {
    /// The value of each pod.
    fn samples(self) -> Samples {
        let samples = self.items.into_iter().filter_map(|item| {
            let sample = Sample {
                value: milli(&item.value)?,
                at: item.timestamp.unwrap_or_default(),
                window: item.window_seconds.map_or(WINDOW, Duration::from_secs),
            };
            Some((item.described_object.name, sample))
        });
        samples.collect()
    }

    /// All values together, in thousandths.
    fn sum(&self) -> i128 {
        let values = self.items.iter().filter_map(|item| milli(&item.value));
        values.fold(0, i128::saturating_add)
    }
}

/// A segment or value of a URL.
fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let encode = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// A metric's selector as text; empty: all of its series.
fn selector(metric: &MetricIdentifier) -> Result<String, String> {
    let selector = Selector::try_from(metric.selector.clone().unwrap_or_default());
    selector.map(|selector| selector.to_string()).map_err(|error| error.to_string())
}

async fn get<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, kube::Error> {
    let request = hyper::Request::get(path).body(Vec::new());
    let request = request.map_err(kube::core::request::Error::BuildRequest);
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

/// The values of a metric of what is at a path of `custom.metrics.k8s.io`.
async fn custom(client: &Client, path: &str, parameters: &str) -> Result<MetricValueList, String> {
    let url = |version| format!("/apis/custom.metrics.k8s.io/{version}/{path}?{parameters}");
    let answer = match get(client, &url("v1beta2")).await {
        Err(error) if is_not_found(&error) => get(client, &url("v1beta1")).await,
        answer => answer,
    };
    answer.map_err(|error| {
        let why = Error::from(error);
        format!("unable to fetch metrics from custom metrics API: {why}")
    })
}

/// What metrics are read for.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) client: &'a Client,
    pub(super) namespace: &'a str,
    pub(super) scale: &'a Scale,
    pub(super) pods: &'a Pods<'a>,
    pub(super) tolerances: Tolerances,
}

impl Source<'_> {
    /// The metric of type `Pods`: each pod has a value.
    pub(super) async fn samples(&self, metric: &MetricIdentifier) -> Result<Samples, String> {
        let path = format!("namespaces/{}/pods/*/{}", self.namespace, encoded(&metric.name));
        let parameters = format!(
            "labelSelector={}&metricLabelSelector={}",
            encoded(&self.scale.selector),
            encoded(&selector(metric)?)
        );
        let why = |why| format!("unable to get metric {}: {why}", metric.name);
        let list = custom(self.client, &path, &parameters).await.map_err(why)?;
        if list.items.is_empty() {
            return Err(why("no metrics returned from custom metrics API".to_owned()));
        }
        Ok(list.samples())
    }

    /// The metric of type `Object`.
    pub(super) async fn object(&self, spec: &MetricSpec) -> Result<Outcome, Failure> {
        let fail = |why: String| ("FailedGetObjectMetric".to_owned(), why);
        let Some(source) = &spec.object else {
            return Err(fail("invalid object metric source".to_owned()));
        };
        let (metric, object) = (&source.metric, &source.described_object);
        let usage = self.object_value(metric, object).await.map_err(|why| {
            let (kind, name) = (&object.kind, &object.name);
            let namespace = self.namespace;
            fail(format!(
                "unable to get metric {}: {why} on {kind} {namespace}/{name}",
                metric.name
            ))
        })?;
        let total = format!("{} metric {}", object.kind, metric.name);
        let (replicas, name, current) = self.propose(&source.target, usage, total, metric).map_err(
            |why| fail(why.unwrap_or_else(|| "invalid object metric source: neither a value target nor an average value target was set".to_owned())),
        )?;
        let status = ObjectMetricStatus {
            current,
            described_object: object.clone(),
            metric: metric.clone(),
        };
        Ok((replicas, name, status_of("Object", |it| it.object = Some(status))))
    }

    async fn object_value(
        &self,
        metric: &MetricIdentifier,
        object: &CrossVersionObjectReference,
    ) -> Result<i128, String> {
        let group = object.api_version.as_deref().unwrap_or_default();
        let group = group.split_once('/').map_or("", |(group, _)| group);
        let (namespace, metric_name) = (self.namespace, encoded(&metric.name));
        let path = match (group, object.kind.as_str()) {
            // The namespace is that of the autoscaler, whatever is named.
            ("", "Namespace") => format!("namespaces/{namespace}/metrics/{metric_name}"),
            (group, kind) => {
                let resource = self.resource_name(group, kind).await?;
                let name = encoded(&object.name);
                format!("namespaces/{namespace}/{resource}/{name}/{metric_name}")
            }
        };
        let parameters = format!("metricLabelSelector={}", encoded(&selector(metric)?));
        let list = custom(self.client, &path, &parameters).await?;
        match list.items.len() {
            1 => Ok(list.sum()),
            count => Err(format!(
                "unable to fetch metrics from custom metrics API: the custom metrics API server returned {count} results when we asked for exactly one"
            )),
        }
    }

    /// As in `ingresses.networking.k8s.io`.
    async fn resource_name(&self, group: &str, kind: &str) -> Result<String, String> {
        if let Some(plural) = known_plural(group, kind) {
            return Ok(if group.is_empty() { plural.into() } else { format!("{plural}.{group}") });
        }
        let discovery = discover(self.client).await;
        let discovery = discovery.map_err(|error| Error::from(error).to_string())?;
        let found = discovery
            .resources
            .into_iter()
            .find(|found| found.resource.group == group && found.resource.kind == kind);
        let found =
            found.ok_or_else(|| format!("no matches for kind {kind:?} in group {group:?}"))?;
        Ok(found.name())
    }

    /// The metric of type `External`: what its series have together.
    pub(super) async fn external(&self, spec: &MetricSpec) -> Result<Outcome, Failure> {
        let fail = |why: String| ("FailedGetExternalMetric".to_owned(), why);
        let Some(source) = &spec.external else {
            return Err(fail("invalid external metric source".to_owned()));
        };
        let metric = &source.metric;
        let usage = self.external_value(metric).await.map_err(|why| {
            let (namespace, name) = (self.namespace, &metric.name);
            fail(format!(
                "unable to get external metric {namespace}/{name}/{}: {why}",
                printed(metric)
            ))
        })?;
        let total = averaged_name(metric);
        let (replicas, name, current) = self.propose(&source.target, usage, total, metric).map_err(
            |why| fail(why.unwrap_or_else(|| "invalid external metric source: neither a value target nor an average value target was set".to_owned())),
        )?;
        let status = ExternalMetricStatus { current, metric: metric.clone() };
        Ok((replicas, name, status_of("External", |it| it.external = Some(status))))
    }

    async fn external_value(&self, metric: &MetricIdentifier) -> Result<i128, String> {
        let (namespace, name) = (self.namespace, encoded(&metric.name));
        let parameters = format!("labelSelector={}", encoded(&selector(metric)?));
        let url = format!(
            "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{name}?{parameters}"
        );
        let list: MetricValueList = get(self.client, &url).await.map_err(|error| {
            let why = Error::from(error);
            format!("unable to fetch metrics from external metrics API: {why}")
        })?;
        match list.items.is_empty() {
            true => Err("no metrics returned from external metrics API".to_owned()),
            false => Ok(list.sum()),
        }
    }

    /// By a value for all pods together or for each; `Err(None)`: the target says neither.
    fn propose(
        &self,
        target: &MetricTarget,
        usage: i128,
        total_name: String,
        metric: &MetricIdentifier,
    ) -> Result<(isize, String, MetricValueStatus), Option<String>> {
        let amount = |milli| Some(Quantity(quantity(milli, false)));
        if let Some(average) = target.average_value.as_ref().and_then(milli) {
            let (replicas, average) =
                per_pod(self.scale.status_replicas, usage, average, self.tolerances);
            let current = MetricValueStatus {
                average_value: amount(average),
                ..MetricValueStatus::default()
            };
            return Ok((replicas, averaged_name(metric), current));
        }
        let Some(value) = target.value.as_ref().and_then(milli) else { return Err(None) };
        if self.pods.pods.is_empty() {
            let why = "unable to calculate ready pods: no pods returned by selector while calculating replica count";
            return Err(Some(why.to_owned()));
        }
        let is_serving = |pod: &&std::sync::Arc<_>| phase(pod) == "Running" && is_ready(pod);
        let ready = length(&self.pods.pods.iter().filter(is_serving).collect::<Vec<_>>());
        let replicas = by_ratio(self.scale.replicas, usage, value, ready, self.tolerances);
        let current = MetricValueStatus { value: amount(usage), ..MetricValueStatus::default() };
        Ok((replicas, total_name, current))
    }
}

/// A selector as upstream prints it in messages.
fn printed(metric: &MetricIdentifier) -> String {
    match &metric.selector {
        None => "nil".to_owned(),
        Some(selector) => {
            let labels: BTreeMap<_, _> = selector.match_labels.clone().unwrap_or_default();
            let labels: Vec<String> =
                labels.iter().map(|(key, value)| format!("{key}: {value},")).collect();
            format!(
                "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{}},}}",
                labels.join(" ")
            )
        }
    }
}

fn averaged_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, printed(metric))
}

fn status_of(type_: &str, set: impl FnOnce(&mut MetricStatus)) -> MetricStatus {
    let mut status = MetricStatus { type_: type_.to_owned(), ..MetricStatus::default() };
    set(&mut status);
    status
}

/// The status of a metric of type `Pods`.
pub(super) fn pods_status(metric: &MetricIdentifier, proposal: Proposal) -> MetricStatus {
    let current = MetricValueStatus {
        average_value: Some(Quantity(quantity(proposal.average, false))),
        ..MetricValueStatus::default()
    };
    let status = PodsMetricStatus { current, metric: metric.clone() };
    status_of("Pods", |it| it.pods = Some(status))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{MetricIdentifier, MetricValueList, encoded, printed, selector};

    #[test]
    fn hpa_reads_values_of_both_versions() {
        let item = |name: &str, value: &str, window: &str| {
            json!({
                "describedObject": {"kind": "Pod", "name": name},
                "timestamp": "2026-01-01T00:00:00Z",
                window: 30,
                "value": value,
            })
        };
        let list: MetricValueList = serde_json::from_value(json!({"items": [
            item("a", "1500m", "windowSeconds"),
            item("b", "2", "window"),
            item("bad", "none", "other"),
        ]}))
        .unwrap();
        assert_eq!(list.sum(), 3500);
        let samples = list.samples();
        assert_eq!((samples["a"].value, samples["a"].window.as_secs()), (1500, 30));
        assert_eq!((samples["b"].value, samples["b"].window.as_secs()), (2000, 30));
        assert_eq!(samples.len(), 2);
    }

    #[test]
    fn hpa_encodes_what_metrics_name() {
        let metric: MetricIdentifier = serde_json::from_value(json!({
            "name": "queue",
            "selector": {"matchLabels": {"queue": "a"}},
        }))
        .unwrap();
        assert_eq!(encoded(&selector(&metric).unwrap()), "queue%3Da");
        assert_eq!(encoded("../x?y"), "..%2Fx%3Fy");
        assert_eq!(
            printed(&metric),
            "&LabelSelector{MatchLabels:map[string]string{queue: a,},MatchExpressions:[]LabelSelectorRequirement{},}"
        );
    }
}
