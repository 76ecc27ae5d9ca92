//! Words that are no names.

/// Words of the language.
const WORDS: [&str; 4] = ["true", "false", "null", "in"];

/// Words that the language keeps for other languages' use.
pub(crate) const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Whether it is a word of the language, or reserved.
pub(crate) fn is_keyword(name: &str) -> bool {
    WORDS.contains(&name) || RESERVED.contains(&name)
}

/// Whether it can be the name of a variable.
pub fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        && !is_keyword(name)
}
