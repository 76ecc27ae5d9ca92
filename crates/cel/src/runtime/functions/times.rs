//! Timestamps and durations.

use std::str::FromStr;

use jiff::tz::{Offset, TimeZone};
use jiff::{SignedDuration, Timestamp, Zoned};
use longshore_duration::GoDuration;

use super::{Found, Function, conversion};
use crate::Error;
use crate::runtime::value::Value;

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "duration" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(Value::Duration(*nanos)),
            [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
            [Value::String(text)] => match GoDuration::from_str(text) {
                Ok(duration) => Ok(Value::Duration(duration.as_nanos())),
                Err(_) => Err(conversion("string", "google.protobuf.Duration")),
            },
            _ => Err(Error::no_such_overload()),
        },
        "timestamp" => |_, args| match args {
            [Value::Timestamp(at)] => Ok(Value::Timestamp(*at)),
            [Value::Int(seconds)] => match Timestamp::from_second(*seconds) {
                Ok(at) => Ok(Value::Timestamp(at)),
                Err(_) => Err(Error::new("timestamp overflow")),
            },
            [Value::String(text)] => timestamp(text)
                .map(Value::Timestamp)
                .ok_or_else(|| conversion("string", "google.protobuf.Timestamp")),
            _ => Err(Error::no_such_overload()),
        },
        "getFullYear" => |_, args| part(args, |at| i64::from(at.year())),
        "getMonth" => |_, args| part(args, |at| i64::from(at.month()).saturating_sub(1)),
        "getDate" => |_, args| part(args, |at| i64::from(at.day())),
        "getDayOfMonth" => |_, args| part(args, |at| i64::from(at.day()).saturating_sub(1)),
        "getDayOfYear" => |_, args| part(args, |at| i64::from(at.day_of_year()).saturating_sub(1)),
        "getDayOfWeek" => |_, args| part(args, |at| at.weekday().to_sunday_zero_offset().into()),
        "getHours" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(units(*nanos, 3_600_000_000_000)),
            args => part(args, |at| i64::from(at.hour())),
        },
        "getMinutes" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(units(*nanos, 60_000_000_000)),
            args => part(args, |at| i64::from(at.minute())),
        },
        "getSeconds" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(units(*nanos, 1_000_000_000)),
            args => part(args, |at| i64::from(at.second())),
        },
        "getMilliseconds" => |_, args| match args {
            [Value::Duration(nanos)] => Ok(units(*nanos, 1_000_000)),
            args => part(args, |at| i64::from(at.millisecond())),
        },
        _ => return None,
    })
}

fn units<'v>(nanos: i64, unit: i64) -> Value<'v> {
    Value::Int(nanos.checked_div(unit).unwrap_or(0))
}

/// Part of a timestamp, in a time zone that is given by name or as an offset (`+02:00`), or in UTC.
fn part<'v>(args: &[Value<'v>], of: fn(&Zoned) -> i64) -> Found<'v> {
    let (at, zone) = match args {
        [Value::Timestamp(at)] => (at, TimeZone::UTC),
        [Value::Timestamp(at), Value::String(name)] => {
            let unknown = || Error::new(format!("unknown time zone {}", &**name));
            (at, zone(name).ok_or_else(unknown)?)
        }
        _ => return Err(Error::no_such_overload()),
    };
    Ok(Value::Int(of(&at.to_zoned(zone))))
}

fn zone(name: &str) -> Option<TimeZone> {
    let Some((hours, minutes)) = name.split_once(':') else {
        return match name {
            "" | "UTC" => Some(TimeZone::UTC),
            name => TimeZone::get(name).ok(),
        };
    };
    let negative = hours.starts_with('-');
    let hours: i32 = hours.trim_start_matches(['+', '-']).parse().ok()?;
    let minutes: i32 = minutes.parse().ok()?;
    let seconds = hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?;
    let seconds = if negative { seconds.checked_neg()? } else { seconds };
    Offset::from_seconds(seconds).ok().map(TimeZone::fixed)
}

/// RFC 3339.
pub(super) fn timestamp(text: &str) -> Option<Timestamp> {
    // stricter than jiff: the separators of RFC 3339
    let bytes = text.as_bytes();
    if bytes.get(10) != Some(&b'T') || bytes.get(4) != Some(&b'-') || text.contains('[') {
        return None;
    }
    text.parse().ok()
}

pub(super) fn moved<'v>(at: Timestamp, nanos: i64) -> Found<'v> {
    match at.checked_add(SignedDuration::from_nanos(nanos)) {
        Ok(at) => Ok(Value::Timestamp(at)),
        Err(_) => Err(Error::new("timestamp overflow")),
    }
}

/// In seconds: `90s`, `0.5s`.
pub(super) fn duration_text(nanos: i64) -> String {
    format!("{}s", nanos as f64 / 1e9)
}
