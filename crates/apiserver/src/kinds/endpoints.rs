//! Endpoints and EndpointSlice.

use super::{Kind, Strategy, defaults, printers, validate, warnings};
use crate::api_types::{Resource, core, grouped};

pub(super) static ENDPOINTS: Kind = Kind {
    resource: Resource {
        short_names: &["ep"],
        ..core("endpoints", "endpoints", "Endpoints", "services/endpoints")
    },
    strategy: Strategy {
        default: defaults::endpoints,
        validate: |object, _, causes| validate::network::endpoints(object, causes),
        printer: &printers::ENDPOINTS,
        created_on_update: true,
        warnings: warnings::endpoints,
        ..Strategy::PLAIN
    },
};

pub(super) static SLICE: Kind = Kind {
    resource: Resource {
        counts_generation: true,
        ..grouped("discovery.k8s.io", "endpointslices", "endpointslice", "EndpointSlice")
    },
    strategy: Strategy {
        default: defaults::endpoint_slice,
        validate: validate::network::endpoint_slice,
        printer: &printers::SLICES,
        ..Strategy::PLAIN
    },
};
