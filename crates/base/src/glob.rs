//! Patterns with wildcards.

/// Whether the pattern matches all of the text: `*` matches any number of characters, `?` matches one.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Position of the last star, and of the text at that time: its match can only grow.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((at, reached)) = star else { return false };
                (p, t) = (at + 1, reached + 1);
                star = Some((at, reached + 1));
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("a?c", "abc", true),
            ("*a*a*", "banana", true),
            ("*a*c", "banana", false),
            ("us-*", "us-east", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
    }
}
