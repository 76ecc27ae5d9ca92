//! A line of the log, in klog's text format or as JSON.

use std::fmt::{self, Write};

use jiff::{Timestamp, Zoned};
use tracing::field::{Field, Visit};
use tracing::{Event, Level};

/// The directory and the name of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place<'a> {
    /// Without `.rs`.
    pub(super) path: &'a str,
    /// The last part of the path, or that before it for files whose name says nothing.
    pub(super) name: &'a str,
    /// The file with its extension as lines have it.
    shown: &'a str,
}

impl<'a> Place<'a> {
    pub(super) fn of(file: &'a str) -> Self {
        let path = file.strip_suffix(".rs").unwrap_or(file);
        let mut parts = path.rsplit('/');
        let last = parts.next().unwrap_or(path);
        let parent = parts.next().unwrap_or_default();
        let is_plain = !matches!(last, "mod" | "lib" | "main") || parent.is_empty();
        if is_plain {
            let shown = &file[file.rfind('/').map_or(0, |at| at + 1)..];
            return Self { path, name: last, shown };
        }
        // `lib.rs` is in `src`, of a crate
        let name = if parent == "src" { parts.next().unwrap_or(parent) } else { parent };
        let shown = file.rfind(name).map_or(file, |at| &file[at..]);
        Self { path, name, shown }
    }
}

