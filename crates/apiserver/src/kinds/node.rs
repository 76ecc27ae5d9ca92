//! Node.

use super::{Kind, Strategy, defaults, printers, validate};
use crate::api_types::{Gvk, PROXY, Resource, Subresource, core, status};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["no"],
        namespaced: false,
        subresources: &[
            Subresource { name: "proxy", gvk: Gvk::core("NodeProxyOptions"), verbs: PROXY },
            status("Node"),
        ],
        fields: Some(&[("spec.unschedulable", "spec.unschedulable")]),
        ..core("nodes", "node", "Node", "minions")
    },
    strategy: Strategy {
        default: defaults::node,
        validate: |node, old, causes| {
            validate::plain::node(node, causes);
            if let Some(old) = old {
                validate::plain::node_update(node, old, causes);
            }
        },
        validate_status: |node, old, causes| {
            validate::plain::declared_features(node, causes);
            validate::plain::node_update(node, old, causes);
        },
        printer: &printers::NODES,
        ..Strategy::PLAIN
    },
};
