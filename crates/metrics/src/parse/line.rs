//! One line of the text format.

use super::{LabelMap, Sample};

/// What a line is.
pub(super) enum Line {
    /// Empty, or a remark.
    Nothing,
    /// The name of a family, and what it is about.
    Help(String, String),
    /// The name of a family, and its kind.
    Type(String, String),
    /// A sample.
    Sample(Sample),
}

const KINDS: [&str; 5] = ["counter", "gauge", "histogram", "summary", "untyped"];

pub(super) fn read(line: &str) -> Result<Line, String> {
    if let Some(rest) = line.strip_prefix("# HELP ") {
        let (name, help) = rest.split_once(' ').ok_or("HELP without a text")?;
        return Ok(Line::Help(metric_name(name)?, unescape(help, false)?));
    }
    if let Some(rest) = line.strip_prefix("# TYPE ") {
        let (name, kind) = rest.split_once(' ').ok_or("TYPE without a kind")?;
        if !KINDS.contains(&kind) {
            return Err(format!("{kind:?} is no kind"));
        }
        return Ok(Line::Type(metric_name(name)?, kind.to_owned()));
    }
    if line.is_empty() || line.starts_with('#') {
        return Ok(Line::Nothing);
    }
    sample(line).map(Line::Sample)
}

fn sample(line: &str) -> Result<Sample, String> {
    let end = line.find(['{', ' ']).ok_or("a sample without a value")?;
    let name = metric_name(&line[..end])?;
    let (labels, rest) = match line[end..].strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (LabelMap::new(), &line[end..]),
    };
    let rest = rest.strip_prefix(' ').ok_or("no space before the value")?;
    let (value, at) = match rest.split_once(' ') {
        Some((value, at)) => {
            let millis = at.parse().map_err(|_| format!("{at:?} is no time in milliseconds"))?;
            (value, Some(millis))
        }
        None => (rest, None),
    };
    let value = number(value).ok_or_else(|| format!("{value:?} is not a number"))?;
    Ok(Sample { name, labels, value, at })
}

/// The labels, and what follows their closing brace.
fn labels(mut rest: &str) -> Result<(LabelMap, &str), String> {
    let mut labels = LabelMap::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((labels, after));
        }
        let (name, after) = rest.split_once("=\"").ok_or("a label without a value")?;
        if !is_name(name, false) {
            return Err(format!("{name:?} is not a label name"));
        }
        let end = closing_quote(after).ok_or_else(|| format!("{name}: no closing quote"))?;
        let value = unescape(&after[..end], true)?;
        if labels.insert(name.to_owned(), value).is_some() {
            return Err(format!("{name} is there twice"));
        }
        rest = &after[end + 1..];
        match rest.strip_prefix(',') {
            Some(after) if !after.starts_with('}') => rest = after,
            None if rest.starts_with('}') => {}
            _ => return Err(format!("after the label {name}: {rest:?}")),
        }
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

fn unescape(text: &str, quoted: bool) -> Result<String, String> {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        plain.push(match c {
            '\\' => match chars.next() {
                Some('\\') => '\\',
                Some('n') => '\n',
                Some('"') if quoted => '"',
                other => return Err(format!("{other:?} cannot be escaped")),
            },
            other => other,
        });
    }
    Ok(plain)
}

pub(super) fn number(text: &str) -> Option<f64> {
    match text {
        "+Inf" => Some(f64::INFINITY),
        "-Inf" => Some(f64::NEG_INFINITY),
        "NaN" => Some(f64::NAN),
        // Rust reads more words than the format has
        _ if text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) => {
            text.parse().ok()
        }
        _ => None,
    }
}

fn metric_name(name: &str) -> Result<String, String> {
    match is_name(name, true) {
        true => Ok(name.to_owned()),
        false => Err(format!("{name:?} is not a metric name")),
    }
}

fn is_name(name: &str, colons: bool) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphabetic() || byte == b'_' || (colons && byte == b':');
    name.bytes().next().is_some_and(letter)
        && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit())
}
