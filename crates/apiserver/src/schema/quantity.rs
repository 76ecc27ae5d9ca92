//! Quantities of resources, as the node has them, too.

pub(crate) use longshore_quantity::{Quantity, SYNTAX};
