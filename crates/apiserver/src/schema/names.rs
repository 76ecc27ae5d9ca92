//! What names may look like, with upstream's messages. Each check gives the list of complaints,
//! empty when there are none.

const LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

pub(crate) type Complaints = Vec<String>;

fn max_len(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// The same in the words that upstream has for labels.
fn max_bytes(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

/// That a text is not as a rule says, whose regular expression this is.
pub(crate) fn pattern(rule: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{regex}')", examples.join(" or "))
}

fn is_lower(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit()
}

/// Starts and ends with `edge`, and holds nothing but `edge` and `inner` characters.
fn bounded(text: &str, edge: fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let edges = bytes.first().zip(bytes.last()).is_some_and(|(a, z)| edge(*a) && edge(*z));
    edges && bytes.iter().all(|b| edge(*b) || inner.contains(b))
}

fn is_label(text: &str) -> bool {
    bounded(text, is_lower, b"-")
}

fn is_subdomain(text: &str) -> bool {
    text.split('.').all(is_label)
}

/// Whether this is an RFC 1123 subdomain of at most 253 bytes, as most object names must be.
#[must_use]
pub fn is_dns_subdomain(text: &str) -> bool {
    dns_subdomain(text).is_empty()
}

pub(crate) fn dns_subdomain(text: &str) -> Complaints {
    let mut complaints = Vec::new();
    if text.len() > 253 {
        complaints.push(max_len(253));
    }
    if !is_subdomain(text) {
        complaints.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character",
            &format!("{LABEL}(\\.{LABEL})*"),
            &["example.com"],
        ));
    }
    complaints
}

/// The same in the words that upstream has for names that are checked by what the API's types declare.
pub(crate) fn long_name(text: &str) -> Complaints {
    let in_bytes = |complaint| if complaint == max_len(253) { max_bytes(253) } else { complaint };
    dns_subdomain(text).into_iter().map(in_bytes).collect()
}

/// A DNS name whose labels may have underscores, as those of services in DNS have.
pub(crate) fn dns_subdomain_with_underscores(text: &str) -> Complaints {
    const LABEL: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let mut complaints = Vec::new();
    if text.len() > 253 {
        complaints.push(max_len(253));
    }
    let is_edge = |c: u8| is_lower(c) || c == b'_';
    let is_name = |part: &str| {
        let bytes = part.as_bytes();
        let edges = bytes.first().zip(bytes.last());
        edges.is_some_and(|(first, last)| is_edge(*first) && is_lower(*last))
            && bytes.iter().all(|byte| is_edge(*byte) || *byte == b'-')
    };
    if !text.split('.').all(is_name) {
        complaints.push(pattern(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', \
             '-' or '.', and must start and end with an alphanumeric character",
            &format!("{LABEL}(\\.{LABEL})*"),
            &["example.com"],
        ));
    }
    complaints
}

/// An identifier of C.
pub(crate) fn c_identifier(text: &str) -> Complaints {
    let is_start = |c: char| c.is_ascii_alphabetic() || c == '_';
    let is_rest = |c: char| is_start(c) || c.is_ascii_digit();
    if text.starts_with(is_start) && text.chars().all(is_rest) {
        return Vec::new();
    }
    vec![pattern(
        "a valid C identifier must start with alphabetic character or '_', followed by a string of \
         alphanumeric characters or '_'",
        "[A-Za-z_][A-Za-z0-9_]*",
        &["my_name", "MY_NAME", "MyName"],
    )]
}

/// The path of a URL without its first slash.
pub(crate) fn url_path(text: &str) -> Complaints {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-._~%!$&'()*+,;=:".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => Vec::new(),
        false => vec![pattern("Invalid path", "[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+", &[])],
    }
}

/// The name of a role or a binding: whatever fits into a path.
pub(crate) fn path_segment(text: &str) -> Complaints {
    if matches!(text, "." | "..") {
        return vec![format!("may not be '{text}'")];
    }
    let forbidden = ["/", "%"].into_iter().filter(|part| text.contains(part));
    forbidden.map(|part| format!("may not contain '{part}'")).collect()
}

pub(crate) fn dns_label(text: &str) -> Complaints {
    let mut complaints = Vec::new();
    if text.len() > 63 {
        complaints.push(max_len(63));
    }
    if !is_label(text) {
        complaints.push(if is_subdomain(text) {
            "must not contain dots".to_owned()
        } else {
            pattern(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', \
                 and must start and end with an alphanumeric character",
                LABEL,
                &["my-name", "123-abc"],
            )
        });
    }
    complaints
}

