//! The types of the Kubernetes API as data: fields, merge keys, list keys, and how they travel as protobuf
//! messages, which [`protobuf`] writes.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod go_types;
mod gvk;
mod messages;
pub mod protobuf;
mod types;

pub use go_types::{GoField, go_field, is_named_text};
pub use gvk::Gvk;
pub use messages::{Layout, Message, Place, Slot, layout, message};
pub use types::{DATA, Field, Leaf, ListKind, Shape, Type, Types, types};