/// What is logged.
#[derive(Debug)]
pub(super) struct Line<'a> {
    level: Level,
    file: &'a str,
    number: u32,
    message: String,
    /// The error, under the key that both formats have for it.
    error: Option<(&'static str, Value)>,
    fields: Vec<(&'static str, Value)>,
}

/// The value of a field.
#[derive(Debug, PartialEq)]
enum Value {
    Text(String),
    /// A number or boolean, as both formats have it.
    Plain(String),
}

impl<'a> Line<'a> {
    pub(super) fn of(event: &Event<'a>) -> Self {
        let metadata = event.metadata();
        let mut line = Line {
            level: *metadata.level(),
            file: metadata.file().unwrap_or("unknown.rs"),
            number: metadata.line().unwrap_or_default(),
            message: String::new(),
            error: None,
            fields: Vec::new(),
        };
        event.record(&mut line);
        line
    }

    /// As klog writes it: `I1126 18:30:00.000000    1234 node.rs:12] "message" key="value"`.
    pub(super) fn text(&self) -> String {
        self.text_at(&Zoned::now(), std::process::id())
    }

    fn text_at(&self, now: &Zoned, process: u32) -> String {
        let severity = match self.level {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let mut text = String::with_capacity(160);
        let _ = write!(
            text,
            "{severity}{:02}{:02} {:02}:{:02}:{:02}.{:06} {process:>7} {}:{}] ",
            now.month(),
            now.day(),
            now.hour(),
            now.minute(),
            now.second(),
            now.subsec_nanosecond().unsigned_abs() / 1000,
            Place::of(self.file).shown,
            self.number,
        );
        quote(&mut text, &self.message);
        for (key, value) in self.error.iter().chain(&self.fields) {
            let _ = write!(text, " {key}=");
            match value {
                Value::Plain(value) => text.push_str(value),
                Value::Text(value) if value.contains('\n') => {
                    text.push_str("<\n");
                    for line in value.trim_end_matches('\n').split('\n') {
                        let _ = writeln!(text, "\t{line}");
                    }
                    text.push_str(" >");
                }
                Value::Text(value) => quote(&mut text, value),
            }
        }
        text.push('\n');
        text
    }

    /// As upstream's programs write JSON: `{"ts":1732645800000.1,"caller":"src/node.rs:12","msg":"…","v":0}`.
    pub(super) fn json(&self) -> String {
        self.json_at(Timestamp::now())
    }

    fn json_at(&self, now: Timestamp) -> String {
        let millis = now.as_nanosecond() as f64 / 1e6;
        let mut text = String::with_capacity(200);
        let _ = write!(text, "{{\"ts\":{millis},\"caller\":");
        let start = self.file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
        escape(&mut text, &format!("{}:{}", &self.file[start..], self.number));
        text.push_str(",\"msg\":");
        escape(&mut text, &self.message);
        match self.level {
            Level::ERROR => {}
            Level::WARN | Level::INFO => text.push_str(",\"v\":0"),
            Level::DEBUG => text.push_str(",\"v\":3"),
            Level::TRACE => text.push_str(",\"v\":6"),
        }
        for (key, value) in self.fields.iter().chain(&self.error) {
            text.push(',');
            escape(&mut text, key);
            text.push(':');
            match value {
                Value::Plain(value) => text.push_str(value),
                Value::Text(value) => escape(&mut text, value),
            }
        }
        text.push_str("}\n");
        text
    }

    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text) | Value::Plain(text)) => self.message = text,
            ("error", text @ Value::Text(_)) => self.error = Some(("err", text)),
            (name, value) => self.fields.push((name.trim_start_matches("r#"), value)),
        }
    }
}

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        self.put(field, Value::Text(unquoted(text)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::Text(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::Plain(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::Plain(value.to_string()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::Plain(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        let text = value.to_string();
        self.put(field, if value.is_finite() { Value::Plain(text) } else { Value::Text(text) });
    }
}

/// The text of which this is the debug form; other texts as they are.
fn unquoted(text: String) -> String {
    let Some(inner) = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return text;
    };
    let (mut plain, mut rest) = (String::with_capacity(inner.len()), inner.chars());
    while let Some(c) = rest.next() {
        match c {
            // not the debug form of one text
            '"' => return text,
            '\\' => match rest.next() {
                Some('n') => plain.push('\n'),
                Some('r') => plain.push('\r'),
                Some('t') => plain.push('\t'),
                Some('0') => plain.push('\0'),
                Some(c @ ('\\' | '"' | '\'')) => plain.push(c),
                _ => return text,
            },
            c => plain.push(c),
        }
    }
    plain
}

/// Quotes a text as Go does.
fn quote(into: &mut String, text: &str) {
    into.push('"');
    for c in text.chars() {
        match c {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            '\x07' => into.push_str("\\a"),
            '\x08' => into.push_str("\\b"),
            '\x0b' => into.push_str("\\v"),
            '\x0c' => into.push_str("\\f"),
            c if c.is_ascii_control() => {
                let _ = write!(into, "\\x{:02x}", u32::from(c));
            }
            c if c.is_control() || is_invisible(c) => {
                let _ = write!(into, "\\u{:04x}", u32::from(c));
            }
            c => into.push(c),
        }
    }
    into.push('"');
}

/// Whether a terminal might take it for something else than a character of a line.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{2028}' | '\u{2029}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{feff}')
}

/// Writes a text as a JSON string.
fn escape(into: &mut String, text: &str) {
    into.push('"');
    for c in text.chars() {
        match c {
            '"' => into.push_str("\\\""),
            '\\' => into.push_str("\\\\"),
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(into, "\\u{:04x}", u32::from(c));
            }
            c => into.push(c),
        }
    }
    into.push('"');
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;

    use super::*;

    fn line(level: Level) -> Line<'static> {
        Line {
            level,
            file: "crates/runtime/src/images/pull.rs",
            number: 12,
            message: "a \"quoted\" message\n".to_owned(),
            error: None,
            fields: vec![
                ("pod", Value::Text("web".to_owned())),
                ("count", Value::Plain("7".to_owned())),
            ],
        }
    }

    fn now() -> Timestamp {
        "2026-11-26T18:30:00.001234Z".parse().unwrap()
    }

    #[test]
    fn log_lines_have_klogs_form() {
        let zoned = now().to_zoned(TimeZone::UTC);
        assert_eq!(
            line(Level::INFO).text_at(&zoned, 1234),
            "I1126 18:30:00.001234    1234 pull.rs:12] \"a \\\"quoted\\\" message\\n\" pod=\"web\" count=7\n"
        );
        let mut failed = line(Level::ERROR);
        failed.error = Some(("err", Value::Text("no such\nfile".to_owned())));
        failed.message = "failed".to_owned();
        failed.fields.truncate(1);
        assert_eq!(
            failed.text_at(&zoned, 12_345_678),
            "E1126 18:30:00.001234 12345678 pull.rs:12] \"failed\" err=<\n\tno such\n\tfile\n > pod=\"web\"\n"
        );
        for (level, severity) in [(Level::WARN, 'W'), (Level::DEBUG, 'I'), (Level::TRACE, 'I')] {
            assert!(line(level).text_at(&zoned, 1).starts_with(severity), "{level}");
        }
    }

    #[test]
    fn log_lines_have_upstreams_json() {
        assert_eq!(
            line(Level::WARN).json_at(now()),
            "{\"ts\":1795717800001.234,\"caller\":\"images/pull.rs:12\",\"msg\":\"a \\\"quoted\\\" message\\n\",\"v\":0,\"pod\":\"web\",\"count\":7}\n"
        );
        let mut failed = line(Level::ERROR);
        failed.error = Some(("err", Value::Text("no \u{1}".to_owned())));
        assert_eq!(
            failed.json_at(now()),
            "{\"ts\":1795717800001.234,\"caller\":\"images/pull.rs:12\",\"msg\":\"a \\\"quoted\\\" message\\n\",\"pod\":\"web\",\"count\":7,\"err\":\"no \\u0001\"}\n"
        );
        assert!(line(Level::DEBUG).json_at(now()).contains(",\"v\":3,"));
    }

    #[test]
    fn log_places_name_the_file_or_its_directory() {
        for (file, name, shown) in [
            ("src/node.rs", "node", "node.rs"),
            ("node.rs", "node", "node.rs"),
            ("crates/runtime/src/images/mod.rs", "images", "images/mod.rs"),
            ("crates/runtime/src/lib.rs", "runtime", "runtime/src/lib.rs"),
            ("src/main.rs", "src", "src/main.rs"),
        ] {
            let place = Place::of(file);
            assert_eq!((place.name, place.shown), (name, shown), "{file}");
        }
    }

    #[test]
    fn log_values_are_quoted_once() {
        for (value, expected) in [
            ("plain", "plain"),
            ("\"quo\\\"ted\\n\"", "quo\"ted\n"),
            ("Some(\"x\")", "Some(\"x\")"),
            ("\"a\" and \"b\"", "\"a\" and \"b\""),
            ("\"", "\""),
            ("\"\\u{202e}\"", "\"\\u{202e}\""),
        ] {
            assert_eq!(unquoted(value.to_owned()), expected, "{value}");
        }
        let mut text = String::new();
        quote(&mut text, "a\u{1b}[31m\u{202e}é");
        assert_eq!(text, "\"a\\x1b[31m\\u202eé\"");
    }
}
