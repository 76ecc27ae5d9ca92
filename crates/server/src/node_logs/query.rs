//! What a query for the node's logs asks for. The rules are upstream's; each fault names its
//! parameter.

use k8s_openapi::jiff::Timestamp;

/// The most lines that may be asked for.
const MAX_LINES: i64 = 100_000;
const MAX_SERVICES: usize = 4;
const MAX_SERVICE_NAME: usize = 256;
/// The longest pattern; upstream has no bound but that of a URL.
const MAX_PATTERN: usize = 4096;

/// A query as it was sent, its values of their types.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

/// Which part of the services' logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) since: Option<Timestamp>,
    pub(super) until: Option<Timestamp>,
    pub(super) tail: Option<i64>,
    /// The machine's start that is meant: 0 the last one, -1 that before.
    pub(super) boot: Option<i64>,
    /// What a line must match.
    pub(super) pattern: Option<String>,
}

/// A query that makes sense.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A file by its path in the log directory, as if that had been asked for.
    File(String),
    /// What these services log.
    Services(Vec<String>, Options),
}

impl NodeLogQuery {
    /// Reads a query string; `None` if there is nothing of a log query in it. The error tells all
    /// faults.
    pub(super) fn parse(pairs: &[(String, String)]) -> Result<Option<Self>, Vec<String>> {
        let (mut query, mut faults) = (Self::default(), Vec::new());
        let mut is_query = false;
        for (_, name) in pairs.iter().filter(|(key, _)| key == "query") {
            is_query = true;
            if name.contains(['/', '\\']) {
                query.files.push(name.clone());
            } else if !name.trim().is_empty() {
                query.services.push(name.clone());
            }
        }
        if is_query && query.files.is_empty() && query.services.is_empty() {
            faults.push("query: Invalid value: query cannot be empty".to_owned());
        }
        // the first of several counts
        let text = |name: &str| {
            let found = pairs.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
        };
        let mut time = |name: &str| {
            let text = text(name)?;
            let time = text.parse::<Timestamp>();
            time.map_err(|_| {
                faults.push(format!("{name}: Invalid value: {text:?}: invalid time format"))
            })
            .ok()
        };
        let (since, until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name: &str| {
            let text = text(name)?;
            let number = text.parse::<i64>();
            number
                .map_err(|error| {
                    faults.push(format!("{name}: Invalid value: {text:?}: {error}"));
                })
                .ok()
        };
        let (boot, tail) = (number("boot"), number("tailLines"));
        query.options =
            Options { since, until, tail, boot, pattern: text("pattern").map(str::to_owned) };
        match faults.is_empty() {
            true => Ok((query != Self::default()).then_some(query)),
            false => Err(faults),
        }
    }

    /// Checks the values, alone and together. The error tells all faults.
    pub(super) fn validate(mut self) -> Result<Wanted, Vec<String>> {
        let mut faults: Vec<String> =
            self.services.iter().filter_map(|name| service_fault(name)).collect();
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            faults
                .push(format!("query: Too many: {count}: must have at most {MAX_SERVICES} items"));
        }
        faults.extend(self.options.faults());
        let invalid = match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => Some("query: Required value: cannot be empty with options".to_owned()),
            ([], _) => None,
            ([..], [_, ..]) => {
                Some("query: Invalid value: cannot specify a file and service".to_owned())
            }
            ([_, _, ..], []) => {
                Some("query: Invalid value: cannot specify more than one file".to_owned())
            }
            ([_], []) if self.options != Options::default() => {
                Some("query: Invalid value: cannot specify file with options".to_owned())
            }
            ([_], []) => None,
        };
        faults.extend(invalid);
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(match self.files.pop() {
            // clients on Windows write paths as they know them
            Some(file) => Wanted::File(file.replace('\\', "/").trim_start_matches('/').to_owned()),
            None => Wanted::Services(self.services, self.options),
        })
    }
}

impl Options {
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            faults.push(format!("untilTime: Invalid value: {until}: must be after `sinceTime`"));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            faults.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(tail) = self.tail.filter(|tail| !(0..=MAX_LINES).contains(tail)) {
            faults.push(format!(
                "tailLines: Invalid value: {tail}: must be between 0 and {MAX_LINES}, inclusive"
            ));
        }
        faults.extend(self.pattern.as_deref().and_then(pattern_fault));
        faults
    }
}

fn pattern_fault(pattern: &str) -> Option<String> {
    if pattern.len() > MAX_PATTERN {
        return Some(format!("pattern: Invalid value: longer than {MAX_PATTERN} bytes"));
    }
    if pattern.contains('\0') {
        return Some("pattern: Invalid value: a zero byte".to_owned());
    }
    let fault = regex_syntax::Parser::new().parse(pattern).err()?;
    let why = match &fault {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "not a regular expression".to_owned(),
    };
    Some(format!("pattern: Invalid value: {pattern:?}: {why}"))
}

