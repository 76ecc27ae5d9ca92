//! Words of an expression.

use std::iter::Peekable;
use std::str::CharIndices;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    Ident(String),
    /// An identifier in backquotes, which may only select a field.
    Quoted(String),
    Int(String),
    Uint(String),
    Double(String),
    String(String),
    Bytes(Vec<u8>),
    Punct(&'static str),
    End,
}

impl Token {
    /// As error messages name it.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Ident(text) | Self::Int(text) | Self::Double(text) => format!("'{text}'"),
            Self::Uint(text) => format!("'{text}u'"),
            Self::Quoted(text) => format!("'`{text}`'"),
            Self::String(text) => format!("'{text:?}'"),
            Self::Bytes(_) => "bytes".to_owned(),
            Self::Punct(text) => format!("'{text}'"),
            Self::End => "'<EOF>'".to_owned(),
        }
    }
}

const PUNCTUATION: [&str; 28] = [
    "==", "!=", "<=", ">=", "&&", "||", "[?", "{?", "<", ">", "+", "-", "*", "/", "%", "!", "?",
    ":", ".", ",", "(", ")", "[", "]", "{", "}", "=", "&",
];

type Found = Result<Vec<(Token, usize)>, (usize, String)>;

/// All words with their byte offsets; the last is the end. Fails with an offset and a message.
pub(crate) fn tokens(source: &str) -> Found {
    let mut lexer = Lexer { source, chars: source.char_indices().peekable() };
    let mut found = Vec::new();
    loop {
        let token = lexer.next()?;
        let end = token.0 == Token::End;
        found.push(token);
        if end {
            return Ok(found);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    chars: Peekable<CharIndices<'a>>,
}

impl Lexer<'_> {
    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.source.len(), |(at, _)| *at)
    }

    fn rest(&mut self) -> &str {
        let at = self.at();
        self.source.get(at..).unwrap_or_default()
    }

    fn skip(&mut self, bytes: usize) {
        let end = self.at() + bytes;
        while self.chars.peek().is_some_and(|(at, _)| *at < end) {
            self.chars.next();
        }
    }

    fn taken(&mut self, wanted: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some((_, c)) = self.chars.next_if(|(_, c)| wanted(*c)) {
            text.push(c);
        }
        text
    }

    fn next(&mut self) -> Result<(Token, usize), (usize, String)> {
        loop {
            self.taken(|c| matches!(c, ' ' | '\t' | '\r' | '\n' | '\u{c}'));
            if !self.rest().starts_with("//") {
                break;
            }
            self.taken(|c| c != '\n');
        }
        let at = self.at();
        let Some(&(_, first)) = self.chars.peek() else { return Ok((Token::End, at)) };
        if let Some(token) = self.quoted()? {
            return Ok((token, at));
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let name = self.taken(|c| c.is_ascii_alphanumeric() || c == '_');
            return Ok((Token::Ident(name), at));
        }
        if first == '`' {
            self.chars.next();
            let name = self
                .taken(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '/' | ' '));
            let closed = self.chars.next_if(|(_, c)| *c == '`').is_some();
            return match closed && !name.is_empty() {
                true => Ok((Token::Quoted(name), at)),
                false => Err((at, "Syntax error: token recognition error at: '`'".to_owned())),
            };
        }
        let mut ahead = self.rest().chars().skip(1);
        let fraction = first == '.' && ahead.next().is_some_and(|c| c.is_ascii_digit());
        if first.is_ascii_digit() || fraction {
            return Ok((self.number(), at));
        }
        let rest = self.rest();
        match PUNCTUATION.iter().find(|p| rest.starts_with(**p)) {
            Some(found) => {
                self.skip(found.len());
                Ok((Token::Punct(found), at))
            }
            None => {
                let message = format!("Syntax error: token recognition error at: '{first}'");
                Err((at, message))
            }
        }
    }

    fn number(&mut self) -> Token {
        let rest = self.rest();
        if rest.starts_with("0x") || rest.starts_with("0X") {
            self.skip(2);
            let digits = format!("0x{}", self.taken(|c| c.is_ascii_hexdigit()));
            return self.with_suffix(digits);
        }
        let mut text = self.taken(|c| c.is_ascii_digit());
        let mut double = false;
        let mut ahead = self.rest().chars();
        if ahead.next() == Some('.') && ahead.next().is_some_and(|c| c.is_ascii_digit()) {
            double = true;
            self.skip(1);
            text.push('.');
            text.push_str(&self.taken(|c| c.is_ascii_digit()));
        }
        let rest = self.rest();
        if let Some(exponent) = rest.strip_prefix(['e', 'E']) {
            let sign = exponent.strip_prefix(['+', '-']).map_or(0, |_| 1);
            if exponent.chars().nth(sign).is_some_and(|c| c.is_ascii_digit()) {
                double = true;
                text.push('e');
                text.push_str(exponent.get(..sign).unwrap_or_default());
                self.skip(1 + sign);
                text.push_str(&self.taken(|c| c.is_ascii_digit()));
            }
        }
        if double { Token::Double(text) } else { self.with_suffix(text) }
    }

    fn with_suffix(&mut self, text: String) -> Token {
        match self.chars.next_if(|(_, c)| matches!(c, 'u' | 'U')) {
            Some(_) => Token::Uint(text),
            None => Token::Int(text),
        }
    }

    /// A string or bytes, if one starts here.
    fn quoted(&mut self) -> Result<Option<Token>, (usize, String)> {
        let at = self.at();
        let rest = self.rest();
        let (mut bytes, mut raw, mut prefix) = (false, false, 0);
        for c in rest.chars().take(2) {
            match c {
                'b' | 'B' if !bytes => bytes = true,
                'r' | 'R' if !raw => raw = true,
                _ => break,
            }
            prefix += 1;
        }
        let body = rest.get(prefix..).unwrap_or_default();
        let quote = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|q| body.starts_with(q));
        let Some(quote) = quote else { return Ok(None) };
        self.skip(prefix + quote.len());
        let failed = |what: &str| Err((at, format!("Syntax error: {what}")));
        let mut text = Vec::new();
        loop {
            if self.rest().starts_with(quote) {
                self.skip(quote.len());
                break;
            }
            let Some((_, c)) = self.chars.next() else {
                return failed("token recognition error at: unterminated string");
            };
            if quote.len() == 1 && matches!(c, '\n' | '\r') {
                return failed("token recognition error at: line break in string");
            }
            if c == '\\' && !raw {
                match self.escape(bytes) {
                    Some(Escaped::Char(c)) => push(&mut text, c),
                    Some(Escaped::Byte(b)) => text.push(b),
                    None => return failed("invalid escape sequence"),
                }
            } else {
                push(&mut text, c);
            }
        }
        if bytes {
            return Ok(Some(Token::Bytes(text)));
        }
        match String::from_utf8(text) {
            Ok(text) => Ok(Some(Token::String(text))),
            Err(_) => failed("invalid UTF-8 in string"),
        }
    }

    fn escape(&mut self, bytes: bool) -> Option<Escaped> {
        let (_, c) = self.chars.next()?;
        let plain = match c {
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\u{b}',
            '\\' | '\'' | '"' | '`' | '?' => c,
            'x' | 'X' => return self.code(2, 16, 0, bytes),
            'u' if !bytes => return self.code(4, 16, 0, false),
            'U' if !bytes => return self.code(8, 16, 0, false),
            '0'..='3' => return self.code(2, 8, c.to_digit(8)?, bytes),
            _ => return None,
        };
        Some(Escaped::Char(plain))
    }

    fn code(&mut self, digits: usize, radix: u32, first: u32, byte: bool) -> Option<Escaped> {
        let mut code = first;
        for _ in 0..digits {
            let digit = self.chars.next()?.1.to_digit(radix)?;
            code = code.checked_mul(radix)?.checked_add(digit)?;
        }
        match byte {
            true => u8::try_from(code).ok().map(Escaped::Byte),
            false => char::from_u32(code).map(Escaped::Char),
        }
    }
}

enum Escaped {
    Char(char),
    Byte(u8),
}

fn push(text: &mut Vec<u8>, c: char) {
    text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}
