//! Hashes of templates, which name what is made of them.

use std::fmt::Write;

use longshore_godump::Fnv32a;
use serde::Serialize;

/// Letters and digits that make no words.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The hash of an object and of the number of collisions before it.
///
/// The same object has the same hash in each version of this program. It is not Go's: objects are
/// found again by their content, and not by their hash.
pub(crate) fn hashed(object: &impl Serialize, collisions: Option<i32>) -> String {
    let mut hash = Fnv32a::default();
    // the fields of an object are in the order of their names, and maps in the order of their keys
    let text = serde_json::to_string(object).unwrap_or_default();
    // writing to a hash does not fail
    let _ = hash.write_str(&text);
    if let Some(collisions) = collisions {
        let _ = write!(hash, "/{collisions}");
    }
    encoded_hash(hash.finish())
}

/// A hash as part of a name.
pub(crate) fn encoded_hash(hash: u32) -> String {
    let letter = |digit: u8| ALPHABET.get(usize::from(digit) % ALPHABET.len()).copied();
    hash.to_string().bytes().filter_map(letter).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_stable_and_depends_on_collisions() {
        let object = serde_json::json!({"b": 1, "a": [2]});
        assert_eq!(hashed(&object, None), hashed(&object.clone(), None));
        assert_ne!(hashed(&object, None), hashed(&object, Some(0)));
        assert_ne!(hashed(&object, Some(1)), hashed(&object, Some(0)));
        // as upstream's SafeEncodeString
        assert_eq!(encoded_hash(1_234_567_890), "56789bcdf4");
    }
}
