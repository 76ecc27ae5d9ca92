//! How the types travel as protobuf messages: field numbers, read once from `data/protobuf.json`
//! on first use, which a cluster of JSON clients never makes.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;

use serde::Deserialize;

use super::types::{Field, Type, types};

/// A field of a message, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slot {
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
pub struct Message(Vec<(u32, Slot)>);

impl Message {
    /// All slots in the order of their numbers.
    pub fn slots(&self) -> impl Iterator<Item = (u32, Slot)> {
        self.0.iter().copied()
    }
}

/// The message of the type of this full name.
#[must_use]
pub fn message(name: &str) -> Option<&'static Message> {
    static MESSAGES: OnceLock<HashMap<&'static str, Message>> = OnceLock::new();
    MESSAGES.get_or_init(read).get(name)
}

/// How objects of a type travel: what is at each field number, sorted by it.
#[derive(Debug)]
pub struct Layout(Vec<(u32, Place)>);

/// What is at a field number.
#[derive(Debug)]
pub enum Place {
    /// A field of the type.
    Field {
        /// The field.
        field: &'static Field,
        /// Whether it is left out when it is not set.
        is_pointer: bool,
        /// Whether JSON shows it when it is zero.
        keeps_zero: bool,
    },
    /// A message of its own, whose fields are the type's in JSON.
    Inline(Layout),
}

impl Layout {
    /// What is at that number.
    #[must_use]
    pub fn place(&self, number: u32) -> Option<&Place> {
        let at = self.0.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        self.0.get(at).map(|(_, place)| place)
    }

    /// All of it in the order of the numbers.
    pub fn places(&self) -> impl Iterator<Item = &(u32, Place)> {
        self.0.iter()
    }

    fn of(ty: &'static Type, message_name: &str) -> Option<Layout> {
        let places = message(message_name)?.slots().filter_map(|(number, slot)| {
            let place = match slot {
                Slot::Inline(part) => Place::Inline(Layout::of(ty, part)?),
                Slot::Field { name, is_pointer, shows_zero } => Place::Field {
                    field: ty.field(name)?,
                    is_pointer,
                    keeps_zero: is_pointer
                        || shows_zero
                        || ty.required.contains(&name)
                        || ty.always.contains(&name),
                },
            };
            Some((number, place))
        });
        Some(Layout(places.collect()))
    }
}

/// The layout of the type of this index, made on first use. `None`: it has none.
#[must_use]
pub fn layout(index: usize) -> Option<&'static Layout> {
    static LAYOUTS: OnceLock<Vec<OnceLock<Option<Layout>>>> = OnceLock::new();
    let all = LAYOUTS.get_or_init(|| types().all().iter().map(|_| OnceLock::new()).collect());
    let make = || types().all().get(index).and_then(|ty| Layout::of(ty, ty.name));
    all.get(index)?.get_or_init(make).as_ref()
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
    const DATA: &str = include_str!("../data/protobuf.json");
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
