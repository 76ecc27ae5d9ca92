//! Label and field selectors, as list, watch and deletecollection take them in their query.

mod field;
mod label;

pub use field::{FieldSelector, equalities};
pub use label::{LabelSelector, Operator, Requirement};

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

/// The most terms of one selector. It is put to every object and every change, so that its length is
/// a factor in the work for each of them.
const MAX_TERMS: usize = 1000;

fn check_count(terms: usize) -> Result<(), String> {
    match terms < MAX_TERMS {
        true => Ok(()),
        false => Err(format!("invalid selector: it has more than {MAX_TERMS} terms")),
    }
}
