//! Cron lines: minute, hour, day of the month, month, day of the week.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan, Zoned};
use longshore_duration::GoDuration;

/// A schedule with no time in so many years has none.
const MAX_YEARS: i16 = 5;
/// The names of months and days.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Why a schedule is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScheduleError {
    /// Not five fields.
    #[error("expected exactly 5 fields, found {0}: {1:?}")]
    Fields(usize, String),
    /// A field that cannot be read.
    #[error("failed to parse {0:?} as a range of {1} to {2}")]
    Field(String, u32, u32),
    /// An unknown word.
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    /// An unknown time zone.
    #[error("unknown time zone {0}")]
    Zone(String),
}

/// When something is done.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    zone: TimeZone,
    times: Times,
}

#[derive(Debug, Clone)]
enum Times {
    /// At these minutes, hours and days: a bit for each.
    Fields { minutes: u64, hours: u64, days: Field, months: u64, weekdays: Field },
    /// Always after that duration.
    Every(SignedDuration),
}

/// The values of a field, and whether it is `*` or `?`.
#[derive(Debug, Clone, Copy)]
struct Field {
    bits: u64,
    any: bool,
}

impl Schedule {
    /// Reads a schedule, which may name its time zone: `TZ=Asia/Tokyo 0 4 * * *`. Without, it is in
    /// the given zone.
    pub(super) fn parse(text: &str, zone: TimeZone) -> Result<Self, ScheduleError> {
        let mut rest = text.trim();
        let mut zone = zone;
        let named = rest.strip_prefix("TZ=").or_else(|| rest.strip_prefix("CRON_TZ="));
        if let Some(named) = named {
            let (name, fields) = named.split_once(char::is_whitespace).unwrap_or((named, ""));
            zone = TimeZone::get(name).map_err(|_| ScheduleError::Zone(name.to_owned()))?;
            rest = fields.trim();
        }
        let line = match rest {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            line => line,
        };
        if let Some(every) = line.strip_prefix("@every ") {
            let period = go_duration(every.trim())
                .ok_or_else(|| ScheduleError::Descriptor(line.to_owned()))?;
            return Ok(Self { zone, times: Times::Every(period) });
        }
        if line.starts_with('@') {
            return Err(ScheduleError::Descriptor(line.to_owned()));
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
            return Err(ScheduleError::Fields(fields.len(), line.to_owned()));
        };
        let times = Times::Fields {
            minutes: field(minutes, 0, 59, &[])?.bits,
            hours: field(hours, 0, 23, &[])?.bits,
            days: field(days, 1, 31, &[])?,
            months: field(months, 1, 12, &MONTHS)?.bits,
            weekdays: field(weekdays, 0, 6, &DAYS)?,
        };
        Ok(Self { zone, times })
    }

    /// The next time after that one; nothing if there is none for years.
    pub(super) fn next(&self, after: Timestamp) -> Option<Timestamp> {
        let Times::Fields { minutes, hours, days, months, weekdays } = &self.times else {
            let Times::Every(period) = &self.times else { return None };
            let whole = Timestamp::from_second(after.as_second()).ok()?;
            return whole.checked_add(*period).ok();
        };
        let start = after.to_zoned(self.zone.clone());
        let last_year = start.year().saturating_add(MAX_YEARS);
        let seconds = i64::from(start.second());
        let whole = Timestamp::from_second(after.as_second()).ok()?;
        let next_minute = SignedDuration::from_secs(60_i64.saturating_sub(seconds));
        let mut time = whole.checked_add(next_minute).ok()?.to_zoned(self.zone.clone());
        let has = |bits: u64, value: i8| u32::try_from(value).is_ok_and(|it| bits & (1 << it) != 0);
        while time.year() <= last_year {
            if !has(*months, time.month()) {
                let next = time.date().first_of_month().checked_add(1.month()).ok()?;
                time = start_of(next, &self.zone, &time)?;
                continue;
            }
            let by_date = has(days.bits, time.day());
            let by_weekday = has(weekdays.bits, time.weekday().to_sunday_zero_offset());
            let is_day = if days.any || weekdays.any {
                by_date && by_weekday
            } else {
                by_date || by_weekday
            };
            if !is_day {
                let next = time.date().tomorrow().ok()?;
                time = start_of(next, &self.zone, &time)?;
                continue;
            }
            if !has(*hours, time.hour()) {
                let left = 60_i64.saturating_sub(i64::from(time.minute()));
                time = time.checked_add(SignedDuration::from_mins(left)).ok()?;
                continue;
            }
            if !has(*minutes, time.minute()) {
                time = time.checked_add(SignedDuration::from_mins(1)).ok()?;
                continue;
            }
            return Some(time.timestamp());
        }
        None
    }
}

/// The first moment of a day, which is later than `before`.
fn start_of(date: jiff::civil::Date, zone: &TimeZone, before: &Zoned) -> Option<Zoned> {
    let start = date.to_zoned(zone.clone()).ok()?.start_of_day().ok()?;
    // a zone whose day begins again: go on by the clock
    if start > *before {
        Some(start)
    } else {
        before.checked_add(SignedDuration::from_hours(1)).ok()
    }
}

