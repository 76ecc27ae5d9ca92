//! A resource quantity as upstream keeps it in memory: which of its two forms it takes, and whether
//! it remembers its text, depends on how it was written.

use std::fmt;

/// Digits that surely fit into 64 bits.
const SAFE_DIGITS: i64 = 18;
/// Nothing is kept finer than billionths (decimal places).
const FINEST: i32 = 9;
/// One in billionths.
const ONE: u128 = 1_000_000_000;
/// The most that a quantity with a binary suffix can be.
const MOST: u128 = i64::MAX as u128;
/// Resources are not counted finer than thousandths (decimal places).
const RESOURCE: i32 = 3;

/// A quantity in upstream's form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quantity {
    amount: Amount,
    /// The text, where it is remembered.
    text: String,
    format: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    /// `value` times ten to the power of `scale`.
    Small { value: i64, scale: i32 },
    /// `unscaled` over ten to the power of `places`.
    Large { negative: bool, unscaled: u128, places: i32 },
}

impl Default for Amount {
    fn default() -> Self {
        Self::Small { value: 0, scale: 0 }
    }
}

const DECIMAL: &str = "DecimalSI";
const BINARY: &str = "BinarySI";
const EXPONENT: &str = "DecimalExponent";

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// Digits before the point without leading zeros, at least one.
    whole: &'a str,
    fraction: &'a str,
    /// The digits as they stand, with the point.
    number: &'a str,
    suffix: &'a str,
}

impl Quantity {
    /// Read a quantity as upstream does; `None` for text that is none, or beyond 128 bits.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "0" {
            return Some(Self { text: text.to_owned(), format: DECIMAL, ..Self::default() });
        }
        let parts = Parts::of(text)?;
        let (base, exponent, format) = interpret(parts.suffix)?;
        match parts.small(base, exponent) {
            Some((amount, canonical)) => {
                let text = if canonical { text.to_owned() } else { String::new() };
                Some(Self { amount, text, format })
            }
            None => parts.large(base, exponent, format),
        }
    }

    /// Rounded up to thousandths, as every resource of a container is.
    pub fn rounded(mut self) -> Self {
        match self.amount {
            Amount::Small { scale, .. } if scale >= -RESOURCE => {}
            Amount::Small { value, scale } => {
                self.text.clear();
                let magnitude =
                    shift(value.unsigned_abs().into(), (-RESOURCE).saturating_sub(scale));
                let magnitude = magnitude.and_then(|value| i64::try_from(value).ok());
                let value = magnitude.unwrap_or(i64::MAX).saturating_mul(value.signum());
                self.amount = Amount::Small { value, scale: -RESOURCE };
            }
            Amount::Large { negative, unscaled, places } => {
                let unscaled = shift(unscaled, places.saturating_sub(RESOURCE)).unwrap_or(unscaled);
                self.amount = Amount::Large { negative, unscaled, places: RESOURCE };
            }
        }
        self
    }
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (negative, rest) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, mut after) = rest.split_at(digits(rest));
        let mut fraction = "";
        if let Some(decimals) = after.strip_prefix('.') {
            (fraction, after) = decimals.split_at(digits(decimals));
        }
        let number = &rest[..rest.len() - after.len()];
        let letters = after.trim_start_matches(|letter| "eEinumkKMGTP".contains(letter));
        let exponent = letters.strip_prefix(['-', '+']).unwrap_or(letters);
        if digits(exponent) != exponent.len() {
            return None;
        }
        let whole = match whole.trim_start_matches('0') {
            "" => "0",
            whole => whole,
        };
        Some(Self { negative, whole, fraction, number, suffix: after })
    }

    /// The amount in 64 bits, and whether its text is worth to be remembered.
    fn small(&self, base: u32, exponent: i32) -> Option<(Amount, bool)> {
        let length = |digits: &str| i64::try_from(digits.len()).unwrap_or(i64::MAX);
        let (whole, fraction) = (length(self.whole), length(self.fraction));
        let (factor, scale, remaining) = match base {
            10 => (1_i64, exponent, SAFE_DIGITS.saturating_sub(whole).saturating_sub(fraction)),
            _ if fraction == 0 => {
                let digits = i64::from(exponent).saturating_mul(3) / 10;
                let remaining = 14_i64.saturating_sub(whole).saturating_sub(digits);
                (1_i64.checked_shl(exponent.unsigned_abs())?, 0, remaining)
            }
            _ => return None,
        };
        if remaining < 0 {
            return None;
        }
        let scale = scale.checked_sub(i32::try_from(fraction).ok()?)?;
        if scale < -FINEST {
            return None;
        }
        let digits = format!("{}{}", self.whole, self.fraction);
        let value: i64 = digits.parse().ok()?;
        let canonical = match base {
            10 => scale % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0'),
            _ => exponent % 10 == 0 && value % 8 != 0,
        };
        let value = value.checked_mul(factor)?;
        let value = if self.negative { value.checked_neg()? } else { value };
        Some((Amount::Small { value, scale }, canonical))
    }

    /// The amount in as many bits as it takes.
    fn large(&self, base: u32, exponent: i32, format: &'static str) -> Option<Quantity> {
        let digits: u128 = self.number.replace('.', "").parse().ok()?;
        let decimals = i32::try_from(self.fraction.len()).ok()?;
        let (unscaled, places) = match base {
            10 => billionths(digits, decimals.checked_sub(exponent)?)?,
            _ => digits
                .checked_mul(1 << exponent)
                .and_then(|unscaled| billionths(unscaled, decimals))
                .filter(|(unscaled, _)| *unscaled <= MOST * ONE)
                .unwrap_or((MOST, 0)),
        };
        let fraction = places == FINEST && unscaled < ONE;
        let format = if format == BINARY && fraction { DECIMAL } else { format };
        let amount = Amount::Large { negative: self.negative && unscaled > 0, unscaled, places };
        Some(Quantity { amount, text: String::new(), format })
    }
}

