//! URLs of HTTP requests: built from a handler's fields, and resolved for redirects. Lenient, as
//! the author of a pod may have written anything into a path.

use std::fmt;

use super::dial::join_host_port;

/// The URL of a request. Path and query are escaped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) scheme: String,
    /// Without brackets.
    pub(super) host: String,
    port: Option<u16>,
    path: String,
    query: Option<String>,
    fragment: Option<String>,
}

impl Url {
    /// The URL of a handler's fields. `path` may contain a query.
    pub(super) fn new(scheme: &str, host: &str, port: u16, path: &str) -> Self {
        let (path, query, fragment) = match is_reference(path) {
            true => {
                let rest = match path.strip_prefix("//") {
                    // A host in the path is replaced by the handler's.
                    Some(rest) => rest.find('/').map_or("", |at| &rest[at..]),
                    None => path,
                };
                let (rest, fragment) = split(rest, '#');
                let (path, query) = split(rest, '?');
                (escape(path, KEPT), query.map(escape_query), fragment)
            }
            // Invalid escapes: taken literally.
            false => (escape(path, KEPT_OF_BROKEN), None, None),
        };
        Self {
            scheme: scheme.to_owned(),
            host: host.to_owned(),
            port: Some(port),
            path: match path.is_empty() || path.starts_with('/') {
                true => path,
                false => format!("/{path}"),
            },
            query,
            fragment: fragment.map(str::to_owned),
        }
    }

    /// Resolve `location`, which may be relative; `None` if it is invalid.
    pub(super) fn join(&self, location: &str) -> Option<Self> {
        if !is_reference(location) {
            return None;
        }
        let (rest, fragment) = split(location, '#');
        let (rest, query) = split(rest, '?');
        let (scheme, rest) = match rest.split_once("://") {
            Some((scheme, _)) if !scheme.contains('/') => {
                (scheme.to_ascii_lowercase(), &rest[scheme.len() + 1..])
            }
            _ => (self.scheme.clone(), rest),
        };
        let fragment = fragment.map(str::to_owned);
        let query = query.map(escape_query);
        if let Some(rest) = rest.strip_prefix("//") {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let (host, port) = authority_parts(authority)?;
            let path = remove_dots(&escape(path, KEPT));
            return Some(Self { scheme, host, port, path, query, fragment });
        }
        let path = match rest {
            "" if query.is_none() => {
                return Some(Self { fragment, ..self.clone() });
            }
            "" => self.path.clone(),
            path if path.starts_with('/') => path.to_owned(),
            path => {
                let folder = self.path.rfind('/').map_or("/", |at| &self.path[..=at]);
                format!("{folder}{path}")
            }
        };
        let path = remove_dots(&escape(&path, KEPT));
        Some(Self { path, query, fragment, ..self.clone() })
    }

    /// The port, by default that of the scheme.
    pub(super) fn port(&self) -> u16 {
        self.port.unwrap_or(if self.scheme == "https" { 443 } else { 80 })
    }

    /// Host and port, as far as given.
    pub(super) fn authority(&self) -> String {
        match self.port {
            Some(port) => join_host_port(&self.host, port),
            None if self.host.contains(':') => format!("[{}]", self.host),
            None => self.host.clone(),
        }
    }

    /// The request target.
    pub(super) fn target(&self) -> String {
        let path = if self.path.is_empty() { "/" } else { &self.path };
        match &self.query {
            Some(query) => format!("{path}?{query}"),
            None => path.to_owned(),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority(), self.path)?;
        if let Some(query) = &self.query {
            write!(f, "?{query}")?;
        }
        match &self.fragment {
            Some(fragment) => write!(f, "#{fragment}"),
            None => Ok(()),
        }
    }
}

/// Host and port of `user@host:port`.
fn authority_parts(authority: &str) -> Option<(String, Option<u16>)> {
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (host, rest) = bracketed.split_once(']')?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some(""))?)
        }
        None => authority.rsplit_once(':').unwrap_or((authority, "")),
    };
    let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
    Some((host.to_owned(), port)).filter(|(host, _)| !host.is_empty())
}

