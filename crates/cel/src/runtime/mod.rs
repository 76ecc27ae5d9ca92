//! Values at evaluation, what operations on them cost, and the functions of the libraries.

pub(crate) mod functions;
pub(crate) mod meter;
pub(crate) mod value;
