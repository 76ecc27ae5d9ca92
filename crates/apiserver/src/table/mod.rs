//! Server-side tables: what `kubectl get` shows, one row per object, with the columns that
//! upstream's printers have. Columns of priority 1 are those of `-o wide`; every row has them all.
//!
//! Current limitations: columns carry no descriptions.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api_types::{Definition, Resource, Version};
use crate::kinds::{Printer, custom, strategy};
use crate::status::StatusError;

/// How much of each object a row carries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata, as PartialObjectMetadata.
    #[default]
    Metadata,
    /// All of it.
    Object,
}

impl IncludeObject {
    /// Reads the query parameter `includeObject`; 400 when it is none of the three.
    pub fn parse(text: Option<&str>) -> Result<Self, StatusError> {
        match text.unwrap_or_default() {
            "None" => Ok(Self::None),
            "" | "Metadata" => Ok(Self::Metadata),
            "Object" => Ok(Self::Object),
            other => Err(StatusError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }
}

/// A Table of these objects, of a version of `meta.k8s.io`. `list_meta` is the metadata of the list (or, for a
/// single object, its resourceVersion). `headers` is false for all but the first event of a watch.
pub fn render<'a>(
    resource: &Resource,
    objects: impl IntoIterator<Item = &'a Value>,
    list_meta: Value,
    include: IncludeObject,
    api_version: &'static str,
    headers: bool,
    now: Timestamp,
) -> Value {
    let rows = Rows::new(resource, include, api_version, now);
    let columns = if headers { rows.columns() } else { json!([]) };
    let rows: Vec<Value> = objects.into_iter().map(|object| rows.row(object)).collect();
    json!({
        "kind": "Table",
        "apiVersion": api_version,
        "metadata": list_meta,
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// The parts of a table of one resource, for writing a table in parts.
pub(crate) struct Rows {
    printer: &'static Printer,
    /// The definition of a custom kind, and the version of it that is shown.
    custom: Option<(Arc<Definition>, &'static str)>,
    include: IncludeObject,
    api_version: &'static str,
    now: Timestamp,
}

impl Rows {
    pub(crate) fn new(
        resource: &Resource,
        include: IncludeObject,
        api_version: &'static str,
        now: Timestamp,
    ) -> Rows {
        let custom = resource.definition().map(|definition| (definition, resource.version));
        Rows { printer: strategy(resource).printer, custom, include, api_version, now }
    }

    /// The `columnDefinitions`.
    pub(crate) fn columns(&self) -> Value {
        if let Some(version) = self.version() {
            return custom::columns(version);
        }
        self.printer.columns.iter().map(|column| column.to_value()).collect()
    }

    /// The row of one object.
    pub(crate) fn row(&self, object: &Value) -> Value {
        match self.version() {
            Some(version) => {
                let cells = custom::cells(version, object, self.now);
                self.with_object(cells, None, object)
            }
            None => {
                let cells = (self.printer.cells)(object, self.now);
                self.with_object(cells, (self.printer.conditions)(object), object)
            }
        }
    }

    fn version(&self) -> Option<&Version> {
        let (definition, version) = self.custom.as_ref()?;
        definition.version(version)
    }

    fn with_object(&self, cells: Vec<Value>, conditions: Option<Value>, object: &Value) -> Value {
        // a bookmark is an object of the kind with nothing in it
        let mut row = json!({ "cells": cells });
        row["object"] = match self.include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => partial_metadata(object, self.api_version),
            IncludeObject::Object => object.clone(),
        };
        if let Some(conditions) = conditions {
            row["conditions"] = conditions;
        }
        row
    }
}

/// The object's metadata as PartialObjectMetadata of a version of `meta.k8s.io`.
#[must_use]
pub fn partial_metadata(object: &Value, api_version: &str) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": api_version,
        "metadata": object.get("metadata").cloned().unwrap_or_else(|| json!({})),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
