//! What types and fields of the API are in words (`data/descriptions.tsv`), as `kubectl explain` prints it.
//! The program has them compressed; they are unpacked when the first document is asked for.

use std::collections::HashMap;
use std::io::Read;
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use tracing::error;

const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.tsv.gz"));

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let mut text = String::new();
    if let Err(error) = GzDecoder::new(PACKED).read_to_string(&mut text) {
        error!("the descriptions of the API cannot be unpacked: {error}");
        text.clear();
    }
    text
});
static TYPES: LazyLock<HashMap<&'static str, Description>> = LazyLock::new(|| parse(&TEXT));

/// All of them.
pub(super) fn text() -> &'static str {
    &TEXT
}

/// The words of a type, with escapes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Description {
    text: &'static str,
    fields: Vec<(&'static str, &'static str)>,
}

/// The description of the type of this full name.
pub(super) fn of(name: &str) -> Option<&'static Description> {
    TYPES.get(name)
}

impl Description {
    /// Of the type itself; `None`: it has none.
    pub(super) fn text(&self) -> Option<String> {
        (!self.text.is_empty()).then(|| unescape(self.text))
    }

    /// The names of fields, and what they are.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.fields.iter().map(|(name, text)| (*name, unescape(text)))
    }
}

fn parse(text: &'static str) -> HashMap<&'static str, Description> {
    let mut types = HashMap::new();
    let mut lines = text.lines().filter_map(|line| line.split_once('\t')).peekable();
    while let Some((name, text)) = lines.next() {
        let mut fields = Vec::new();
        while let Some((_, field)) = lines.next_if(|(name, _)| name.is_empty()) {
            fields.extend(field.split_once('\t'));
        }
        types.insert(name, Description { text, fields });
    }
    types
}

/// `\n`, `\t` and `\\` in a line stand for what they are in Rust.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    while let Some(part) = parts.next() {
        match part.chars().next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some(_) => out.push_str(part.get(..1).unwrap_or_default()),
            // two in a row: what follows them is no escape
            None => {
                out.push('\\');
                out.push_str(parts.next().unwrap_or_default());
                continue;
            }
        }
        out.push_str(part.get(1..).unwrap_or_default());
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn openapi_descriptions_are_unescaped() {
        for (text, expected) in
            [("a", "a"), (r"a\nb\tc", "a\nb\tc"), (r"a\\nb", "a\\nb"), (r"\\\\", r"\\"), ("", "")]
        {
            assert_eq!(unescape(text), expected, "{text}");
        }
    }

    #[test]
    fn openapi_descriptions_of_a_type_have_its_fields() {
        let types = parse("a.B\tOf B.\n\tx\tOf\\nx.\n\ty\tOf y.\na.C\t\n\tz\tOf z.\n");
        let b = &types["a.B"];
        assert_eq!(b.text().unwrap(), "Of B.");
        let fields: Vec<_> = b.fields().collect();
        assert_eq!(fields, [("x", "Of\nx.".to_owned()), ("y", "Of y.".to_owned())]);
        assert_eq!(types["a.C"].text(), None);
        assert_eq!(types["a.C"].fields().count(), 1);
    }
}
