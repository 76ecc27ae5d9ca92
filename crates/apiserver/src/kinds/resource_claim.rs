//! The kinds of dynamic resource allocation: stored only.

use super::{Kind, Strategy};
use crate::api_types::{Resource, grouped, status_of};

pub(super) static DEVICE_CLASS: Kind = Kind {
    resource: Resource {
        namespaced: false,
        counts_generation: true,
        ..grouped("resource.k8s.io", "deviceclasses", "deviceclass", "DeviceClass")
    },
    strategy: Strategy::PLAIN,
};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        subresources: &[status_of("resource.k8s.io", "ResourceClaim")],
        ..grouped("resource.k8s.io", "resourceclaims", "resourceclaim", "ResourceClaim")
    },
    strategy: Strategy { reset_by_status: &["metadata", "spec"], ..Strategy::PLAIN },
};

pub(super) static TEMPLATE: Kind = Kind {
    resource: grouped(
        "resource.k8s.io",
        "resourceclaimtemplates",
        "resourceclaimtemplate",
        "ResourceClaimTemplate",
    ),
    strategy: Strategy::PLAIN,
};

pub(super) static SLICE: Kind = Kind {
    resource: Resource {
        namespaced: false,
        counts_generation: true,
        fields: Some(&[("spec.nodeName", "spec.nodeName"), ("spec.driver", "spec.driver")]),
        ..grouped("resource.k8s.io", "resourceslices", "resourceslice", "ResourceSlice")
    },
    strategy: Strategy::PLAIN,
};
