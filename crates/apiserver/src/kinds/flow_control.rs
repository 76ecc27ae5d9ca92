//! FlowSchema and PriorityLevelConfiguration: stored, and without effect on this server.

use super::{Kind, Strategy};
use crate::api_types::{Resource, grouped, status_of};

pub(super) static SCHEMA: Kind = Kind {
    resource: Resource {
        namespaced: false,
        subresources: &[status_of("flowcontrol.apiserver.k8s.io", "FlowSchema")],
        counts_generation: true,
        ..grouped("flowcontrol.apiserver.k8s.io", "flowschemas", "flowschema", "FlowSchema")
    },
    strategy: Strategy { reset_by_status: &["metadata", "spec"], ..Strategy::PLAIN },
};

pub(super) static PRIORITY_LEVEL: Kind = Kind {
    resource: Resource {
        namespaced: false,
        subresources: &[status_of("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration")],
        counts_generation: true,
        ..grouped(
            "flowcontrol.apiserver.k8s.io",
            "prioritylevelconfigurations",
            "prioritylevelconfiguration",
            "PriorityLevelConfiguration",
        )
    },
    strategy: Strategy { reset_by_status: &["metadata", "spec"], ..Strategy::PLAIN },
};
