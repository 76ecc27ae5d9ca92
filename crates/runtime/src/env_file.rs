//! Environment files: `NAME='value'` in single quotes, possibly over several lines, and comments:
//! the strict subset of shell syntax that Kubernetes supports.

/// The limit of the file's size, in bytes.
pub(super) const MAX_SIZE: usize = 1 << 20;

/// Why a file has no value.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Read(#[from] longshore_volumes::Error),
    #[error("it is not UTF-8")]
    NotText,
    #[error("line {line}: {what}")]
    Format { line: usize, what: &'static str },
}

/// The first non-empty value of a name; lines after it are not parsed.
pub(super) fn value(text: &str, name: &str) -> Result<Option<String>, Error> {
    let blank = [' ', '\t'];
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let format = |what| Error::Format { line: index + 1, what };
        let line = line.trim_start_matches(blank);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (found, rest) = line.split_once('=').ok_or_else(|| format("missing '='"))?;
        if found.trim_end_matches(blank).is_empty() {
            return Err(format("empty variable name"));
        }
        if found.ends_with(blank) {
            return Err(format("whitespace before '=' is not allowed"));
        }
        // As in a shell, a blank ends an empty value.
        if rest.starts_with(blank) {
            if found == name {
                return Ok(None);
            }
            continue;
        }
        let mut rest =
            rest.strip_prefix('\'').ok_or_else(|| format("value must be in single quotes"))?;
        let mut value = String::new();
        let after = loop {
            if let Some((last, after)) = rest.split_once('\'') {
                value.push_str(last);
                break after.trim_start_matches(blank);
            }
            value.push_str(rest);
            value.push('\n');
            (_, rest) = lines.next().ok_or_else(|| format("unclosed single quote"))?;
        };
        if !after.is_empty() && !after.starts_with('#') {
            return Err(format("unexpected content after closing quote"));
        }
        if found == name {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::value;

    #[test]
    fn env_file_values_are_quoted_and_may_span_lines() {
        for (text, expected) in [
            ("A='1'", Ok(Some("1"))),
            ("# no\n\n \tA='1' # one\nbroken", Ok(Some("1"))),
            ("B='x'\nA='a $B \"\\n'\n", Ok(Some("a $B \"\\n"))),
            ("A='1\n2'\n", Ok(Some("1\n2"))),
            ("B='\nA='\nA='in'", Ok(Some("in"))),
            ("A=''", Ok(None)),
            ("A= 'x'\nA='y'", Ok(None)),
            ("B= x\nA='y'", Ok(Some("y"))),
            ("B='x'", Ok(None)),
            ("", Ok(None)),
            ("A='1'\r\n", Ok(Some("1"))),
            ("A", Err("line 1: missing '='")),
            ("\n='x'", Err("line 2: empty variable name")),
            ("A ='x'", Err("line 1: whitespace before '=' is not allowed")),
            ("A=x", Err("line 1: value must be in single quotes")),
            ("\nA='x\ny", Err("line 2: unclosed single quote")),
            ("A='x'y", Err("line 1: unexpected content after closing quote")),
        ] {
            let found = value(text, "A").map_err(|error| error.to_string());
            assert_eq!(
                found,
                expected.map(|value| value.map(str::to_owned)).map_err(str::to_owned),
                "{text:?}"
            );
        }
    }
}
