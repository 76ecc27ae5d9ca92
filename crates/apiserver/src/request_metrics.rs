//! Metrics of requests under upstream's names (`apiserver/pkg/endpoints/metrics`): counters, durations
//! and sizes by verb and resource. Used by the router, which names a request, and by bodies, as a request
//! whose answer is a stream is counted when that ends.
//!
//! Current limitations: `apiserver_request_sli_duration_seconds` includes the time in webhooks, and
//! `apiserver_longrunning_requests` leaves out connections that are upgraded.

use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use longshore_base::version::{KUBERNETES_VERSION, go_arch};
use longshore_metrics::{
    Buckets, Counter, Family, Gauge, Histogram, Registry, Version, register_process_metrics,
    register_version,
};

/// What a request is counted as. All values are of fixed sets, and resources are those that are served,
/// so what clients send cannot make the metrics grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RequestLabels {
    /// The method, with `LIST`, `WATCH`, `APPLY` and `CONNECT` told apart.
    pub(crate) verb: &'static str,
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) resource: &'static str,
    pub(crate) subresource: &'static str,
    /// `cluster`, `namespace`, `resource`, or nothing for what is no resource.
    pub(crate) scope: &'static str,
    pub(crate) component: &'static str,
    pub(crate) dry_run: &'static str,
    /// A program of the control plane by its name, if it is one.
    pub(crate) system_client: &'static str,
    /// Whether the version of the resource is deprecated.
    pub(crate) is_deprecated: bool,
}

/// The families. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct RequestMetrics(Arc<Families>);

#[derive(Debug)]
struct Families {
    registry: Registry,
    requests: Family<Counter, 10>,
    durations: Family<Histogram, 8>,
    sli_durations: Family<Histogram, 7>,
    sizes: Family<Histogram, 7>,
    terminations: Family<Counter, 8>,
    long_running: Family<Gauge, 7>,
    deprecated: Family<Gauge, 5>,
    in_flight: Family<Gauge, 1>,
}

/// Bounds of durations in seconds, from 50 ms on.
const SLI_BOUNDS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0,
    30.0, 45.0, 60.0,
];
/// The labels that most families have in common.
const COMMON: [&str; 7] =
    ["component", "group", "resource", "scope", "subresource", "verb", "version"];

impl RequestMetrics {
    pub(crate) fn new() -> Self {
        let registry = Registry::default();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            register_process_metrics(&registry, runtime);
        }
        let platform = format!("linux/{}", go_arch());
        let version = Version { kubernetes: KUBERNETES_VERSION, commit: "", platform: &platform };
        register_version(&registry, version);
        Self(Arc::new(Families {
            requests: registry.counters(
                "apiserver_request_total",
                "Requests by verb, dry run, resource, scope, component and code of the answer.",
                [
                    "code",
                    "component",
                    "dry_run",
                    "group",
                    "resource",
                    "scope",
                    "subresource",
                    "system_client",
                    "verb",
                    "version",
                ],
            ),
            durations: registry.histograms(
                "apiserver_request_duration_seconds",
                "How long requests took, in seconds.",
                [
                    "component",
                    "dry_run",
                    "group",
                    "resource",
                    "scope",
                    "subresource",
                    "verb",
                    "version",
                ],
                Buckets::of(&[0.005, 0.025]).then(&Buckets::of(&SLI_BOUNDS)),
            ),
            sli_durations: registry.histograms(
                "apiserver_request_sli_duration_seconds",
                "How long requests took that were not dry runs, in seconds.",
                COMMON,
                Buckets::of(&SLI_BOUNDS),
            ),
            sizes: registry.histograms(
                "apiserver_response_sizes",
                "Bytes of answers to reads.",
                COMMON,
                Buckets::exponential(1000.0, 10.0, 7),
            ),
            terminations: registry.counters(
                "apiserver_request_terminations_total",
                "Requests that were refused to protect the server.",
                [
                    "code",
                    "component",
                    "group",
                    "resource",
                    "scope",
                    "subresource",
                    "verb",
                    "version",
                ],
            ),
            long_running: registry.gauges(
                "apiserver_longrunning_requests",
                "Watches, logs and other requests under way that last.",
                COMMON,
            ),
            deprecated: registry.gauges(
                "apiserver_requested_deprecated_apis",
                "1 for each deprecated version of a resource that was requested.",
                ["group", "removed_release", "resource", "subresource", "version"],
            ),
            in_flight: registry.gauges(
                "apiserver_current_inflight_requests",
                "Requests under way that do not last, by whether they change something.",
                ["request_kind"],
            ),
            registry,
        }))
    }

    /// A request begins to be answered.
    pub(crate) fn begin(&self, labels: RequestLabels, began: Instant, lasts: bool) -> Record {
        let lasting = lasts.then(|| self.0.long_running.with(labels.common()));
        if let Some(lasting) = &lasting {
            lasting.add(1.0);
        }
        Record { metrics: self.clone(), labels, began, code: None, bytes: 0, lasting }
    }

    /// A request is refused as there are too many.
    pub(crate) fn dropped(&self, labels: RequestLabels) {
        let code = StatusCode::TOO_MANY_REQUESTS;
        self.count(&RequestLabels { system_client: "", ..labels }, code);
        let [component, group, resource, scope, subresource, verb, version] = labels.common();
        let code = code.as_str();
        let labels = [code, component, group, resource, scope, subresource, verb, version];
        self.0.terminations.with(labels).inc();
    }

    fn count(&self, labels: &RequestLabels, code: StatusCode) {
        let RequestLabels { component, dry_run, group, resource, scope, .. } = *labels;
        let RequestLabels { subresource, system_client, verb, version, .. } = *labels;
        let code = code.as_str();
        let labels = [
            code,
            component,
            dry_run,
            group,
            resource,
            scope,
            subresource,
            system_client,
            verb,
            version,
        ];
        self.0.requests.with(labels).inc();
    }

    fn answered(&self, record: &Record, code: StatusCode) {
        let labels = &record.labels;
        self.count(labels, code);
        let took = record.began.elapsed();
        let RequestLabels { component, dry_run, group, resource, scope, .. } = *labels;
        let RequestLabels { subresource, verb, version, .. } = *labels;
        let own = [component, dry_run, group, resource, scope, subresource, verb, version];
        self.0.durations.with(own).took(took);
        if dry_run.is_empty() {
            self.0.sli_durations.with(labels.common()).took(took);
        }
        if matches!(verb, "GET" | "LIST") {
            self.0.sizes.with(labels.common()).observe(record.bytes as f64);
        }
        if labels.is_deprecated {
            self.0.deprecated.with([group, "", resource, subresource, version]).set(1.0);
        }
    }

    /// In Prometheus' text format, with how many requests of each kind are under way.
    pub(crate) fn render(&self, in_flight: [(&str, u64); 2]) -> String {
        for (kind, count) in in_flight {
            self.0.in_flight.with([kind]).set(count as f64);
        }
        self.0.registry.text()
    }
}

