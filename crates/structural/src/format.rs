//! Formats of texts and numbers.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;

/// Whether the text is of this format; a format that is not known says nothing.
pub(crate) fn is_valid(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => is_date_time(text),
        "date" => text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok(),
        "byte" => is_base64(text),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.contains(':') && text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "hostname" => is_hostname(text),
        "duration" => is_duration(text),
        "k8sshortname" => is_name(text, 63, false),
        "k8slongname" => is_name(text, 253, true),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "creditcard" => {
            let digits: String = text.chars().filter(char::is_ascii_digit).collect();
            CREDIT_CARD.as_ref().is_none_or(|known| known.is_match(&digits))
        }
        name => PATTERNS
            .iter()
            .find(|(known, _)| *known == name)
            .and_then(|(_, pattern)| pattern.as_ref())
            .is_none_or(|pattern| pattern.is_match(text)),
    }
}

static CREDIT_CARD: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(
        r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35[0-9]{3})[0-9]{11})$",
    )
    .ok()
});

static PATTERNS: LazyLock<Vec<(&'static str, Option<Regex>)>> = LazyLock::new(|| {
    [
        ("uuid", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        ("uuid3", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        ("uuid4", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        ("uuid5", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        ("bsonobjectid", r"^[0-9a-fA-F]{24}$"),
        ("mac", r"^(?:[0-9a-fA-F]{2}([:-])(?:[0-9a-fA-F]{2}[:-]){4}(?:[0-9a-fA-F]{2})|(?:[0-9a-fA-F]{2}[:-]){7}[0-9a-fA-F]{2}|(?:[0-9a-fA-F]{4}\.){2}[0-9a-fA-F]{4}|(?:[0-9a-fA-F]{4}\.){3}[0-9a-fA-F]{4})$"),
        ("ssn", r"^[0-9]{3}[- ]?[0-9]{2}[- ]?[0-9]{4}$"),
        ("hexcolor", r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        ("rgbcolor", r"^rgb\(\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*,\s*(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])\s*\)$"),
    ]
    .into_iter()
    .map(|(name, pattern)| (name, Regex::new(pattern).ok()))
    .collect()
});

/// A date and a time with its offset; upstream's reader also takes texts without an offset.
fn is_date_time(text: &str) -> bool {
    let text = text.to_ascii_uppercase();
    let has_time = text.contains('T');
    has_time
        && (text.parse::<jiff::Timestamp>().is_ok()
            || text.parse::<jiff::civil::DateTime>().is_ok())
}

fn is_base64(text: &str) -> bool {
    let plain: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    STANDARD.decode(plain).is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    let Ok(bits) = prefix.parse::<u8>() else { return false };
    prefix.bytes().all(|byte| byte.is_ascii_digit())
        && (address.parse::<Ipv4Addr>().is_ok() && bits <= 32
            || address.parse::<Ipv6Addr>().is_ok() && bits <= 128)
}

fn is_uri(text: &str) -> bool {
    let is_clean = !text.is_empty() && !text.chars().any(|c| c.is_control() || c == ' ');
    if text.starts_with('/') {
        return is_clean;
    }
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let mut letters = scheme.chars();
    is_clean
        && letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        && !rest.starts_with("//:")
}

fn is_email(text: &str) -> bool {
    let address = match (text.rfind('<'), text.strip_suffix('>')) {
        (Some(start), Some(inner)) => inner.get(start.saturating_add(1)..).unwrap_or_default(),
        _ => text,
    };
    address.rsplit_once('@').is_some_and(|(local, domain)| {
        let is_atom = |text: &str| {
            !text.is_empty()
                && !text.starts_with('.')
                && !text.ends_with('.')
                && !text.contains("..")
                && !text.chars().any(|c| c.is_whitespace() || "()<>[]:;@\\,\"".contains(c))
        };
        is_atom(local) && is_atom(domain)
    })
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Such as `22 ns`, `1h30m` or `3 days`.
fn is_duration(text: &str) -> bool {
    const UNITS: [&str; 27] = [
        "ns",
        "nano",
        "nanos",
        "nanosecond",
        "nanoseconds",
        "us",
        "µs",
        "micro",
        "micros",
        "microsecond",
        "microseconds",
        "ms",
        "milli",
        "millis",
        "millisecond",
        "milliseconds",
        "s",
        "sec",
        "secs",
        "second",
        "seconds",
        "m",
        "min",
        "mins",
        "minute",
        "minutes",
        "h",
    ];
    const LONG: [&str; 12] =
        ["hr", "hrs", "hour", "hours", "d", "day", "days", "w", "wk", "week", "weeks", "μs"];
    let mut rest = text.trim().trim_start_matches(['+', '-']);
    if rest == "0" {
        return true;
    }
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let unit = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number = rest.strip_suffix(unit).unwrap_or_default();
        if number.parse::<f64>().is_err() {
            return false;
        }
        let unit = unit.trim_start();
        let after = unit.trim_start_matches(|c: char| c.is_alphabetic());
        let name = unit.strip_suffix(after).unwrap_or_default();
        if !UNITS.contains(&name) && !LONG.contains(&name) {
            return false;
        }
        rest = after.trim_start();
    }
    true
}

fn is_name(text: &str, longest: usize, dots: bool) -> bool {
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= longest && if dots { text.split('.').all(is_label) } else { is_label(text) }
}

fn symbols(text: &str) -> Vec<char> {
    text.chars().filter(|c| !matches!(c, '-' | ' ')).collect()
}

fn is_isbn10(text: &str) -> bool {
    let symbols = symbols(text);
    if symbols.len() != 10 {
        return false;
    }
    let mut sum = 0u32;
    for (i, symbol) in (1u32..).zip(&symbols) {
        let digit = match (i, symbol) {
            (10, 'X') => 10,
            (_, digit) => match digit.to_digit(10) {
                Some(digit) => digit,
                None => return false,
            },
        };
        sum = sum.saturating_add(i.saturating_mul(digit));
    }
    sum.is_multiple_of(11)
}

fn is_isbn13(text: &str) -> bool {
    let symbols = symbols(text);
    if symbols.len() != 13 {
        return false;
    }
    let mut sum = 0u32;
    for (i, symbol) in (0u32..).zip(&symbols) {
        let Some(digit) = symbol.to_digit(10) else { return false };
        let factor = if i.is_multiple_of(2) { 1 } else { 3 };
        sum = sum.saturating_add(digit.saturating_mul(factor));
    }
    sum.is_multiple_of(10)
}
