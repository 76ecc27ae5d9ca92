//! Interned strings: equal texts are one allocation, so that comparing them compares two addresses.
//!
//! Keys and values of labels repeat on thousands of objects, and selectors compare them in the hot
//! path. A text that no object has any more is dropped at the next sweep of the pool.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

/// The pool is not swept below this number of texts.
const SWEEP_MIN: usize = 4096;

/// An interned string. Equality and hash are those of its address.
#[derive(Clone)]
pub struct Atom(Arc<str>);

#[derive(Default)]
struct Pool {
    texts: HashSet<Text>,
    sweep_at: usize,
}

/// A text of the pool, found by its content.
#[derive(PartialEq, Eq, Hash)]
struct Text(Arc<str>);

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

fn pool() -> &'static Mutex<Pool> {
    static POOL: OnceLock<Mutex<Pool>> = OnceLock::new();
    POOL.get_or_init(Mutex::default)
}

impl Atom {
    /// The atom of a text.
    pub fn new(text: &str) -> Self {
        let mut pool = pool().lock();
        if let Some(known) = pool.texts.get(text) {
            return Self(known.0.clone());
        }
        if pool.texts.len() >= pool.sweep_at.max(SWEEP_MIN) {
            // Under the lock nobody can clone a text that only the pool holds.
            pool.texts.retain(|text| Arc::strong_count(&text.0) > 1);
            pool.sweep_at = pool.texts.len() * 2;
        }
        let text: Arc<str> = text.into();
        pool.texts.insert(Text(text.clone()));
        Self(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

impl PartialEq for Atom {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address() && self.0.len() == other.0.len()
    }
}

impl Eq for Atom {}

impl Hash for Atom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.address());
    }
}

impl Deref for Atom {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for Atom {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<&String> for Atom {
    fn from(text: &String) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atoms_of_one_text_are_equal_and_of_others_are_not() {
        assert_eq!(Atom::new("a"), Atom::new("a"));
        assert_ne!(Atom::new("a"), Atom::new("b"));
        assert_ne!(Atom::new(""), Atom::new("b"));
        assert_eq!(Atom::new(""), Atom::new(""));
        assert_eq!(Atom::new("x").as_str(), "x");
    }

    #[test]
    fn atoms_that_live_survive_a_sweep() {
        let kept = Atom::new("kept-through-sweeps");
        for number in 0..20_000 {
            Atom::new(&format!("short-lived-{number}"));
        }
        assert_eq!(kept, Atom::new("kept-through-sweeps"));
        let pool = pool().lock();
        assert!(pool.texts.len() < 15_000, "{} texts are kept", pool.texts.len());
    }
}
