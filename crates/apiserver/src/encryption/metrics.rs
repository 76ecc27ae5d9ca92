//! Encryption at rest in numbers, by upstream's names.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longshore_metrics::{Buckets, Counter, Family, Gauge, Histogram, Registry};
use sha2::{Digest, Sha256};
use tonic::Code;

/// Which way a value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    FromStorage,
    ToStorage,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Direction::FromStorage => "from_storage",
            Direction::ToStorage => "to_storage",
        }
    }
}

/// The hash by which metrics and messages name a key; an empty one has none.
pub(super) fn hash(key_id: &str) -> String {
    match key_id {
        "" => String::new(),
        key_id => {
            let digest = Sha256::digest(key_id);
            let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("sha256:{hex}")
        }
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// The families.
pub(super) struct Metrics {
    registry: Registry,
    transformations: Family<Counter, 4>,
    durations: Family<Histogram, 2>,
    cache_misses: Counter,
    generation_failures: Counter,
    calls: Family<Histogram, 3>,
    keys: Family<Counter, 3>,
    keys_used: Family<Gauge, 3>,
    keys_reported: Family<Gauge, 2>,
    invalid_keys: Family<Counter, 2>,
    known: Family<Gauge, 1>,
    reloads: Family<Counter, 1>,
    reloaded: Family<Gauge, 1>,
}

impl Default for Metrics {
    fn default() -> Self {
        let registry = Registry::default();
        Metrics {
            transformations: registry.counters(
                "apiserver_storage_transformation_operations_total",
                "[ALPHA] Total number of transformations. Successful transformation will have a status 'OK' and a \
                 varied status string when the transformation fails.",
                ["resource", "transformation_type", "transformer_prefix", "status"],
            ),
            durations: registry.histograms(
                "apiserver_storage_transformation_duration_seconds",
                "[ALPHA] Latencies in seconds of value transformation operations.",
                ["transformation_type", "transformer_prefix"],
                Buckets::exponential(5e-6, 2.0, 25),
            ),
            cache_misses: registry.counter(
                "apiserver_storage_envelope_transformation_cache_misses_total",
                "[ALPHA] Total number of cache misses while accessing key decryption key(KEK).",
            ),
            generation_failures: registry.counter(
                "apiserver_storage_data_key_generation_failures_total",
                "[ALPHA] Total number of failed data encryption key(DEK) generation operations.",
            ),
            calls: registry.histograms(
                "apiserver_envelope_encryption_kms_operations_latency_seconds",
                "[ALPHA] KMS operation duration with gRPC error code status total.",
                ["provider_name", "method_name", "grpc_status_code"],
                Buckets::exponential(0.0001, 2.0, 20),
            ),
            keys: registry.counters(
                "apiserver_envelope_encryption_key_id_hash_total",
                "[ALPHA] Number of times a keyID is used split by transformation type, provider, and apiserver \
                 identity.",
                ["transformation_type", "provider_name", "key_id_hash"],
            ),
            keys_used: registry.gauges(
                "apiserver_envelope_encryption_key_id_hash_last_timestamp_seconds",
                "[ALPHA] The last time in seconds when a keyID was used.",
                ["transformation_type", "provider_name", "key_id_hash"],
            ),
            keys_reported: registry.gauges(
                "apiserver_envelope_encryption_key_id_hash_status_last_timestamp_seconds",
                "[ALPHA] The last time in seconds when a keyID was returned by the Status RPC call.",
                ["provider_name", "key_id_hash"],
            ),
            invalid_keys: registry.counters(
                "apiserver_envelope_encryption_invalid_key_id_from_status_total",
                "[ALPHA] Number of times an invalid keyID is returned by the Status RPC call split by error.",
                ["provider_name", "error"],
            ),
            known: registry.gauges(
                "apiserver_envelope_encryption_dek_source_cache_size",
                "[ALPHA] Number of records in data encryption key (DEK) source cache.",
                ["provider_name"],
            ),
            reloads: registry.counters(
                "apiserver_encryption_config_controller_automatic_reloads_total",
                "[ALPHA] Total number of reload successes and failures of encryption configuration split by apiserver \
                 identity.",
                ["status"],
            ),
            reloaded: registry.gauges(
                "apiserver_encryption_config_controller_automatic_reload_last_timestamp_seconds",
                "[ALPHA] Timestamp of the last successful or failed automatic reload of encryption configuration \
                 split by apiserver identity.",
                ["status"],
            ),
            registry,
        }
    }
}

impl Metrics {
    pub(super) fn transformed(
        &self,
        resource: &str,
        direction: Direction,
        prefix: &str,
        took: Duration,
        is_ok: bool,
    ) {
        let status = if is_ok { "OK" } else { "unknown-non-grpc" };
        self.transformations.with([resource, direction.name(), prefix, status]).inc();
        if is_ok {
            self.durations.with([direction.name(), prefix]).took(took);
        }
    }

    pub(super) fn cache_miss(&self) {
        self.cache_misses.inc();
    }

    pub(super) fn key_generated(&self, has_failed: bool) {
        self.generation_failures.add(has_failed.into());
    }

    pub(super) fn called(&self, provider: &str, method: &str, code: Code, took: Duration) {
        let code = match code {
            Code::Ok => "OK".to_owned(),
            code => format!("{code:?}"),
        };
        let method = format!("/v2.KeyManagementService/{method}");
        self.calls.with([provider, &method, &code]).took(took);
    }

    pub(super) fn key_used(&self, direction: Direction, provider: &str, key_id: &str) {
        let labels = [direction.name(), provider, &hash(key_id)];
        self.keys.with(labels).inc();
        self.keys_used.with(labels).set(now());
    }

    pub(super) fn key_reported(&self, provider: &str, key_id: &str) {
        self.keys_reported.with([provider, &hash(key_id)]).set(now());
    }

    pub(super) fn invalid_key_id(&self, provider: &str, code: &str) {
        self.invalid_keys.with([provider, code]).inc();
    }

    pub(super) fn known_sources(&self, provider: &str, count: usize) {
        self.known.with([provider]).set(count as f64);
    }

    pub(super) fn reloaded(&self, is_ok: bool) {
        let status = [if is_ok { "success" } else { "failure" }];
        self.reloads.with(status).inc();
        self.reloaded.with(status).set(now());
    }

    /// In Prometheus' text format.
    pub(super) fn text(&self) -> String {
        self.registry.text()
    }
}
