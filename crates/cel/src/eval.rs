//! Evaluation of a plan.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::Error;
use crate::plan::{Fold, Node};
use crate::runtime::meter::Meter;
use crate::runtime::value::{Key, List, Map, Value};

/// Values of the variables of [`crate::Declarations`], by their index.
pub trait Variables<'v> {
    /// The value, which is looked up when it is used.
    fn get(&self, index: usize) -> Result<Value<'v>, Error>;
}

impl<'v, const N: usize> Variables<'v> for [Value<'v>; N] {
    fn get(&self, index: usize) -> Result<Value<'v>, Error> {
        let value = self.as_slice().get(index).cloned();
        value.ok_or_else(|| Error::new("no such attribute(s)"))
    }
}

/// The result and what it cost.
pub(crate) fn run<'v>(
    node: &Node,
    slots: usize,
    variables: &dyn Variables<'v>,
) -> (Result<Value<'v>, Error>, u64) {
    let mut eval =
        Eval { variables, locals: vec![Ok(Value::Null); slots], meter: Meter::default() };
    let result = eval.value(node);
    (result, eval.meter.cost())
}

struct Eval<'a, 'v> {
    variables: &'a dyn Variables<'v>,
    /// What `all` and `exists` have so far may be an error, until a later item decides.
    locals: Vec<Found<'v>>,
    meter: Meter,
}

type Found<'v> = Result<Value<'v>, Error>;

