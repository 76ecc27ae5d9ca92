//! What this apiserver serves, as data: the table of resources, and the types of their objects
//! (fields, merge keys, list keys). No other module hard-codes such a list.
//!
//! Events are stored once, as core/v1 objects under the one storage prefix that both of their
//! groups name; `schema::events` turns them into the other group's shape and back.

mod messages;
mod resources;
mod types;

pub(crate) use messages::{Message, Slot, message};
pub use resources::{Gvk, RESOURCES, Resource, Subresource, lookup};
pub(crate) use types::DATA;
pub use types::{Field, Leaf, ListKind, Shape, Type, Types, types};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
