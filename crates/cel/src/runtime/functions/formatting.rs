//! `string.format`: verbs `%s %d %f %e %b %x %X %o`, with a precision for `%f` and `%e`.

use super::{Found, numbers, plain_text};
use crate::Error;
use crate::runtime::meter::{Meter, VISIT};
use crate::runtime::value::{List, Map, Value};

/// The most digits after the point, as upstream.
const MOST_PRECISION: usize = 1000;

pub(super) fn format<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let [Value::String(format), Value::List(list)] = args else {
        return Err(Error::no_such_overload());
    };
    meter.bytes(format.len())?;
    let mut written = String::new();
    let mut next = 0;
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            written.push(c);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            written.push('%');
            continue;
        }
        let mut precision = None;
        if chars.next_if_eq(&'.').is_some() {
            let mut digits = String::new();
            while let Some(digit) = chars.next_if(char::is_ascii_digit) {
                digits.push(digit);
            }
            let found = digits.parse().ok().filter(|precision| *precision <= MOST_PRECISION);
            let Some(found) = found else {
                return Err(Error::new("could not parse formatting clause: invalid precision"));
            };
            precision = Some(found);
        }
        let Some(verb) = chars.next() else {
            return Err(Error::new("unexpected end of format string"));
        };
        let Some(value) = list.get(next) else {
            return Err(Error::new(format!("index {next} out of range")));
        };
        next += 1;
        let before = written.len();
        clause(meter, &mut written, verb, precision, &value?)?;
        meter.bytes(written.len().saturating_sub(before))?;
    }
    Ok(Value::text(written))
}

fn clause(
    meter: &mut Meter,
    to: &mut String,
    verb: char,
    precision: Option<usize>,
    value: &Value<'_>,
) -> Result<(), Error> {
    let wrong = |wanted: &str| {
        let of = value.type_of();
        Err(Error::new(format!(
            "error during formatting: {wanted} clause can only be used on other types, was given {of}"
        )))
    };
    let double = match value {
        Value::Double(n) => Some(*n),
        Value::Int(n) => Some(*n as f64),
        Value::Uint(n) => Some(*n as f64),
        _ => None,
    };
    let text = match (verb, value) {
        ('s', value) => return shown(meter, to, value),
        ('d', Value::Int(n)) => n.to_string(),
        ('d', Value::Uint(n)) => n.to_string(),
        ('d', Value::Double(n)) if !n.is_finite() => special(*n),
        ('f' | 'e', _) => match double {
            Some(n) if !n.is_finite() => special(n),
            Some(n) if verb == 'f' => std::format!("{n:.*}", precision.unwrap_or(6)),
            Some(n) => scientific(n, precision.unwrap_or(6)),
            None => return wrong("fixed-point"),
        },
        ('b', Value::Bool(b)) => u8::from(*b).to_string(),
        ('b' | 'o' | 'x' | 'X', Value::Int(n)) => {
            let sign = if *n < 0 { "-" } else { "" };
            std::format!("{sign}{}", radix(verb, n.unsigned_abs()))
        }
        ('b' | 'o' | 'x' | 'X', Value::Uint(n)) => radix(verb, *n),
        ('x' | 'X', Value::String(text)) => hexadecimal(meter, verb, text.as_bytes())?,
        ('x' | 'X', Value::Bytes(bytes)) => hexadecimal(meter, verb, bytes)?,
        ('d', _) => return wrong("integer"),
        ('b', _) => return wrong("binary"),
        ('o', _) => return wrong("octal"),
        ('x' | 'X', _) => return wrong("hexadecimal"),
        (verb, _) => {
            let message = std::format!(
                "could not parse formatting clause: unrecognized formatting clause \"{verb}\""
            );
            return Err(Error::new(message));
        }
    };
    to.push_str(&text);
    Ok(())
}

fn special(n: f64) -> String {
    let text = if n.is_nan() { "NaN" } else { "Infinity" };
    if n < 0.0 { std::format!("-{text}") } else { text.to_owned() }
}

fn scientific(n: f64, precision: usize) -> String {
    let text = std::format!("{n:.precision$e}");
    let Some((mantissa, exponent)) = text.split_once('e') else { return text };
    let (sign, digits) = match exponent.strip_prefix('-') {
        Some(digits) => ('-', digits),
        None => ('+', exponent),
    };
    std::format!("{mantissa}e{sign}{digits:0>2}")
}

fn radix(verb: char, n: u64) -> String {
    match verb {
        'b' => std::format!("{n:b}"),
        'o' => std::format!("{n:o}"),
        'x' => std::format!("{n:x}"),
        _ => std::format!("{n:X}"),
    }
}

fn hexadecimal(meter: &mut Meter, verb: char, bytes: &[u8]) -> Result<String, Error> {
    meter.bytes(bytes.len().saturating_mul(2))?;
    let digits = bytes.iter().map(|byte| match verb {
        'x' => std::format!("{byte:02x}"),
        _ => std::format!("{byte:02X}"),
    });
    Ok(digits.collect())
}

/// A value with its parts.
fn shown(meter: &mut Meter, to: &mut String, value: &Value<'_>) -> Result<(), Error> {
    meter.work(VISIT)?;
    match value {
        Value::Null => to.push_str("null"),
        Value::Double(n) if !n.is_finite() => to.push_str(&special(*n)),
        Value::Double(n) => to.push_str(&numbers::text(*n)),
        Value::String(text) => {
            meter.bytes(text.len())?;
            to.push_str(text);
        }
        Value::Bytes(bytes) => {
            meter.bytes(bytes.len())?;
            to.push_str(&String::from_utf8_lossy(bytes));
        }
        Value::Type(of) => to.push_str(of.name()),
        Value::List(list) => shown_list(meter, to, list)?,
        Value::Map(map) => shown_map(meter, to, map)?,
        Value::Optional(Some(of)) => shown(meter, to, of)?,
        value => match plain_text(value) {
            Some(text) => to.push_str(&text),
            None => {
                let message = std::format!(
                    "error during formatting: string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, and timestamps, was given {}",
                    value.type_of()
                );
                return Err(Error::new(message));
            }
        },
    }
    Ok(())
}

fn shown_list(meter: &mut Meter, to: &mut String, list: &List<'_>) -> Result<(), Error> {
    to.push('[');
    for (index, item) in list.iter().enumerate() {
        if index > 0 {
            to.push_str(", ");
        }
        shown(meter, to, &item?)?;
    }
    to.push(']');
    Ok(())
}

fn shown_map(meter: &mut Meter, to: &mut String, map: &Map<'_>) -> Result<(), Error> {
    to.push('{');
    for (index, key) in map.keys().iter().enumerate() {
        if index > 0 {
            to.push_str(", ");
        }
        shown(meter, to, key)?;
        to.push_str(": ");
        if let Some(value) = map.get(key) {
            shown(meter, to, &value?)?;
        }
    }
    to.push('}');
    Ok(())
}
