//! A checked tree as what is evaluated: names are places, functions are found, and literals are values.

use std::sync::Arc;

use regex::Regex;

use crate::Declarations;
use crate::ast::{ACCUMULATOR, Comprehension, Expr, Kind};
use crate::check::{Checked, type_named};
use crate::decl::types::Type;
use crate::runtime::functions::{self, Function, cost::CostRule, patterns};
use crate::runtime::value::Value;

#[derive(Debug)]
pub(crate) enum Node {
    Value(Value<'static>),
    /// A variable of the caller.
    Variable(usize),
    /// A variable of a comprehension.
    Local(usize),
    Select {
        operand: Box<Node>,
        field: Arc<str>,
        /// What it costs.
        cost: u64,
    },
    Test(Box<Node>, Arc<str>),
    OptionalSelect(Box<Node>, Arc<str>),
    Index {
        operand: Box<Node>,
        index: Box<Node>,
        optional: bool,
        cost: u64,
    },
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
    /// Whether it is anything but false.
    NotStrictlyFalse(Box<Node>),
    Call {
        function: Function,
        cost: CostRule,
        args: Vec<Node>,
    },
    /// A call with a pattern that is known.
    Pattern {
        function: patterns::Compiled,
        pattern: Arc<str>,
        regex: Regex,
        args: Vec<Node>,
    },
    List(Vec<(Node, bool)>),
    Map {
        entries: Vec<(Node, Node, bool)>,
        cost: u64,
    },
    /// `accumulator + [item]`, without a copy.
    Append(Box<Node>),
    Fold(Box<Fold>),
    Bind {
        slot: usize,
        init: Box<Node>,
        body: Box<Node>,
    },
}

#[derive(Debug)]
pub(crate) struct Fold {
    pub(crate) range: Node,
    /// The slot of the accumulator; those of the variables follow.
    pub(crate) slot: usize,
    pub(crate) two: bool,
    pub(crate) init: Node,
    pub(crate) condition: Node,
    pub(crate) step: Node,
    pub(crate) result: Node,
}

pub(crate) struct Plan {
    pub(crate) node: Node,
    pub(crate) slots: usize,
    /// Variables of the caller that it uses.
    pub(crate) uses: Vec<usize>,
}

pub(crate) fn plan(expr: &Expr, checked: &Checked, declarations: &Declarations) -> Plan {
    let mut planner =
        Planner { checked, declarations, locals: Vec::new(), slots: 0, uses: Vec::new() };
    let node = planner.node(expr);
    Plan { node, slots: planner.slots, uses: planner.uses }
}

struct Planner<'a> {
    checked: &'a Checked,
    declarations: &'a Declarations,
    /// Names of slots, by their index.
    locals: Vec<Arc<str>>,
    slots: usize,
    uses: Vec<usize>,
}

