//! `$(NAME)` references in commands, arguments, environment values and sub-paths.

/// The expanded text exceeds its limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is longer than {limit} bytes once its references are expanded")]
pub struct TooLong {
    /// The maximum (bytes).
    pub limit: usize,
}

/// Replace each `$(NAME)` by what `lookup` gives; an unknown name stays as it is, and `$$` is an
/// escaped dollar sign. The result has at most `limit` bytes: with variables that refer to each
/// other twice, it could double with each of them.
pub fn expand<'a>(
    input: &str,
    limit: usize,
    lookup: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, TooLong> {
    let mut output = Bounded { text: String::new(), limit };
    let mut rest = input;
    // Computed once: a text may have many `$(` and no `)`.
    let last_end = input.rfind(')').map_or(0, |at| at + 1);
    let end_of_ends = input.len() - last_end;
    while let Some(at) = rest.find('$') {
        output.push(&rest[..at])?;
        rest = &rest[at + 1..];
        let body = rest.strip_prefix('(').filter(|body| body.len() > end_of_ends);
        if let Some(after) = rest.strip_prefix('$') {
            output.push("$")?;
            rest = after;
        } else if let Some((name, after)) = body.and_then(|body| body.split_once(')')) {
            match lookup(name) {
                Some(value) => output.push(value)?,
                None => {
                    for part in ["$(", name, ")"] {
                        output.push(part)?;
                    }
                }
            }
            rest = after;
        } else {
            output.push("$")?;
        }
    }
    output.push(rest)?;
    Ok(output.text)
}

struct Bounded {
    text: String,
    limit: usize,
}

impl Bounded {
    fn push(&mut self, part: &str) -> Result<(), TooLong> {
        if self.limit - self.text.len() < part.len() {
            return Err(TooLong { limit: self.limit });
        }
        self.text.push_str(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{TooLong, expand};

    #[test]
    fn expansion_of_references_and_escapes() {
        let lookup = |name: &str| match name {
            "A" => Some("a"),
            "DOLLAR" => Some("$(A)"),
            "" => Some("empty"),
            _ => None,
        };
        for (input, expected) in [
            ("$(A)", "a"),
            ("x$(A)y$(A)", "xaya"),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$a"),
            ("$", "$"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("$(DOLLAR)", "$(A)"),
            ("$()", "empty"),
            ("ä$(A)ö", "äaö"),
        ] {
            assert_eq!(expand(input, 100, lookup).as_deref(), Ok(expected), "{input}");
        }
    }

    /// Finding 13: variables that each refer twice to the next one doubled without a bound.
    #[test]
    fn expansion_is_limited_in_length() {
        let lookup = |name: &str| (name == "A").then_some("12345");
        assert_eq!(expand("$(A)$(A)", 10, lookup).as_deref(), Ok("1234512345"));
        for (input, fits) in [
            ("$(A)$(A)", false),
            ("123456789$", false),
            ("1234567$(", true),
            ("$(B)$(B)$", true),
            ("$(B)$(B)$$$$", false),
        ] {
            assert_eq!(expand(input, 9, lookup).is_ok(), fits, "{input}");
        }
        assert_eq!(expand("1234567890$", 10, lookup), Err(TooLong { limit: 10 }));
        let mut value = "x".to_owned();
        let limit = 1 << 17;
        let doubled = (0..60).find_map(|_| {
            match expand("$(A)$(A)", limit, |_| Some(value.as_str())) {
                Ok(next) => value = next,
                Err(error) => return Some(error),
            }
            None
        });
        assert_eq!((doubled, value.len()), (Some(TooLong { limit }), limit));
    }

    /// Finding 14: each `$(` searched all the rest for its end.
    #[test]
    fn expansion_of_unterminated_references_is_linear() {
        let text = "$(".repeat(1 << 20);
        assert_eq!(expand(&text, text.len(), |_| None), Ok(text.clone()));
        let text = format!("$(A){text}");
        assert_eq!(expand(&text, text.len(), |_| Some("1234")), Ok(format!("1234{}", &text[4..])));
    }

    proptest! {
        #[test]
        fn expansion_keeps_text_without_references(text in "[^$]*") {
            prop_assert_eq!(expand(&text, text.len(), |_| Some("x")), Ok(text));
        }
    }
}
