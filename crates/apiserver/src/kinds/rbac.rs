//! Roles and their bindings.

use super::{Kind, Strategy, defaults, printers, validate};
use crate::api_types::{Resource, grouped};
use crate::schema::names;

pub(super) static CLUSTER_ROLE_BINDING: Kind = Kind {
    resource: Resource {
        namespaced: false,
        ..grouped(
            "rbac.authorization.k8s.io",
            "clusterrolebindings",
            "clusterrolebinding",
            "ClusterRoleBinding",
        )
    },
    strategy: Strategy {
        default: defaults::binding,
        validate: |binding, old, causes| validate::rbac::binding(binding, old, false, causes),
        printer: &printers::access::BINDINGS,
        name: names::path_segment,
        created_on_update: true,
        ..Strategy::PLAIN
    },
};

pub(super) static CLUSTER_ROLE: Kind = Kind {
    resource: Resource {
        namespaced: false,
        ..grouped("rbac.authorization.k8s.io", "clusterroles", "clusterrole", "ClusterRole")
    },
    strategy: Strategy {
        validate: |role, _, causes| validate::rbac::cluster_role(role, causes),
        name: names::path_segment,
        created_on_update: true,
        ..Strategy::PLAIN
    },
};

pub(super) static ROLE_BINDING: Kind = Kind {
    resource: grouped("rbac.authorization.k8s.io", "rolebindings", "rolebinding", "RoleBinding"),
    strategy: Strategy {
        default: defaults::binding,
        validate: |binding, old, causes| validate::rbac::binding(binding, old, true, causes),
        printer: &printers::access::BINDINGS,
        name: names::path_segment,
        created_on_update: true,
        ..Strategy::PLAIN
    },
};

pub(super) static ROLE: Kind = Kind {
    resource: grouped("rbac.authorization.k8s.io", "roles", "role", "Role"),
    strategy: Strategy {
        validate: |role, _, causes| validate::rbac::role(role, causes),
        name: names::path_segment,
        created_on_update: true,
        ..Strategy::PLAIN
    },
};
