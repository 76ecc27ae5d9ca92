//! Who set which fields of an object, and server-side apply: upstream's structured merge and field
//! managers, as pure functions on JSON values.
//!
//! ```text
//! FieldsV1 ⇄ Set ← typed (fields of an object) ← Schema (what is one value, what has parts)
//!             ↑
//! managedFields ⇄ Managers ← apply (`update` and `apply` of a whole object) → the object to store
//! ```
//!
//! Sets borrow their texts from the objects that they are of; of an object that is written, only the
//! entries that change are made anew.

mod apply;
mod compare;
mod element;
mod fields_v1;
mod format_error;
mod managers;
mod schema;
mod set;
mod typed;
mod validate;

pub use apply::{
    ApplyError, Conflict, OneVersion, Target, Versions, Writer, apply, same_but_for_times, update,
};
pub use compare::Comparison;
pub use element::{Element, Scalar as KeyValue};
pub use format_error::FormatError;
pub use managers::{Entry, EntryError, Identity, Managers, Operation};
pub use schema::{Field, Items, Key, ListType, MapType, Scalar, Schema, Type, TypeId};
pub use set::{Node, Set};
pub use typed::{fields_of, merge, remove, with_named_fields};
pub use validate::{Mismatch, validate};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::arithmetic_side_effects)]
mod tests;
