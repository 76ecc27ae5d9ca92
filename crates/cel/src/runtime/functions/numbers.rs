//! Arithmetic, comparisons and conversions of numbers. Overflow is an error.

use std::cmp::Ordering;

use super::{Found, Function, conversion, times};
use crate::Error;
use crate::runtime::meter::Meter;
use crate::runtime::value::{List, Value};

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "_+_" => add,
        "_-_" => subtract,
        "_*_" => multiply,
        "_/_" => divide,
        "_%_" => modulo,
        "-_" => |_, args| match args {
            [Value::Int(n)] => n.checked_neg().map(Value::Int).ok_or_else(overflow),
            [Value::Double(n)] => Ok(Value::Double(-n)),
            _ => Err(Error::no_such_overload()),
        },
        "_<_" => |_, args| compared(args, Ordering::is_lt),
        "_<=_" => |_, args| compared(args, Ordering::is_le),
        "_>_" => |_, args| compared(args, Ordering::is_gt),
        "_>=_" => |_, args| compared(args, Ordering::is_ge),
        "int" => int,
        "uint" => uint,
        "double" => |_, args| match args {
            [Value::Double(n)] => Ok(Value::Double(*n)),
            [Value::Int(n)] => Ok(Value::Double(*n as f64)),
            [Value::Uint(n)] => Ok(Value::Double(*n as f64)),
            [Value::String(text)] => {
                text.parse().map(Value::Double).map_err(|_| conversion("string", "double"))
            }
            _ => Err(Error::no_such_overload()),
        },
        _ => return None,
    })
}

fn overflow() -> Error {
    Error::new("integer overflow")
}

fn unsigned_overflow() -> Error {
    Error::new("unsigned integer overflow")
}

/// The order of two numbers, whatever their types are; `None` when one is none.
pub(crate) fn order(a: &Value<'_>, b: &Value<'_>) -> Option<Ordering> {
    let double = |whole: i128, double: f64| {
        // beyond these a double is no neighbour of a whole number of 64 bits
        if double >= 1.9e19 {
            return Some(Ordering::Less);
        }
        if double <= -1.9e19 {
            return Some(Ordering::Greater);
        }
        if double.is_nan() {
            return None;
        }
        let floor = double.floor();
        let order = whole.cmp(&(floor as i128));
        Some(if order.is_eq() && floor < double { Ordering::Less } else { order })
    };
    match (a, b) {
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (a, Value::Double(b)) => double(whole(a)?, *b),
        (Value::Double(a), b) => double(whole(b)?, *a).map(Ordering::reverse),
        (a, b) => Some(whole(a)?.cmp(&whole(b)?)),
    }
}

fn whole(value: &Value<'_>) -> Option<i128> {
    match value {
        Value::Int(n) => Some((*n).into()),
        Value::Uint(n) => Some((*n).into()),
        _ => None,
    }
}

/// The order of two values of one kind.
pub(super) fn compare(a: &Value<'_>, b: &Value<'_>) -> Result<Ordering, Error> {
    let order = match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::String(a), Value::String(b)) => (**a).cmp(&**b),
        (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
        (Value::Duration(a), Value::Duration(b)) => a.cmp(b),
        (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
        (Value::Double(n), other) | (other, Value::Double(n))
            if n.is_nan() && order(other, &Value::Int(0)).is_some() =>
        {
            return Err(Error::new("NaN values cannot be ordered"));
        }
        (a, b) => order(a, b).ok_or_else(Error::no_such_overload)?,
    };
    Ok(order)
}

fn compared<'v>(args: &[Value<'v>], holds: fn(Ordering) -> bool) -> Found<'v> {
    match args {
        [a, b] => Ok(Value::Bool(holds(compare(a, b)?))),
        _ => Err(Error::no_such_overload()),
    }
}

pub(super) fn add<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    Ok(match args {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_add(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => {
            Value::Uint(a.checked_add(*b).ok_or_else(unsigned_overflow)?)
        }
        [Value::Double(a), Value::Double(b)] => Value::Double(a + b),
        [Value::String(a), Value::String(b)] => {
            meter.bytes(a.len() + b.len())?;
            Value::text([&**a, &**b].concat())
        }
        [Value::Bytes(a), Value::Bytes(b)] => {
            meter.bytes(a.len() + b.len())?;
            Value::Bytes([&**a, &**b].concat().into())
        }
        [Value::List(a), Value::List(b)] => return added_lists(meter, a, b),
        [Value::Duration(a), Value::Duration(b)] => {
            Value::Duration(a.checked_add(*b).ok_or_else(|| Error::new("duration overflow"))?)
        }
        [Value::Timestamp(at), Value::Duration(by)]
        | [Value::Duration(by), Value::Timestamp(at)] => times::moved(*at, *by)?,
        _ => return Err(Error::no_such_overload()),
    })
}