/// One field: numbers, names, ranges and steps, separated by commas.
fn field(text: &str, least: u32, most: u32, names: &[&str]) -> Result<Field, ScheduleError> {
    let invalid = || ScheduleError::Field(text.to_owned(), least, most);
    let number = |text: &str| -> Option<u32> {
        let name = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = name.and_then(|position| u32::try_from(position).ok());
        named.map(|position| position + least).or_else(|| {
            text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
        })
    };
    let (mut bits, mut any) = (0, false);
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (range, step) = part.split_once('/').map_or((part, None), |(a, b)| (a, Some(b)));
        let step_by = match step {
            Some(step) => step.parse().ok().filter(|step| *step > 0).ok_or_else(invalid)?,
            None => 1,
        };
        let (first, last) = match range {
            "*" | "?" => {
                any |= step_by == 1;
                (least, most)
            }
            range => match range.split_once('-') {
                Some((first, last)) => {
                    (number(first).ok_or_else(invalid)?, number(last).ok_or_else(invalid)?)
                }
                None => {
                    let first = number(range).ok_or_else(invalid)?;
                    // `5/15` goes on to the end
                    (first, if step.is_some() { most } else { first })
                }
            },
        };
        // Sunday is 7 too
        let top = if names == DAYS { 7 } else { most };
        if first < least || last > top || first > last {
            return Err(invalid());
        }
        for value in (first..=last).step_by(usize::try_from(step_by).map_err(|_| invalid())?) {
            bits |= 1_u64 << if value > most { least } else { value };
        }
    }
    if bits == 0 { Err(invalid()) } else { Ok(Field { bits, any }) }
}

/// A duration as Go writes it, such as `1h30m`, in whole seconds and at least one.
fn go_duration(text: &str) -> Option<SignedDuration> {
    let duration: GoDuration = text.parse().ok()?;
    i64::try_from(duration.get().as_secs().max(1)).ok().map(SignedDuration::from_secs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn next(line: &str, zone: &str, after: &str) -> Option<String> {
        let zone = TimeZone::get(zone).unwrap();
        let schedule = Schedule::parse(line, zone.clone()).unwrap();
        let after: Timestamp = after.parse().unwrap();
        schedule.next(after).map(|time| time.to_string())
    }

    #[test]
    fn cron_finds_the_next_time() {
        for (line, after, expected) in [
            ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"),
            ("* * * * *", "2026-01-01T00:00:59Z", "2026-01-01T00:01:00Z"),
            ("*/15 * * * *", "2026-01-01T00:46:00Z", "2026-01-01T01:00:00Z"),
            ("5/20 3 * * *", "2026-01-01T03:25:00Z", "2026-01-01T03:45:00Z"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("0 9 * * mon-fri", "2026-01-02T10:00:00Z", "2026-01-05T09:00:00Z"),
            ("0 0 * * 7", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("0 0 13 * fri", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
            ("0 0 */2 * 1", "2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z"),
            ("30 4 1,15 jun ?", "2026-06-02T00:00:00Z", "2026-06-15T04:30:00Z"),
            ("@hourly", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z"),
            ("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z"),
            ("@every 1h30m", "2026-01-01T00:00:00.5Z", "2026-01-01T01:30:00Z"),
            ("TZ=Asia/Tokyo 0 9 * * *", "2026-01-01T00:00:01Z", "2026-01-02T00:00:00Z"),
        ] {
            assert_eq!(next(line, "UTC", after).as_deref(), Some(expected), "{line}");
        }
        assert_eq!(next("0 0 31 2 *", "UTC", "2026-01-01T00:00:00Z"), None);
    }

    #[test]
    fn cron_follows_the_clock_of_its_zone() {
        // at 02:00 on 29 March the clock goes on to 03:00
        let spring = next("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z");
        assert_eq!(spring.as_deref(), Some("2026-03-30T00:30:00Z"), "there is no 02:30 that day");
        let summer = next("0 12 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z");
        assert_eq!(summer.as_deref(), Some("2026-07-01T10:00:00Z"));
    }

    #[test]
    fn cron_refuses_bad_lines() {
        for line in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 13 *",
            "* * * * 8",
            "5-1 * * * *",
            "*/0 * * * *",
            "a * * * *",
            "@never",
            "@every x",
            "@every ",
            "+5 * * * *",
            ", * * * *",
            "TZ=Nowhere/City * * * * *",
            "1-99999999999 * * * *",
        ] {
            assert!(Schedule::parse(line, TimeZone::UTC).is_err(), "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn cron_reads_any_text(line in "[-*/?,0-9a-z@ =]{0,30}") {
            if let Ok(schedule) = Schedule::parse(&line, TimeZone::UTC) {
                let after: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
                if let Some(next) = schedule.next(after) {
                    prop_assert!(next > after);
                }
            }
        }

        #[test]
        fn cron_times_match_the_fields(minute in 0_i8..60, hour in 0_i8..24, after in 0_i64..2_000_000_000) {
            let schedule = Schedule::parse(&format!("{minute} {hour} * * *"), TimeZone::UTC).unwrap();
            let after = Timestamp::from_second(after).unwrap();
            let next = schedule.next(after).unwrap().to_zoned(TimeZone::UTC);
            prop_assert_eq!((next.minute(), next.hour(), next.second()), (minute, hour, 0));
            let wait = next.timestamp().duration_since(after);
            prop_assert!(wait > SignedDuration::ZERO && wait <= SignedDuration::from_hours(24));
        }
    }
}
