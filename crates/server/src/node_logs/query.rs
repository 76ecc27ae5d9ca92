//! Parses and validates node log queries, by upstream's rules; errors name the parameter.

use k8s_openapi::jiff::Timestamp;

/// Maximum number of lines.
const MAX_LINES: i64 = 100_000;
const MAX_SERVICES: usize = 4;
const MAX_SERVICE_NAME: usize = 256;
/// Maximum length of a pattern; upstream has no limit.
const MAX_PATTERN: usize = 4096;

/// A parsed query, not validated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeLogQuery {
    services: Vec<String>,
    files: Vec<String>,
    options: Options,
}

/// Options of service logs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Options {
    pub(super) since: Option<Timestamp>,
    pub(super) until: Option<Timestamp>,
    pub(super) tail: Option<i64>,
    /// The boot: 0 is the current one, -1 the previous one.
    pub(super) boot: Option<i64>,
    /// A regular expression for lines.
    pub(super) pattern: Option<String>,
}

/// A validated query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LogTarget {
    /// A file by its path in the log directory.
    File(String),
    /// Logs of services.
    Services(Vec<String>, Options),
}

impl NodeLogQuery {
    /// Parses a query; `None` if it has no log query parameters. Returns all errors.
    pub(super) fn parse(pairs: &[(String, String)]) -> Result<Option<Self>, Vec<String>> {
        let (mut query, mut errors) = (Self::default(), Vec::new());
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
            errors.push("query: Invalid value: query cannot be empty".to_owned());
        }
        // the first one wins
        let text = |name: &str| {
            let found = pairs.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
        };
        let mut time = |name: &str| {
            let text = text(name)?;
            let time = text.parse::<Timestamp>();
            time.map_err(|_| {
                errors.push(format!("{name}: Invalid value: {text:?}: invalid time format"))
            })
            .ok()
        };
        let (since, until) = (time("sinceTime"), time("untilTime"));
        let mut number = |name: &str| {
            let text = text(name)?;
            let number = text.parse::<i64>();
            number
                .map_err(|error| {
                    errors.push(format!("{name}: Invalid value: {text:?}: {error}"));
                })
                .ok()
        };
        let (boot, tail) = (number("boot"), number("tailLines"));
        query.options =
            Options { since, until, tail, boot, pattern: text("pattern").map(str::to_owned) };
        match errors.is_empty() {
            true => Ok((query != Self::default()).then_some(query)),
            false => Err(errors),
        }
    }

    /// Validates the values and their combination. Returns all errors.
    pub(super) fn validate(mut self) -> Result<LogTarget, Vec<String>> {
        let mut errors: Vec<String> =
            self.services.iter().filter_map(|name| service_error(name)).collect();
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            errors
                .push(format!("query: Too many: {count}: must have at most {MAX_SERVICES} items"));
        }
        errors.extend(self.options.errors());
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
        errors.extend(invalid);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(match self.files.pop() {
            // Windows clients use backslashes
            Some(file) => {
                LogTarget::File(file.replace('\\', "/").trim_start_matches('/').to_owned())
            }
            None => LogTarget::Services(self.services, self.options),
        })
    }
}

impl Options {
    fn errors(&self) -> Vec<String> {
        let mut errors = Vec::new();
        if let (Some(since), Some(until)) = (self.since, self.until)
            && since > until
        {
            errors.push(format!("untilTime: Invalid value: {until}: must be after `sinceTime`"));
        }
        if let Some(boot) = self.boot.filter(|boot| *boot > 0) {
            errors.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(tail) = self.tail.filter(|tail| !(0..=MAX_LINES).contains(tail)) {
            errors.push(format!(
                "tailLines: Invalid value: {tail}: must be between 0 and {MAX_LINES}, inclusive"
            ));
        }
        errors.extend(self.pattern.as_deref().and_then(pattern_error));
        errors
    }
}

fn pattern_error(pattern: &str) -> Option<String> {
    if pattern.len() > MAX_PATTERN {
        return Some(format!("pattern: Invalid value: longer than {MAX_PATTERN} bytes"));
    }
    if pattern.contains('\0') {
        return Some("pattern: Invalid value: a zero byte".to_owned());
    }
    let error = regex_syntax::Parser::new().parse(pattern).err()?;
    let why = match &error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "not a regular expression".to_owned(),
    };
    Some(format!("pattern: Invalid value: {pattern:?}: {why}"))
}

fn service_error(name: &str) -> Option<String> {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pairs(query: &[(&str, &str)]) -> Vec<(String, String)> {
        query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn read(query: &[(&str, &str)]) -> Result<Option<LogTarget>, Vec<String>> {
        NodeLogQuery::parse(&pairs(query))?.map(NodeLogQuery::validate).transpose()
    }

    #[test]
    fn node_logs_queries_are_parsed() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("other", "x"), ("tailLines", "")]), Ok(None));
        assert_eq!(read(&[("query", "/a.log")]), Ok(Some(LogTarget::File("a.log".into()))));
        assert_eq!(read(&[("query", "a\\b.log")]), Ok(Some(LogTarget::File("a/b.log".into()))));
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
            Ok(Some(LogTarget::Services(
                vec!["kubelet".into(), "user@1000.service".into()],
                options
            )))
        );
    }

    #[test]
    fn node_logs_query_errors() {
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
            let errors = read(query).unwrap_err();
            assert!(errors[0].contains(expected), "{query:?}: {errors:?}");
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
        fn node_logs_valid_queries_are_safe(pairs in prop::collection::vec(parameter(), 0..6)) {
            let Ok(Some(query)) = NodeLogQuery::parse(&pairs) else { return Ok(()) };
            match query.validate() {
                Ok(LogTarget::Services(names, options)) => {
                    prop_assert!(!names.is_empty() && names.len() <= MAX_SERVICES);
                    for name in names {
                        prop_assert!(service_error(&name).is_none());
                        prop_assert!(!name.contains(|c: char| c.is_whitespace() || "/\\;$`'\"|&<>".contains(c)));
                    }
                    prop_assert!(options.tail.is_none_or(|tail| (0..=MAX_LINES).contains(&tail)));
                    prop_assert!(options.boot.is_none_or(|boot| boot <= 0));
                }
                Ok(LogTarget::File(path)) => prop_assert!(!path.starts_with('/') && !path.contains('\\')),
                Err(errors) => prop_assert!(!errors.is_empty()),
            }
        }
    }
}
