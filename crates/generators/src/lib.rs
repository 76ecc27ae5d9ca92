//! Random objects for property tests: valid or nearly valid input of users, drivers and runtimes,
//! with extreme numbers and texts. An object starts with values in all fields ([`examples`]); a few
//! of them are then mutated ([`hostile`]).
//!
//! The output is JSON. Tests decode it if necessary, and skip what cannot be decoded: rejecting it
//! is a valid outcome.

#![recursion_limit = "512"]
#![allow(clippy::arithmetic_side_effects, reason = "a tool of tests, on numbers of its own")]

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

pub mod examples;

/// Numbers at the limits of their types.
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

/// A mutation of one value of an object.
#[derive(Clone, Debug)]
pub struct Edit {
    index: Index,
    mutation: Mutation,
}

#[derive(Clone, Debug)]
enum Mutation {
    Number(i64),
    Large(u64),
    Float(f64),
    Text(String),
    Time(&'static str),
    Flag(bool),
    Null,
    Remove,
    /// Repeats the first element of a list.
    Repeat(usize),
    Empty,
}

/// Texts at the length limits of names, labels and values, also with multi-byte characters.
pub fn text() -> impl Strategy<Value = String> {
    let lengths =
        prop::sample::select(vec![1_usize, 62, 63, 64, 252, 253, 254, 1023, 1024, 4096, 65_536]);
    let letters = prop::sample::select(vec!["a", "A", ".", "-", "/", "é", "日", "🦀", "0", "$(A)"]);
    let long = (lengths, letters).prop_map(|(length, letter)| {
        let mut text = letter.repeat(length / letter.len() + 1);
        // a multi-byte character may cross the limit
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
    let mutation = prop_oneof![
        8 => prop::sample::select(NUMBERS.to_vec()).prop_map(Mutation::Number),
        1 => prop::sample::select(vec![u64::MAX, 1 << 63]).prop_map(Mutation::Large),
        1 => prop::sample::select(vec![0.5, -0.0, 1e300, -1e300, f64::MIN_POSITIVE]).prop_map(Mutation::Float),
        8 => text().prop_map(Mutation::Text),
        4 => prop::sample::select(TIMES.to_vec()).prop_map(Mutation::Time),
        2 => any::<bool>().prop_map(Mutation::Flag),
        1 => Just(Mutation::Null),
        4 => Just(Mutation::Remove),
        2 => prop::sample::select(vec![2_usize, 3, 17]).prop_map(Mutation::Repeat),
        1 => Just(Mutation::Empty),
    ];
    (any::<Index>(), mutation).prop_map(|(index, mutation)| Edit { index, mutation })
}

/// That object with up to `most` of its values mutated.
pub fn hostile(example: Value, most: usize) -> impl Strategy<Value = Value> {
    prop::collection::vec(edit(), 0..=most).prop_map(move |edits| {
        let mut object = example.clone();
        edits.into_iter().for_each(|edit| apply(&mut object, edit));
        object
    })
}

/// Whether a mutation keeps the type of the value, so that the object is not rejected at once.
fn suits(value: &Value, mutation: &Mutation) -> bool {
    let is_time = |text: &str| text.len() > 10 && text.as_bytes()[4] == b'-' && text.contains('T');
    match (value, mutation) {
        (Value::Number(_), Mutation::Number(_) | Mutation::Large(_)) => true,
        (Value::Number(number), Mutation::Float(_)) => number.is_f64(),
        (Value::String(text), Mutation::Time(_)) => is_time(text),
        (Value::String(text), Mutation::Text(_)) => !is_time(text),
        (Value::Bool(_), Mutation::Flag(_)) => true,
        (Value::Array(_), Mutation::Repeat(_) | Mutation::Empty) => true,
        (Value::Object(_), Mutation::Empty) => true,
        (_, Mutation::Null | Mutation::Remove) => true,
        _ => false,
    }
}

fn apply(object: &mut Value, edit: Edit) {
    let mut candidates = pointers(object);
    candidates
        .retain(|path| object.pointer(path).is_some_and(|value| suits(value, &edit.mutation)));
    if candidates.is_empty() {
        return;
    }
    let path = edit.index.get(&candidates).clone();
    if let Mutation::Remove = edit.mutation {
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
    *value = match edit.mutation {
        Mutation::Number(number) => number.into(),
        Mutation::Large(number) => number.into(),
        Mutation::Float(number) => number.into(),
        Mutation::Text(text) => text.into(),
        Mutation::Time(time) => time.into(),
        Mutation::Flag(flag) => flag.into(),
        Mutation::Null | Mutation::Remove => Value::Null,
        Mutation::Repeat(times) => match value {
            Value::Array(list) => {
                let first = list.first().cloned();
                list.extend(first.into_iter().cycle().take(times));
                return;
            }
            _ => return,
        },
        Mutation::Empty if value.is_array() => Value::Array(Vec::new()),
        Mutation::Empty => Value::Object(serde_json::Map::new()),
    };
}

/// JSON pointers to all values in a value, but for itself.
pub fn pointers(value: &Value) -> Vec<String> {
    let mut all = Vec::new();
    collect(value, &mut String::new(), &mut all);
    all
}

fn collect(value: &Value, path: &mut String, all: &mut Vec<String>) {
    let length = path.len();
    let mut below = |name: &str, value: &Value| {
        path.push('/');
        path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        all.push(path.clone());
        collect(value, path, all);
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