/// One after the other; lists of sets and maps are merged.
fn added_lists<'v>(meter: &mut Meter, a: &List<'v>, b: &List<'v>) -> Found<'v> {
    meter.work(a.len() + b.len())?;
    let mut items = a.iter().collect::<Result<Vec<_>, _>>()?;
    match super::lists::identity(a) {
        None => {
            for item in b.iter() {
                items.push(item?);
            }
        }
        Some(keys) => {
            for item in b.iter() {
                let item = item?;
                let mut place = None;
                for (index, own) in items.iter().enumerate() {
                    let same = match keys {
                        [] => meter.equal(own, &item)?,
                        keys => super::lists::same_keys(meter, keys, own, &item)?,
                    };
                    if same {
                        place = Some(index);
                        break;
                    }
                }
                match place.and_then(|index| items.get_mut(index)) {
                    Some(own) => *own = item,
                    None => items.push(item),
                }
            }
        }
    }
    Ok(Value::list(items))
}

fn subtract<'v>(_: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    Ok(match args {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_sub(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => {
            Value::Uint(a.checked_sub(*b).ok_or_else(unsigned_overflow)?)
        }
        [Value::Double(a), Value::Double(b)] => Value::Double(a - b),
        [Value::Duration(a), Value::Duration(b)] => {
            Value::Duration(a.checked_sub(*b).ok_or_else(|| Error::new("duration overflow"))?)
        }
        [Value::Timestamp(at), Value::Duration(by)] => {
            let by = by.checked_neg().ok_or_else(|| Error::new("duration overflow"))?;
            times::moved(*at, by)?
        }
        [Value::Timestamp(a), Value::Timestamp(b)] => {
            let nanos = a.as_nanosecond() - b.as_nanosecond();
            let nanos = i64::try_from(nanos).map_err(|_| Error::new("timestamp overflow"))?;
            Value::Duration(nanos)
        }
        _ => return Err(Error::no_such_overload()),
    })
}

fn multiply<'v>(_: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    Ok(match args {
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_mul(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => {
            Value::Uint(a.checked_mul(*b).ok_or_else(unsigned_overflow)?)
        }
        [Value::Double(a), Value::Double(b)] => Value::Double(a * b),
        _ => return Err(Error::no_such_overload()),
    })
}

fn divide<'v>(_: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    Ok(match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            return Err(Error::new("division by zero"));
        }
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_div(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => {
            Value::Uint(a.checked_div(*b).ok_or_else(unsigned_overflow)?)
        }
        [Value::Double(a), Value::Double(b)] => Value::Double(a / b),
        _ => return Err(Error::no_such_overload()),
    })
}

fn modulo<'v>(_: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    Ok(match args {
        [Value::Int(_), Value::Int(0)] | [Value::Uint(_), Value::Uint(0)] => {
            return Err(Error::new("modulus by zero"));
        }
        [Value::Int(a), Value::Int(b)] => Value::Int(a.checked_rem(*b).ok_or_else(overflow)?),
        [Value::Uint(a), Value::Uint(b)] => {
            Value::Uint(a.checked_rem(*b).ok_or_else(unsigned_overflow)?)
        }
        _ => return Err(Error::no_such_overload()),
    })
}

fn int<'v>(_: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let n = match args {
        [Value::Int(n)] => Some(*n),
        [Value::Uint(n)] => i64::try_from(*n).ok(),
        // 2^63 itself is out of range
        [Value::Double(n)] => (n.abs() < 9_223_372_036_854_775_807.0).then_some(*n as i64),
        [Value::Duration(nanos)] => Some(*nanos),
        [Value::Timestamp(at)] => Some(at.as_second()),
        [Value::String(text)] => {
            return text.parse().map(Value::Int).map_err(|_| conversion("string", "int"));
        }
        _ => return Err(Error::no_such_overload()),
    };
    n.map(Value::Int).ok_or_else(overflow)
}

fn uint<'v>(_: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let n = match args {
        [Value::Uint(n)] => Some(*n),
        [Value::Int(n)] => u64::try_from(*n).ok(),
        [Value::Double(n)] => (*n >= 0.0 && *n < 18_446_744_073_709_551_615.0).then_some(*n as u64),
        [Value::String(text)] => {
            return text.parse().map(Value::Uint).map_err(|_| conversion("string", "uint"));
        }
        _ => return Err(Error::no_such_overload()),
    };
    n.map(Value::Uint).ok_or_else(unsigned_overflow)
}

/// As Go's shortest form writes it.
pub(super) fn text(n: f64) -> String {
    if n.is_nan() {
        return "NaN".to_owned();
    }
    if n.is_infinite() {
        return if n > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let magnitude = n.abs();
    if magnitude != 0.0 && !(1e-4..1e21).contains(&magnitude) {
        let text = format!("{n:e}");
        let Some((mantissa, exponent)) = text.split_once('e') else { return text };
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    n.to_string()
}
