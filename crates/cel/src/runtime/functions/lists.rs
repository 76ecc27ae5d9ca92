//! Functions of lists and of sets.

use std::cmp::Ordering;

use super::{Found, Function, numbers, strings};
use crate::Error;
use crate::decl::ListKind;
use crate::runtime::meter::Meter;
use crate::runtime::value::{List, Value};

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "isSorted" => |_, args| {
            let list = items(args)?;
            for (a, b) in list.iter().zip(list.iter().skip(1)) {
                if numbers::compare(a, b)?.is_gt() {
                    return Ok(Value::Bool(false));
                }
            }
            Ok(Value::Bool(true))
        },
        "sum" => |meter, args| {
            let mut sum = None;
            for item in items(args)? {
                sum = Some(match sum {
                    None => item,
                    Some(sum) => numbers::add(meter, &[sum, item])?,
                });
            }
            Ok(sum.unwrap_or(Value::Int(0)))
        },
        "min" => |_, args| extreme(args, "min", Ordering::Less),
        "max" => |_, args| extreme(args, "max", Ordering::Greater),
        "indexOf" => |meter, args| match args {
            [Value::List(_), value] => index_of(meter, items(args)?.iter().enumerate(), value),
            args => strings::position(args, false),
        },
        "lastIndexOf" => |meter, args| match args {
            [Value::List(_), value] => {
                index_of(meter, items(args)?.iter().enumerate().rev(), value)
            }
            args => strings::position(args, true),
        },
        "slice" => slice,
        "flatten" => |meter, args| {
            let depth = match args {
                [_] => 1,
                [_, Value::Int(depth)] => *depth,
                _ => return Err(Error::no_such_overload()),
            };
            if depth < 0 {
                return Err(Error::new("level must be non-negative"));
            }
            let mut flat = Vec::new();
            flatten(meter, items(args)?, depth, &mut flat)?;
            Ok(Value::list(flat))
        },
        "sort" => |meter, args| {
            let list = items(args)?;
            sorted(meter, list.clone(), list)
        },
        "@sortByAssociatedKeys" => |meter, args| match args {
            [Value::List(list), Value::List(keys)] => {
                let (list, keys) = (all(list)?, all(keys)?);
                sorted(meter, list, keys)
            }
            _ => Err(Error::no_such_overload()),
        },
        "lists.range" => |meter, args| match args {
            [Value::Int(end)] => {
                meter.work(usize::try_from(*end).unwrap_or(0))?;
                Ok(Value::list((0..*end).map(Value::Int).collect()))
            }
            _ => Err(Error::no_such_overload()),
        },
        "reverse" => |meter, args| {
            let mut list = items(args)?;
            meter.work(list.len())?;
            list.reverse();
            Ok(Value::list(list))
        },
        "distinct" => |meter, args| {
            let mut found: Vec<Value<'_>> = Vec::new();
            for item in items(args)? {
                if !among(meter, &found, &item)? {
                    found.push(item);
                }
            }
            Ok(Value::list(found))
        },
        "sets.contains" => |meter, args| match args {
            [Value::List(a), Value::List(b)] => Ok(Value::Bool(holds_all(meter, a, b)?)),
            _ => Err(Error::no_such_overload()),
        },
        "sets.equivalent" => |meter, args| match args {
            [Value::List(a), Value::List(b)] => {
                Ok(Value::Bool(holds_all(meter, a, b)? && holds_all(meter, b, a)?))
            }
            _ => Err(Error::no_such_overload()),
        },
        "sets.intersects" => |meter, args| match args {
            [Value::List(a), Value::List(b)] => {
                for item in b.iter() {
                    if meter.contains(a, &item?)? {
                        return Ok(Value::Bool(true));
                    }
                }
                Ok(Value::Bool(false))
            }
            _ => Err(Error::no_such_overload()),
        },
        _ => return None,
    })
}

/// By what the items of a list are distinguished: by themselves (no keys), or by fields; `None`: by their
/// place.
pub(crate) fn identity<'v>(list: &List<'v>) -> Option<&'v [String]> {
    match list {
        List::Json(_, _, ListKind::Set) => Some(&[]),
        List::Json(_, _, ListKind::Map(keys)) => Some(keys),
        _ => None,
    }
}

