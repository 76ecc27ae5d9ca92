//! Limits of the arguments and environment variables of a program. The kernel starts no program
//! with longer ones, so such a container is refused before it costs memory: variables that refer to
//! each other twice each double with each of them.

use longshore_pod::expand::expand;

/// The limit of one argument or variable in bytes: the kernel's MAX_ARG_STRLEN, 32 pages with the
/// terminating zero.
pub(crate) fn max_argument() -> usize {
    32 * rustix::param::page_size() - 1
}

/// The limit of all variables, or of all arguments, of a program in bytes: the kernel's limit of
/// both together, whatever the limit of the stack is (three quarters of _STK_LIM).
pub(crate) const MAX_TOTAL: usize = 6 << 20;

/// Arguments or variables exceed a limit.
#[derive(Debug, thiserror::Error)]
#[error("argument list too long: {0}")]
pub struct TooLong(pub(crate) String);

impl TooLong {
    /// All of them together exceed the limit.
    pub(crate) fn total(what: &str) -> Self {
        Self(format!("{what} is longer than {MAX_TOTAL} bytes"))
    }
}

/// A text with its variable references expanded.
pub(crate) fn expanded<'a>(
    what: &str,
    text: &str,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, TooLong> {
    expand(text, max_argument(), lookup).map_err(|error| TooLong(format!("{what} {error}")))
}

/// The arguments of a command with their variable references expanded.
pub(crate) fn expanded_arguments<'a>(
    what: &str,
    arguments: &[String],
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<Vec<String>, TooLong> {
    let mut left = MAX_TOTAL;
    let mut word = |word: &String| {
        let word = expanded(what, word, &lookup)?;
        left = left.checked_sub(word.len() + 1).ok_or_else(|| TooLong::total(what))?;
        Ok(word)
    };
    arguments.iter().map(&mut word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finding 13: each of these arguments is short, and refers to a long variable.
    #[test]
    fn arguments_are_limited_each_and_in_total() {
        let value = "x".repeat(max_argument() / 2);
        let lookup = |name: &str| (name == "A").then_some(value.as_str());
        let arguments = |word: &str, count| vec![word.to_owned(); count];
        let expanded = |arguments: &[String]| expanded_arguments("command", arguments, lookup);
        assert!(expanded(&arguments("$(A)$(A)", 3)).is_ok_and(|arguments| arguments.len() == 3));
        assert!(expanded(&arguments("$(A)$(A)$(A)", 1)).is_err());
        let many = expanded(&arguments("$(A)", 1000)).map_err(|error| error.to_string());
        let message = "argument list too long: command is longer than 6291456 bytes";
        assert_eq!(many, Err(message.to_owned()));
    }
}
