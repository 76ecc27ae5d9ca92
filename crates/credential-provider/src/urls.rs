//! Patterns of images, `host[:port][/path]`, as upstream matches them: each part of the host may have
//! wildcards, the port is equal, the path is a prefix.

use std::borrow::Cow;

use longshore_base::glob;
use percent_encoding::percent_decode_str;

/// A URL without its scheme.
struct Url<'a> {
    host: &'a str,
    path: Cow<'a, [u8]>,
}

/// Whether the pattern matches the image (host and path, without tag and digest). One that is no URL
/// matches nothing.
pub fn matches_image(pattern: &str, image: &str) -> bool {
    let (Ok(pattern), Ok(image)) = (Url::parse(pattern), Url::parse(image)) else { return false };
    let ((patterns, pattern_port), (parts, port)) = (pattern.parts(), image.parts());
    pattern_port == port
        && patterns.len() == parts.len()
        && image.path.starts_with(&pattern.path)
        && patterns
            .iter()
            .zip(parts)
            .all(|(own, part)| glob::matches(own.as_bytes(), part.as_bytes()))
}

/// Why a pattern is no URL, in the words of Go.
pub(crate) fn fault(pattern: &str) -> Option<String> {
    Url::parse(pattern).err().map(|why| format!("parse {:?}: {why}", format!("https://{pattern}")))
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
            return Err("net/url: invalid control character in URL".to_owned());
        }
        let text = text.split_once('#').map_or(text, |(text, _)| text);
        let text = text.split_once('?').map_or(text, |(text, _)| text);
        let (authority, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let is_valid = |c: &char| {
            !c.is_ascii() || c.is_ascii_alphanumeric() || "-_.~!$&'()*+,;=:[]<>\"%".contains(*c)
        };
        if let Some(invalid) = host.chars().find(|c| !is_valid(c)) {
            return Err(format!("invalid character {:?} in host name", invalid.to_string()));
        }
        let after_address = host.rsplit_once(']').map_or(host, |(_, after)| after);
        if host.starts_with('[') && !host.contains(']') {
            return Err("missing ']' in host".to_owned());
        }
        let port = after_address.rfind(':').map_or("", |at| &after_address[at..]);
        if !port.bytes().skip(1).all(|byte| byte.is_ascii_digit()) {
            return Err(format!("invalid port {port:?} after host"));
        }
        if let Some(escape) = invalid_escape(path).or_else(|| invalid_escape(host)) {
            return Err(format!("invalid URL escape {escape:?}"));
        }
        Ok(Self { host, path: percent_decode_str(path).into() })
    }

    /// The parts of the host, and the port.
    fn parts(&self) -> (Vec<&'a str>, &'a str) {
        let (host, port) = match self.host.rsplit_once(':') {
            Some((host, port)) if host.starts_with('[') && host.ends_with(']') => {
                (&host[1..host.len() - 1], port)
            }
            Some((host, port)) if !host.contains([':', '[', ']']) => (host, port),
            _ => (self.host, ""),
        };
        (host.split('.').collect(), port)
    }
}

/// The first `%` that two hexadecimal digits do not follow, with what follows it.
fn invalid_escape(text: &str) -> Option<String> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let escape: String = rest[at..].chars().take(3).collect();
        if escape.len() != 3 || !escape.bytes().skip(1).all(|byte| byte.is_ascii_hexdigit()) {
            return Some(escape);
        }
        rest = &rest[at + 3..];
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn image_patterns_match_registry_and_path() {
        for (pattern, image, expected) in [
            ("docker.io", "docker.io/library/busybox", true),
            ("reg.example:5000", "reg.example:5000/a", true),
            ("reg.example:5000", "reg.example/a", false),
            ("reg.example", "reg.example:5000/a", false),
            ("reg.example/team", "reg.example/team/a", true),
            ("reg.example/team", "reg.example/teams/a", true),
            ("reg.example/team/", "reg.example/teams/a", false),
            ("reg.example/team", "reg.example/other/a", false),
            ("*.example", "reg.example/a", true),
            ("*.example", "a.b.example/a", false),
            ("us-*.reg.example", "us-east.reg.example/a", true),
            // a query to Go
            ("us-*.re?.example", "us-east.reg.example/a", false),
            ("*", "reg.example/a", false),
            ("*a*a*.io", "banana.io/a", true),
            ("*a*c.io", "banana.io/a", false),
            ("reg.example", "docker.io/library/busybox", false),
            ("[::1]:5000", "[::1]:5000/a", true),
            ("[::1]:5001", "[::1]:5000/a", false),
            (
                "123456789.dkr.ecr.*.amazonaws.com",
                "123456789.dkr.ecr.eu-west-1.amazonaws.com/x/y",
                true,
            ),
            ("reg .example", "reg.example/a", false),
        ] {
            assert_eq!(matches_image(pattern, image), expected, "{pattern} {image}");
        }
    }

    #[test]
    fn image_patterns_that_are_no_urls_have_gos_words() {
        for (pattern, why) in [
            ("a b", r#"parse "https://a b": invalid character " " in host name"#),
            ("a:b", r#"parse "https://a:b": invalid port ":b" after host"#),
            ("a/%zz", r#"parse "https://a/%zz": invalid URL escape "%zz""#),
            ("a\tb", "parse \"https://a\\tb\": net/url: invalid control character in URL"),
        ] {
            assert_eq!(fault(pattern).as_deref(), Some(why));
        }
        for pattern in ["*.azurecr.io", "registry.io:8080/path", "gcr.io", "[::1]:5000/a", ""] {
            assert_eq!(fault(pattern), None, "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn image_patterns_never_panic(pattern in ".{0,30}", image in ".{0,30}") {
            let _ = (matches_image(&pattern, &image), fault(&pattern));
        }
    }
}
