//! ConfigMap.

use super::{Kind, Strategy, printers, validate};
use crate::api_types::{Resource, core};

pub(super) static KIND: Kind = Kind {
    resource: Resource {
        short_names: &["cm"],
        ..core("configmaps", "configmap", "ConfigMap", "configmaps")
    },
    strategy: Strategy {
        validate: validate::plain::config_map,
        printer: &printers::CONFIG_MAPS,
        ..Strategy::PLAIN
    },
};
