//! Random objects for properties: what users, drivers and runtimes send, valid or nearly so, with
//! numbers and texts at their extremes. An object starts as one in which every field has a value
//! ([`examples`]); a few of its places are then changed ([`hostile`]).
//!
//! What comes out is JSON. A test that wants another form decodes it, and passes over what does not
//! decode: that something is refused is a valid outcome.

#![recursion_limit = "512"]
#![allow(clippy::arithmetic_side_effects, reason = "a tool of tests, on numbers of its own")]

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

pub mod examples;

/// Numbers at the limits of the types that they are read into.
pub const NUMBERS: [i64; 21] = [
    0,
    1,
    -1,
    2,
    255,
    256,
    65_535,
    65_536,
    999_999_999,
    i32::MAX as i64 - 1,
    i32::MAX as i64,
    i32::MAX as i64 + 1,
    i32::MIN as i64,
    i32::MIN as i64 - 1,
    u32::MAX as i64,
    1 << 53,
    315_576_000_000,
    i64::MAX / 1_000_000_000,
    i64::MAX - 1,
    i64::MAX,
    i64::MIN,
];

/// Texts that are numbers, quantities, durations, percentages, addresses or references.
pub const TEXTS: [&str; 56] = [
    "",
    "0",
    "-0",
    "1",
    "-1",
    "+1",
    "65535",
    "65536",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "18446744073709551615",
    "1e309",
    "1e-309",
    "-1e309",
    "1E99999999999",
    "9223372036854775807Ki",
    "9223372036854775807Ei",
    "-9223372036854775808Ei",
    "8Ei",
    "1n",
    "0.0000000001n",
    "0.9999999999999999999999999999999999",
    "1.5Gi",
    ".5",
    "5.",
    ".",
    "-",
    "Ki",
    "0x10",
    "1_000",
    "NaN",
    "inf",
    "0%",
    "100%",
    "101%",
    "-1%",
    "9223372036854775807%",
    "%",
    "9223372036854775807ns",
    "2562047h47m16.854775807s",
    "-2562047h47m16.854775808s",
    "1h1h",
    "1µs",
    "$(A)$(A)",
    "$$(A)",
    "$(",
    "../..",
    "/",
    "\0",
    "a\0b",
    "10.0.0.0/33",
    "::/0",
    "255.255.255.255",
    "fe80::1%eth0",
    "İ",
];

/// Times at the limits of what RFC 3339 and of what a timestamp can be.
pub const TIMES: [&str; 8] = [
    "1970-01-01T00:00:00Z",
    "1969-12-31T23:59:59.999999999Z",
    "0000-01-01T00:00:00Z",
    "0001-01-01T00:00:00Z",
    "-009999-01-02T02:00:00Z",
    "9999-12-30T22:00:00.999999999Z",
    "9999-12-31T23:59:59Z",
    "2262-04-11T23:47:16.854775807Z",
];

