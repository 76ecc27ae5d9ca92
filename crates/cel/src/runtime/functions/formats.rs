//! Named formats of strings.

use std::sync::{Arc, LazyLock};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;

use super::opaque::Opaque;
use super::{Found, Function, networks, times};
use crate::Error;
use crate::runtime::value::Value;

/// A named format.
pub struct Format {
    pub(crate) name: &'static str,
    /// The length of the pattern that costs are counted by.
    pub(crate) cost: usize,
    check: fn(&str) -> Vec<String>,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Format").field("name", &self.name).finish_non_exhaustive()
    }
}

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const QUALIFIED: &str = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";

static FORMATS: [Format; 13] = [
    Format { name: "dns1123Label", cost: 30, check: |text| label(text, 63, LABEL) },
    Format { name: "dns1123Subdomain", cost: 60, check: |text| subdomain(text) },
    Format { name: "dns1035Label", cost: 30, check: |text| label_1035(text) },
    Format { name: "qualifiedName", cost: 60, check: |text| qualified(text) },
    Format {
        name: "dns1123LabelPrefix",
        cost: 30,
        check: |text| label(&without_dash(text), 63, LABEL),
    },
    Format {
        name: "dns1123SubdomainPrefix",
        cost: 60,
        check: |text| subdomain(&without_dash(text)),
    },
    Format { name: "dns1035LabelPrefix", cost: 30, check: |text| label_1035(&without_dash(text)) },
    Format {
        name: "labelValue",
        cost: 40,
        check: |text| {
            let mut found = limit(text, 63);
            if !text.is_empty() && !is_name(text) {
                found.push(LABEL_VALUE.to_owned());
            }
            found
        },
    },
    Format {
        name: "uri",
        cost: 1103,
        check: |text| networks::parse_url(text).err().into_iter().collect(),
    },
    Format {
        name: "uuid",
        cost: 75,
        check: |text| unless(UUID.is_match(text), "does not match the UUID format"),
    },
    Format {
        name: "byte",
        cost: 84,
        check: |text| {
            let valid = !text.is_empty() && STANDARD.decode(text).is_ok();
            unless(valid, "invalid base64")
        },
    },
    Format {
        name: "date",
        cost: 113,
        check: |text| {
            let plain = text.len() == 10;
            let valid = plain && times::timestamp(&format!("{text}T00:00:00Z")).is_some();
            unless(valid, "invalid date")
        },
    },
    Format {
        name: "datetime",
        cost: 113,
        check: |text| unless(times::timestamp(text).is_some(), "invalid datetime"),
    },
];

#[allow(clippy::expect_used)] // a constant, which a test compiles
static UUID: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$")
        .expect("the pattern is valid")
});

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "validate" => |_, args| match args {
            [Value::Opaque(opaque), Value::String(text)] => match &**opaque {
                Opaque::Format(format) => {
                    let found = (format.check)(text);
                    let list = || Value::list(found.iter().map(|m| Value::text(&**m)).collect());
                    match found.is_empty() {
                        true => Ok(Value::Optional(None)),
                        false => Ok(Value::some(list())),
                    }
                }
                _ => Err(Error::no_such_overload()),
            },
            _ => Err(Error::no_such_overload()),
        },
        "format.named" => |_, args| match args {
            [Value::String(name)] => Ok(match found(name) {
                Some(format) => Value::some(made(format)),
                None => Value::Optional(None),
            }),
            _ => Err(Error::no_such_overload()),
        },
        name => return constant(name.strip_prefix("format.")?),
    })
}

fn found(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

fn made<'v>(format: &'static Format) -> Value<'v> {
    Value::Opaque(Arc::new(Opaque::Format(format)))
}

fn of<'v, const I: usize>() -> Found<'v> {
    Ok(made(&FORMATS[I]))
}

/// Functions have no data of their own.
fn constant(name: &str) -> Option<Function> {
    const ALL: [Function; 13] = [
        |_, _| of::<0>(),
        |_, _| of::<1>(),
        |_, _| of::<2>(),
        |_, _| of::<3>(),
        |_, _| of::<4>(),
        |_, _| of::<5>(),
        |_, _| of::<6>(),
        |_, _| of::<7>(),
        |_, _| of::<8>(),
        |_, _| of::<9>(),
        |_, _| of::<10>(),
        |_, _| of::<11>(),
        |_, _| of::<12>(),
    ];
    let index = FORMATS.iter().position(|format| format.name == name)?;
    ALL.get(index).copied()
}

fn unless(valid: bool, message: &str) -> Vec<String> {
    if valid { Vec::new() } else { vec![message.to_owned()] }
}

fn limit(text: &str, most: usize) -> Vec<String> {
    match text.len() > most {
        true => vec![format!("must be no more than {most} bytes")],
        false => Vec::new(),
    }
}

/// A name that is to be the start of others may end in a dash.
fn without_dash(text: &str) -> String {
    match text.len() > 1 && text.ends_with('-') {
        true => format!("{}a", text.get(..text.len() - 1).unwrap_or_default()),
        false => text.to_owned(),
    }
}

fn is_label(text: &str) -> bool {
    let end = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

fn label(text: &str, most: usize, message: &str) -> Vec<String> {
    let mut found = limit(text, most);
    if !is_label(text) {
        found.push(message.to_owned());
    }
    found
}

fn label_1035(text: &str) -> Vec<String> {
    let mut found = limit(text, 63);
    if !is_label(text) || !text.starts_with(|c: char| c.is_ascii_lowercase()) {
        found.push(LABEL_1035.to_owned());
    }
    found
}

fn subdomain(text: &str) -> Vec<String> {
    let mut found = limit(text, 253);
    if !text.split('.').all(is_label) {
        found.push(SUBDOMAIN.to_owned());
    }
    found
}

fn is_name(text: &str) -> bool {
    let end = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    end(bytes.first())
        && end(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn qualified(text: &str) -> Vec<String> {
    let parts: Vec<&str> = text.split('/').collect();
    let (prefix, name) = match parts[..] {
        [name] => (None, name),
        [prefix, name] => (Some(prefix), name),
        _ => return vec![QUALIFIED.to_owned()],
    };
    let mut found = Vec::new();
    match prefix {
        Some("") => found.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            found.extend(subdomain(prefix).into_iter().map(|m| format!("prefix part {m}")));
        }
        None => {}
    }
    if name.is_empty() {
        found.push("name part must be non-empty".to_owned());
    } else {
        found.extend(limit(name, 63).into_iter().map(|m| format!("name part {m}")));
    }
    if !is_name(name) {
        found.push(NAME_PART.to_owned());
    }
    found
}