/// A label that begins with a letter.
pub(crate) fn dns_1035_label(text: &str) -> Complaints {
    let mut complaints = Vec::new();
    if text.len() > 63 {
        complaints.push(max_len(63));
    }
    if !is_label(text) || text.starts_with(|first: char| first.is_ascii_digit()) {
        complaints.push(pattern(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
             alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    complaints
}

/// A name that has a random suffix put on may end in a dash.
pub(crate) fn as_prefix(text: &str) -> String {
    match text.strip_suffix('-') {
        Some(stem) if !stem.is_empty() => format!("{stem}a"),
        _ => text.to_owned(),
    }
}

/// A label key, annotation key, finalizer or resource name: `[subdomain/]name`.
pub(crate) fn qualified(text: &str) -> Complaints {
    let rule = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                alphanumeric character";
    let examples = &["MyName", "my.name", "123-abc"];
    let mut complaints = Vec::new();
    let mut parts = text.split('/');
    let name = match (parts.next(), parts.next(), parts.next()) {
        (Some(name), None, _) => name,
        (Some(prefix), Some(name), None) => {
            if prefix.is_empty() {
                complaints.push("prefix part must be non-empty".to_owned());
            } else {
                complaints
                    .extend(long_name(prefix).into_iter().map(|c| format!("prefix part {c}")));
            }
            name
        }
        _ => {
            let rule = pattern(&format!("a valid label key {rule}"), QUALIFIED, examples);
            return vec![format!(
                "{rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        complaints.push(format!("name part {}", max_bytes(63)));
    }
    if !bounded(name, |c| c.is_ascii_alphanumeric(), b"-_.") {
        complaints.push(format!("name part {}", pattern(rule, QUALIFIED, examples)));
    }
    complaints
}

pub(crate) fn label_value(text: &str) -> Complaints {
    let mut complaints = Vec::new();
    if text.len() > 63 {
        complaints.push(max_bytes(63));
    }
    if !text.is_empty() && !bounded(text, |c| c.is_ascii_alphanumeric(), b"-_.") {
        complaints.push(pattern(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
             and must start and end with an alphanumeric character",
            &format!("({QUALIFIED})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    complaints
}

pub(crate) fn env_name(text: &str) -> Complaints {
    if text.chars().all(|c| (' '..='~').contains(&c) && c != '=') {
        return Vec::new();
    }
    vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
}

/// A key of a ConfigMap or Secret, which becomes a file name.
pub(crate) fn config_key(text: &str) -> Complaints {
    let mut complaints = Vec::new();
    if text.len() > 253 {
        complaints.push(max_len(253));
    }
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        complaints.push(pattern(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match text {
        "." | ".." => complaints.push(format!("must not be '{text}'")),
        _ if text.starts_with("..") => complaints.push("must not start with '..'".to_owned()),
        _ => {}
    }
    complaints
}

pub(crate) fn port_name(text: &str) -> Complaints {
    let mut complaints = Vec::new();
    if text.len() > 15 {
        complaints.push(max_len(15));
    }
    if text.is_empty() || !text.bytes().all(|b| is_lower(b) || b == b'-') {
        complaints.push(
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned(),
        );
    }
    if !text.bytes().any(|b| b.is_ascii_lowercase()) {
        complaints.push("must contain at least one letter (a-z)".to_owned());
    }
    if text.contains("--") {
        complaints.push("must not contain consecutive hyphens".to_owned());
    }
    if text.starts_with('-') || text.ends_with('-') {
        complaints.push("must not begin or end with a hyphen".to_owned());
    }
    complaints
}

pub(crate) fn header_name(text: &str) -> Complaints {
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Vec::new();
    }
    vec![pattern(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

pub(crate) fn port_number(port: i64) -> Complaints {
    if (1..=65535).contains(&port) { Vec::new() } else { vec![range(1, 65535)] }
}

pub(crate) fn range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = "a".repeat(64);
        type Check = fn(&str) -> Complaints;
        let table: &[(Check, &[&str], &[&str])] = &[
            (
                dns_subdomain,
                &["a", "a.b", "1-2.x", &long],
                &["", "A", "a..b", ".a", "a.", "-a", "a_b", "a/b", "..", "ä"],
            ),
            (dns_label, &["a", "1-2"], &["", "a.b", "A", "-a", "a-", &long]),
            (
                qualified,
                &["a", "A_b.c", "example.com/x"],
                &["", "/x", "a/", "a/b/c", "Ex/x", "-a", &long, "a b"],
            ),
            (label_value, &["", "a", "A_b.c"], &["-a", "a/b", " ", &long]),
            (env_name, &["A", "a b", "1"], &["a=b", "ä", "\n"]),
            (
                config_key,
                &["a", "A.b", "..data1".trim_start_matches('.')],
                &["", ".", "..", "..a", "a/b"],
            ),
            (port_name, &["http", "a-1"], &["", "1", "a--b", "-a", "Http", "abcdefghijklmnop"]),
        ];
        for (check, good, bad) in table {
            for name in *good {
                assert_eq!(check(name), Complaints::new(), "{name}");
            }
            for name in *bad {
                assert!(!check(name).is_empty(), "{name}");
            }
        }
    }

    #[test]
    fn wording() {
        assert_eq!(
            dns_label("A"),
            [
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
                 '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
    }
}
