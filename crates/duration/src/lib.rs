//! Durations in Go's syntax ("2m0s", "1h30m", "-1s"), as Kubernetes writes them.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A signed duration with nanosecond precision: `time.Duration` of Go.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GoDuration(i64);

impl GoDuration {
    /// Zero.
    pub const ZERO: Self = Self(0);

    /// From seconds.
    pub const fn secs(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }

    /// From milliseconds.
    pub const fn millis(milliseconds: i64) -> Self {
        Self(milliseconds.saturating_mul(1_000_000))
    }

    /// From nanoseconds.
    pub const fn nanos(nanoseconds: i64) -> Self {
        Self(nanoseconds)
    }

    /// In nanoseconds.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// For timers; negative ones are zero.
    pub const fn get(self) -> Duration {
        Duration::from_nanos(if self.0 > 0 { self.0 as u64 } else { 0 })
    }
}

/// An invalid duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {0:?}: expected Go syntax such as \"90s\", \"1h30m\" or \"100ms\"")]
pub struct ParseDurationError(String);

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).map(Self).ok_or_else(|| ParseDurationError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        total = total.checked_add(scaled(number, unit_nanos(unit)?)?)?;
        rest = after;
    }
    i64::try_from(if negative { total.checked_neg()? } else { total }).ok()
}

fn unit_nanos(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `number` (digits with at most one point) times `unit`, truncated to nanoseconds.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    // an i64 of nanoseconds has 19 digits: more integer digits overflow
    let whole: i128 = match whole.trim_start_matches('0') {
        "" => 0,
        digits if digits.len() <= 19 => digits.parse().ok()?,
        _ => return None,
    };
    // an hour has 13 digits of nanoseconds: more than 15 digits have no effect
    let fraction = &fraction[..fraction.len().min(15)];
    let part = match fraction {
        "" => 0,
        digits => digits.parse::<i128>().ok()? * unit / 10i128.pow(digits.len() as u32),
    };
    whole.checked_mul(unit)?.checked_add(part)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, nanos) = (if self.0 < 0 { "-" } else { "" }, self.0.unsigned_abs());
        let fraction = |f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, name: &str| {
            let digits = unit.ilog10() as usize;
            let whole = nanos.checked_div(unit).unwrap_or(0);
            let part = format!("{:0digits$}", nanos.checked_rem(unit).unwrap_or(0));
            match part.trim_end_matches('0') {
                "" => write!(f, "{whole}{name}"),
                part => write!(f, "{whole}.{part}{name}"),
            }
        };
        f.write_str(sign)?;
        match nanos {
            0 => f.write_str("0s"),
            1..1_000 => write!(f, "{nanos}ns"),
            1_000..1_000_000 => fraction(f, nanos, 1_000, "µs"),
            1_000_000..1_000_000_000 => fraction(f, nanos, 1_000_000, "ms"),
            _ => {
                let minutes = nanos / 60_000_000_000;
                if minutes >= 60 {
                    write!(f, "{}h", minutes / 60)?;
                }
                if minutes > 0 {
                    write!(f, "{}m", minutes % 60)?;
                }
                fraction(f, nanos % 60_000_000_000, 1_000_000_000, "s")
            }
        }
    }
}

impl fmt::Debug for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn duration_parses_and_prints_as_go() {
        for (text, nanos, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("2m0s", 120_000_000_000, "2m0s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("4h0m0s", 14_400_000_000_000, "4h0m0s"),
            ("100ms", 100_000_000, "100ms"),
            ("1.5s", 1_500_000_000, "1.5s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("-1.5h", -5_400_000_000_000, "-1h30m0s"),
            ("+5s", 5_000_000_000, "5s"),
            ("1µs", 1_000, "1µs"),
            ("1us500ns", 1_500, "1.5µs"),
        ] {
            assert_eq!(text.parse::<GoDuration>().map(GoDuration::as_nanos), Ok(nanos), "{text}");
            assert_eq!(GoDuration(nanos).to_string(), printed);
        }
    }

    #[test]
    fn duration_rejects_what_go_rejects() {
        for text in [
            "",
            "-",
            "3",
            "s",
            ".s",
            "1..2s",
            "1x",
            "1 s",
            "ten",
            "9223372036s",
            "99999999999999999999999h",
        ] {
            let fits = text == "9223372036s"; // the last second that fits
            assert_eq!(text.parse::<GoDuration>().is_ok(), fits, "{text}");
        }
        assert!("9223372037s".parse::<GoDuration>().is_err());
    }

    proptest! {
        #[test]
        fn printed_durations_parse_back(nanos: i64) {
            prop_assume!(nanos != i64::MIN);
            prop_assert_eq!(GoDuration(nanos).to_string().parse(), Ok(GoDuration(nanos)));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
