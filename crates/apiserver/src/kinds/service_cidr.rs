//! ServiceCIDR and IPAddress: stored, and without effect on the allocation of addresses.

use super::{Kind, Strategy};
use crate::api_types::{Resource, grouped, status_of};

pub(super) static IP_ADDRESS: Kind = Kind {
    resource: Resource {
        short_names: &["ip"],
        namespaced: false,
        ..grouped("networking.k8s.io", "ipaddresses", "ipaddress", "IPAddress")
    },
    strategy: Strategy::PLAIN,
};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        namespaced: false,
        subresources: &[status_of("networking.k8s.io", "ServiceCIDR")],
        ..grouped("networking.k8s.io", "servicecidrs", "servicecidr", "ServiceCIDR")
    },
    strategy: Strategy { reset_by_status: &["metadata", "spec"], ..Strategy::PLAIN },
};
