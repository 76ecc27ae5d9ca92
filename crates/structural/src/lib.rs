//! Structural schemas, which say what the objects of a custom resource look like: read from JSON
//! ([`Schema::read`]), checked for structure ([`check`]), and applied to objects, which are pruned
//! ([`prune()`]), defaulted ([`default()`]) and validated ([`validate()`]) in upstream's words.
//!
//! Pure: nothing here knows of HTTP, stores or definitions. Schemas are bounded in depth and size when
//! they are read, and everything else walks a schema and an object side by side.

mod check;
mod defaulting;
mod error;
mod format;
mod lists;
mod path;
mod pruning;
mod schema;
mod validate;

pub use check::check;
pub use defaulting::{default, drop_nulls};
pub use error::{FieldError, Kind};
pub use lists::check_lists;
pub use path::Path;
pub use pruning::{embedded, prune};
pub use schema::{
    Additional, Junctors, ListKind, MAX_DEPTH, MAX_NODES, ReadError, Rule, Schema, Values,
};
pub use validate::validate;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
