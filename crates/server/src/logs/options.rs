//! Parses the query of a log request.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use longshore_logs::{Options, Stream};

/// A parsed query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// Which part of the log.
    pub(super) options: Options,
    /// Whether the previous instance is requested.
    pub(super) previous: bool,
    /// The name of the stream, if given.
    pub(super) stream: Option<String>,
}

/// Why a query is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryError {
    /// A value is not of its type.
    Undecodable,
    /// Invalid values, or an invalid combination.
    Invalid,
}

impl Request {
    /// Parses a query; unknown parameters are ignored.
    pub(super) fn from_query(
        pairs: &[(String, String)],
        now: Timestamp,
    ) -> Result<Self, QueryError> {
        use QueryError::{Invalid, Undecodable};
        // the first one wins
        let text =
            |name: &str| pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let flag = |name| {
            text(name).is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
        };
        let number = |name: &str| match text(name) {
            Some(value) => value.parse::<i64>().map(Some).map_err(|_| Undecodable),
            None => Ok(None),
        };
        let tail = match text("tail") {
            Some("all") => None,
            Some(value) if !value.is_empty() => {
                Some(value.parse::<i64>().map_err(|_| Undecodable)?)
            }
            _ => number("tailLines")?,
        };
        let limit = number("limitBytes")?;
        let seconds = number("sinceSeconds")?;
        // an empty value means the beginning of time
        let time = match text("sinceTime") {
            Some("" | "null") => Some(None),
            Some(value) => Some(Some(value.parse::<Timestamp>().map_err(|_| Undecodable)?)),
            None => None,
        };
        let stream = match text("stream") {
            None | Some("All") => None,
            Some("Stdout") => Some(Stream::Stdout),
            Some("Stderr") => Some(Stream::Stderr),
            Some(_) => return Err(Invalid),
        };
        let impossible = tail.is_some_and(|lines| lines < 0)
            || limit.is_some_and(|bytes| bytes < 1)
            || seconds.is_some_and(|seconds| seconds < 1)
            || (seconds.is_some() && time.is_some())
            // the last lines of a single stream are not supported
            || (stream.is_some() && tail.is_some());
        if impossible {
            return Err(Invalid);
        }
        let ago = |seconds: i64| {
            let age = SignedDuration::try_from(Duration::from_secs(seconds.unsigned_abs())).ok()?;
            now.checked_sub(age).ok()
        };
        let options = Options {
            follow: flag("follow"),
            timestamps: flag("timestamps"),
            // out of range means the beginning of time
            since: time.flatten().or_else(|| seconds.and_then(ago)),
            tail: tail.and_then(|lines| u64::try_from(lines).ok()),
            limit: limit.and_then(|bytes| u64::try_from(bytes).ok()),
            stream,
        };
        Ok(Self { options, previous: flag("previous"), stream: text("stream").map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<Request, QueryError> {
        let pairs: Vec<(String, String)> = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        Request::from_query(&pairs, "2024-01-01T00:00:00Z".parse().unwrap())
    }

    #[test]
    fn log_options_are_parsed() {
        let options = Options {
            follow: true,
            timestamps: true,
            since: Some("2023-12-31T23:59:50Z".parse().unwrap()),
            tail: Some(5),
            limit: Some(9),
            stream: None,
        };
        assert_eq!(
            read(
                "follow=true&previous=false&timestamps=1&sinceSeconds=10&tailLines=5&limitBytes=9&stream=All&x=y"
            ),
            Ok(Request { options, previous: false, stream: Some("All".to_owned()) })
        );
        assert_eq!(read(""), Ok(Request::default()));
        assert_eq!(read("tail=all&tailLines=4"), Ok(Request::default()));
        assert_eq!(read("tail=3").unwrap().options.tail, Some(3));
        assert_eq!(read("stream=Stderr").unwrap().options.stream, Some(Stream::Stderr));
        assert_eq!(read("sinceSeconds=9223372036854775807").unwrap().options.since, None);
        assert_eq!(read("sinceTime=").unwrap().options.since, None);
        assert!(read("follow").unwrap().options.follow);
        assert!(read("previous=TRUE").unwrap().previous);
    }

    #[test]
    fn log_options_invalid_queries() {
        use QueryError::{Invalid, Undecodable};
        for (query, error) in [
            ("tailLines=x", Undecodable),
            ("limitBytes=1e3", Undecodable),
            ("sinceTime=yesterday", Undecodable),
            ("tailLines=-1", Invalid),
            ("limitBytes=0", Invalid),
            ("sinceSeconds=0", Invalid),
            ("sinceSeconds=5&sinceTime=2024-01-01T00:00:00Z", Invalid),
            ("sinceSeconds=5&sinceTime=", Invalid),
            ("tailLines=", Undecodable),
            ("stream=stdin", Invalid),
            ("stream=", Invalid),
            ("stream=Stdout&tailLines=3", Invalid),
        ] {
            assert_eq!(read(query), Err(error), "{query}");
        }
    }
}
