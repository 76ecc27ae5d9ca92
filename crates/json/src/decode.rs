//! Typed values from text, with the path of the field at fault.

use std::fmt;

use serde::Deserialize;
use serde_json::{Error, Value};

/// How serde's words begin for an array where none is expected.
const NO_ARRAY: &str = "invalid type: sequence";

/// Why a text is not such a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Where: the value at fault, or the one that lacks a field.
    pub path: Path,
    /// What is wrong there, in serde's words.
    pub reason: String,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

impl std::error::Error for DecodeError {}

/// The way from a whole value to a part of it; written as `spec.containers[0].name`, and `.` for the whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

/// One member on the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The member of an object by that name.
    Field(String),
    /// That element of an array.
    Item(usize),
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        for (index, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if index == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item(item) => write!(f, "[{item}]")?,
            }
        }
        Ok(())
    }
}

impl Path {
    /// What is there.
    pub fn find_in<'v>(&self, value: &'v mut Value) -> Option<&'v mut Value> {
        self.0.iter().try_fold(value, |value, step| match step {
            Step::Field(name) => value.get_mut(name),
            Step::Item(index) => value.get_mut(index),
        })
    }
}

/// Decodes a text, of types of Kubernetes' API.
///
/// The path is found by the place in the text at which decoding ended, and not by a deserializer that keeps
/// track: types as large as these would be compiled once more for that.
///
/// Current limitations: when a type refuses what it has read by another type (a duration that is read as a string, say),
/// and not in its visitor, the place is known to the enclosing object or array alone. No type of the API does so. Of
/// arrays of arrays in place of an object, the first element is named.
///
/// # Errors
/// The text is not JSON, or not of that type.
pub fn decode<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, DecodeError> {
    serde_json::from_str(text).map_err(|error| located(text, &error))
}

/// Decodes a value by way of its text: one deserializer is compiled for a type, and not two.
///
/// # Errors
/// It is not of that type.
pub fn decode_value<T: serde::de::DeserializeOwned>(value: &Value) -> Result<T, DecodeError> {
    decode(&value.to_string())
}

fn located(text: &str, error: &Error) -> DecodeError {
    let shown = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let reason = shown.strip_suffix(&place).unwrap_or(&shown);
    let mut end = end(text, error);
    // What takes no array sees it when its bracket has been read, unless it takes arrays as elements.
    let (before, after) = text.as_bytes().split_at(end);
    if reason.starts_with(NO_ARRAY)
        && before.trim_ascii_end().ends_with(b"[")
        && !after.trim_ascii_start().starts_with(b"[")
    {
        end = before.trim_ascii_end().len() - 1;
    }
    DecodeError { path: path_at(text, end), reason: reason.to_owned() }
}

/// How many bytes of the text had been read. Columns are bytes, from 1 on.
fn end(text: &str, error: &Error) -> usize {
    let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
    let before: usize = lines.map(str::len).sum();
    before.saturating_add(error.column()).min(text.len())
}

/// The path of what begins or ends at that place of a JSON text: it is the value of the member that was named
/// last, or of the element that was counted last, on the lowest level that is still open.
fn path_at(text: &str, end: usize) -> Path {
    let mut open: Vec<Option<Step>> = Vec::new();
    let (mut at, bytes) = (0, &text.as_bytes()[..end]);
    while let Some(byte) = bytes.get(at) {
        let next = at + 1;
        at = match byte {
            b'"' => {
                let closed = end_of_string(bytes, next);
                if let Some(name @ None) = open.last_mut() {
                    let read = text.get(at..closed).map(serde_json::from_str);
                    *name = read.and_then(Result::ok).map(Step::Field);
                }
                closed
            }
            b'{' => {
                open.push(None);
                next
            }
            b'[' => {
                open.push(Some(Step::Item(0)));
                next
            }
            b',' => {
                match open.last_mut() {
                    Some(Some(Step::Item(index))) => *index += 1,
                    Some(name) => *name = None,
                    None => {}
                }
                next
            }
            b'}' | b']' => {
                open.pop();
                next
            }
            _ => next,
        };
    }
    Path(open.into_iter().flatten().collect())
}

