//! Image references: `[host[:port]/]path[:tag][@digest]`.

/// The host of a name without one.
const DEFAULT_HOST: &str = "docker.io";
const LONGEST: usize = 255;
const INVALID: &str = "invalid reference format";

/// A parsed image reference.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name<'a> {
    /// Host and path as written.
    pub repository: &'a str,
    /// Normalized host and path, for credentials.
    pub source: String,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

impl<'a> Name<'a> {
    /// Parse an image reference. The error says what is invalid.
    pub(super) fn parse(image: &'a str) -> Result<Self, String> {
        let invalid = || INVALID.to_owned();
        if image.len() == 64 && image.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        {
            return Err(format!(
                "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
            ));
        }
        let (name, digest) = match image.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (image, None),
        };
        let (repository, tag) = match name.rsplit_once(':') {
            Some((repository, tag)) if !tag.contains('/') => (repository, Some(tag)),
            _ => (name, None),
        };
        let (host, path) = match repository.split_once('/') {
            Some((host, path)) if is_host(host) => (host, path),
            _ => (DEFAULT_HOST, repository),
        };
        let host = if host == "index.docker.io" { DEFAULT_HOST } else { host };
        let path = match host == DEFAULT_HOST && !path.contains('/') {
            true => format!("library/{path}"),
            false => path.to_owned(),
        };
        if path.chars().any(|c| c.is_ascii_uppercase()) {
            return Err(format!("{INVALID}: repository name ({path}) must be lowercase"));
        }
        let valid = valid_host(host)
            && path.split('/').all(valid_part)
            && tag.is_none_or(valid_tag)
            && digest.is_none_or(valid_digest);
        if !valid {
            return Err(invalid());
        }
        if path.len() > LONGEST {
            return Err(format!("repository name must not be more than {LONGEST} characters"));
        }
        Ok(Self { repository, source: format!("{host}/{path}"), tag, digest })
    }

    /// The reference with `:latest` if it has neither tag nor digest.
    pub(super) fn with_tag(&self) -> String {
        let Self { repository, .. } = self;
        match (self.tag, self.digest) {
            (None, None) => format!("{repository}:latest"),
            (Some(tag), None) => format!("{repository}:{tag}"),
            (None, Some(digest)) => format!("{repository}@{digest}"),
            (Some(tag), Some(digest)) => format!("{repository}:{tag}@{digest}"),
        }
    }
}

/// Whether the first part of a name is a host and not part of the path.
fn is_host(part: &str) -> bool {
    part.contains(['.', ':']) || part == "localhost" || part.chars().any(char::is_uppercase)
}

fn valid_host(host: &str) -> bool {
    let label = |label: &str| {
        let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        edge(label.as_bytes().first())
            && edge(label.as_bytes().last())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let valid_name = match address {
        Some(address) => address.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':'),
        None => name.split('.').all(label),
    };
    valid_name
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

/// Letters and digits, between them one dot, one or two underscores, or any number of dashes.
fn valid_part(part: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let separators = part.split(word).filter(|separator| !separator.is_empty());
    part.starts_with(word)
        && part.ends_with(word)
        && separators.into_iter().all(|separator| {
            matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
        })
}

fn valid_tag(tag: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    tag.starts_with(word) && tag.len() <= 128 && tag.chars().all(|c| word(c) || ".-".contains(c))
}

fn valid_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let valid_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic())
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    let length = if algorithm == "sha256" { 64..=64 } else { 32..=usize::MAX };
    algorithm.split(['-', '_', '+', '.']).all(valid_word)
        && length.contains(&hex.len())
        && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn image_name_default_tag_and_source() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (image, tagged, repository, source) in [
            ("busybox", "busybox:latest", "busybox", "docker.io/library/busybox"),
            ("busybox:1", "busybox:1", "busybox", "docker.io/library/busybox"),
            ("team/app", "team/app:latest", "team/app", "docker.io/team/app"),
            ("docker.io/app", "docker.io/app:latest", "docker.io/app", "docker.io/library/app"),
            (
                "index.docker.io/a/b",
                "index.docker.io/a/b:latest",
                "index.docker.io/a/b",
                "docker.io/a/b",
            ),
            ("localhost/a", "localhost/a:latest", "localhost/a", "localhost/a"),
            ("Host/a", "Host/a:latest", "Host/a", "Host/a"),
            ("host:5000/a/b", "host:5000/a/b:latest", "host:5000/a/b", "host:5000/a/b"),
            ("[::1]:5000/a:x", "[::1]:5000/a:x", "[::1]:5000/a", "[::1]:5000/a"),
            (
                "r.io/a__b/c--d.e:T_1",
                "r.io/a__b/c--d.e:T_1",
                "r.io/a__b/c--d.e",
                "r.io/a__b/c--d.e",
            ),
        ] {
            let name = Name::parse(image).unwrap();
            assert_eq!((name.with_tag().as_str(), name.repository), (tagged, repository));
            assert_eq!(name.source, source);
            let image = format!("{image}@{digest}");
            let name = Name::parse(&image).unwrap();
            assert_eq!((name.with_tag(), name.repository), (image.clone(), repository));
        }
    }

    #[test]
    fn image_name_rejects_invalid_names() {
        let hex = "0".repeat(64);
        let long = "a".repeat(129);
        for image in [
            "",
            "a b",
            "a/",
            "/a",
            "a:",
            "a:-",
            "../x",
            "a..b",
            "a___b",
            "-a",
            "a//b",
            "a@",
            "a@sha256:short",
            "a@0:00000000000000000000000000000000",
            "r.io:port/a",
            "r..io/a",
            " a",
            "a\n",
            &format!("a:{long}"),
            &hex,
            "Busybox",
            "r.io/A",
        ] {
            assert!(Name::parse(image).is_err(), "{image:?}");
        }
        assert_eq!(Name::parse("a b").unwrap_err(), "invalid reference format");
        assert_eq!(
            Name::parse("Busybox").unwrap_err(),
            "invalid reference format: repository name (library/Busybox) must be lowercase"
        );
    }

    proptest! {
        #[test]
        fn image_name_parser_never_panics(image in ".{0,40}") {
            if let Ok(name) = Name::parse(&image) {
                prop_assert!(image.starts_with(name.repository));
                prop_assert!(Name::parse(&name.with_tag()).is_ok());
            }
        }
    }
}
