//! Binding: the assignment of a pod to a node, which is never stored.

use super::{Created, Kind, Strategy};
use crate::api_types::{CREATE, Resource, core};

pub(super) static KIND: Kind = Kind {
    resource: Resource { verbs: CREATE, ..core("bindings", "binding", "Binding", "") },
    strategy: Strategy { created: Created::Binding, ..Strategy::PLAIN },
};
