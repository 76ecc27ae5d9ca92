//! Ages as people read them: fewer units the longer ago.

use jiff::Timestamp;
use serde_json::Value;

/// How long ago this was, `<unknown>` when it is no time.
pub(in crate::kinds) fn since(time: &Value, now: Timestamp) -> String {
    match time.as_str().and_then(|t| t.parse::<Timestamp>().ok()) {
        Some(time) => human(now.as_second().saturating_sub(time.as_second())),
        None => "<unknown>".to_owned(),
    }
}

/// A span of seconds, as upstream writes it.
pub(in crate::kinds) fn human(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |big: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        // clocks may differ by a little
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::human;

    #[test]
    fn spans() {
        let (minute, hour, day, year) = (60, 3600, 86_400, 31_536_000);
        let table = [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (10 * minute - 1, "9m59s"),
            (10 * minute, "10m"),
            (3 * hour - 1, "179m"),
            (3 * hour, "3h"),
            (3 * hour + 5 * minute, "3h5m"),
            (8 * hour, "8h"),
            (48 * hour - 1, "47h"),
            (2 * day, "2d"),
            (2 * day + hour, "2d1h"),
            (8 * day, "8d"),
            (2 * year - 1, "729d"),
            (2 * year, "2y"),
            (2 * year + day, "2y1d"),
            (8 * year, "8y"),
        ];
        for (seconds, text) in table {
            assert_eq!(human(seconds), text, "{seconds}");
        }
    }
}
