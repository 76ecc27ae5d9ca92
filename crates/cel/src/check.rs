//! Types of a tree: each expression gets one, and each call the overloads that it may be.

use std::sync::Arc;

use crate::Declarations;
use crate::ast::{Comprehension, Expr, Kind};
use crate::decl::Decl;
use crate::decl::types::Type;
use crate::issue::Issue;
use crate::overloads::{self, Overload};
use crate::runtime::functions;
use crate::runtime::value::Const;

/// What the checker found out, by ids of expressions.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    pub(crate) types: Vec<Type>,
    pub(crate) overloads: Vec<Vec<&'static str>>,
}

/// Checks the tree, and replaces qualified names by what they refer to.
pub(crate) fn check(
    expr: &mut Expr,
    ids: usize,
    declarations: &Declarations,
) -> Result<Checked, Vec<Issue>> {
    let found = Checked { types: vec![Type::Error; ids], overloads: vec![Vec::new(); ids] };
    let mut checker = Checker {
        declarations,
        locals: Vec::new(),
        variables: Vec::new(),
        undo: Vec::new(),
        found,
        issues: Vec::new(),
    };
    checker.check(expr);
    if !checker.issues.is_empty() {
        return Err(checker.issues);
    }
    let types = std::mem::take(&mut checker.found.types);
    checker.found.types = types.iter().map(|t| checker.substitute(t, true)).collect();
    Ok(checker.found)
}

/// The type that a name stands for.
pub(crate) fn type_named(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "google.protobuf.Duration" => Type::Duration,
        "google.protobuf.Timestamp" => Type::Timestamp,
        "dyn" => Type::Dyn,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "optional_type" => Type::optional(Type::Dyn),
        "string" => Type::String,
        "type" => Type::Type(None),
        "uint" => Type::Uint,
        _ => Type::Named(functions::opaque::TYPE_NAMES.iter().find(|own| **own == name)?),
    })
}

struct Checker<'a> {
    declarations: &'a Declarations,
    locals: Vec<(Arc<str>, Type)>,
    /// What type variables stand for.
    variables: Vec<Option<Type>>,
    /// What they stood for before, for an overload that does not match.
    undo: Vec<(usize, Option<Type>)>,
    found: Checked,
    issues: Vec<Issue>,
}

