//! ServiceAccount.

use super::{Kind, Strategy, printers};
use crate::api_types::{CREATE, Gvk, Resource, Subresource, core};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["sa"],
        subresources: &[Subresource {
            name: "token",
            gvk: Gvk::v1("authentication.k8s.io", "TokenRequest"),
            verbs: CREATE,
        }],
        ..core("serviceaccounts", "serviceaccount", "ServiceAccount", "serviceaccounts")
    },
    strategy: Strategy {
        printer: &printers::ACCOUNTS,
        returned_when_deleted: true,
        ..Strategy::PLAIN
    },
};
