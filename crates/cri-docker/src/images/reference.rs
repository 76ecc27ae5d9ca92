//! References to images, in the form that containerd tells: with the registry, and `library/` for official
//! images of Docker Hub. The engine takes both forms and tells the short one.

use std::fmt;
use std::net::Ipv6Addr;

const DOCKER_HUB: &str = "docker.io";
const OFFICIAL: &str = "library";
/// As upstream's reference grammar has it.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;
/// Hexadecimal digits of an ID.
const ID_DIGITS: usize = 64;

/// What a request names: an image by its ID, or by a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// `sha256:` with 64 digits.
    Id(String),
    /// Anything else. It may also be the start of an ID.
    Reference(Reference),
}

/// A reference: a repository with a tag or a digest or both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reference {
    /// With the registry.
    pub(super) repository: String,
    pub(super) tag: Option<String>,
    pub(super) digest: Option<String>,
}

impl Name {
    /// Reads an ID or a reference.
    ///
    /// # Errors
    /// Why it is neither.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let digits = text.strip_prefix("sha256:").unwrap_or(text);
        match digits.len() == ID_DIGITS && is_hex(digits) {
            true => Ok(Self::Id(format!("sha256:{digits}"))),
            false => Reference::parse(text).map(Self::Reference),
        }
    }
}

impl Reference {
    /// Reads a reference.
    ///
    /// # Errors
    /// Why it is none.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (rest, Some(digest)),
            None => (text, None),
        };
        if !digest.is_none_or(is_digest) {
            return Err("invalid digest");
        }
        // a colon before a slash begins a port
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if !tag.is_none_or(is_tag) {
            return Err("invalid tag");
        }
        let repository = repository(name)?;
        Ok(Self { repository, tag: tag.map(str::to_owned), digest: digest.map(str::to_owned) })
    }

    /// The same with the tag that is meant when there is neither a tag nor a digest.
    pub(super) fn tagged(mut self) -> Self {
        if self.tag.is_none() && self.digest.is_none() {
            self.tag = Some("latest".to_owned());
        }
        self
    }

    /// The registry.
    pub(super) fn registry(&self) -> &str {
        self.repository.split_once('/').map_or("", |(registry, _)| registry)
    }

    /// The repository with the digest.
    pub(super) fn digested(&self) -> Option<String> {
        self.digest.as_ref().map(|digest| format!("{}@{digest}", self.repository))
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// References of the engine in containerd's form. Images without any have `<none>` there.
pub(super) fn normalized(references: &[String]) -> Vec<String> {
    let known = references.iter().filter_map(|reference| Reference::parse(reference).ok());
    known.map(|reference| reference.to_string()).collect()
}

/// The repository of a name, with the registry.
fn repository(name: &str) -> Result<String, &'static str> {
    if name.is_empty() {
        return Err("no repository");
    }
    let (registry, path) = match name.split_once('/') {
        Some((first, rest)) if is_registry(first) => (first, rest),
        _ => (DOCKER_HUB, name),
    };
    let registry = if registry == "index.docker.io" { DOCKER_HUB } else { registry };
    let repository = match registry == DOCKER_HUB && !path.contains('/') {
        true => format!("{registry}/{OFFICIAL}/{path}"),
        false => format!("{registry}/{path}"),
    };
    if !is_host(registry) {
        return Err("invalid registry");
    }
    if repository.len() > MAX_NAME {
        return Err("longer than 255 characters");
    }
    match path.split('/').all(is_component) {
        true => Ok(repository),
        false => Err("invalid repository"),
    }
}

/// Whether the first part of a name is a registry: a host, and not a part of the path.
fn is_registry(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|b| b.is_ascii_uppercase())
}

/// A name or an address, and perhaps a port.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_label = |label: &str| {
        let is_valid = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(is_valid)
    };
    let is_address = |address: &str| address.parse::<Ipv6Addr>().is_ok();
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
        && address.map_or_else(|| host.split('.').all(is_label), is_address)
}

