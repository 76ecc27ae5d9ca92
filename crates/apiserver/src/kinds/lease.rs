//! Lease and LeaseCandidate.

use super::{Kind, Strategy, printers, validate};
use crate::api_types::{Resource, grouped};

pub(super) static KIND: Kind = Kind {
    resource: grouped("coordination.k8s.io", "leases", "lease", "Lease"),
    strategy: Strategy {
        validate: |lease, _, causes| validate::plain::lease(lease, causes),
        printer: &printers::LEASES,
        created_on_update: true,
        versioned_updates: true,
        ..Strategy::PLAIN
    },
};

pub(super) static CANDIDATE: Kind = Kind {
    resource: Resource {
        version: "v1beta1",
        ..grouped("coordination.k8s.io", "leasecandidates", "leasecandidate", "LeaseCandidate")
    },
    strategy: Strategy::PLAIN,
};