/// The place after the quote that ends a string whose first character is at that place.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start;
    while let Some(byte) = bytes.get(at) {
        at += match byte {
            b'"' => return at + 1,
            b'\\' => 2,
            _ => 1,
        };
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "values are decoded, not read")]
    struct Outer {
        #[serde(default)]
        list: Vec<Inner>,
        #[serde(default)]
        map: BTreeMap<String, Inner>,
        #[serde(default)]
        address: Option<std::net::IpAddr>,
        #[serde(default)]
        nested: Vec<Vec<u8>>,
        #[serde(default)]
        word: Option<Word>,
        #[serde(default)]
        object: Object,
    }

    /// As the types of the API are, it takes no array.
    #[derive(Debug, Default)]
    struct Object;

    impl<'de> Deserialize<'de> for Object {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;

            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Object;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("Object")
                }
            }

            deserializer.deserialize_struct("Object", &[], Visitor)
        }
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "values are decoded, not read")]
    struct Inner {
        number: i32,
        text: Option<String>,
    }

    #[derive(Debug, Deserialize)]
    enum Word {
        One,
    }

    fn error(value: &Value) -> String {
        let compact = decode_value::<Outer>(value).unwrap_err();
        let pretty = serde_json::to_string_pretty(value).unwrap();
        assert_eq!(decode::<Outer>(&pretty).unwrap_err(), compact, "{pretty}");
        compact.to_string()
    }

    #[test]
    fn errors_name_the_field() {
        for (value, expected) in [
            (
                json!({"list": [{"number": 1}, {"number": "x"}]}),
                r#"list[1].number: invalid type: string "x", expected i32"#,
            ),
            (
                json!({"list": [{"number": 1}, {"text": "a", "other": {"b": []}}]}),
                "list[1]: missing field `number`",
            ),
            (
                json!({"list": [{"text": {}, "number": 1}]}),
                "list[0].text: invalid type: map, expected a string",
            ),
            (
                json!({"list": [{"text": null, "number": null}]}),
                "list[0].number: invalid type: null, expected i32",
            ),
            (json!({"list": {}}), "list: invalid type: map, expected a sequence"),
            (json!({"list": [7]}), "list[0]: invalid type: integer `7`, expected struct Inner"),
            (
                json!({"list": ["a,{\"[\\"]}),
                r#"list[0]: invalid type: string "a,{\"[\\", expected struct Inner"#,
            ),
            (
                json!({"map": {"a": {"number": 1}, "q\"ü.": {"number": 1.5}}}),
                "map.q\"ü..number: invalid type: floating point `1.5`, expected i32",
            ),
            (
                json!({"map": {"a": {"number": 4_000_000_000_u32}}}),
                "map.a.number: invalid value: integer `4000000000`, expected i32",
            ),
            (
                json!({"map": {"a": []}}),
                "map.a: invalid length 0, expected struct Inner with 2 elements",
            ),
            (json!({"address": "x", "list": []}), "address: invalid IP address syntax"),
            (
                json!({"nested": [[], [1, 2], [3, 256]]}),
                "nested[2][1]: invalid value: integer `256`, expected u8",
            ),
            (
                json!({"nested": [[], 1]}),
                "nested[1]: invalid type: integer `1`, expected a sequence",
            ),
            (json!({"object": [1, 2]}), "object: invalid type: sequence, expected Object"),
            (json!({"object": []}), "object: invalid type: sequence, expected Object"),
            (json!({"nested": [[[1]]]}), "nested[0][0]: invalid type: sequence, expected u8"),
            (json!({"word": "Two"}), "word: unknown variant `Two`, expected `One`"),
            (
                json!({"list": [], "more": 1}),
                "more: unknown field `more`, expected one of `list`, `map`, `address`, `nested`, `word`, `object`",
            ),
            (json!([1]), "[0]: invalid type: integer `1`, expected a sequence"),
            (json!(null), ".: invalid type: null, expected struct Outer"),
        ] {
            assert_eq!(error(&value), expected);
        }
    }

    #[test]
    fn texts_that_are_no_json_have_a_place_too() {
        for (text, expected) in [
            ("", ".: EOF while parsing a value"),
            (r#"{"list":[{"number":1},{"number":"#, "list[1].number: EOF while parsing a value"),
            (r#"{"list":[{"number":1}x"#, "list[0]: expected `,` or `]`"),
            (r#"{"map":{"a\"#, "map: EOF while parsing a string"),
            ("{\"map\":\n{\"a\"\n:\n\n{\"number\":01}}}", "map.a.number: invalid number"),
        ] {
            assert_eq!(decode::<Outer>(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_has_a_path_at_any_place(text in ".{0,40}", mixed in "[\\[\\]{},:\"\\\\a\u{e9}1 \n]{0,40}") {
            for text in [text, mixed] {
                for end in 0..=text.len() {
                    path_at(&text, end);
                }
                let _ = decode::<Outer>(&text);
            }
        }
    }

    #[test]
    fn path_finds_its_value() {
        let mut value = json!({"a": [{"b": 1}]});
        let path = Path(vec![Step::Field("a".into()), Step::Item(0), Step::Field("b".into())]);
        assert_eq!(path.find_in(&mut value), Some(&mut json!(1)));
        assert_eq!(Path(vec![Step::Item(0)]).find_in(&mut value), None);
        assert_eq!(Path::default().find_in(&mut json!(7)), Some(&mut json!(7)));
    }
}