fn service_fault(name: &str) -> Option<String> {
    let is_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
    let why = if name.len() > MAX_SERVICE_NAME {
        "length must be at most 256"
    } else if !name.bytes().all(is_safe) {
        "input contains unsupported characters"
    } else {
        return None;
    };
    Some(format!("query: Invalid value: {name:?}: {why}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(query: &[(&str, &str)]) -> Vec<(String, String)> {
        query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn read(query: &[(&str, &str)]) -> Result<Option<Wanted>, Vec<String>> {
        NodeLogQuery::parse(&pairs(query))?.map(NodeLogQuery::validate).transpose()
    }

    #[test]
    fn queries_are_read() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("other", "x"), ("tailLines", "")]), Ok(None));
        assert_eq!(read(&[("query", "/a.log")]), Ok(Some(Wanted::File("a.log".into()))));
        assert_eq!(read(&[("query", "a\\b.log")]), Ok(Some(Wanted::File("a/b.log".into()))));
        let options = Options {
            since: Some("2024-01-01T00:00:00Z".parse().unwrap()),
            until: Some("2024-01-01T01:00:00+01:00".parse().unwrap()),
            tail: Some(100_000),
            boot: Some(-1),
            pattern: Some("a|b".to_owned()),
        };
        assert_eq!(
            read(&[
                ("query", "kubelet"),
                ("query", "user@1000.service"),
                ("sinceTime", "2024-01-01T00:00:00Z"),
                ("untilTime", "2024-01-01T01:00:00+01:00"),
                ("tailLines", "100000"),
                ("boot", "-1"),
                ("pattern", "a|b"),
            ]),
            Ok(Some(Wanted::Services(vec!["kubelet".into(), "user@1000.service".into()], options)))
        );
    }

    #[test]
    fn faults_are_named() {
        let five: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| ("query", name)).to_vec();
        for (query, expected) in [
            (&[("query", "  ")][..], "query: Invalid value: query cannot be empty"),
            (&[("query", "a"), ("sinceTime", "yesterday")], "sinceTime: Invalid value"),
            (&[("query", "a"), ("untilTime", "2024-13-01")], "untilTime: Invalid value"),
            (&[("query", "a"), ("boot", "x")], "boot: Invalid value"),
            (&[("query", "a"), ("boot", "1")], "must be less than 1"),
            (&[("query", "a"), ("tailLines", "1e3")], "tailLines: Invalid value"),
            (&[("query", "a"), ("tailLines", "100001")], "between 0 and 100000"),
            (&[("query", "a"), ("tailLines", "-1")], "between 0 and 100000"),
            (&[("query", "a"), ("pattern", "(")], "unclosed group"),
            (&[("query", "a; reboot")], "unsupported characters"),
            (&[("query", "$(reboot)")], "unsupported characters"),
            (&[("query", "a\nb")], "unsupported characters"),
            (&five, "at most 4"),
            (&[("query", "/a"), ("query", "b")], "a file and service"),
            (&[("query", "/a"), ("query", "/b")], "more than one file"),
            (&[("query", "/a"), ("tailLines", "1")], "file with options"),
            (&[("tailLines", "1")], "cannot be empty with options"),
            (
                &[
                    ("query", "a"),
                    ("sinceTime", "2024-01-02T00:00:00Z"),
                    ("untilTime", "2024-01-01T00:00:00Z"),
                ],
                "must be after `sinceTime`",
            ),
        ] {
            let faults = read(query).unwrap_err();
            assert!(faults[0].contains(expected), "{query:?}: {faults:?}");
        }
        let long = "x".repeat(257);
        assert!(read(&[("query", &long)]).unwrap_err()[0].contains("length"));
    }

    fn parameter() -> impl Strategy<Value = (String, String)> {
        const NAMES: [&str; 7] =
            ["query", "sinceTime", "untilTime", "tailLines", "boot", "pattern", "other"];
        let values = prop_oneof![
            ".{0,20}",
            "-?[0-9]{1,19}",
            "20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:00:00Z",
            "[a-z-]{1,9}",
            "[/.a-z\\\\]{1,12}",
            "[(\\[*+?)\\]|a^$.]{0,8}",
        ];
        (prop::sample::select(&NAMES[..]), values)
            .prop_map(|(name, value)| (name.to_owned(), value))
    }

    proptest! {
        #[test]
        fn what_is_let_through_is_harmless(pairs in prop::collection::vec(parameter(), 0..6)) {
            let Ok(Some(query)) = NodeLogQuery::parse(&pairs) else { return Ok(()) };
            match query.validate() {
                Ok(Wanted::Services(names, options)) => {
                    prop_assert!(!names.is_empty() && names.len() <= MAX_SERVICES);
                    for name in names {
                        prop_assert!(service_fault(&name).is_none());
                        prop_assert!(!name.contains(|c: char| c.is_whitespace() || "/\\;$`'\"|&<>".contains(c)));
                    }
                    prop_assert!(options.tail.is_none_or(|tail| (0..=MAX_LINES).contains(&tail)));
                    prop_assert!(options.boot.is_none_or(|boot| boot <= 0));
                }
                Ok(Wanted::File(path)) => prop_assert!(!path.starts_with('/') && !path.contains('\\')),
                Err(faults) => prop_assert!(!faults.is_empty()),
            }
        }
    }
}
