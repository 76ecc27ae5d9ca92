//! How questions to the apiserver about clients go.

use std::time::Instant;

use kube::Error as KubeError;
use longshore_metrics::{Buckets, Counter, Family, Histogram, Registry};

/// What is counted of one kind of question. Cheap to clone.
#[derive(Clone, Debug)]
struct Questions {
    all: Family<Counter, 1>,
    durations: Family<Histogram, 1>,
}

impl Questions {
    fn note<T>(&self, began: Instant, outcome: &Result<T, KubeError>) {
        let code = match outcome {
            Ok(_) => "201".to_owned(),
            Err(KubeError::Api(status)) => status.code.to_string(),
            Err(_) => "<error>".to_owned(),
        };
        self.all.with([&code]).inc();
        self.durations.with([&code]).took(began.elapsed());
    }
}

/// What is counted of questions about clients. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Reviews {
    tokens: Questions,
    leave: Questions,
}

impl Reviews {
    /// Registers the families.
    pub(crate) fn new(registry: &Registry) -> Self {
        let buckets = || Buckets::of(&[0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0]);
        Self {
            tokens: Questions {
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
            leave: Questions {
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

    /// It was asked, from that moment on, whose a token is.
    pub(super) fn token<T>(&self, began: Instant, outcome: &Result<T, KubeError>) {
        self.tokens.note(began, outcome);
    }

    /// It was asked, from that moment on, whether a client may do something.
    pub(super) fn leave<T>(&self, began: Instant, outcome: &Result<T, KubeError>) {
        self.leave.note(began, outcome);
    }
}