impl Checker<'_> {
    fn issue(&mut self, at: usize, message: impl Into<String>) {
        // a broken expression needs no more than this many
        if self.issues.len() < 100 {
            self.issues.push(Issue::new(Some(at), message));
        }
    }

    fn undeclared(&mut self, at: usize, name: &str) -> Type {
        self.issue(at, format!("undeclared reference to '{name}' (in container '')"));
        Type::Error
    }

    fn mismatch(&mut self, at: usize, expected: &Type, found: &Type) {
        self.issue(at, format!("expected type '{expected}' but found '{found}'"));
    }

    fn get(&self, expr: &Expr) -> Type {
        self.found.types.get(expr.id).cloned().unwrap_or(Type::Error)
    }

    fn check(&mut self, expr: &mut Expr) {
        let found = match &mut expr.kind {
            Kind::Literal(value) => match value {
                Const::Null => Type::Null,
                Const::Bool(_) => Type::Bool,
                Const::Int(_) => Type::Int,
                Const::Uint(_) => Type::Uint,
                Const::Double(_) => Type::Double,
                Const::String(_) => Type::String,
                Const::Bytes(_) => Type::Bytes,
            },
            Kind::Ident(name) => {
                let found = self.ident(name);
                found.unwrap_or_else(|| self.undeclared(expr.at, &name.clone()))
            }
            Kind::Select { .. } => self.select(expr),
            Kind::Call { .. } => self.call(expr),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
            Kind::Struct { name, fields } => self.structure(expr.at, name, fields),
            Kind::Comprehension(fold) => self.fold(fold),
        };
        if let Some(slot) = self.found.types.get_mut(expr.id) {
            *slot = found;
        }
    }

    fn ident(&self, name: &str) -> Option<Type> {
        let local = self.locals.iter().rev().find(|(own, _)| &**own == name);
        if let Some((_, found)) = local {
            return Some(found.clone());
        }
        match self.declarations.variable(name) {
            Some((_, found)) => Some(found.clone()),
            None => type_named(name).map(|of| Type::Type(Some(of.into()))),
        }
    }

    fn select(&mut self, expr: &mut Expr) -> Type {
        if let Some(name) = expr.qualified()
            && let Some(found) = self.ident(&name)
        {
            expr.kind = Kind::Ident(name.into());
            return found;
        }
        let Kind::Select { operand, field, test } = &mut expr.kind else { return Type::Error };
        let (field, test) = (field.clone(), *test);
        let found = self.field(expr.at, operand, &field, false);
        if test { Type::Bool } else { self.substitute(&found, false) }
    }

    fn field(&mut self, at: usize, operand: &mut Expr, field: &str, optional: bool) -> Type {
        self.check(operand);
        let of = self.substitute(&self.get(operand), false);
        let (target, is_optional) = match of {
            Type::Optional(of) => ((*of).clone(), true),
            of => (of, false),
        };
        let found = match &target {
            Type::Map(parts) => parts.1.clone(),
            Type::Object(decl) => match decl.field(field) {
                Some(field) => field.decl.cel_type(),
                None => match self.declarations.own_type(decl, field) {
                    Some(own) => own,
                    None => {
                        self.issue(at, format!("undefined field '{field}'"));
                        Type::Error
                    }
                },
            },
            Type::Var(_) => {
                self.assignable(&Type::Dyn, &target);
                Type::Dyn
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.issue(at, format!("type '{other}' does not support field selection"));
                }
                Type::Dyn
            }
        };
        if is_optional || optional { Type::optional(found) } else { found }
    }

    fn call(&mut self, expr: &mut Expr) -> Type {
        let (at, id) = (expr.at, expr.id);
        let Kind::Call { target, name, args } = &mut expr.kind else { return Type::Error };
        if &**name == "_?._" {
            let [operand, field] = &mut args[..] else { return Type::Error };
            let field = field.text().unwrap_or_default().to_owned();
            let found = self.field(at, operand, &field, true);
            self.note(id, "select_optional_field");
            return self.substitute(&found, false);
        }
        for arg in args.iter_mut() {
            self.check(arg);
        }
        let qualified = target.as_ref().and_then(|target| target.qualified());
        if let Some(prefix) = qualified {
            let full = format!("{prefix}.{name}");
            if let Some((own, list)) = overloads::of(&full) {
                (*target, *name) = (None, own.into());
                return self.resolve(at, id, own, list, None, args);
            }
        }
        if let Some(target) = target {
            self.check(target);
        }
        match overloads::of(name) {
            Some((own, list)) => self.resolve(at, id, own, list, target.as_deref(), args),
            None => self.undeclared(at, &name.clone()),
        }
    }

    fn note(&mut self, id: usize, overload: &'static str) {
        if let Some(list) = self.found.overloads.get_mut(id) {
            list.push(overload);
        }
    }

    fn resolve(
        &mut self,
        at: usize,
        id: usize,
        name: &str,
        list: &'static [Overload],
        target: Option<&Expr>,
        args: &[Expr],
    ) -> Type {
        let given: Vec<Type> = target.into_iter().chain(args).map(|e| self.get(e)).collect();
        if matches!(name, "_&&_" | "_||_") {
            let before = self.issues.len();
            for (arg, given) in args.iter().zip(&given) {
                if !self.assignable(given, &Type::Bool) {
                    let given = self.substitute(given, true);
                    self.mismatch(arg.at, &Type::Bool, &given);
                }
            }
            self.note(id, list.first().map_or("", |overload| overload.id));
            return if self.issues.len() > before { Type::Error } else { Type::Bool };
        }
        let mut result: Option<Type> = None;
        for overload in list.iter().filter(|overload| overload.member == target.is_some()) {
            if overload.args.len() != given.len() {
                continue;
            }
            let first = self.variables.len();
            self.variables.extend((0..overload.parameters).map(|_| None));
            let (mark, wanted) = (self.undo.len(), overload.args.iter());
            let wanted: Vec<Type> = wanted.map(|t| shifted(t, first)).collect();
            if !given.iter().zip(&wanted).all(|(given, wanted)| self.unify(given, wanted)) {
                self.roll_back(mark);
                continue;
            }
            self.undo.clear();
            self.note(id, overload.id);
            let found = self.substitute(&shifted(&overload.result, first), false);
            result = match result {
                None => Some(found),
                Some(Type::Dyn) => Some(Type::Dyn),
                Some(before) if before == found => Some(before),
                Some(_) => Some(Type::Dyn),
            };
        }
        if let Some(found) = result {
            self.literal_arguments(name, args);
            return found;
        }
        let shown: Vec<String> =
            given.iter().map(|t| self.substitute(t, true).to_string()).collect();
        let (own, rest) = match (target, shown.split_first()) {
            (Some(_), Some((own, rest))) => (format!("{own}."), rest),
            _ => (String::new(), &shown[..]),
        };
        let signature = format!("{own}({})", rest.join(", "));
        self.issue(at, format!("found no matching overload for '{name}' applied to '{signature}'"));
        Type::Error
    }

    /// Literals that a conversion would refuse at every evaluation.
    fn literal_arguments(&mut self, name: &str, args: &[Expr]) {
        let Some(arg) = args.last() else { return };
        let Some(text) = arg.text() else { return };
        if !functions::literal_is_valid(name, text) {
            self.issue(arg.at, format!("invalid {name} argument"));
        }
    }

    fn unwrapped(&mut self, expr: &Expr, optional: bool) -> Type {
        let found = self.get(expr);
        if !optional {
            return found;
        }
        match self.substitute(&found, false) {
            Type::Optional(of) => (*of).clone(),
            Type::Dyn => Type::Dyn,
            other => {
                self.mismatch(expr.at, &Type::optional(other.clone()), &other);
                other
            }
        }
    }

    fn list(&mut self, items: &mut [(Expr, bool)]) -> Type {
        let mut common = None;
        for (item, optional) in items {
            self.check(item);
            let found = self.unwrapped(item, *optional);
            common = Some(self.join(item.at, common, found));
        }
        Type::list(common.unwrap_or_else(|| self.fresh()))
    }

    fn map(&mut self, entries: &mut [(Expr, Expr, bool)]) -> Type {
        let (mut keys, mut values) = (None, None);
        for (key, value, optional) in entries {
            self.check(key);
            keys = Some(self.join(key.at, keys, self.get(key)));
            self.check(value);
            let found = self.unwrapped(value, *optional);
            values = Some(self.join(value.at, values, found));
        }
        let keys = keys.unwrap_or_else(|| self.fresh());
        Type::map(keys, values.unwrap_or_else(|| self.fresh()))
    }

    fn join(&mut self, at: usize, before: Option<Type>, found: Type) -> Type {
        let Some(before) = before else { return found };
        if self.assignable(&before, &found) {
            return most_general(&before, &found);
        }
        let (before, found) = (self.substitute(&before, true), self.substitute(&found, true));
        self.mismatch(at, &before, &found);
        Type::Error
    }

    fn structure(
        &mut self,
        at: usize,
        name: &Arc<str>,
        fields: &mut [(Arc<str>, Expr, bool)],
    ) -> Type {
        for (_, value, optional) in fields.iter_mut() {
            self.check(value);
            self.unwrapped(value, *optional);
        }
        if !self.declarations.constructs(name) {
            return match type_named(name) {
                Some(_) => {
                    self.issue(at, format!("'{name}' is not a message type"));
                    Type::Error
                }
                None => self.undeclared(at, name),
            };
        }
        if &**name == "JSONPatch" {
            for (field, value, _) in fields {
                let found = self.get(value);
                match &**field {
                    "value" => {}
                    "op" | "path" | "from" => {
                        if !self.assignable(&Type::String, &found) {
                            let found = self.substitute(&found, true);
                            let message = format!(
                                "expected type of field '{field}' is 'string' but provided type is '{found}'"
                            );
                            self.issue(value.at, message);
                        }
                    }
                    _ => self.issue(value.at, format!("undefined field '{field}'")),
                }
            }
        }
        Type::Object(Decl::object(name, []))
    }

    fn fold(&mut self, fold: &mut Comprehension) -> Type {
        self.check(&mut fold.range);
        self.check(&mut fold.init);
        let range = self.substitute(&self.get(&fold.range), false);
        let accumulated = self.get(&fold.init);
        let (first, second) = match &range {
            Type::List(item) if fold.second.is_some() => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Dyn),
            Type::Map(parts) => (parts.0.clone(), parts.1.clone()),
            Type::Dyn | Type::Error | Type::Var(_) => {
                self.assignable(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.issue(fold.range.at, message);
                (Type::Error, Type::Error)
            }
        };
        let outer = self.locals.len();
        self.locals.push((fold.accumulator.clone(), accumulated.clone()));
        self.locals.push((fold.variable.clone(), first));
        if let Some(name) = &fold.second {
            self.locals.push((name.clone(), second));
        }
        self.check(&mut fold.condition);
        self.assert(&fold.condition, &Type::Bool);
        self.check(&mut fold.step);
        self.assert(&fold.step, &accumulated);
        self.locals.truncate(outer + 1);
        self.check(&mut fold.result);
        self.locals.truncate(outer);
        self.substitute(&self.get(&fold.result), false)
    }

    fn assert(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.get(expr);
        if !self.assignable(wanted, &found) {
            let (wanted, found) = (self.substitute(wanted, true), self.substitute(&found, true));
            self.mismatch(expr.at, &wanted, &found);
        }
    }

    fn fresh(&mut self) -> Type {
        self.variables.push(None);
        Type::Var(self.variables.len() - 1)
    }

    fn substitute(&self, of: &Type, vars_are_dyn: bool) -> Type {
        let inner = |t: &Type| self.substitute(t, vars_are_dyn);
        match of {
            Type::Var(id) => match self.variables.get(*id) {
                Some(Some(known)) => inner(known),
                _ if vars_are_dyn => Type::Dyn,
                _ => of.clone(),
            },
            Type::List(item) => Type::list(inner(item)),
            Type::Optional(of) => Type::optional(inner(of)),
            Type::Map(parts) => Type::map(inner(&parts.0), inner(&parts.1)),
            Type::Type(Some(of)) => Type::Type(Some(inner(of).into())),
            other => other.clone(),
        }
    }

    fn assignable(&mut self, to: &Type, from: &Type) -> bool {
        let mark = self.undo.len();
        let matched = self.unify(to, from);
        if matched {
            self.undo.truncate(mark)
        } else {
            self.roll_back(mark)
        }
        matched
    }

    fn roll_back(&mut self, mark: usize) {
        while self.undo.len() > mark {
            if let Some((id, before)) = self.undo.pop()
                && let Some(slot) = self.variables.get_mut(id)
            {
                *slot = before;
            }
        }
    }

    fn set(&mut self, id: usize, to: Type) {
        if let Some(slot) = self.variables.get_mut(id) {
            self.undo.push((id, slot.replace(to)));
        }
    }

    fn known(&self, id: usize) -> Option<Type> {
        self.variables.get(id).cloned().flatten()
    }

    fn unify(&mut self, a: &Type, b: &Type) -> bool {
        if let Type::Var(id) = b {
            let had = self.known(*id).is_some();
            if self.bind(a, *id) {
                return true;
            }
            if had {
                return false;
            }
        }
        if let Type::Var(id) = a {
            return self.bind(b, *id);
        }
        match (a, b) {
            (Type::Dyn | Type::Error, _) | (_, Type::Dyn | Type::Error) => true,
            (Type::Null, other) | (other, Type::Null) => matches!(
                other,
                Type::Null
                    | Type::Object(_)
                    | Type::Named(_)
                    | Type::Optional(_)
                    | Type::Duration
                    | Type::Timestamp
            ),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
                self.unify(a, b)
            }
            (Type::Map(a), Type::Map(b)) => self.unify(&a.0, &b.0) && self.unify(&a.1, &b.1),
            (Type::List(_) | Type::Optional(_) | Type::Map(_), _) => false,
            (a, b) => a == b,
        }
    }

    /// Makes the variable stand for the type, if it can.
    fn bind(&mut self, to: &Type, id: usize) -> bool {
        if *to == Type::Var(id) {
            return true;
        }
        if let Some(known) = self.known(id) {
            if *to == known {
                return true;
            }
            if !self.unify(to, &known) {
                return false;
            }
            let general = most_general(to, &known);
            if !self.refers(&general, id) {
                self.set(id, general);
            }
            return true;
        }
        let free = !self.refers(to, id);
        if free {
            self.set(id, to.clone());
        }
        free
    }

    fn refers(&self, of: &Type, id: usize) -> bool {
        match of {
            Type::Var(own) if *own == id => true,
            Type::Var(own) => self.known(*own).is_some_and(|known| self.refers(&known, id)),
            Type::List(of) | Type::Optional(of) | Type::Type(Some(of)) => self.refers(of, id),
            Type::Map(parts) => self.refers(&parts.0, id) || self.refers(&parts.1, id),
            _ => false,
        }
    }
}

/// The overload's own parameters as variables from this one on.
fn shifted(of: &Type, first: usize) -> Type {
    match of {
        Type::Var(id) => Type::Var(first + id),
        Type::List(of) => Type::list(shifted(of, first)),
        Type::Optional(of) => Type::optional(shifted(of, first)),
        Type::Map(parts) => Type::map(shifted(&parts.0, first), shifted(&parts.1, first)),
        Type::Type(Some(of)) => Type::Type(Some(shifted(of, first).into())),
        other => other.clone(),
    }
}

fn most_general(a: &Type, b: &Type) -> Type {
    if less_specific(a, b) { a.clone() } else { b.clone() }
}

fn less_specific(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Dyn | Type::Var(_), _) => true,
        (_, Type::Dyn | Type::Var(_)) => false,
        (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => {
            less_specific(a, b)
        }
        (Type::Map(a), Type::Map(b)) => less_specific(&a.0, &b.0) && less_specific(&a.1, &b.1),
        (Type::Type(_), Type::Type(_)) => true,
        (a, b) => a == b,
    }
}