/// An amount with that many decimal places, in billionths unless it is nothing.
fn billionths(unscaled: u128, places: i32) -> Option<(u128, i32)> {
    match unscaled {
        0 => Some((0, places)),
        unscaled => Some((shift(unscaled, places.checked_sub(FINEST)?)?, FINEST)),
    }
}

/// Base, exponent and format of a suffix.
fn interpret(suffix: &str) -> Option<(u32, i32, &'static str)> {
    let power =
        |letters: &str| letters.find(suffix.get(..1)?).and_then(|at| i32::try_from(at).ok());
    match suffix.len() {
        0 => Some((10, 0, DECIMAL)),
        1 => power("num")
            .map(|power| power.saturating_mul(3).saturating_sub(9))
            .or_else(|| power("kMGTPE").map(|power| power.saturating_mul(3).saturating_add(3)))
            .map(|exponent| (10, exponent, DECIMAL)),
        2 if suffix.ends_with('i') => {
            let exponent = |power: i32| power.saturating_mul(10).saturating_add(10);
            power("KMGTPE").map(|power| (2, exponent(power), BINARY))
        }
        _ => {
            let exponent: i64 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            Some((10, i32::try_from(exponent).ok()?, EXPONENT))
        }
    }
}

/// Take away that many decimal places, rounding up; add them if there are fewer.
fn shift(value: u128, places: i32) -> Option<u128> {
    let factor = 10_u128.checked_pow(places.unsigned_abs());
    match (places > 0, factor) {
        (false, factor) => value.checked_mul(factor?),
        (true, Some(factor)) => Some(value.div_ceil(factor)),
        (true, None) => Some(value.min(1)),
    }
}

/// In the words of Go.
impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, scale) = match self.amount {
            Amount::Small { value, scale } => (value, scale),
            Amount::Large { .. } => (0, 0),
        };
        write!(
            out,
            "{{i:(resource.int64Amount){{value:(int64){value} scale:(resource.Scale){scale}}} "
        )?;
        out.write_str("d:(resource.infDecAmount){Dec:(*inf.Dec)")?;
        match self.amount {
            Amount::Small { .. } => out.write_str("<nil>")?,
            Amount::Large { negative, unscaled, places } => {
                write!(out, "{{unscaled:(big.Int){{neg:(bool){negative} abs:(big.nat)")?;
                let (low, high) = (unscaled & u128::from(u64::MAX), unscaled >> 64);
                match (low, high) {
                    (0, 0) => out.write_str("<nil>")?,
                    (low, 0) => write!(out, "[{low}]")?,
                    (low, high) => write!(out, "[{low} {high}]")?,
                }
                write!(out, "}} scale:(inf.Scale){places}}}")?;
            }
        }
        write!(out, "}} s:(string){} Format:(resource.Format){}}}", self.text, self.format)
    }
}
