//! As much of Rust's lexical structure as paths need: words and punctuation with their lines, without
//! comments, strings, characters, and items that are only compiled for tests.

/// A word or a punctuation character (`::` is one token) and its line, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// The tokens of a source text.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut line = 1;
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, kept) = next(rest, first);
        let (text, after) = rest.split_at(length);
        if kept {
            found.push(Token { text, line });
        }
        line += text.matches('\n').count();
        rest = after;
    }
    found
}

/// The length of the token at the beginning of the text, and whether it counts.
fn next(text: &str, first: char) -> (usize, bool) {
    let until = |end: &str| text.find(end).map_or(text.len(), |at| at + end.len());
    if text.starts_with("//") {
        return (until("\n"), false);
    }
    if text.starts_with("/*") {
        return (block_comment(text), false);
    }
    if let Some(length) = raw_string(text) {
        return (length, false);
    }
    match first {
        '"' => (quoted(text, '"'), false),
        '\'' => (character_or_lifetime(text), false),
        _ if is_word(first) => (text.find(|c| !is_word(c)).unwrap_or(text.len()), true),
        _ if text.starts_with("::") => (2, true),
        _ => (first.len_utf8(), !first.is_whitespace()),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// `r"…"`, `r#"…"#`, and those of bytes.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let content = body.trim_start_matches('#');
    let hashes = body.len() - content.len();
    let content = content.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = content.find(&end).map_or(content.len(), |at| at + end.len());
    Some(text.len() - content.len() + length)
}

fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

fn character_or_lifetime(text: &str) -> usize {
    let mut after = text.chars().skip(1);
    match (after.next(), after.next()) {
        (Some('\\'), _) | (_, Some('\'')) => quoted(text, '\''),
        _ => 1 + text[1..].find(|c| !is_word(c)).unwrap_or(text.len() - 1),
    }
}

/// The tokens without items under `#[cfg(test)]` or `#[cfg(any(test, …))]`; and the names of the
/// modules in other files that are among those items.
pub(crate) fn without_tests<'a>(all: &[Token<'a>]) -> (Vec<Token<'a>>, Vec<&'a str>) {
    let (mut kept, mut modules) = (Vec::new(), Vec::new());
    let mut rest = all;
    while let Some((first, after)) = rest.split_first() {
        if !is_for_tests(rest) {
            kept.push(*first);
            rest = after;
            continue;
        }
        while starts(rest, &["#", "["]) {
            rest = &rest[1 + group(&rest[1..])..];
        }
        let item = &rest[..item(rest)];
        let mut pairs = item.windows(2).take_while(|pair| pair[0].text != "{");
        if let Some([_, name]) = pairs.find(|pair| pair[0].text == "mod") {
            modules.push(name.text);
        }
        rest = &rest[item.len()..];
    }
    (kept, modules)
}

fn is_for_tests(tokens: &[Token<'_>]) -> bool {
    starts(tokens, &["#", "[", "cfg", "(", "test", ")", "]"])
        || starts(tokens, &["#", "[", "cfg", "(", "any", "(", "test", ","])
}

fn starts(tokens: &[Token<'_>], texts: &[&str]) -> bool {
    tokens.len() >= texts.len() && tokens.iter().zip(texts).all(|(token, text)| token.text == *text)
}

/// The length of a group that begins with a bracket.
fn group(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" if depth <= 1 => return at + 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

/// The length of an item, a field or a statement: to its `;` or `,`, or to the end of its block.
fn item(tokens: &[Token<'_>]) -> usize {
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token.text {
            ";" | "," => return at + 1,
            "{" => return at + group(&tokens[at..]),
            "(" | "[" => at += group(&tokens[at..]),
            ")" | "]" | "}" => return at,
            _ => at += 1,
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
        tokens.iter().map(|token| token.text).collect()
    }

    #[test]
    fn comments_and_literals_are_no_tokens() {
        let source =
            "a // b\n/* c /* d */ e */ \"f\\\"g\" 'h' '\\'' &'i j r#\"k\"l\"# br\"m\" crate::n";
        assert_eq!(texts(&tokens(source)), ["a", "&", "j", "crate", "::", "n"]);
        assert_eq!(tokens(source).first().map(|token| token.line), Some(1));
        assert_eq!(tokens(source).last().map(|token| token.line), Some(2));
    }

    #[test]
    fn items_for_tests_are_left_out() {
        let source = "
            use a; #[cfg(test)] use b;
            #[cfg(test)] #[allow(c)] mod tests { use d; }
            #[cfg(any(test, feature = \"x\"))] pub(crate) mod fake;
            #[cfg(unix)] fn e() {}
        ";
        let all = tokens(source);
        let (kept, modules) = without_tests(&all);
        let expected = "use a ; # [ cfg ( unix ) ] fn e ( ) { }";
        assert_eq!(texts(&kept).join(" "), expected);
        assert_eq!(modules, ["tests", "fake"]);
    }
}
