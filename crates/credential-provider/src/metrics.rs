//! Metrics of plugins, by the names of upstream.

use tokio::time::Instant;

use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};

/// Metrics of plugins.
pub(crate) struct Metrics {
    pub(crate) plugins: PluginMetrics,
    config: Family<Gauge, 1>,
}

/// Metrics of calls of plugins. Cheap to clone.
#[derive(Clone)]
pub(crate) struct PluginMetrics {
    errors: Family<Counter, 1>,
    durations: Family<Histogram, 1>,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            plugins: PluginMetrics {
                errors: registry.counters(
                    "kubelet_credential_provider_plugin_errors_total",
                    "[ALPHA] Number of errors from credential provider plugin",
                    ["plugin_name"],
                ),
                durations: registry.histograms(
                    "kubelet_credential_provider_plugin_duration",
                    "[ALPHA] Duration of execution in seconds for credential provider plugin",
                    ["plugin_name"],
                    Buckets::usual(),
                ),
            },
            config: registry.gauges(
                "kubelet_credential_provider_config_info",
                "[ALPHA] Information about the last applied credential provider configuration with hash \
                 as label",
                ["hash"],
            ),
        }
    }

    /// The configuration with that hash is in force.
    pub(crate) fn configured(&self, hash: &str) {
        self.config.with([hash]).set(1.0);
    }
}

impl PluginMetrics {
    /// A call begins.
    pub(crate) fn start<'a>(&'a self, plugin: &'a str) -> Call<'a> {
        Call { metrics: self, plugin, began: Instant::now() }
    }
}

/// A call of a plugin.
pub(crate) struct Call<'a> {
    metrics: &'a PluginMetrics,
    plugin: &'a str,
    began: Instant,
}

impl Call<'_> {
    pub(crate) fn finish(self, failed: bool) {
        self.metrics.durations.with([self.plugin]).took(self.began.elapsed());
        if failed {
            self.metrics.errors.with([self.plugin]).inc();
        }
    }
}
