//! How the types travel as protobuf messages: field numbers, read once from `data/protobuf.json`
//! on first use, which a cluster of JSON clients never makes.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde::Deserialize;

/// A field of a message, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A field of the type.
    Field {
        /// Its JSON name.
        name: &'static str,
        /// Whether a zero value is distinct from an absent one (a pointer in Go).
        is_pointer: bool,
        /// Whether JSON shows a zero value though nothing else says that it must.
        shows_zero: bool,
    },
    /// A message of this type, whose fields are the outer type's own in JSON.
    Inline(&'static str),
}

/// One message: its slots, sorted by field number.
#[derive(Debug)]
pub(crate) struct Message(Vec<(u32, Slot)>);

impl Message {
    pub(crate) fn slot(&self, number: u32) -> Option<Slot> {
        let at = self.0.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.0.get(at).map(|(_, slot)| *slot)
    }

    /// All slots in the order of their numbers.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u32, Slot)> {
        self.0.iter().copied()
    }
}

/// The message of the type of this full name.
pub(crate) fn message(name: &str) -> Option<&'static Message> {
    static MESSAGES: OnceLock<HashMap<&'static str, Message>> = OnceLock::new();
    MESSAGES.get_or_init(read).get(name)
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default, borrow)]
    fields: BTreeMap<&'static str, u32>,
    #[serde(default, borrow)]
    inline: BTreeMap<&'static str, u32>,
    #[serde(default, borrow)]
    pointers: Vec<&'static str>,
    #[serde(default, borrow)]
    zeros: Vec<&'static str>,
}

/// The text is compiled in, so it either parses for every user or fails the crate's first test.
#[allow(clippy::expect_used)]
fn read() -> HashMap<&'static str, Message> {
    const DATA: &str = include_str!("../../data/protobuf.json");
    let raw: HashMap<&'static str, Raw> =
        serde_json::from_str(DATA).expect("data/protobuf.json is well formed");
    raw.into_iter().map(|(name, raw)| (name, build(&raw))).collect()
}

fn build(raw: &Raw) -> Message {
    let field = |name| Slot::Field {
        name,
        is_pointer: raw.pointers.contains(&name),
        shows_zero: raw.zeros.contains(&name),
    };
    let fields = raw.fields.iter().map(|(name, number)| (*number, field(name)));
    let inline = raw.inline.iter().map(|(name, number)| (*number, Slot::Inline(name)));
    let mut slots: Vec<(u32, Slot)> = fields.chain(inline).collect();
    slots.sort_unstable_by_key(|(number, _)| *number);
    Message(slots)
}
