//! The strings extension. Positions and lengths are in characters.

use super::{Found, Function, formatting};
use crate::Error;
use crate::runtime::meter::Meter;
use crate::runtime::value::Value;

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "contains" => |_, args| with_two(args, |text, other| text.contains(other)),
        "startsWith" => |_, args| with_two(args, |text, other| text.starts_with(other)),
        "endsWith" => |_, args| with_two(args, |text, other| text.ends_with(other)),
        "charAt" => |_, args| match args {
            [Value::String(text), Value::Int(index)] => {
                let found = usize::try_from(*index).ok();
                let size = text.chars().count();
                match found.filter(|index| *index <= size) {
                    Some(index) => {
                        let found: String = text.chars().skip(index).take(1).collect();
                        Ok(Value::text(found))
                    }
                    None => Err(out_of_range(*index)),
                }
            }
            _ => Err(Error::no_such_overload()),
        },
        "lowerAscii" => |meter, args| mapped(meter, args, |text| text.to_ascii_lowercase()),
        "upperAscii" => |meter, args| mapped(meter, args, |text| text.to_ascii_uppercase()),
        "trim" => |meter, args| mapped(meter, args, |text| text.trim().to_owned()),
        "replace" => replace,
        "split" => split,
        "substring" => substring,
        "format" => formatting::format,
        "strings.quote" => |meter, args| mapped(meter, args, quoted),
        "join" => join,
        _ => return None,
    })
}

fn out_of_range(index: i64) -> Error {
    Error::new(format!("index out of range: {index}"))
}

fn with_two<'v>(args: &[Value<'v>], holds: fn(&str, &str) -> bool) -> Found<'v> {
    match args {
        [Value::String(text), Value::String(other)] => Ok(Value::Bool(holds(text, other))),
        _ => Err(Error::no_such_overload()),
    }
}

fn mapped<'v>(meter: &mut Meter, args: &[Value<'v>], to: fn(&str) -> String) -> Found<'v> {
    match args {
        [Value::String(text)] => {
            meter.bytes(text.len())?;
            Ok(Value::text(to(text)))
        }
        _ => Err(Error::no_such_overload()),
    }
}

/// Where a text is in another, from a position on or back.
pub(super) fn position<'v>(args: &[Value<'v>], last: bool) -> Found<'v> {
    let (text, other, from) = match args {
        [Value::String(text), Value::String(other)] => (text, other, None),
        [Value::String(text), Value::String(other), Value::Int(from)] => (text, other, Some(*from)),
        _ => return Err(Error::no_such_overload()),
    };
    let size = text.chars().count();
    let from = match from {
        None => None,
        Some(from) => match usize::try_from(from).ok().filter(|index| *index <= size) {
            Some(index) => Some(index),
            None if last || other.is_empty() || from < 0 => return Err(out_of_range(from)),
            None => return Ok(Value::Int(-1)),
        },
    };
    let offset = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
    let found = if last {
        // the match starts at the position or before it
        let end = from.map_or(text.len(), |from| (offset(from) + other.len()).min(text.len()));
        let end = (end..=text.len()).find(|end| text.is_char_boundary(*end)).unwrap_or(text.len());
        text.get(..end).and_then(|part| part.rfind(&**other))
    } else {
        let start = from.map_or(0, offset);
        text.get(start..).and_then(|part| part.find(&**other)).map(|at| at + start)
    };
    let chars = found.and_then(|at| text.get(..at)).map(|before| before.chars().count());
    Ok(Value::Int(chars.and_then(|n| i64::try_from(n).ok()).unwrap_or(-1)))
}

fn replace<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let (text, from, to, most) = match args {
        [Value::String(text), Value::String(from), Value::String(to)] => (text, from, to, -1),
        [Value::String(text), Value::String(from), Value::String(to), Value::Int(most)] => {
            (text, from, to, *most)
        }
        _ => return Err(Error::no_such_overload()),
    };
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let matches = text.matches(&**from).take(most).count();
    meter.bytes(text.len().saturating_add(matches.saturating_mul(to.len())))?;
    Ok(Value::text(text.replacen(&**from, to, most)))
}

fn split<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let (text, by, most) = match args {
        [Value::String(text), Value::String(by)] => (text, by, -1),
        [Value::String(text), Value::String(by), Value::Int(most)] => (text, by, *most),
        _ => return Err(Error::no_such_overload()),
    };
    // a part takes more than its bytes
    let parts = if by.is_empty() { text.chars().count() } else { text.matches(&**by).count() };
    meter.bytes(text.len().saturating_add(parts.saturating_mul(8)))?;
    let most = match most {
        0 => return Ok(Value::list(Vec::new())),
        most => usize::try_from(most).unwrap_or(usize::MAX),
    };
    if !by.is_empty() {
        return Ok(Value::list(text.splitn(most, &**by).map(Value::text).collect()));
    }
    let mut items = Vec::new();
    let mut rest = &**text;
    while let Some(c) = rest.chars().next() {
        let size = if items.len() + 1 >= most { rest.len() } else { c.len_utf8() };
        let (part, after) = rest.split_at(size);
        items.push(Value::text(part));
        rest = after;
    }
    Ok(Value::list(items))
}

fn substring<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let (text, start, end) = match args {
        [Value::String(text), Value::Int(start)] => (text, *start, None),
        [Value::String(text), Value::Int(start), Value::Int(end)] => (text, *start, Some(*end)),
        _ => return Err(Error::no_such_overload()),
    };
    meter.bytes(text.len())?;
    let size = text.chars().count();
    if let Some(end) = end.filter(|end| start > *end) {
        let message = format!("invalid substring range. start: {start}, end: {end}");
        return Err(Error::new(message));
    }
    let within = |index: i64| usize::try_from(index).ok().filter(|index| *index <= size);
    let first = within(start).ok_or_else(|| out_of_range(start))?;
    let last = match end {
        Some(end) => within(end).ok_or_else(|| out_of_range(end))?,
        None => size,
    };
    let part: String = text.chars().skip(first).take(last.saturating_sub(first)).collect();
    Ok(Value::text(part))
}

fn join<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let (list, by) = match args {
        [Value::List(list)] => (list, ""),
        [Value::List(list), Value::String(by)] => (list, &**by),
        _ => return Err(Error::no_such_overload()),
    };
    let mut joined = String::new();
    for (index, item) in list.iter().enumerate() {
        let Value::String(text) = item? else { return Err(Error::no_such_overload()) };
        meter.bytes(text.len().saturating_add(by.len()).saturating_add(1))?;
        if index > 0 {
            joined.push_str(by);
        }
        joined.push_str(&text);
    }
    Ok(Value::text(joined))
}

fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            '\\' => quoted.push_str("\\\\"),
            '"' => quoted.push_str("\\\""),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