impl Planner<'_> {
    fn boxed(&mut self, expr: &Expr) -> Box<Node> {
        Box::new(self.node(expr))
    }

    fn node(&mut self, expr: &Expr) -> Node {
        match &expr.kind {
            Kind::Literal(value) => Node::Value(value.into()),
            Kind::Ident(name) => self.ident(name),
            Kind::Select { operand, field, test } => {
                let composed = matches!(&operand.kind, Kind::Ident(name)
                    if self.declarations.variable(&format!("{name}.{field}")).is_some());
                if composed && *test {
                    return Node::Value(Value::Bool(true));
                }
                let operand = self.boxed(operand);
                match test {
                    true => Node::Test(operand, field.clone()),
                    false => {
                        let cost = access_cost(&operand);
                        Node::Select { operand, field: field.clone(), cost }
                    }
                }
            }
            Kind::Call { target, name, args } => self.call(expr.id, target.as_deref(), name, args),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => {
                let entries = entries
                    .iter()
                    .map(|(key, value, optional)| (self.node(key), self.node(value), *optional))
                    .collect();
                Node::Map { entries, cost: 30 }
            }
            Kind::Struct { fields, .. } => {
                let entries = fields
                    .iter()
                    .map(|(name, value, optional)| {
                        (Node::Value(Value::text(name.clone())), self.node(value), *optional)
                    })
                    .collect();
                Node::Map { entries, cost: 40 }
            }
            Kind::Comprehension(fold) => self.fold(fold),
        }
    }

    fn ident(&mut self, name: &Arc<str>) -> Node {
        if let Some(slot) = self.locals.iter().rposition(|own| own == name) {
            return Node::Local(slot);
        }
        match self.declarations.variable(name) {
            Some((index, _)) => {
                if !self.uses.contains(&index) {
                    self.uses.push(index);
                }
                Node::Variable(index)
            }
            None => Node::Value(Value::Type(type_named(name).unwrap_or(Type::Dyn))),
        }
    }

    fn list(&mut self, items: &[(Expr, bool)]) -> Node {
        let nodes: Vec<_> =
            items.iter().map(|(item, optional)| (self.node(item), *optional)).collect();
        let values = nodes.iter().map(|(node, optional)| match node {
            Node::Value(value) if !optional => Some(value.clone()),
            _ => None,
        });
        match values.collect::<Option<Vec<_>>>() {
            // a list of literals is a literal; an empty one may be a start to append to
            Some(values) if !values.is_empty() => Node::Value(Value::list(values)),
            _ => Node::List(nodes),
        }
    }

    fn call(&mut self, id: usize, target: Option<&Expr>, name: &str, args: &[Expr]) -> Node {
        let all: Vec<&Expr> = target.into_iter().chain(args).collect();
        let overloads = self.checked.overloads.get(id).map_or(&[][..], |list| list);
        match (name, &all[..]) {
            ("_&&_", [a, b]) => return Node::And(Box::new([self.node(a), self.node(b)])),
            ("_||_", [a, b]) => return Node::Or(Box::new([self.node(a), self.node(b)])),
            ("_?_:_", [a, b, c]) => {
                return Node::Conditional(Box::new([self.node(a), self.node(b), self.node(c)]));
            }
            ("@not_strictly_false", [a]) => return Node::NotStrictlyFalse(self.boxed(a)),
            ("_?._", [operand, field]) => {
                let field = field.text().unwrap_or_default().into();
                return Node::OptionalSelect(self.boxed(operand), field);
            }
            ("_[_]" | "_[?_]", [operand, index]) => {
                let (operand, index) = (self.boxed(operand), self.boxed(index));
                let cost = access_cost(&operand);
                return Node::Index { operand, index, optional: name == "_[?_]", cost };
            }
            ("_+_", [accumulator, item]) => {
                let own = matches!(&accumulator.kind, Kind::Ident(name) if &**name == ACCUMULATOR);
                if let Kind::List(items) = &item.kind
                    && let ([(item, false)], true) = (&items[..], own)
                {
                    return Node::Append(self.boxed(item));
                }
            }
            _ => {}
        }
        let mut nodes: Vec<Node> = all.iter().map(|expr| self.node(expr)).collect();
        if let Some(function) = patterns::Compiled::named(name)
            && let Some(Node::Value(Value::String(pattern))) = nodes.get(1)
            && let Ok(regex) = patterns::compile(pattern)
        {
            let pattern = pattern.to_string().into();
            nodes.remove(1);
            return Node::Pattern { function, pattern, regex, args: nodes };
        }
        let cost = match (name, nodes.get(1)) {
            // upstream looks it up in a set
            ("@in", Some(Node::Value(Value::List(_)))) => CostRule::Zero,
            _ => CostRule::of(name, overloads),
        };
        Node::Call { function: functions::named(name), cost, args: nodes }
    }

    fn fold(&mut self, fold: &Comprehension) -> Node {
        let slot = self.locals.len();
        if fold.is_bind() {
            let init = self.boxed(&fold.init);
            self.push(&fold.accumulator);
            let body = self.boxed(&fold.result);
            self.locals.truncate(slot);
            return Node::Bind { slot, init, body };
        }
        let (range, init) = (self.node(&fold.range), self.node(&fold.init));
        self.push(&fold.accumulator);
        self.push(&fold.variable);
        if let Some(second) = &fold.second {
            self.push(second);
        }
        let (condition, step) = (self.node(&fold.condition), self.node(&fold.step));
        self.locals.truncate(slot + 1);
        let result = self.node(&fold.result);
        self.locals.truncate(slot);
        let two = fold.second.is_some();
        Node::Fold(Box::new(Fold { range, slot, two, init, condition, step, result }))
    }

    fn push(&mut self, name: &Arc<str>) {
        self.locals.push(name.clone());
        self.slots = self.slots.max(self.locals.len());
    }
}

/// A field of a name or of a field costs one, of another value one more.
fn access_cost(operand: &Node) -> u64 {
    match operand {
        Node::Variable(_) | Node::Local(_) | Node::Select { .. } | Node::Index { .. } => 1,
        _ => 2,
    }
}
