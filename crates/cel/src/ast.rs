//! The tree that the parser makes. Macros are expanded in it: what is left of them are comprehensions.

use std::sync::Arc;

use crate::runtime::value::Const;

/// An expression: what it is, where it stands, and how deep it is.
#[derive(Debug, Clone)]
pub(crate) struct Expr {
    /// The index into tables of types and overloads.
    pub(crate) id: usize,
    /// The byte offset in the source at which errors are reported.
    pub(crate) at: usize,
    /// The length of the longest path to a leaf.
    pub(crate) depth: usize,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Literal(Const),
    Ident(Arc<str>),
    Select {
        operand: Box<Expr>,
        field: Arc<str>,
        /// Only whether the field is there.
        test: bool,
    },
    Call {
        target: Option<Box<Expr>>,
        name: Arc<str>,
        args: Vec<Expr>,
    },
    /// The second says whether the element is optional.
    List(Vec<(Expr, bool)>),
    /// Key, value and whether the entry is optional.
    Map(Vec<(Expr, Expr, bool)>),
    Struct {
        name: Arc<str>,
        fields: Vec<(Arc<str>, Expr, bool)>,
    },
    Comprehension(Box<Comprehension>),
}

/// `for variable in range: accumulator = step`, while `condition`; then `result`.
#[derive(Debug, Clone)]
pub(crate) struct Comprehension {
    pub(crate) range: Expr,
    pub(crate) variable: Arc<str>,
    pub(crate) second: Option<Arc<str>>,
    pub(crate) accumulator: Arc<str>,
    pub(crate) init: Expr,
    pub(crate) condition: Expr,
    pub(crate) step: Expr,
    pub(crate) result: Expr,
}

/// The name of the accumulator of macros, which no source can write.
pub(crate) const ACCUMULATOR: &str = "@result";

impl Comprehension {
    /// Whether it only gives a name to a value.
    pub(crate) fn is_bind(&self) -> bool {
        matches!(&self.range.kind, Kind::List(items) if items.is_empty())
            && matches!(self.condition.kind, Kind::Literal(Const::Bool(false)))
            && &*self.accumulator != ACCUMULATOR
    }
}

impl Expr {
    /// `a.b.c` as one text, if it is nothing else.
    pub(crate) fn qualified(&self) -> Option<String> {
        match &self.kind {
            Kind::Ident(name) => Some(name.to_string()),
            Kind::Select { operand, field, test: false } => {
                let mut name = operand.qualified()?;
                name.push('.');
                name.push_str(field);
                Some(name)
            }
            _ => None,
        }
    }

    /// Whether `variable.field`, or `variable.?field`, is in it.
    pub(crate) fn selects(&self, variable: &str, field: &str) -> bool {
        let is_variable =
            |expr: &Self| matches!(&expr.kind, Kind::Ident(name) if &**name == variable);
        let inside = |expr: &Self| expr.selects(variable, field);
        match &self.kind {
            Kind::Literal(_) | Kind::Ident(_) => false,
            Kind::Select { operand, field: own, .. } => {
                (is_variable(operand) && &**own == field) || inside(operand)
            }
            Kind::Call { target, args, .. } => {
                let is_optional = match (target, args.as_slice()) {
                    (None, [operand, own]) => is_variable(operand) && own.text() == Some(field),
                    _ => false,
                };
                is_optional
                    || target.as_ref().is_some_and(|target| inside(target))
                    || args.iter().any(inside)
            }
            Kind::List(items) => items.iter().any(|(item, _)| inside(item)),
            Kind::Map(entries) => {
                entries.iter().any(|(key, value, _)| inside(key) || inside(value))
            }
            Kind::Struct { fields, .. } => fields.iter().any(|(_, value, _)| inside(value)),
            Kind::Comprehension(own) => {
                let Comprehension { range, init, condition, step, result, .. } = &**own;
                [range, init, condition, step, result].into_iter().any(inside)
            }
        }
    }

    /// The text of a literal.
    pub(crate) fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Literal(Const::String(text)) => Some(text),
            _ => None,
        }
    }
}
