//! Times of the engine: RFC 3339 with nanoseconds, where the year 1 is never.

use jiff::Timestamp;

/// Nanoseconds since the epoch; zero for never, and for what is no time.
pub(crate) fn from_text(text: Option<&str>) -> i64 {
    let nanos = text.and_then(|text| text.parse::<Timestamp>().ok()).map(Timestamp::as_nanosecond);
    nanos.and_then(|nanos| i64::try_from(nanos).ok()).unwrap_or(0).max(0)
}

/// Nanoseconds of seconds.
pub(crate) fn from_seconds(seconds: i64) -> i64 {
    seconds.max(0).saturating_mul(1_000_000_000)
}

/// Now, in nanoseconds since the epoch.
pub(crate) fn now() -> i64 {
    i64::try_from(Timestamp::now().as_nanosecond()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_zero() {
        assert_eq!(from_text(Some("1970-01-01T00:00:01.000000002Z")), 1_000_000_002);
        assert_eq!(from_text(Some("2026-01-02T03:04:05.6+01:00")), 1_767_319_445_600_000_000);
        for never in
            [None, Some("0001-01-01T00:00:00Z"), Some(""), Some("x"), Some("9999-01-01T00:00:00Z")]
        {
            assert_eq!(from_text(never), 0, "{never:?}");
        }
        assert_eq!((from_seconds(i64::MAX), from_seconds(-5)), (i64::MAX, 0));
    }
}
