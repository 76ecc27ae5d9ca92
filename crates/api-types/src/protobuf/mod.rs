//! Protobuf, which Go clients send and take for built-in kinds, and in which etcd holds them: an
//! envelope that names the kind, and in it the object.
//!
//! What is written has the very bytes that upstream's programs write: fields in the order of their
//! numbers, maps in the order of their keys, and a zero value where Go has no pointer.

mod encode;
pub mod wire;

use jiff::civil::{DateTime, datetime};

pub use encode::{ListWriter, encode, encode_any, encode_bare, encode_range, watch_frame};

use crate::Field;

/// The first bytes of an envelope.
pub const MAGIC: &[u8] = b"k8s\0";
/// Times are counted from here.
pub const EPOCH: DateTime = datetime(1970, 1, 1, 0, 0, 0, 0);
/// The time that Go has where there is none.
pub const NO_TIME: DateTime = datetime(1, 1, 1, 0, 0, 0, 0);
/// Objects nest no deeper.
pub const MAX_DEPTH: usize = 100;

/// Whether the list that may stand in place of a struct is one of texts: of the fields of schemas,
/// one has that.
#[must_use]
pub fn is_list_of_texts(field: &Field) -> bool {
    field.name == "dependencies"
}
