//! RuntimeClass.

use super::{Kind, Strategy, validate};
use crate::api_types::{Resource, grouped};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        namespaced: false,
        ..grouped("node.k8s.io", "runtimeclasses", "runtimeclass", "RuntimeClass")
    },
    strategy: Strategy { validate: validate::plain::runtime_class, ..Strategy::PLAIN },
};
