//! How long the node's certificates are valid, and how their renewal goes.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use longshore_metrics::{Buckets, Counter, Histogram, Registry};
use parking_lot::Mutex;

/// Handle to these metrics. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CertificateMetrics {
    ends: Arc<Mutex<Ends>>,
    client_failures: Counter,
    server_failures: Counter,
    server_lifetimes: Histogram,
}

/// When the certificates expire; `None` for one that is not rotated.
#[derive(Debug, Default)]
struct Ends {
    client: Option<Timestamp>,
    server: Option<Timestamp>,
}

impl CertificateMetrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        let ends = Arc::<Mutex<Ends>>::default();
        let known = Arc::clone(&ends);
        registry.collect(move |text| {
            let (client, server) = {
                let ends = known.lock();
                (ends.client, ends.server)
            };
            let name = "kubelet_certificate_manager_client_ttl_seconds";
            let help = "Seconds until the client certificate expires; +Inf if none is renewed.";
            text.gauge(name, help, left(client));
            let name = "kubelet_certificate_manager_server_ttl_seconds";
            let help = "Seconds until the serving certificate expires; +Inf if none is renewed.";
            text.gauge(name, help, left(server));
        });
        Self {
            ends,
            client_failures: registry.counter(
                "kubelet_certificate_manager_client_expiration_renew_errors",
                "Renewals of the client certificate that failed.",
            ),
            server_failures: registry.counter(
                "kubelet_server_expiration_renew_errors",
                "Renewals of the serving certificate that failed.",
            ),
            server_lifetimes: registry.histogram(
                "kubelet_certificate_manager_server_rotation_seconds",
                "How long serving certificates were in use when they were replaced, in seconds.",
                lifetimes(),
            ),
        }
    }

    /// The client certificate in use is good until then.
    pub fn client(&self, end: Timestamp) {
        self.ends.lock().client = Some(end);
    }

    /// The serving certificate in use is good until then.
    pub fn server(&self, end: Timestamp) {
        self.ends.lock().server = Some(end);
    }

    /// The client certificate should have been renewed and was not.
    pub fn client_not_renewed(&self) {
        self.client_failures.inc();
    }

    /// The serving certificate should have been renewed and was not.
    pub fn server_not_renewed(&self) {
        self.server_failures.inc();
    }

    /// A serving certificate was replaced after it was in use for so long.
    pub fn server_replaced(&self, after: Duration) {
        self.server_lifetimes.took(after);
    }
}

/// Whole seconds, negative for one that has expired.
fn left(end: Option<Timestamp>) -> f64 {
    end.map_or(f64::INFINITY, |end| end.duration_since(Timestamp::now()).as_secs() as f64)
}

/// From a minute to four years.
fn lifetimes() -> Buckets {
    const HOUR: f64 = 3600.0;
    const DAY: f64 = 24.0 * HOUR;
    Buckets::of(&[
        60.0,
        HOUR,
        4.0 * HOUR,
        DAY,
        7.0 * DAY,
        30.0 * DAY,
        90.0 * DAY,
        180.0 * DAY,
        360.0 * DAY,
        1440.0 * DAY,
    ])
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;
    use longshore_metrics::parse::parse;

    use super::*;

    #[test]
    fn metrics_of_certificate_ttl() {
        let registry = Registry::default();
        let certificates = CertificateMetrics::new(&registry);
        let seconds = |side: &str| {
            let name = format!("kubelet_certificate_manager_{side}_ttl_seconds");
            parse(&registry.text()).unwrap().sum(&name, &[]).unwrap()
        };
        assert_eq!((seconds("client"), seconds("server")), (f64::INFINITY, f64::INFINITY));
        certificates.client(Timestamp::now() + SignedDuration::from_hours(1));
        certificates.server(Timestamp::now() - SignedDuration::from_secs(90));
        assert!((3590.0..=3600.0).contains(&seconds("client")), "{}", seconds("client"));
        assert!((-95.0..=-90.0).contains(&seconds("server")), "{}", seconds("server"));
    }
}
