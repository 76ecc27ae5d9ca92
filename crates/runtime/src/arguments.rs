//! How long the words and variables of a program may be. The kernel starts no program with longer
//! ones, so a container that asks for them is refused before it costs memory: variables that refer
//! to each other twice each double with each of them.

use longshore_pod::expand::expand;

/// The most bytes of one word or variable: the kernel's MAX_ARG_STRLEN, 32 pages with the zero at
/// the end.
pub(crate) fn max_word() -> usize {
    32 * rustix::param::page_size() - 1
}

/// The most bytes of all variables, or of all words, of a program: what the kernel takes of both
/// together, whatever the limit of the stack is (three quarters of _STK_LIM).
pub(crate) const MAX_TOTAL: usize = 6 << 20;

/// A program would get words or variables that are too long.
#[derive(Debug, thiserror::Error)]
#[error("argument list too long: {0}")]
pub struct TooLong(pub(crate) String);

impl TooLong {
    /// All of them together are.
    pub(crate) fn total(what: &str) -> Self {
        Self(format!("{what} is longer than {MAX_TOTAL} bytes"))
    }
}

/// A text with the values of the variables that it refers to.
pub(crate) fn expanded<'a>(
    what: &str,
    text: &str,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, TooLong> {
    expand(text, max_word(), lookup).map_err(|error| TooLong(format!("{what} {error}")))
}

/// The words of a command with the values of the variables that they refer to.
pub(crate) fn expanded_words<'a>(
    what: &str,
    words: &[String],
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<Vec<String>, TooLong> {
    let mut left = MAX_TOTAL;
    let mut word = |word: &String| {
        let word = expanded(what, word, &lookup)?;
        left = left.checked_sub(word.len() + 1).ok_or_else(|| TooLong::total(what))?;
        Ok(word)
    };
    words.iter().map(&mut word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finding 13: each of these words is short, and refers to a long variable.
    #[test]
    fn words_are_bounded_one_by_one_and_together() {
        let value = "x".repeat(max_word() / 2);
        let lookup = |name: &str| (name == "A").then_some(value.as_str());
        let words = |word: &str, count| vec![word.to_owned(); count];
        let expanded = |words: &[String]| expanded_words("command", words, lookup);
        assert!(expanded(&words("$(A)$(A)", 3)).is_ok_and(|words| words.len() == 3));
        assert!(expanded(&words("$(A)$(A)$(A)", 1)).is_err());
        let many = expanded(&words("$(A)", 1000)).map_err(|error| error.to_string());
        let message = "argument list too long: command is longer than 6291456 bytes";
        assert_eq!(many, Err(message.to_owned()));
    }
}
