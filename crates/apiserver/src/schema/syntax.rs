//! What is wrong with text that is no JSON, in the words of upstream's reader: clients and their users
//! know them.

/// The most levels of nesting that upstream's reader follows.
const MAX_LEVELS: usize = 10_000;

/// What the reader waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    /// A value.
    Value,
    /// The first item of a list, or its end.
    ItemOrEnd,
    /// The first key of an object, or its end.
    KeyOrEnd,
    /// A further key.
    Key,
    /// The colon after a key.
    Colon,
    /// A comma, or the end of what a value is in.
    Next,
}

/// What is wrong with the text, if it is not one JSON value.
pub(crate) fn error(text: &[u8]) -> Option<String> {
    Scanner { text, at: 0 }.document().err()
}

/// What a byte is at a place where it cannot be.
fn invalid(byte: u8, context: &str) -> String {
    let quoted = match byte {
        b'\'' => r"\'".to_owned(),
        b'"' => "\"".to_owned(),
        b'\\' => r"\\".to_owned(),
        0x07 => r"\a".to_owned(),
        0x08 => r"\b".to_owned(),
        0x0b => r"\v".to_owned(),
        0x0c => r"\f".to_owned(),
        b'\n' => r"\n".to_owned(),
        b'\r' => r"\r".to_owned(),
        b'\t' => r"\t".to_owned(),
        0..0x20 | 0x7f => format!(r"\x{byte:02x}"),
        0x80..0xa1 | 0xad => format!(r"\u{byte:04x}"),
        byte => char::from(byte).to_string(),
    };
    format!("invalid character '{quoted}' {context}")
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn next(&mut self) -> Result<u8, String> {
        let byte = self.text.get(self.at).copied();
        self.at = self.at.saturating_add(1);
        byte.ok_or_else(|| "unexpected end of JSON input".to_owned())
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// The next byte that is no white space.
    fn next_token(&mut self) -> Result<u8, String> {
        loop {
            match self.next()? {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                byte => return Ok(byte),
            }
        }
    }

    fn document(&mut self) -> Result<(), String> {
        // Whether each level is an object.
        let mut levels: Vec<bool> = Vec::new();
        let mut expected = Expected::Value;
        loop {
            if expected == Expected::Next && levels.is_empty() {
                return match self.next_token() {
                    Ok(byte) => Err(invalid(byte, "after top-level value")),
                    Err(_) => Ok(()),
                };
            }
            let byte = self.next_token()?;
            let is_object = levels.last() == Some(&true);
            expected = match (expected, byte) {
                (Expected::ItemOrEnd, b']') | (Expected::KeyOrEnd, b'}') => {
                    levels.pop();
                    Expected::Next
                }
                (Expected::Value | Expected::ItemOrEnd, b'{' | b'[') => {
                    levels.push(byte == b'{');
                    if levels.len() > MAX_LEVELS {
                        return Err("exceeded max depth".to_owned());
                    }
                    if byte == b'{' { Expected::KeyOrEnd } else { Expected::ItemOrEnd }
                }
                (Expected::Value | Expected::ItemOrEnd, _) => {
                    self.scalar(byte)?;
                    Expected::Next
                }
                (Expected::Key | Expected::KeyOrEnd, b'"') => {
                    self.string()?;
                    Expected::Colon
                }
                (Expected::Key | Expected::KeyOrEnd, _) => {
                    return Err(invalid(byte, "looking for beginning of object key string"));
                }
                (Expected::Colon, b':') => Expected::Value,
                (Expected::Colon, _) => return Err(invalid(byte, "after object key")),
                (Expected::Next, b',') => {
                    if is_object {
                        Expected::Key
                    } else {
                        Expected::Value
                    }
                }
                (Expected::Next, b'}') if is_object => {
                    levels.pop();
                    Expected::Next
                }
                (Expected::Next, b']') if !is_object => {
                    levels.pop();
                    Expected::Next
                }
                (Expected::Next, _) if is_object => {
                    return Err(invalid(byte, "after object key:value pair"));
                }
                (Expected::Next, _) => return Err(invalid(byte, "after array element")),
            };
        }
    }

    fn scalar(&mut self, first: u8) -> Result<(), String> {
        match first {
            b'"' => self.string(),
            b'-' => match self.next()? {
                byte @ b'0'..=b'9' => self.number(byte),
                byte => Err(invalid(byte, "in numeric literal")),
            },
            b'0'..=b'9' => self.number(first),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            byte => Err(invalid(byte, "looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for wanted in word.bytes().skip(1) {
            let byte = self.next()?;
            if byte != wanted {
                let wanted = char::from(wanted);
                let context = format!("in literal {word} (expecting '{wanted}')");
                return Err(invalid(byte, &context));
            }
        }
        Ok(())
    }

    fn string(&mut self) -> Result<(), String> {
        loop {
            match self.next()? {
                b'"' => return Ok(()),
                b'\\' => match self.next()? {
                    b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                    b'u' => {
                        for _ in 0..4 {
                            let byte = self.next()?;
                            if !byte.is_ascii_hexdigit() {
                                return Err(invalid(byte, r"in \u hexadecimal character escape"));
                            }
                        }
                    }
                    byte => return Err(invalid(byte, "in string escape code")),
                },
                byte @ 0..0x20 => return Err(invalid(byte, "in string literal")),
                _ => {}
            }
        }
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at = self.at.saturating_add(1);
        }
    }

    /// A number, after its sign and its first digit.
    fn number(&mut self, first: u8) -> Result<(), String> {
        if first != b'0' {
            self.digits();
        }
        if self.peek() == Some(b'.') {
            self.next()?;
            let byte = self.next()?;
            if !byte.is_ascii_digit() {
                return Err(invalid(byte, "after decimal point in numeric literal"));
            }
            self.digits();
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.next()?;
            let mut byte = self.next()?;
            if matches!(byte, b'+' | b'-') {
                byte = self.next()?;
            }
            if !byte.is_ascii_digit() {
                return Err(invalid(byte, "in exponent of numeric literal"));
            }
            self.digits();
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn json_syntax_errors_in_upstreams_words() {
        const END: &str = "unexpected end of JSON input";
        for (text, expected) in [
            ("", END),
            ("  ", END),
            ("{", END),
            ("[", END),
            ("\"a", END),
            ("tru", END),
            ("-", END),
            ("1.", END),
            ("1e", END),
            ("{\"a\"", END),
            ("{\"a\":1", END),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("'", r"invalid character '\'' looking for beginning of value"),
            ("{]", "invalid character ']' looking for beginning of object key string"),
            ("{\"a\":}", "invalid character '}' looking for beginning of value"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1}", "invalid character '}' after array element"),
            ("{} x", "invalid character 'x' after top-level value"),
            ("00", "invalid character '0' after top-level value"),
            ("nul!", "invalid character '!' in literal null (expecting 'l')"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g0\"", r"invalid character 'g' in \u hexadecimal character escape"),
            ("\"\n\"", r"invalid character '\n' in string literal"),
            ("-x", "invalid character 'x' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1e+x", "invalid character 'x' in exponent of numeric literal"),
            ("\u{1}", r"invalid character '\x01' looking for beginning of value"),
        ] {
            assert_eq!(error(text.as_bytes()).unwrap_or_default(), expected, "{text:?}");
        }
        assert_eq!(error("[".repeat(20_000).as_bytes()).unwrap(), "exceeded max depth");
    }

    proptest! {
        #[test]
        fn json_syntax_errors_are_of_text_that_is_no_json(text in "[\\[\\]{}:,\" \\\\0-9eEtrufalsn.x+-]{0,12}") {
            let read = serde_json::from_str::<serde::de::IgnoredAny>(&text);
            // A number may be valid and too large for the reader.
            let is_read = read.as_ref().map_or_else(|e| e.to_string().contains("out of range"), |_| true);
            prop_assert_eq!(error(text.as_bytes()).is_none(), is_read, "{}", text);
        }
    }
}