/// Whether a text can be parsed as path, query and fragment.
fn is_reference(text: &str) -> bool {
    let (path, _) = split(split(text, '#').0, '?');
    let bad_percent = path.match_indices('%').any(|(at, _)| {
        let digits = path.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let first = path.split('/').next().unwrap_or_default();
    let no_scheme = first.contains(':') && !path.contains("://");
    !bad_percent && !no_scheme && !text.bytes().any(|byte| byte.is_ascii_control())
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(head, tail)| (head, Some(tail)))
}

/// Besides letters and digits, the characters that are not escaped in a path.
const KEPT: &str = "-_.~!$&'()*+,;=:@/%[]";
const KEPT_OF_BROKEN: &str = "-_.~$&+,;=:@/";

fn escape(text: &str, kept: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match char::from(byte) {
            c if c.is_ascii_alphanumeric() || kept.contains(c) => escaped.push(c),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// The query, with only those characters escaped that a request line cannot contain.
fn escape_query(query: &str) -> String {
    let carried: String = ('!'..='~').collect();
    escape(query, &carried)
}

fn remove_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let last = parts.peek().is_none();
        match part {
            "." | ".." => {
                if part == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            part => kept.push(part),
        }
    }
    if path.is_empty() { String::new() } else { format!("/{}", kept.join("/")) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Url;

    #[test]
    fn url_of_handlers() {
        for (scheme, host, path, expected, target) in [
            ("http", "localhost", "", "http://localhost:93", "/"),
            ("https", "localhost", "/path", "https://localhost:93/path", "/path"),
            ("http", "localhost", "?foo", "http://localhost:93?foo", "/?foo"),
            ("https", "localhost", "/path?bar", "https://localhost:93/path?bar", "/path?bar"),
            ("http", "10.0.0.1", "healthz", "http://10.0.0.1:93/healthz", "/healthz"),
            ("http", "fd00::1", "/", "http://[fd00::1]:93/", "/"),
            ("http", "h", "/a b", "http://h:93/a%20b", "/a%20b"),
            ("http", "h", "/a%20b", "http://h:93/a%20b", "/a%20b"),
            ("http", "h", "/a%zz?q", "http://h:93/a%25zz%3Fq", "/a%25zz%3Fq"),
            ("http", "h", "/a#part", "http://h:93/a#part", "/a"),
            ("http", "h", "//other/x?a=b", "http://h:93/x?a=b", "/x?a=b"),
            ("http", "h", "/a\nb", "http://h:93/a%0Ab", "/a%0Ab"),
        ] {
            let url = Url::new(scheme, host, 93, path);
            assert_eq!((url.to_string().as_str(), url.target().as_str()), (expected, target));
        }
    }

    #[test]
    fn url_of_redirects() {
        let here = Url::new("http", "10.0.0.1", 8080, "/a/b?c");
        for (location, expected) in [
            ("/new", Some("http://10.0.0.1:8080/new")),
            ("new?x=1", Some("http://10.0.0.1:8080/a/new?x=1")),
            ("../new/./", Some("http://10.0.0.1:8080/new/")),
            ("?d", Some("http://10.0.0.1:8080/a/b?d")),
            ("#part", Some("http://10.0.0.1:8080/a/b?c#part")),
            ("//other/x", Some("http://other/x")),
            ("https://10.0.0.1/x", Some("https://10.0.0.1/x")),
            ("https://u:p@[::1]:444/x", Some("https://[::1]:444/x")),
            ("http://host:port/", None),
            ("http:///x", None),
            ("mailto:x", None),
            ("/%zz", None),
        ] {
            let next = here.join(location).map(|url| url.to_string());
            assert_eq!(next.as_deref(), expected, "{location}");
        }
    }

    proptest! {
        #[test]
        fn url_of_any_path_is_valid(path in any::<String>(), location in any::<String>()) {
            let url = Url::new("http", "h", 1, &path);
            let next = url.join(&location).map(|url| url.target());
            for target in [Some(url.target()), next].into_iter().flatten() {
                prop_assert!(target.starts_with('/'));
                prop_assert!(target.bytes().all(|byte| byte.is_ascii_graphic()), "{target:?}");
            }
        }
    }
}
