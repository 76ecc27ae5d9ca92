//! Resource quantities: `100m`, `1Gi`, `12e6`. Kept exactly, in billionths, and written the one
//! canonical way that upstream writes them, so that equal amounts are equal text in the store.

use std::fmt;

/// An amount of some resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity {
    /// The amount in billionths; upstream's own limit is 2^63−1 whole units.
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

const NANO: i128 = 1_000_000_000;
const MAX: i128 = i64::MAX as i128 * NANO;
const DECIMAL: [(&str, i32); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// What upstream says about text that is no quantity.
pub(crate) const SYNTAX: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

impl Quantity {
    /// Reads a quantity; `None` when the text is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let split = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(split);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (format, scale) = Scale::parse(suffix)?;
        let nanos = scale.apply(whole, fraction).min(MAX);
        Some(Self { nanos: if negative { nanos.saturating_neg() } else { nanos }, format })
    }

    /// Whether it is below zero.
    pub(crate) fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether it is a whole number of units.
    pub(crate) fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// The amount alone, for comparing.
    pub(crate) fn amount(self) -> i128 {
        self.nanos
    }

    /// So many whole units.
    pub(crate) fn whole(units: i64) -> Self {
        Self { nanos: i128::from(units).saturating_mul(NANO), format: Format::Decimal }
    }

    /// The sum, in the format of the first that is not zero.
    pub(crate) fn plus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos).min(MAX), format }
    }

    /// The difference, at least zero.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos).max(0), ..self }
    }

    /// Rounded up to thousandths, the finest that resources are counted in.
    pub(crate) fn round_up_to_milli(self) -> Self {
        const STEP: i128 = 1_000_000;
        let rest = self.nanos.rem_euclid(STEP);
        let nanos = if rest == 0 { self.nanos } else { self.nanos - rest + STEP };
        Self { nanos, ..self }
    }
}

/// What a suffix multiplies by.
#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Two(u32),
}

impl Scale {
    fn parse(suffix: &str) -> Option<(Format, Self)> {
        if let Some((_, e)) = DECIMAL.iter().find(|(s, _)| *s == suffix) {
            return Some((Format::Decimal, Self::Ten(*e)));
        }
        if let Some(power) = BINARY.iter().position(|s| *s == suffix) {
            return Some((Format::Binary, Self::Two(10 * u32::try_from(power).ok()?)));
        }
        let exponent = suffix.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?;
        Some((Format::Exponent, Self::Ten(exponent.clamp(-10_000, 10_000))))
    }

    /// `whole.fraction` times this scale in billionths, rounded away from zero.
    fn apply(self, whole: &str, fraction: &str) -> i128 {
        let whole = whole.trim_start_matches('0');
        // digits after the 18th cannot be seen in the result but by rounding it up
        let fraction = fraction.trim_end_matches('0');
        let kept = &fraction[..fraction.len().min(18)];
        let sticky = fraction.len() > kept.len();
        if whole.len() > 19 {
            return match self {
                Self::Ten(e) if e < 0 => huge_times_small(whole, e),
                _ => MAX,
            };
        }
        let mantissa: i128 = format!("0{whole}{kept}").parse().unwrap_or(i128::MAX);
        let places = i32::try_from(kept.len()).unwrap_or(18);
        let (scaled, shift) = match self {
            Self::Ten(e) => (Some(mantissa), e.saturating_sub(places).saturating_add(9)),
            Self::Two(bits) => (mantissa.checked_mul(1 << bits), 9_i32.saturating_sub(places)),
        };
        let nanos = scaled.and_then(|m| times_ten_to(m, shift)).unwrap_or(MAX);
        if sticky && nanos < MAX { nanos + 1 } else { nanos }
    }
}

/// More digits than fit, made small again by the suffix: the digits that count are the first ones.
fn huge_times_small(whole: &str, exponent: i32) -> i128 {
    let spare = i32::try_from(whole.len()).unwrap_or(i32::MAX).saturating_sub(19);
    if spare > 10_000 || exponent.saturating_add(spare) > 0 {
        return MAX;
    }
    let mantissa: i128 = whole[..19].parse().unwrap_or(i128::MAX);
    times_ten_to(mantissa, exponent.saturating_add(spare).saturating_add(9)).unwrap_or(MAX)
}