/// A change of one place of an object.
#[derive(Clone, Debug)]
pub struct Edit {
    place: Index,
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    Number(i64),
    Large(u64),
    Float(f64),
    Text(String),
    Time(&'static str),
    Flag(bool),
    Null,
    Remove,
    /// The first element of a list so many times.
    Repeat(usize),
    Empty,
}

/// Texts at the limits of names, labels and values, also between the bytes of a character.
pub fn text() -> impl Strategy<Value = String> {
    let lengths =
        prop::sample::select(vec![1_usize, 62, 63, 64, 252, 253, 254, 1023, 1024, 4096, 65_536]);
    let letters = prop::sample::select(vec!["a", "A", ".", "-", "/", "é", "日", "🦀", "0", "$(A)"]);
    let long = (lengths, letters).prop_map(|(length, letter)| {
        let mut text = letter.repeat(length / letter.len() + 1);
        // a character may lie across the limit
        text.truncate(text.floor_char_boundary(length + 1));
        text
    });
    prop_oneof![
        6 => prop::sample::select(TEXTS.to_vec()).prop_map(str::to_owned),
        2 => long,
        1 => any::<String>(),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    let what = prop_oneof![
        8 => prop::sample::select(NUMBERS.to_vec()).prop_map(What::Number),
        1 => prop::sample::select(vec![u64::MAX, 1 << 63]).prop_map(What::Large),
        1 => prop::sample::select(vec![0.5, -0.0, 1e300, -1e300, f64::MIN_POSITIVE]).prop_map(What::Float),
        8 => text().prop_map(What::Text),
        4 => prop::sample::select(TIMES.to_vec()).prop_map(What::Time),
        2 => any::<bool>().prop_map(What::Flag),
        1 => Just(What::Null),
        4 => Just(What::Remove),
        2 => prop::sample::select(vec![2_usize, 3, 17]).prop_map(What::Repeat),
        1 => Just(What::Empty),
    ];
    (any::<Index>(), what).prop_map(|(place, what)| Edit { place, what })
}

/// That object with up to `most` of its places changed.
pub fn hostile(example: Value, most: usize) -> impl Strategy<Value = Value> {
    prop::collection::vec(edit(), 0..=most).prop_map(move |edits| {
        let mut object = example.clone();
        edits.into_iter().for_each(|edit| apply(&mut object, edit));
        object
    })
}

/// Whether a change leaves the type of a place as it is, which most should: an object that is refused
/// at once tests little.
fn suits(value: &Value, what: &What) -> bool {
    let is_time = |text: &str| text.len() > 10 && text.as_bytes()[4] == b'-' && text.contains('T');
    match (value, what) {
        (Value::Number(_), What::Number(_) | What::Large(_)) => true,
        (Value::Number(number), What::Float(_)) => number.is_f64(),
        (Value::String(text), What::Time(_)) => is_time(text),
        (Value::String(text), What::Text(_)) => !is_time(text),
        (Value::Bool(_), What::Flag(_)) => true,
        (Value::Array(_), What::Repeat(_) | What::Empty) => true,
        (Value::Object(_), What::Empty) => true,
        (_, What::Null | What::Remove) => true,
        _ => false,
    }
}

fn apply(object: &mut Value, edit: Edit) {
    let mut places = Vec::new();
    collect(object, &mut String::new(), &edit.what, &mut places);
    if places.is_empty() {
        return;
    }
    let path = edit.place.get(&places).clone();
    if let What::Remove = edit.what {
        let Some((parent, name)) = path.rsplit_once('/') else { return };
        let name = name.replace("~1", "/").replace("~0", "~");
        match object.pointer_mut(parent) {
            Some(Value::Object(map)) => drop(map.remove(&name)),
            Some(Value::Array(list)) => {
                if let Ok(at) = name.parse::<usize>()
                    && at < list.len()
                {
                    list.remove(at);
                }
            }
            _ => {}
        }
        return;
    }
    let Some(value) = object.pointer_mut(&path) else { return };
    *value = match edit.what {
        What::Number(number) => number.into(),
        What::Large(number) => number.into(),
        What::Float(number) => number.into(),
        What::Text(text) => text.into(),
        What::Time(time) => time.into(),
        What::Flag(flag) => flag.into(),
        What::Null | What::Remove => Value::Null,
        What::Repeat(times) => match value {
            Value::Array(list) => {
                let first = list.first().cloned();
                list.extend(first.into_iter().cycle().take(times));
                return;
            }
            _ => return,
        },
        What::Empty if value.is_array() => Value::Array(Vec::new()),
        What::Empty => Value::Object(serde_json::Map::new()),
    };
}

/// JSON pointers of all places that a change suits.
fn collect(value: &Value, path: &mut String, what: &What, places: &mut Vec<String>) {
    if !path.is_empty() && suits(value, what) {
        places.push(path.clone());
    }
    let length = path.len();
    let mut below = |name: &str, value: &Value| {
        path.push('/');
        path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        collect(value, path, what, places);
        path.truncate(length);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(name, value)| below(name, value)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| below(&at.to_string(), value));
        }
        _ => {}
    }
}