impl RequestLabels {
    /// The values of [`COMMON`].
    fn common(&self) -> [&'static str; 7] {
        let Self { component, group, resource, scope, subresource, verb, version, .. } = *self;
        [component, group, resource, scope, subresource, verb, version]
    }
}

/// A request that is counted when this is dropped, if it was answered.
#[derive(Debug)]
pub(crate) struct Record {
    metrics: RequestMetrics,
    labels: RequestLabels,
    began: Instant,
    code: Option<StatusCode>,
    bytes: usize,
    lasting: Option<Gauge>,
}

impl Record {
    /// The request is answered with that code; its body may follow.
    pub(crate) fn answered(&mut self, code: StatusCode) {
        self.code = Some(code);
    }

    /// So many bytes of the body are sent.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Some(lasting) = &self.lasting {
            lasting.add(-1.0);
        }
        if let Some(code) = self.code {
            self.metrics.answered(self, code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: RequestLabels = RequestLabels {
        verb: "LIST",
        group: "apps",
        version: "v1",
        resource: "deployments",
        subresource: "",
        scope: "namespace",
        component: "apiserver",
        dry_run: "",
        system_client: "kube-scheduler",
        is_deprecated: false,
    };

    fn text(metrics: &RequestMetrics) -> String {
        metrics.render([("readOnly", 2), ("mutating", 0)])
    }

    #[test]
    fn request_metrics_have_upstreams_labels() {
        let metrics = RequestMetrics::new();
        let mut record = metrics.begin(LABELS, Instant::now(), false);
        record.answered(StatusCode::OK);
        record.sent(1500);
        assert!(!text(&metrics).contains("apiserver_request_total{"), "it is under way");
        drop(record);
        let dry = RequestLabels { verb: "POST", dry_run: "All", is_deprecated: true, ..LABELS };
        let mut record = metrics.begin(dry, Instant::now(), false);
        record.answered(StatusCode::CREATED);
        drop(record);
        metrics.dropped(LABELS);
        drop(metrics.begin(LABELS, Instant::now(), false));
        let text = text(&metrics);
        let common = "group=\"apps\",resource=\"deployments\",scope=\"namespace\",subresource=\"\"";
        let own = format!("component=\"apiserver\",{common},verb=\"LIST\",version=\"v1\"");
        for line in [
            format!("apiserver_request_total{{code=\"200\",component=\"apiserver\",dry_run=\"\",{common},system_client=\"kube-scheduler\",verb=\"LIST\",version=\"v1\"}} 1"),
            format!("apiserver_request_total{{code=\"201\",component=\"apiserver\",dry_run=\"All\",{common},system_client=\"kube-scheduler\",verb=\"POST\",version=\"v1\"}} 1"),
            format!("apiserver_request_total{{code=\"429\",component=\"apiserver\",dry_run=\"\",{common},system_client=\"\",verb=\"LIST\",version=\"v1\"}} 1"),
            format!("apiserver_request_duration_seconds_count{{component=\"apiserver\",dry_run=\"All\",{common},verb=\"POST\",version=\"v1\"}} 1"),
            format!("apiserver_request_sli_duration_seconds_count{{{own}}} 1"),
            format!("apiserver_response_sizes_bucket{{{own},le=\"1000\"}} 0"),
            format!("apiserver_response_sizes_bucket{{{own},le=\"10000\"}} 1"),
            format!("apiserver_request_terminations_total{{code=\"429\",{own}}} 1"),
            "apiserver_requested_deprecated_apis{group=\"apps\",removed_release=\"\",resource=\"deployments\",subresource=\"\",version=\"v1\"} 1".to_owned(),
            "apiserver_current_inflight_requests{request_kind=\"readOnly\"} 2".to_owned(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
    }

    #[test]
    fn request_metrics_count_what_lasts_while_it_lasts() {
        let metrics = RequestMetrics::new();
        let watch = RequestLabels { verb: "WATCH", ..LABELS };
        let records = [(); 2].map(|()| metrics.begin(watch, Instant::now(), true));
        let line = |count: usize| {
            format!(
                "apiserver_longrunning_requests{{component=\"apiserver\",group=\"apps\",resource=\"deployments\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}} {count}\n"
            )
        };
        assert!(text(&metrics).contains(&line(2)));
        drop(records);
        assert!(text(&metrics).contains(&line(0)));
    }
}
