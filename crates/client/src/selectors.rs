//! Field selectors.

/// A field selector of these fields and their values, which may be any text.
///
/// A backslash, comma or equals sign of a value is escaped, as the apiserver reads it.
pub fn field_selector<'a>(terms: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let term = |(field, value)| format!("{field}={}", escaped(value));
    terms.into_iter().map(term).collect::<Vec<_>>().join(",")
}

fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | ',' | '=') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_selector_values_are_escaped() {
        let terms = [("spec.driver", "gpu.example.com"), ("spec.nodeName", r"a,b=c\")];
        let expected = r"spec.driver=gpu.example.com,spec.nodeName=a\,b\=c\\";
        assert_eq!(field_selector(terms), expected);
        assert_eq!(field_selector([]), "");
    }
}
