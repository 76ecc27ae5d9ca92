//! Custom kinds: what a CustomResourceDefinition says of the objects of its versions. A row of the table
//! of resources refers to the definition as it is now ([`Live`]), so the row itself stays while the
//! definition changes.

use std::sync::{Arc, OnceLock};

use longshore_managedfields as managedfields;
use longshore_structural::{Path, Schema};
use parking_lot::RwLock;
use serde_json::Value;

use super::Resource;

/// The definition behind a resource, as it is now.
#[derive(Debug)]
pub struct Live(RwLock<Served>);

#[derive(Debug)]
struct Served {
    definition: Arc<Definition>,
    /// The resources of all versions of the definition that are served.
    versions: Arc<[&'static Resource]>,
}

impl Live {
    pub(crate) fn new(definition: Arc<Definition>) -> Live {
        Live(RwLock::new(Served { definition, versions: Arc::default() }))
    }

    /// The definition.
    pub(crate) fn get(&self) -> Arc<Definition> {
        self.0.read().definition.clone()
    }

    /// The resources of all versions that are served.
    pub(crate) fn versions(&self) -> Arc<[&'static Resource]> {
        self.0.read().versions.clone()
    }

    /// Replaces both.
    pub(crate) fn set(&self, definition: Arc<Definition>, versions: Arc<[&'static Resource]>) {
        *self.0.write() = Served { definition, versions };
    }
}

/// A definition.
#[derive(Debug, Default)]
pub(crate) struct Definition {
    /// The kind of lists.
    pub(crate) list_kind: String,
    /// All versions, the preferred one first.
    pub(crate) versions: Vec<Version>,
    /// The version in which objects are stored.
    pub(crate) stored: String,
    /// How objects get from one version to another.
    pub(crate) conversion: Conversion,
    /// Whether fields that no schema names are kept.
    pub(crate) preserves_unknown: bool,
    /// Whether it is being deleted, and takes no new objects.
    pub(crate) is_terminating: bool,
}

/// How objects get from one version to another.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) enum Conversion {
    /// Only `apiVersion` changes.
    #[default]
    None,
    /// A webhook converts them.
    Webhook(ConversionWebhook),
}

/// The webhook that converts the objects of a definition.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ConversionWebhook {
    /// The name of the definition.
    pub(crate) definition: String,
    /// Its `clientConfig`.
    pub(crate) client: Value,
    /// The versions of ConversionReview that it takes, the preferred one first.
    pub(crate) review_versions: Vec<String>,
}

/// A version of a definition.
#[derive(Debug, Default)]
pub(crate) struct Version {
    pub(crate) name: String,
    /// What its objects look like.
    pub(crate) schema: Schema,
    /// The same as it was given, for documents.
    pub(crate) json: Value,
    /// What a table shows beside the name.
    pub(crate) columns: Vec<Column>,
    /// Where the number of replicas is.
    pub(crate) scale: Option<Scale>,
    /// The warning for clients that still use it.
    pub(crate) deprecation: Option<String>,
    /// `x-kubernetes-validations`, compiled; `None`: there are none.
    pub(crate) rules: Option<longshore_cel::crd::Validator>,
    /// Made on first use, see [`Version::merge_rules`].
    pub(crate) merge: OnceLock<MergeRules>,
}

/// How server-side apply merges the objects of a version.
#[derive(Debug)]
pub(crate) struct MergeRules {
    pub(crate) schema: managedfields::Schema,
    pub(crate) of: managedfields::TypeId,
}

/// A column of a table.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) format: String,
    pub(crate) description: String,
    pub(crate) priority: i64,
    /// Where the value is; `None` for a path that cannot be read.
    pub(crate) path: Option<Path>,
}

/// Where the numbers of a scale are.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    pub(crate) spec: Path,
    pub(crate) status: Path,
    pub(crate) selector: Option<Path>,
}

impl Definition {
    /// The webhook that converts its objects, if one does.
    pub(crate) fn webhook(&self) -> Option<&ConversionWebhook> {
        match &self.conversion {
            Conversion::None => None,
            Conversion::Webhook(webhook) => Some(webhook),
        }
    }

    /// The version of that name.
    pub(crate) fn version(&self, name: &str) -> Option<&Version> {
        self.versions.iter().find(|version| version.name == name)
    }
}

impl Version {
    /// The merge rules, made by `build` on first use.
    pub(crate) fn merge_rules(&self, build: impl FnOnce(&Schema) -> MergeRules) -> &MergeRules {
        self.merge.get_or_init(|| build(&self.schema))
    }
}
