//! What this apiserver serves, as data: the shape of a row of the table of resources, and the types of
//! their objects (fields, merge keys, list keys).

mod custom;
mod messages;
mod resources;
mod types;

pub use custom::Live;
pub(crate) use custom::{
    Column, Conversion, ConversionWebhook, Definition, MergeRules, Scale, Version,
};
pub(crate) use messages::{Layout, Place, layout};
#[cfg(test)]
pub(crate) use messages::{Slot, message};
pub(crate) use resources::{
    CONNECT, CREATE, NO_COLLECTION_DELETE, PROXY, READ_WRITE, SCALE, core, grouped, review, status,
    status_of,
};
pub use resources::{Fields, Gvk, Resource, Subresource};
pub(crate) use types::DATA;
pub use types::{Field, Leaf, ListKind, Shape, Type, Types, types};
