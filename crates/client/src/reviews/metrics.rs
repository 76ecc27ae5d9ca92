//! Metrics of token and access reviews.

use std::time::Instant;

use kube::Error as KubeError;
use longshore_metrics::{Buckets, ClientCertificates, Counter, Family, Histogram, Registry};

/// Metrics of one kind of review. Cheap to clone.
#[derive(Clone, Debug)]
struct Review {
    all: Family<Counter, 1>,
    durations: Family<Histogram, 1>,
}

impl Review {
    fn observe<T>(&self, began: Instant, outcome: &Result<T, KubeError>) {
        let code = match outcome {
            Ok(_) => "201".to_owned(),
            Err(KubeError::Api(status)) => status.code.to_string(),
            Err(_) => "<error>".to_owned(),
        };
        self.all.with([&code]).inc();
        self.durations.with([&code]).took(began.elapsed());
    }
}

/// Metrics of token and access reviews. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ReviewMetrics {
    tokens: Review,
    authorization: Review,
    /// Certificates of clients.
    pub certificates: ClientCertificates,
}

impl ReviewMetrics {
    /// Registers the families.
    #[must_use]
    pub fn new(registry: &Registry) -> Self {
        let buckets = || Buckets::of(&[0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0]);
        Self {
            certificates: ClientCertificates::new(registry),
            tokens: Review {
                all: registry.counters(
                    "apiserver_delegated_authn_request_total",
                    "Questions to the apiserver about tokens, by the status of the answer.",
                    ["code"],
                ),
                durations: registry.histograms(
                    "apiserver_delegated_authn_request_duration_seconds",
                    "How long answers about tokens took, in seconds, by their status.",
                    ["code"],
                    buckets(),
                ),
            },
            authorization: Review {
                all: registry.counters(
                    "apiserver_delegated_authz_request_total",
                    "Questions to the apiserver about what clients may, by the status of the answer.",
                    ["code"],
                ),
                durations: registry.histograms(
                    "apiserver_delegated_authz_request_duration_seconds",
                    "How long answers about what clients may took, in seconds, by their status.",
                    ["code"],
                    buckets(),
                ),
            },
        }
    }

    /// Observes a TokenReview.
    pub(super) fn observe_token_review<T>(&self, began: Instant, outcome: &Result<T, KubeError>) {
        self.tokens.observe(began, outcome);
    }

    /// Observes a SubjectAccessReview.
    pub(super) fn observe_access_review<T>(&self, began: Instant, outcome: &Result<T, KubeError>) {
        self.authorization.observe(began, outcome);
    }
}
