//! Why the text of a set of fields cannot be read.

/// The deepest nesting; objects themselves may have about as many levels.
pub(crate) const MAX_DEPTH: usize = 128;
/// The most elements of one entry; the largest objects have some ten thousand fields.
pub(crate) const MAX_ELEMENTS: usize = 100_000;

/// Why `fieldsV1` is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A key is no element of a path.
    #[error("the key {key:?} is no path element: {why}")]
    Key {
        /// The key, shortened.
        key: String,
        /// What is wrong.
        why: String,
    },
    /// A key is longer than any field's.
    #[error("a key of {0} bytes is too long for a path element")]
    LongKey(usize),
    /// A value is no object.
    #[error("the value of a path element is no object")]
    NoObject,
    /// It is nested too deeply.
    #[error("the fields are nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    /// It is too large.
    #[error("there are more than {MAX_ELEMENTS} path elements")]
    TooMany,
}