/// Lower-case letters and digits, with single separators (`.`, `_`, `__`, or any number of `-`) between.
fn is_component(text: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends = |byte: Option<&u8>| byte.is_some_and(|b| is_word(*b));
    let separators = text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    ends(bytes.first())
        && ends(bytes.last())
        && separators
            .filter(|separator| !separator.is_empty())
            .all(|text| matches!(text, "." | "_" | "__") || text.bytes().all(|b| b == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let mut bytes = tag.bytes();
    tag.len() <= MAX_TAG
        && bytes.next().is_some_and(is_word)
        && bytes.all(|b| is_word(b) || b == b'.' || b == b'-')
}

/// An algorithm and at least 32 hexadecimal digits.
fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b"+._-".contains(&b);
    let is_length_valid = match algorithm {
        "sha256" => hex.len() == ID_DIGITS,
        _ => (32..=MAX_NAME).contains(&hex.len()),
    };
    algorithm.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && algorithm.len() <= 32
        && algorithm.bytes().all(is_word)
        && is_length_valid
        && is_hex(hex)
}

/// Lower-case hexadecimal digits.
pub(super) fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn references_have_containerds_form() {
        for (text, expected) in [
            ("busybox", "docker.io/library/busybox"),
            ("busybox:1.36", "docker.io/library/busybox:1.36"),
            ("docker.io/busybox:1", "docker.io/library/busybox:1"),
            ("index.docker.io/a/b", "docker.io/a/b"),
            ("library/busybox:1", "docker.io/library/busybox:1"),
            ("user/app", "docker.io/user/app"),
            ("localhost/app:1", "localhost/app:1"),
            ("localhost:5000/app", "localhost:5000/app"),
            ("10.0.0.1:5000/a/b:v1", "10.0.0.1:5000/a/b:v1"),
            ("[::1]:5000/a:v1", "[::1]:5000/a:v1"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("Host/app", "Host/app"),
            ("a--b/c__d.e_f", "docker.io/a--b/c__d.e_f"),
        ] {
            assert_eq!(Reference::parse(text).unwrap().to_string(), expected);
            let digested = Reference::parse(&format!("{text}@{DIGEST}")).unwrap();
            assert_eq!(digested.to_string(), format!("{expected}@{DIGEST}"));
            assert_eq!(Reference::parse(expected).unwrap().to_string(), expected, "stays");
        }
        let id = &DIGEST["sha256:".len()..];
        assert_eq!(Name::parse(id), Ok(Name::Id(DIGEST.to_owned())));
        assert_eq!(Name::parse(DIGEST), Ok(Name::Id(DIGEST.to_owned())));
    }

    #[test]
    fn references_that_are_none_are_refused() {
        for text in [
            "",
            ":tag",
            "@",
            "a:",
            "a:-b",
            "a@b",
            "a@sha256:12",
            "A",
            "a/B",
            "a//b",
            "/a",
            "a/",
            "a b",
            "a?x=1",
            "../a",
            "./a",
            ".x/a",
            "x./a",
            "x..y/a",
            "-x.y/a",
            "x.y:/a",
            "x.y:z/a",
            "::1/a",
            "[x]:1/a",
            "[::1/a",
            "a/../b",
            "a..b",
            "a___b",
            "-a",
            "a-",
            "http://a/b",
            "a#b",
            "ä",
            "<none>:<none>",
            "<none>@<none>",
            "a\0",
            "x.y/a\nb",
        ] {
            assert!(Name::parse(text).is_err(), "{text:?}");
        }
        assert!(Name::parse(&"a".repeat(300)).is_err());
        assert!(Name::parse(&format!("a:{}", "b".repeat(129))).is_err());
        let none = ["<none>:<none>".to_owned(), "a:1".to_owned()];
        assert_eq!(normalized(&none), ["docker.io/library/a:1"]);
    }

    #[test]
    fn references_without_a_tag_mean_latest() {
        for (text, expected) in
            [("a", "docker.io/library/a:latest"), ("a:1", "docker.io/library/a:1")]
        {
            assert_eq!(Reference::parse(text).unwrap().tagged().to_string(), expected);
        }
        let digested = format!("x.y/a@{DIGEST}");
        assert_eq!(Reference::parse(&digested).unwrap().tagged().to_string(), digested);
        assert_eq!(Reference::parse("x.y:1/a").unwrap().registry(), "x.y:1");
    }

    proptest! {
        #[test]
        fn extremes_of_references(text in "\\PC{0,300}|[a-z0-9.:/@_-]{0,80}") {
            if let Ok(Name::Reference(reference)) = Name::parse(&text) {
                let written = reference.to_string();
                prop_assert!(written.bytes().all(|b| b.is_ascii_graphic() && !b"?#%".contains(&b)));
                prop_assert_eq!(Reference::parse(&written), Ok(reference));
            }
        }
    }
}
