//! Quantities and semantic versions.

use std::cmp::Ordering;
use std::sync::Arc;

use longshore_quantity::{Quantity, SYNTAX};

use super::opaque::Opaque;
use super::{Found, Function};
use crate::Error;
use crate::runtime::value::Value;

/// A semantic version. What follows `+` does not count in comparisons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Semver {
    numbers: [u64; 3],
    pre: Vec<String>,
}

impl Semver {
    /// `normalize`: takes a leading `v`, leading zeros, and versions without minor or patch.
    pub(crate) fn parse(text: &str, normalize: bool) -> Result<Self, String> {
        let text = if normalize { text.trim().trim_start_matches('v') } else { text };
        let (text, build) = text.split_once('+').map_or((text, None), |(v, b)| (v, Some(b)));
        let (core, pre) = text.split_once('-').map_or((text, None), |(v, p)| (v, Some(p)));
        let mut parts: Vec<&str> = core.split('.').collect();
        while normalize && parts.len() < 3 {
            parts.push("0");
        }
        let [major, minor, patch] = parts[..] else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let mut numbers = [0; 3];
        for (number, part) in numbers.iter_mut().zip([major, minor, patch]) {
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(format!("Invalid character(s) found in version number {part:?}"));
            }
            if !normalize && part.len() > 1 && part.starts_with('0') {
                return Err(format!("version number must not contain leading zeroes {part:?}"));
            }
            *number = part.parse().map_err(|_| format!("version number out of range {part:?}"))?;
        }
        let words = |text: Option<&str>| -> Result<Vec<String>, String> {
            let Some(text) = text else { return Ok(Vec::new()) };
            let words: Vec<String> = text.split('.').map(str::to_owned).collect();
            let fine = |word: &String| {
                !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            };
            match words.iter().all(fine) {
                true => Ok(words),
                false => Err(format!("Invalid character(s) found in {text:?}")),
            }
        };
        words(build)?;
        Ok(Self { numbers, pre: words(pre)? })
    }

    fn compare(&self, other: &Self) -> Ordering {
        let word = |a: &String, b: &String| match (a.parse::<u64>(), b.parse::<u64>()) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => a.cmp(b),
        };
        let pre = match (self.pre.is_empty(), other.pre.is_empty()) {
            (false, false) => {
                let mut pairs = self.pre.iter().zip(&other.pre).map(|(a, b)| word(a, b));
                let first = pairs.find(|order| order.is_ne());
                first.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
            // a pre-release comes before its release
            (a, b) => a.cmp(&b),
        };
        self.numbers.cmp(&other.numbers).then(pre)
    }
}

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "quantity" => |_, args| match args {
            [Value::String(text)] => match Quantity::parse(text) {
                Some(quantity) => Ok(made(quantity)),
                None => Err(Error::new(SYNTAX)),
            },
            _ => Err(Error::no_such_overload()),
        },
        "isQuantity" => |_, args| match args {
            [Value::String(text)] => Ok(Value::Bool(Quantity::parse(text).is_some())),
            _ => Err(Error::no_such_overload()),
        },
        "sign" => |_, args| {
            let amount = quantity(args)?.amount();
            Ok(Value::Int(i64::try_from(amount.signum()).unwrap_or(0)))
        },
        "asApproximateFloat" => |_, args| Ok(Value::Double(quantity(args)?.amount() as f64 / 1e9)),
        "asInteger" => |_, args| {
            let of = quantity(args)?;
            match i64::try_from(of.amount() / 1_000_000_000).ok().filter(|_| of.is_whole()) {
                Some(n) => Ok(Value::Int(n)),
                None => Err(Error::new("cannot convert value to integer")),
            }
        },
        "isInteger" => |_, args| Ok(Value::Bool(quantity(args)?.is_whole())),
        "add" => |_, args| Ok(made(quantity(args)?.plus(other(args)?))),
        "sub" => |_, args| Ok(made(quantity(args)?.difference(other(args)?))),
        "isGreaterThan" => |_, args| Ok(Value::Bool(order(args)?.is_gt())),
        "isLessThan" => |_, args| Ok(Value::Bool(order(args)?.is_lt())),
        "compareTo" => |_, args| Ok(Value::Int(order(args)? as i64)),
        "semver" => |_, args| match semver_of(args)? {
            Ok(version) => Ok(Value::Opaque(Arc::new(Opaque::Semver(version)))),
            Err(why) => Err(Error::new(why)),
        },
        "isSemver" => |_, args| Ok(Value::Bool(semver_of(args)?.is_ok())),
        "major" => |_, args| number(args, 0),
        "minor" => |_, args| number(args, 1),
        "patch" => |_, args| number(args, 2),
        _ => return None,
    })
}

fn made<'v>(quantity: Quantity) -> Value<'v> {
    Value::Opaque(Arc::new(Opaque::Quantity(quantity)))
}

fn quantity(args: &[Value<'_>]) -> Result<Quantity, Error> {
    match args.first() {
        Some(Value::Opaque(opaque)) => match &**opaque {
            Opaque::Quantity(quantity) => Ok(*quantity),
            _ => Err(Error::no_such_overload()),
        },
        _ => Err(Error::no_such_overload()),
    }
}

/// The second argument.
fn other(args: &[Value<'_>]) -> Result<Quantity, Error> {
    match args {
        [_, Value::Int(n)] => Ok(Quantity::whole(*n)),
        [_, rest @ ..] => quantity(rest),
        [] => Err(Error::no_such_overload()),
    }
}

fn order(args: &[Value<'_>]) -> Result<Ordering, Error> {
    let [Value::Opaque(a), Value::Opaque(b)] = args else { return Err(Error::no_such_overload()) };
    match (&**a, &**b) {
        (Opaque::Quantity(a), Opaque::Quantity(b)) => Ok(a.amount().cmp(&b.amount())),
        (Opaque::Semver(a), Opaque::Semver(b)) => Ok(a.compare(b)),
        _ => Err(Error::no_such_overload()),
    }
}

fn semver_of(args: &[Value<'_>]) -> Result<Result<Semver, String>, Error> {
    match args {
        [Value::String(text)] => Ok(Semver::parse(text, false)),
        [Value::String(text), Value::Bool(normalize)] => Ok(Semver::parse(text, *normalize)),
        _ => Err(Error::no_such_overload()),
    }
}

fn number<'v>(args: &[Value<'v>], index: usize) -> Found<'v> {
    let [Value::Opaque(opaque)] = args else { return Err(Error::no_such_overload()) };
    match &**opaque {
        Opaque::Semver(version) => {
            let number = version.numbers.get(index).copied().unwrap_or(0);
            Ok(Value::Int(i64::try_from(number).unwrap_or(i64::MAX)))
        }
        _ => Err(Error::no_such_overload()),
    }
}