impl<'v> Eval<'_, 'v> {
    // Each kind has a function of its own: this one's frame, of which there are many, stays small.
    fn value(&mut self, node: &Node) -> Found<'v> {
        match node {
            Node::Value(value) => Ok(value.clone()),
            Node::Variable(index) => {
                self.meter.charge(1)?;
                self.variables.get(*index)
            }
            Node::Local(slot) => self.local(*slot),
            Node::Select { operand, field, cost } => self.select(operand, field, *cost),
            Node::Test(operand, field) => self.test(operand, field),
            Node::OptionalSelect(operand, field) => self.optional_select(operand, field),
            Node::Index { operand, index, optional, cost } => {
                self.index(operand, index, *optional, *cost)
            }
            Node::And(terms) => self.logical(terms, false),
            Node::Or(terms) => self.logical(terms, true),
            Node::Conditional(parts) => self.conditional(parts),
            Node::NotStrictlyFalse(of) => self.not_strictly_false(of),
            Node::Call { .. } => self.call(node),
            Node::Pattern { .. } => self.pattern(node),
            Node::List(items) => self.list(items),
            Node::Map { entries, cost } => self.map(entries, *cost),
            Node::Append(_) => Err(Error::no_such_overload()),
            Node::Fold(fold) => self.fold(fold),
            Node::Bind { slot, init, body } => {
                let value = self.value(init)?;
                self.set(*slot, Ok(value));
                self.value(body)
            }
        }
    }

    fn local(&mut self, slot: usize) -> Found<'v> {
        self.meter.charge(1)?;
        self.locals.get(slot).cloned().unwrap_or_else(|| Err(Error::no_such_overload()))
    }

    fn set(&mut self, slot: usize, value: Found<'v>) {
        if let Some(place) = self.locals.get_mut(slot) {
            *place = value;
        }
    }

    fn select(&mut self, operand: &Node, field: &str, cost: u64) -> Found<'v> {
        let of = self.value(operand)?;
        self.meter.charge(cost)?;
        match of {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(of)) => optional(field_of(&of, field)),
            of => field_of(&of, field)?.ok_or_else(|| no_such_key(field)),
        }
    }

    fn test(&mut self, operand: &Node, field: &str) -> Found<'v> {
        match self.value(operand)? {
            Value::Optional(None) => Ok(Value::Bool(false)),
            Value::Optional(Some(of)) => Ok(Value::Bool(field_of(&of, field)?.is_some())),
            Value::Map(map) => match map {
                // without the value's type, which may be wrong
                Map::Json(map, _) => Ok(Value::Bool(map.contains_key(field))),
                Map::Object(map, object) => {
                    let own = object.field(field);
                    Ok(Value::Bool(own.is_some_and(|own| map.contains_key(&own.name))))
                }
                map => Ok(Value::Bool(map.field(field).is_some())),
            },
            _ => Err(Error::no_such_overload()),
        }
    }

    fn optional_select(&mut self, operand: &Node, field: &str) -> Found<'v> {
        let of = self.value(operand)?;
        self.meter.charge(1)?;
        match of {
            Value::Optional(None) => Ok(Value::Optional(None)),
            Value::Optional(Some(of)) => optional(field_of(&of, field)),
            of => optional(field_of(&of, field)),
        }
    }

    fn index(&mut self, operand: &Node, index: &Node, opt: bool, cost: u64) -> Found<'v> {
        let of = self.value(operand)?;
        let index = self.value(index)?;
        self.meter.charge(cost)?;
        let (of, opt) = match of {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(of)) => ((*of).clone(), true),
            of => (of, opt),
        };
        let found = match (&of, &index) {
            (Value::List(list), index) => match number(index) {
                Some(index) => usize::try_from(index).ok().and_then(|index| list.get(index)),
                None => return Err(Error::no_such_overload()),
            },
            (Value::Map(map), key) => map.get(key),
            _ => return Err(Error::no_such_overload()),
        };
        match (found.transpose()?, opt) {
            (found, true) => optional(Ok(found)),
            (Some(found), false) => Ok(found),
            (None, false) => Err(match (&of, &index) {
                (Value::List(_), index) => {
                    Error::new(format!("index out of bounds: {}", number(index).unwrap_or(0)))
                }
                (_, key) => no_such_key(&crate::runtime::functions::shown(key)),
            }),
        }
    }

    /// `&&` (decided by false) and `||` (by true), whichever operand fails.
    fn logical(&mut self, terms: &[Node; 2], decisive: bool) -> Found<'v> {
        let mut failed = None;
        for term in terms {
            match self.value(term) {
                Ok(Value::Bool(b)) if b == decisive => return Ok(Value::Bool(b)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => failed = failed.or(Some(Error::no_such_overload())),
                Err(error @ Error::Evaluation(_)) => failed = failed.or(Some(error)),
                Err(error) => return Err(error),
            }
        }
        failed.map_or(Ok(Value::Bool(!decisive)), Err)
    }

    fn conditional(&mut self, parts: &[Node; 3]) -> Found<'v> {
        match self.value(&parts[0])? {
            Value::Bool(true) => self.value(&parts[1]),
            Value::Bool(false) => self.value(&parts[2]),
            _ => Err(Error::no_such_overload()),
        }
    }

    fn not_strictly_false(&mut self, of: &Node) -> Found<'v> {
        let holds = match self.value(of) {
            Ok(Value::Bool(b)) => b,
            Ok(_) | Err(Error::Evaluation(_)) => true,
            Err(error) => return Err(error),
        };
        self.meter.charge(1)?;
        Ok(Value::Bool(holds))
    }

    fn values(&mut self, nodes: &[Node]) -> Result<Vec<Value<'v>>, Error> {
        nodes.iter().map(|node| self.value(node)).collect()
    }

    fn call(&mut self, node: &Node) -> Found<'v> {
        let Node::Call { function, cost, args } = node else {
            return Err(Error::no_such_overload());
        };
        // two operands are the most common, and need no allocation
        if let [a, b] = &args[..] {
            let args = [self.value(a)?, self.value(b)?];
            return self.apply(*function, cost, &args);
        }
        let args = self.values(args)?;
        self.apply(*function, cost, &args)
    }

    fn apply(
        &mut self,
        function: crate::runtime::functions::Function,
        cost: &crate::runtime::functions::cost::CostRule,
        args: &[Value<'v>],
    ) -> Found<'v> {
        let before = cost.before(&mut self.meter, args)?;
        self.meter.charge(before)?;
        let result = function(&mut self.meter, args)?;
        self.meter.charge(cost.after(&result))?;
        Ok(result)
    }

    fn pattern(&mut self, node: &Node) -> Found<'v> {
        let Node::Pattern { function, pattern, regex, args } = node else {
            return Err(Error::no_such_overload());
        };
        let args = self.values(args)?;
        let size = args.first().map_or(0, Value::size);
        self.meter
            .charge(crate::runtime::functions::cost::matching(size, pattern.chars().count()))?;
        function.apply(&mut self.meter, regex, &args)
    }

    fn list(&mut self, nodes: &[(Node, bool)]) -> Found<'v> {
        let mut items = Vec::with_capacity(nodes.len());
        for (node, optional) in nodes {
            match (self.value(node)?, optional) {
                (value, false) => items.push(value),
                (Value::Optional(of), true) => items.extend(of.map(|of| (*of).clone())),
                _ => return Err(Error::no_such_overload()),
            }
        }
        // an empty one is a literal
        self.meter.charge(if nodes.is_empty() { 0 } else { 10 })?;
        self.meter.work(items.len())?;
        Ok(Value::list(items))
    }

    fn map(&mut self, nodes: &[(Node, Node, bool)], cost: u64) -> Found<'v> {
        let mut entries = BTreeMap::new();
        for (key, value, optional) in nodes {
            let key = self.value(key)?;
            let value = match (self.value(value)?, optional) {
                (value, false) => value,
                (Value::Optional(None), true) => continue,
                (Value::Optional(Some(of)), true) => (*of).clone(),
                _ => return Err(Error::no_such_overload()),
            };
            let Some(own) = Key::new(&key) else {
                return Err(Error::new(format!("unsupported key type: {}", key.type_of())));
            };
            if entries.insert(own, value).is_some() {
                let shown = crate::runtime::functions::shown(&key);
                return Err(Error::new(format!("Failed with repeated key {shown}")));
            }
        }
        self.meter.charge(if nodes.is_empty() { 0 } else { cost })?;
        self.meter.work(entries.len())?;
        Ok(Value::Map(Map::Owned(Arc::new(entries))))
    }

    fn fold(&mut self, fold: &Fold) -> Found<'v> {
        let range = self.value(&fold.range)?;
        let init = self.value(&fold.init)?;
        self.set(fold.slot, Ok(init));
        match range {
            Value::List(list) => {
                for (index, item) in list.iter().enumerate() {
                    let item = item?;
                    let pair = match fold.two {
                        true => (int(index), Some(item)),
                        false => (item, None),
                    };
                    if !self.step(fold, pair)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                let keys = map.keys();
                self.meter.work(keys.len())?;
                for key in keys {
                    let value = match fold.two {
                        true => map.get(&key).transpose()?,
                        false => None,
                    };
                    if !self.step(fold, (key, value))? {
                        break;
                    }
                }
            }
            _ => return Err(Error::no_such_overload()),
        }
        let result = self.value(&fold.result);
        // what the accumulator holds is no longer needed
        self.set(fold.slot, Ok(Value::Null));
        result
    }

    /// One round; whether there is a next one.
    fn step(&mut self, fold: &Fold, pair: (Value<'v>, Option<Value<'v>>)) -> Result<bool, Error> {
        self.meter.work(1)?;
        self.set(fold.slot + 1, Ok(pair.0));
        if let Some(second) = pair.1 {
            self.set(fold.slot + 2, Ok(second));
        }
        if !matches!(self.value(&fold.condition)?, Value::Bool(true)) {
            return Ok(false);
        }
        self.accumulate(fold.slot, &fold.step)?;
        Ok(true)
    }

    fn accumulate(&mut self, slot: usize, step: &Node) -> Result<(), Error> {
        match step {
            Node::Append(item) => {
                let item = self.value(item)?;
                self.meter.charge(12)?;
                self.meter.work(1)?;
                match self.locals.get_mut(slot) {
                    Some(Ok(Value::List(List::Owned(items)))) => Arc::make_mut(items).push(item),
                    _ => return Err(Error::no_such_overload()),
                }
                Ok(())
            }
            Node::Conditional(parts) if matches!(parts[1], Node::Append(_)) => {
                match self.value(&parts[0])? {
                    Value::Bool(true) => self.accumulate(slot, &parts[1]),
                    Value::Bool(false) => self.meter.charge(1),
                    _ => Err(Error::no_such_overload()),
                }
            }
            step => {
                let value = self.value(step);
                if let Err(error @ (Error::CostLimit | Error::OutOfBudget)) = value {
                    return Err(error);
                }
                self.set(slot, value);
                Ok(())
            }
        }
    }
}

fn no_such_key(key: &str) -> Error {
    Error::new(format!("no such key: {key}"))
}

fn optional<'v>(found: Result<Option<Value<'v>>, Error>) -> Found<'v> {
    Ok(Value::Optional(found?.map(Arc::new)))
}

fn field_of<'v>(of: &Value<'v>, field: &str) -> Result<Option<Value<'v>>, Error> {
    match of {
        Value::Map(map) => map.field(field).transpose(),
        _ => Err(Error::no_such_overload()),
    }
}

/// An index of a list: a whole number of any type.
fn number(value: &Value<'_>) -> Option<i64> {
    match value {
        Value::Int(n) => Some(*n),
        Value::Uint(n) => i64::try_from(*n).ok(),
        Value::Double(n) if n.fract() == 0.0 && n.abs() < 9e15 => Some(*n as i64),
        _ => None,
    }
}

fn int<'v>(n: usize) -> Value<'v> {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}
