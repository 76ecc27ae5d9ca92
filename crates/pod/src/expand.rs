//! `$(NAME)` references in commands, arguments, environment values and sub-paths.

/// Replace each `$(NAME)` by what `lookup` gives; an unknown name stays as it is, and `$$` is a
/// dollar sign that starts no reference.
pub fn expand<'a>(input: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            output.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|body| body.split_once(')'))
        {
            match lookup(name) {
                Some(value) => output.push_str(value),
                None => {
                    output.push_str("$(");
                    output.push_str(name);
                    output.push(')');
                }
            }
            rest = after;
        } else {
            output.push('$');
        }
    }
    output.push_str(rest);
    output
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::expand;

    #[test]
    fn references_escapes_and_leftovers() {
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
            assert_eq!(expand(input, lookup), expected, "{input}");
        }
    }

    proptest! {
        #[test]
        fn text_without_dollars_is_kept(text in "[^$]*") {
            prop_assert_eq!(expand(&text, |_| Some("x")), text);
        }
    }
}
