//! Secret.

use super::{Kind, Strategy, defaults, printers, validate};
use crate::api_types::{Resource, core};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        fields: Some(&[("type", "type")]),
        ..core("secrets", "secret", "Secret", "secrets")
    },
    strategy: Strategy {
        default: defaults::secret,
        validate: validate::plain::secret,
        printer: &printers::SECRETS,
        ..Strategy::PLAIN
    },
};
