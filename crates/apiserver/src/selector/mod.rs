//! Label and field selectors, as list, watch and deletecollection take them in their query.

mod field;
mod label;

pub use field::{FieldSelector, equalities};
pub use label::{LabelSelector, Operator, Requirement};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