/// `n × 10^shift`, rounded up; `None` when it does not fit.
fn times_ten_to(n: i128, shift: i32) -> Option<i128> {
    if n == 0 {
        return Some(0);
    }
    if shift >= 0 {
        return n.checked_mul(10i128.checked_pow(shift.unsigned_abs())?);
    }
    match 10i128.checked_pow(shift.unsigned_abs()) {
        Some(divisor) => Some(n / divisor + i128::from(n % divisor != 0)),
        None => Some(1),
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        if self.format == Format::Binary && self.is_whole() && self.nanos.abs() >= 1024 * NANO {
            let mut units = self.nanos / NANO;
            let mut power = 0;
            while units % 1024 == 0 && power + 1 < BINARY.len() {
                units /= 1024;
                power += 1;
            }
            return write!(f, "{units}{}", BINARY[power]);
        }
        let exponent = (0..=18i32)
            .rev()
            .step_by(3)
            .chain([-3, -6])
            .find(|e| self.nanos % 10i128.pow(9_i32.saturating_add(*e).unsigned_abs()) == 0)
            .unwrap_or(-9);
        let units = self.nanos / 10i128.pow(9_i32.saturating_add(exponent).unsigned_abs());
        match self.format {
            Format::Exponent if exponent != 0 => write!(f, "{units}e{exponent}"),
            _ => {
                let suffix = DECIMAL.iter().find(|(_, e)| *e == exponent).map_or("", |(s, _)| s);
                write!(f, "{units}{suffix}")
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests {
    use super::Quantity;

    #[test]
    fn canonical_form() {
        let table = [
            ("0", "0"),
            ("0.5", "500m"),
            ("1500m", "1500m"),
            ("1000m", "1"),
            ("2000", "2k"),
            ("100000", "100k"),
            ("1024Mi", "1Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1023", "1023"),
            ("100M", "100M"),
            ("1e3", "1e3"),
            ("12E6", "12e6"),
            ("1E", "1E"),
            ("1e0", "1"),
            (".5", "500m"),
            ("5.", "5"),
            ("+3", "3"),
            ("-3", "-3"),
            ("-1.5Gi", "-1536Mi"),
            ("0.0000000001", "1n"),
            ("1n", "1n"),
            ("1.0000000000000000000001", "1000000001n"),
            ("9223372036854775808", "9223372036854775807"),
            ("99999999999999999999999999", "9223372036854775807"),
            ("16Ei", "9223372036854775807"),
            ("1000000000000000000000000n", "1P"),
            (" 1 ", "1"),
        ];
        for (text, canonical) in table {
            assert_eq!(
                Quantity::parse(text).map(|q| q.to_string()).as_deref(),
                Some(canonical),
                "{text}"
            );
        }
    }

    #[test]
    fn quantity_invalid() {
        for text in [
            "", "-", "m", "1.2.3", "1 Gi", "1KiB", "0x10", "e3", "1e", "1e-", "1e3Mi", "--1", "½",
            "1٣",
        ] {
            assert_eq!(Quantity::parse(text), None, "{text}");
        }
    }

    #[test]
    fn quantity_comparison_across_formats() {
        let amount = |text| Quantity::parse(text).map(Quantity::amount);
        assert_eq!(amount("1Gi"), amount("1073741824"));
        assert_eq!(amount("1e3"), amount("1k"));
        assert!(amount("1Gi") > amount("1G"));
    }

    #[test]
    fn quantity_rounds_up_to_milli() {
        let round = |text| Quantity::parse(text).map(|q| q.round_up_to_milli().to_string());
        assert_eq!(round("1u").as_deref(), Some("1m"));
        assert_eq!(round("1500u").as_deref(), Some("2m"));
        assert_eq!(round("2").as_deref(), Some("2"));
    }

    proptest::proptest! {
        #[test]
        fn quantity_never_panics_and_canonical_form_is_stable(text in "[-+]?[0-9.]{0,40}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,12}") {
            if let Some(q) = Quantity::parse(&text) {
                let again = Quantity::parse(&q.to_string()).expect("canonical text parses");
                proptest::prop_assert_eq!(again.to_string(), q.to_string());
                proptest::prop_assert_eq!(again.amount(), q.amount());
            }
        }
    }
}