/// Whether objects have the same keys.
pub(crate) fn same_keys(
    meter: &mut Meter,
    keys: &[String],
    a: &Value<'_>,
    b: &Value<'_>,
) -> Result<bool, Error> {
    let (Value::Map(a), Value::Map(b)) = (a, b) else { return Ok(false) };
    for key in keys {
        let escaped = crate::decl::escape(key);
        let key = escaped.as_deref().unwrap_or(key);
        let same = match (a.field(key).transpose()?, b.field(key).transpose()?) {
            (Some(a), Some(b)) => meter.equal(&a, &b)?,
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(true)
}

fn all<'v>(list: &List<'v>) -> Result<Vec<Value<'v>>, Error> {
    list.iter().collect()
}

fn items<'v>(args: &[Value<'v>]) -> Result<Vec<Value<'v>>, Error> {
    match args.first() {
        Some(Value::List(list)) => all(list),
        _ => Err(Error::no_such_overload()),
    }
}

/// The values of a list of optional values that are there.
pub(super) fn unwrap<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let mut found = Vec::new();
    for item in items(args)? {
        meter.work(1)?;
        match item {
            Value::Optional(Some(of)) => found.push((*of).clone()),
            Value::Optional(None) => {}
            _ => return Err(Error::no_such_overload()),
        }
    }
    Ok(Value::list(found))
}

fn extreme<'v>(args: &[Value<'v>], name: &str, wanted: Ordering) -> Found<'v> {
    let mut found: Option<Value<'v>> = None;
    for item in items(args)? {
        let better = match &found {
            None => true,
            Some(found) => numbers::compare(&item, found)? == wanted,
        };
        if better {
            found = Some(item);
        }
    }
    found.ok_or_else(|| Error::new(format!("{name} called on empty list")))
}

fn index_of<'a, 'v: 'a>(
    meter: &mut Meter,
    items: impl Iterator<Item = (usize, &'a Value<'v>)>,
    value: &Value<'v>,
) -> Found<'v> {
    for (index, item) in items {
        if meter.equal(item, value)? {
            return Ok(Value::Int(i64::try_from(index).unwrap_or(i64::MAX)));
        }
    }
    Ok(Value::Int(-1))
}

fn slice<'v>(meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let [Value::List(list), Value::Int(start), Value::Int(end)] = args else {
        return Err(Error::no_such_overload());
    };
    let failed = |why: String| Err(Error::new(format!("cannot slice({start}, {end}), {why}")));
    let (Ok(first), Ok(last)) = (usize::try_from(*start), usize::try_from(*end)) else {
        return failed("negative indexes not supported".to_owned());
    };
    if first > last {
        return failed("start index must be less than or equal to end index".to_owned());
    }
    if last > list.len() {
        return failed(format!("list is length {}", list.len()));
    }
    meter.work(last - first)?;
    let part = (first..last).filter_map(|index| list.get(index));
    Ok(Value::list(part.collect::<Result<_, _>>()?))
}

fn flatten<'v>(
    meter: &mut Meter,
    list: Vec<Value<'v>>,
    depth: i64,
    to: &mut Vec<Value<'v>>,
) -> Result<(), Error> {
    for item in list {
        meter.work(1)?;
        match item {
            Value::List(inner) if depth > 0 => {
                flatten(meter, all(&inner)?, depth.saturating_sub(1), to)?;
            }
            item => to.push(item),
        }
    }
    Ok(())
}

fn sorted<'v>(meter: &mut Meter, list: Vec<Value<'v>>, keys: Vec<Value<'v>>) -> Found<'v> {
    if list.len() != keys.len() {
        return Err(Error::new(format!(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, but got {} and {} elements respectively",
            list.len(),
            keys.len()
        )));
    }
    meter.work(list.len().saturating_mul(16))?;
    // all of one type, so that the comparison is an order
    for pair in keys.windows(2) {
        if let [a, b] = pair {
            if a.type_of().name() != b.type_of().name() {
                return Err(Error::new("list elements must have the same type"));
            }
            numbers::compare(a, b).map_err(|_| Error::new("list elements must be comparable"))?;
        }
    }
    let mut pairs: Vec<_> = keys.into_iter().zip(list).collect();
    pairs.sort_by(|(a, _), (b, _)| numbers::compare(a, b).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|(_, item)| item).collect()))
}

fn among<'v>(meter: &mut Meter, found: &[Value<'v>], item: &Value<'v>) -> Result<bool, Error> {
    for own in found {
        if meter.equal(own, item)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn holds_all(meter: &mut Meter, of: &List<'_>, wanted: &List<'_>) -> Result<bool, Error> {
    for item in wanted.iter() {
        if !meter.contains(of, &item?)? {
            return Ok(false);
        }
    }
    Ok(true)
}
