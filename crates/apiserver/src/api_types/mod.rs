//! What this apiserver serves, as data: the shape of a row of the table of resources, and the types of
//! their objects, which are those of crate api-types.

mod custom;
mod resources;

pub use custom::Live;
pub(crate) use custom::{
    Column, Conversion, ConversionWebhook, Definition, MergeRules, Scale, Version,
};
pub(crate) use longshore_api_types::protobuf::wire;
pub(crate) use longshore_api_types::{DATA, Layout, Place, layout};
pub use longshore_api_types::{Field, Gvk, Leaf, ListKind, Shape, Type, Types, types};
#[cfg(test)]
pub(crate) use longshore_api_types::{Slot, message};
pub(crate) use longshore_api_types::{go_field, is_named_text};
pub(crate) use resources::{
    CONNECT, CREATE, NO_COLLECTION_DELETE, PROXY, READ_WRITE, SCALE, core, grouped, review, status,
    status_in, status_of,
};
pub use resources::{Fields, Resource, Subresource};
