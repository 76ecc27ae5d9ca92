//! Quantities of resources: `100m`, `1Gi`, `12e6`. A number with a decimal (`n` to `E`), binary (`Ki`
//! to `Ei`) or exponent (`e3`) suffix; kept in billionths, and written in upstream's canonical form,
//! so that equal amounts of one format are equal text. Finer fractions are rounded away from zero,
//! and amounts are capped at 2^63−1 whole units, as upstream does.

use std::fmt;

/// An amount of some resource. Values of equal amounts but different formats are not equal: compare
/// [`Quantity::amount`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    /// The amount in billionths, at most [`MAX`].
    nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Format {
    Decimal,
    Binary,
    Exponent,
}

/// One unit, and a thousandth of it, in billionths.
const NANO: i128 = 1_000_000_000;
const MILLI: i128 = 1_000_000;
const MAX: i128 = i64::MAX as i128 * NANO;
/// How many digits [`MAX`] has.
const MOST_DIGITS: u32 = 28;
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
pub const SYNTAX: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

impl Quantity {
    /// Reads a quantity; `None` when the text is none.
    pub fn parse(text: &str) -> Option<Self> {
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
    pub fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Whether it is a whole number of units.
    pub fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// The amount in billionths, for comparing.
    pub fn amount(self) -> i128 {
        self.nanos
    }

    /// The amount in thousandths, rounded away from zero; at most 2^63−1 thousands.
    pub fn milli(self) -> i128 {
        let magnitude = (self.nanos.saturating_abs() + (MILLI - 1)) / MILLI;
        magnitude * self.nanos.signum()
    }

    /// So many whole units.
    pub fn whole(units: i64) -> Self {
        Self { nanos: i128::from(units).saturating_mul(NANO), format: Format::Decimal }
    }

    /// The sum, in the format of the first that is not zero.
    pub fn plus(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_add(other.nanos).min(MAX), format }
    }

    /// The difference, at least zero.
    pub fn minus(self, other: Self) -> Self {
        Self { nanos: self.nanos.saturating_sub(other.nanos).max(0), ..self }
    }

    /// The difference, which may be below zero.
    pub fn difference(self, other: Self) -> Self {
        let format = if self.nanos == 0 { other.format } else { self.format };
        Self { nanos: self.nanos.saturating_sub(other.nanos).clamp(-MAX, MAX), format }
    }

    /// Rounded up to thousandths, the finest that resources are counted in.
    pub fn round_up_to_milli(self) -> Self {
        let rest = self.nanos.rem_euclid(MILLI);
        let nanos = if rest == 0 { self.nanos } else { self.nanos - rest + MILLI };
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
        Some((Format::Exponent, Self::Ten(exponent)))
    }

    /// `whole.fraction` times this scale in billionths, rounded away from zero; at most [`MAX`]. It is
    /// exact for any number of digits.
    fn apply(self, whole: &str, fraction: &str) -> i128 {
        let digits = whole.bytes().chain(fraction.bytes());
        let mut digits: Vec<u8> = digits.map(|digit| digit.saturating_sub(b'0')).collect();
        // How many of the digits stand before the point of the billionths.
        let mut point = count(whole.len()) + 9;
        match self {
            Self::Ten(exponent) => point += i128::from(exponent),
            Self::Two(bits) => point += count(multiply(&mut digits, 1 << bits)),
        }
        let zeros = digits.iter().take_while(|digit| **digit == 0).count();
        let digits = digits.split_off(zeros);
        point -= count(zeros);
        if digits.is_empty() {
            return 0;
        }
        let Ok(point @ ..=MOST_DIGITS) = u32::try_from(point.max(0)) else { return MAX };
        let (kept, rest) = digits.split_at(digits.len().min(point as usize));
        let kept = kept.iter().chain(std::iter::repeat(&0)).take(point as usize);
        let nanos = kept.fold(0, |nanos: i128, digit| nanos * 10 + i128::from(*digit));
        let rounded = nanos + i128::from(rest.iter().any(|digit| *digit != 0));
        rounded.min(MAX)
    }
}

fn count(digits: usize) -> i128 {
    i128::try_from(digits).unwrap_or(i128::MAX / 2)
}

/// Multiplies decimal digits; returns how many digits came in front.
fn multiply(digits: &mut Vec<u8>, factor: u128) -> usize {
    let (before, mut carry) = (digits.len(), 0_u128);
    let last_digit = |carry: &mut u128| {
        let digit = u8::try_from(*carry % 10).unwrap_or_default();
        *carry /= 10;
        digit
    };
    for digit in digits.iter_mut().rev() {
        carry += u128::from(*digit) * factor;
        *digit = last_digit(&mut carry);
    }
    let mut front = Vec::new();
    while carry > 0 {
        front.push(last_digit(&mut carry));
    }
    digits.splice(..0, front.into_iter().rev());
    digits.len() - before
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
            ("10000000000000000001n", "10000000000000000001n"),
            ("0.0000000001000000000000000000001", "1n"),
            ("0.0000000000000000001Ei", "115292151n"),
            ("0.00000000000000000000000000001e20", "1e-9"),
            ("1e2000000000", "9223372036854775807"),
            ("1e-2000000000", "1e-9"),
            ("0e2000000000", "0"),
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

    #[test]
    fn quantity_in_thousandths_is_rounded_away_from_zero() {
        let table = [
            ("1", Some(1000)),
            ("100m", Some(100)),
            ("1u", Some(1)),
            ("0.0000000000000000000000001", Some(1)),
            ("1500u", Some(2)),
            ("-1500u", Some(-2)),
            ("1e100", Some(i128::from(i64::MAX) * 1000)),
            ("1Ki", Some(1_024_000)),
            ("1e", None),
        ];
        for (text, milli) in table {
            assert_eq!(Quantity::parse(text).map(Quantity::milli), milli, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn quantity_is_its_digits_times_its_suffix(
            whole in 0..1_000_000_i64,
            thousandths in 0..1000_i64,
            (suffix, factor) in proptest::sample::select(vec![
                ("m", 1_000_000_i128), ("", 1_000_000_000), ("k", 1_000_000_000_000),
                ("Ki", 1_024_000_000_000), ("Mi", 1_048_576_000_000_000), ("e3", 1_000_000_000_000),
            ]),
        ) {
            let text = format!("{whole}.{thousandths:03}{suffix}");
            let thousandths = i128::from(whole) * 1000 + i128::from(thousandths);
            let amount = Quantity::parse(&text).map(Quantity::amount);
            proptest::prop_assert_eq!(amount, Some(thousandths * factor / 1000));
        }

        #[test]
        fn quantity_in_thousandths_is_the_least_that_is_not_less(nanos in 0..i64::MAX) {
            let parsed = Quantity::parse(&format!("{nanos}n")).expect("a quantity");
            let (milli, amount) = (parsed.milli(), parsed.amount());
            proptest::prop_assert_eq!(amount, i128::from(nanos));
            proptest::prop_assert!(milli * 1_000_000 >= amount);
            proptest::prop_assert!(amount == 0 || (milli - 1) * 1_000_000 < amount);
            proptest::prop_assert_eq!(parsed.round_up_to_milli().amount(), milli * 1_000_000);
        }

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
