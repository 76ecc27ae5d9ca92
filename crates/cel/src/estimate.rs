//! What an expression costs at least and at most, before it is evaluated: from how large the schema lets
//! its values be. As upstream computes it.

use std::sync::Arc;

use crate::Declarations;
use crate::ast::{Comprehension, Expr, Kind};
use crate::check::Checked;
use crate::decl::types::Type;
use crate::decl::{Decl, DeclKind};
use crate::runtime::value::Const;

/// A range of costs or of sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
}

const UNKNOWN: Estimate = Estimate { min: 0, max: u64::MAX };
const ZERO: Estimate = fixed(0);
const ONE: Estimate = fixed(1);
/// The bytes of an address.
const ADDRESS: Estimate = Estimate { min: 4, max: 16 };

const fn fixed(n: u64) -> Estimate {
    Estimate { min: n, max: n }
}

impl Estimate {
    fn add(self, other: Self) -> Self {
        let (min, max) = (self.min.saturating_add(other.min), self.max.saturating_add(other.max));
        Self { min, max }
    }

    fn multiply(self, other: Self) -> Self {
        let (min, max) = (self.min.saturating_mul(other.min), self.max.saturating_mul(other.max));
        Self { min, max }
    }

    fn union(self, other: Self) -> Self {
        Self { min: self.min.min(other.min), max: self.max.max(other.max) }
    }

    fn factor(self, by: f64) -> Self {
        // casts of floats saturate
        let scaled = |n: u64| (n as f64 * by).ceil() as u64;
        Self { min: scaled(self.min), max: scaled(self.max) }
    }

    /// A tenth of each.
    fn tenths(self) -> Self {
        self.factor(0.1)
    }
}

/// Sizes of keys and of values in a container.
#[derive(Debug, Clone, Copy)]
struct Entry {
    list: bool,
    key: Estimate,
    value: Estimate,
}

impl Entry {
    fn union(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        let (a, b) = (a?, b?);
        Some(Self { list: a.list, key: a.key.union(b.key), value: a.value.union(b.value) })
    }
}

struct Local {
    name: Arc<str>,
    decl: Option<Arc<Decl>>,
    size: Option<Estimate>,
    entry: Option<Entry>,
}

pub(crate) fn estimate(expr: &Expr, checked: &Checked, declarations: &Declarations) -> Estimate {
    let count = checked.types.len();
    let mut estimator = Estimator {
        checked,
        declarations,
        decls: vec![None; count],
        sizes: vec![None; count],
        entries: vec![None; count],
        locals: Vec::new(),
        keys: Decl::simple(DeclKind::String),
    };
    estimator.cost(expr)
}

struct Estimator<'a> {
    checked: &'a Checked,
    declarations: &'a Declarations,
    /// Where in the schema the value of an expression comes from.
    decls: Vec<Option<Arc<Decl>>>,
    sizes: Vec<Option<Estimate>>,
    entries: Vec<Option<Entry>>,
    locals: Vec<Local>,
    /// What keys of maps are: of no length, as upstream has it.
    keys: Arc<Decl>,
}

impl Estimator<'_> {
    fn of_type(&self, expr: &Expr) -> &Type {
        self.checked.types.get(expr.id).unwrap_or(&Type::Dyn)
    }

    fn local(&self, name: &str) -> Option<&Local> {
        self.locals.iter().rev().find(|local| &*local.name == name)
    }

    fn decl(&self, expr: &Expr) -> Option<Arc<Decl>> {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.decl.clone();
        }
        self.decls.get(expr.id).cloned().flatten()
    }

    fn set_decl(&mut self, expr: &Expr, decl: Option<Arc<Decl>>) {
        if let Some(slot) = self.decls.get_mut(expr.id) {
            *slot = decl;
        }
    }

    fn set_size(&mut self, expr: &Expr, size: Option<Estimate>) {
        if let (Some(slot), Some(_)) = (self.sizes.get_mut(expr.id), size) {
            *slot = size;
        }
    }

    fn set_entry(&mut self, expr: &Expr, entry: Option<Entry>) {
        if let (Some(slot), Some(_)) = (self.entries.get_mut(expr.id), entry) {
            *slot = entry;
        }
    }

    fn size(&self, expr: &Expr) -> Option<Estimate> {
        if let Some(Some(size)) = self.sizes.get(expr.id) {
            return Some(*size);
        }
        let count = |n: usize| Some(fixed(u64::try_from(n).unwrap_or(u64::MAX)));
        match &expr.kind {
            Kind::Literal(Const::String(text)) => return count(text.chars().count()),
            Kind::Literal(Const::Bytes(bytes)) => return count(bytes.len()),
            Kind::Literal(_) => return Some(ONE),
            Kind::List(items) => return count(items.len()),
            Kind::Map(entries) => return count(entries.len()),
            _ => {}
        }
        if let Some(decl) = self.decl(expr) {
            return Some(Estimate { min: 0, max: decl.max_elements });
        }
        if self.of_type(expr).is_scalar() {
            return Some(ONE);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name)?.size,
            _ => None,
        }
    }

    fn size_or_unknown(&self, expr: &Expr) -> Estimate {
        self.size(expr).unwrap_or(UNKNOWN)
    }

    fn entry(&self, expr: &Expr) -> Option<Entry> {
        if let Some(Some(entry)) = self.entries.get(expr.id) {
            return Some(*entry);
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name)?.entry,
            _ => None,
        }
    }

    fn cost(&mut self, expr: &Expr) -> Estimate {
        match &expr.kind {
            Kind::Literal(_) => ZERO,
            Kind::Ident(name) => {
                let decl = match self.local(name) {
                    Some(local) => local.decl.clone(),
                    None => self.declarations.decl(name).cloned(),
                };
                self.set_decl(expr, decl);
                ONE
            }
            Kind::Select { operand, field, test } => {
                let cost = self.cost(operand);
                if *test {
                    return cost;
                }
                let own = matches!(
                    self.of_type(operand),
                    Type::Map(_) | Type::Object(_) | Type::Named(_) | Type::Var(_)
                );
                let decl = self.decl(operand);
                let decl = decl.and_then(|decl| Some(decl.field(field)?.decl.clone()));
                self.set_decl(expr, decl);
                cost.add(if own { ONE } else { ZERO })
            }
            Kind::Call { target, name, args } => self.call(expr, target.as_deref(), name, args),
            Kind::List(items) => {
                let mut sum = ZERO;
                let mut size =
                    Estimate { min: if items.is_empty() { 0 } else { u64::MAX }, max: 0 };
                for (item, _) in items {
                    sum = sum.add(self.cost(item));
                    size = size.union(self.size_or_unknown(item));
                }
                self.set_entry(expr, Some(Entry { list: true, key: ONE, value: size }));
                sum.add(fixed(10))
            }
            Kind::Map(entries) => {
                let least = if entries.is_empty() { 0 } else { u64::MAX };
                let start = Estimate { min: least, max: 0 };
                let (mut sum, mut keys, mut values) = (ZERO, start, start);
                for (key, value, _) in entries {
                    sum = sum.add(self.cost(key)).add(self.cost(value));
                    keys = keys.union(self.size_or_unknown(key));
                    values = values.union(self.size_or_unknown(value));
                }
                self.set_entry(expr, Some(Entry { list: false, key: keys, value: values }));
                sum.add(fixed(30))
            }
            Kind::Struct { fields, .. } => {
                let mut sum = ZERO;
                for (_, value, _) in fields {
                    sum = sum.add(self.cost(value));
                }
                sum.add(fixed(40))
            }
            Kind::Comprehension(fold) => self.fold(expr, fold),
        }
    }

    fn push(
        &mut self,
        name: &Arc<str>,
        decl: Option<Arc<Decl>>,
        size: Option<Estimate>,
        entry: Option<Entry>,
    ) {
        self.locals.push(Local { name: name.clone(), decl, size, entry });
    }

    /// A variable that goes over the keys or the values of the range.
    fn push_iteration(&mut self, name: &Arc<str>, range: &Expr, values: bool) {
        let (entry, decl) = (self.entry(range), self.decl(range));
        let list = match entry {
            Some(entry) => entry.list,
            None => matches!(self.of_type(range), Type::List(_)),
        };
        let size = entry.map(|entry| if values { entry.value } else { entry.key });
        let decl = match (values, list) {
            (true, _) => decl.and_then(|decl| decl.element().cloned()),
            (false, true) => None,
            (false, false) => match decl.map(|decl| matches!(decl.kind, DeclKind::Map(_))) {
                Some(true) => Some(self.keys.clone()),
                _ => None,
            },
        };
        self.push(name, decl, size, None);
    }

    fn fold(&mut self, expr: &Expr, fold: &Comprehension) -> Estimate {
        let mut sum = self.cost(&fold.range).add(self.cost(&fold.init));
        let outer = self.locals.len();
        let (decl, size, entry) =
            (self.decl(&fold.init), self.size(&fold.init), self.entry(&fold.init));
        self.push(&fold.accumulator, decl, size, entry);
        if fold.is_bind() {
            sum = sum.add(self.cost(&fold.result));
            let (size, entry) = (self.size(&fold.result), self.entry(&fold.result));
            self.locals.truncate(outer);
            self.set_size(expr, size);
            self.set_entry(expr, entry);
            return sum;
        }
        let list = match self.entry(&fold.range) {
            Some(entry) => entry.list,
            None => matches!(self.of_type(&fold.range), Type::List(_)),
        };
        match &fold.second {
            Some(second) => {
                self.push_iteration(&fold.variable, &fold.range, false);
                self.push_iteration(second, &fold.range, true);
            }
            None => self.push_iteration(&fold.variable, &fold.range, list),
        }
        let rounds = self.cost(&fold.condition).add(self.cost(&fold.step));
        let step_entry = self.entry(&fold.step);
        self.locals.truncate(outer + 1);
        sum = sum.add(self.cost(&fold.result));
        self.locals.truncate(outer);
        let count = self.size_or_unknown(&fold.range);
        sum = sum.add(count.multiply(rounds));
        match &fold.init.kind {
            Kind::Literal(_) => {
                let size = self.size(&fold.init);
                self.set_size(expr, size);
            }
            Kind::List(_) | Kind::Map(_) => {
                self.set_size(expr, Some(count));
                self.set_entry(expr, step_entry);
            }
            _ => {}
        }
        sum
    }

    fn call(&mut self, expr: &Expr, target: Option<&Expr>, name: &str, args: &[Expr]) -> Estimate {
        if let ("dyn", [arg]) = (name, args) {
            let cost = self.cost(arg).add(ONE);
            let (size, entry) = (self.size(arg), self.entry(arg));
            self.set_size(expr, size);
            self.set_entry(expr, entry);
            return cost;
        }
        let costs: Vec<Estimate> = args.iter().map(|arg| self.cost(arg)).collect();
        let overloads = self.checked.overloads.get(expr.id).map_or(&[][..], |list| list);
        if overloads.is_empty() {
            return ZERO;
        }
        let own = target.map_or(ZERO, |target| self.cost(target));
        let mut cost = Estimate { min: u64::MAX, max: 0 };
        let mut size: Option<Estimate> = None;
        for overload in overloads {
            let call = Call { expr, name, overload, target, args, costs: &costs };
            let (found, result) = self.overload(&call);
            cost = cost.union(found);
            if let Some(result) = result {
                size = Some(size.map_or(result, |size| size.union(result)));
            }
            if matches!(*overload, "index_list" | "index_map")
                && let Some(of) = args.first()
            {
                size = self.entry(of).map(|entry| entry.value);
                let decl = self.decl(of).and_then(|decl| decl.element().cloned());
                self.set_decl(expr, decl);
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        self.set_size(expr, size);
        own.add(cost)
    }

    /// The cost of a call of one overload with its arguments, and the size of its result.
    fn overload(&mut self, call: &Call<'_>) -> (Estimate, Option<Estimate>) {
        let args_cost = call.costs.iter().fold(ZERO, |sum, cost| sum.add(*cost));
        if let Some((cost, size)) = self.library(call) {
            return (cost.add(args_cost), size);
        }
        let tenth = |estimator: &Self, expr| estimator.size_or_unknown(expr).tenths();
        let (cost, size) = match (call.overload, call.target, call.args) {
            ("string_format", Some(target), _) => (tenth(self, target), None),
            ("string_to_bytes", None, [arg]) => {
                let size = self.size_or_unknown(arg);
                let made = Estimate { max: size.max.saturating_mul(4), ..size };
                (size.tenths(), Some(made))
            }
            ("bytes_to_string", None, [arg]) => {
                let size = self.size_or_unknown(arg);
                (size.tenths(), Some(Estimate { min: size.min.div_ceil(4), ..size }))
            }
            ("strings_quote", None, [arg]) => {
                let size = self.size_or_unknown(arg);
                let made = size.add(Estimate { min: 0, max: size.max }).add(fixed(2));
                (size.tenths(), Some(made))
            }
            ("starts_with_string" | "ends_with_string", _, [arg]) => (tenth(self, arg), None),
            ("in_list", _, [_, list]) => (self.size_or_unknown(list), None),
            ("matches_string", Some(target), [pattern]) => {
                let text = self.size_or_unknown(target).add(ONE).tenths();
                let pattern = self.size_or_unknown(pattern).factor(0.25);
                (text.multiply(pattern), None)
            }
            ("contains_string", Some(target), [part]) => {
                (tenth(self, target).multiply(tenth(self, part)), None)
            }
            ("logical_or" | "logical_and", ..) => {
                let [a, b] = call.costs else { return (args_cost, None) };
                return (Estimate { min: a.min, max: a.add(*b).max }, None);
            }
            ("conditional", _, [_, yes, no]) => {
                let size = self.size_or_unknown(yes).union(self.size_or_unknown(no));
                let entry = Entry::union(self.entry(yes), self.entry(no));
                self.set_entry(call.expr, entry);
                let [condition, yes, no] = call.costs else { return (args_cost, Some(size)) };
                return (condition.add(yes.union(*no)), Some(size));
            }
            ("add_string" | "add_bytes" | "add_list", _, [a, b]) => {
                let size = self.size_or_unknown(a).add(self.size_or_unknown(b));
                let entry = Entry::union(self.entry(a), self.entry(b));
                self.set_entry(call.expr, entry);
                let cost = if call.overload == "add_list" { ONE } else { size.tenths() };
                (cost, Some(size))
            }
            (
                "less_string"
                | "greater_string"
                | "less_equals_string"
                | "greater_equals_string"
                | "less_bytes"
                | "greater_bytes"
                | "less_equals_bytes"
                | "greater_equals_bytes"
                | "equals"
                | "not_equals",
                _,
                [a, b],
            ) => {
                let max = self.size_or_unknown(a).max.min(self.size_or_unknown(b).max);
                (Estimate { min: max.min(1), max }.tenths(), None)
            }
            _ => (ONE, None),
        };
        (cost.add(args_cost), size)
    }

    /// Functions whose costs Kubernetes counts by itself.
    fn library(&self, call: &Call<'_>) -> Option<(Estimate, Option<Estimate>)> {
        let size =
            |index: usize| call.args.get(index).map_or(UNKNOWN, |arg| self.size_or_unknown(arg));
        let own = || call.target.map(|target| self.size_or_unknown(target));
        let text_argument = |suffix: &str| match call.overload.ends_with(suffix) {
            true => size(0).tenths(),
            false => ZERO,
        };
        let found = match call.name {
            "check" => (fixed(350_000), None),
            "serviceAccount"
            | "path"
            | "group"
            | "resource"
            | "subresource"
            | "namespace"
            | "name"
            | "allowed"
            | "reason"
            | "error"
            | "errored"
            | "masked"
            | "prefixLength"
            | "family"
            | "isUnspecified"
            | "isLoopback"
            | "isLinkLocalMulticast"
            | "isLinkLocalUnicast"
            | "isGlobalUnicast"
            | "format.named"
            | "sign"
            | "asInteger"
            | "isInteger"
            | "asApproximateFloat"
            | "isGreaterThan"
            | "isLessThan"
            | "compareTo"
            | "add"
            | "sub"
            | "major"
            | "minor"
            | "patch"
            | "getScheme"
            | "getHostname"
            | "getHost"
            | "getPort"
            | "getEscapedPath"
            | "getQuery" => (ONE, None),
            "fieldSelector" | "labelSelector" => {
                let requirements = size(0).factor(0.5).factor(50.0);
                (fixed(10).add(size(0).tenths()).add(requirements), None)
            }
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                let target = call.target?;
                let size = self.size_or_unknown(target);
                match self.of_type(target) {
                    Type::List(item) => {
                        let item_size = match self.decl(target) {
                            Some(decl) => decl.element().map_or(UNKNOWN, |item| Estimate {
                                min: 0,
                                max: item.max_elements,
                            }),
                            None => UNKNOWN,
                        };
                        let each = match **item {
                            Type::String | Type::Bytes => ONE.add(item_size.tenths()),
                            _ => ONE,
                        };
                        (size.multiply(each), None)
                    }
                    _ => (size.tenths(), None),
                }
            }
            "url" | "jsonpatch.escapeKey" => (size(0).tenths(), Some(size(0))),
            "lowerAscii" | "upperAscii" | "substring" | "trim" => {
                let size = own()?;
                (size.tenths(), Some(size))
            }
            "replace" => (own()?.factor(0.2), Some(replaced(own()?, size(0), size(1)))),
            "split" => {
                let limit = call.args.get(1).and_then(|arg| match arg.kind {
                    Kind::Literal(Const::Int(n)) => Some(u64::try_from(n).unwrap_or(u64::MAX)),
                    _ => None,
                });
                let max = limit.unwrap_or(own()?.max);
                (own()?.factor(0.2), Some(Estimate { min: 0, max }))
            }
            "join" => {
                let list = own()?;
                let item = match call.target.and_then(|target| self.decl(target)) {
                    Some(decl) => decl
                        .element()
                        .map_or(UNKNOWN, |item| Estimate { min: 0, max: item.max_elements }),
                    None => UNKNOWN,
                };
                let mut total = list.multiply(item);
                if !call.args.is_empty() {
                    let (min, max) = (list.min.saturating_sub(1), list.max.saturating_sub(1));
                    total = total.add(size(0).multiply(Estimate { min, max }));
                }
                (total.tenths(), Some(total))
            }
            "find" | "findAll" => {
                let text = own()?;
                let cost = text.add(ONE).tenths().multiply(size(0).factor(0.25));
                (cost, Some(Estimate { min: 0, max: text.max }))
            }
            "ip" if call.overload == "cidr_ip" => (ONE, None),
            "cidr" | "isIP" | "isCIDR" | "ip" | "quantity" | "isQuantity" | "semver"
            | "isSemver" => (size(0).tenths(), None),
            "ip.isCanonical" => (size(0).factor(0.2), None),
            "containsIP" => (ADDRESS.add(ADDRESS).tenths().add(text_argument("_string")), None),
            "containsCIDR" => {
                let addresses = ADDRESS.add(ADDRESS).tenths().add(ADDRESS.tenths());
                (addresses.add(ONE).add(text_argument("_string")), None)
            }
            "validate" => (size(0).tenths().factor(128.0 * 0.25), None),
            "_==_" => {
                let [a, b] = call.args else { return None };
                match (self.of_type(a), self.of_type(b)) {
                    (Type::Named(a), Type::Named(b)) if a == b => match *a {
                        "kubernetes.NamedFormat" => (Estimate { min: 1, max: 64 }.tenths(), None),
                        "kubernetes.URL" => {
                            let max = size(1).max;
                            (Estimate { min: 1, max }.tenths(), None)
                        }
                        _ => (ONE, None),
                    },
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(found)
    }
}

struct Call<'a> {
    expr: &'a Expr,
    name: &'a str,
    overload: &'a str,
    target: Option<&'a Expr>,
    args: &'a [Expr],
    costs: &'a [Estimate],
}

/// The size of a text in which parts are replaced by others.
fn replaced(size: Estimate, from: Estimate, to: Estimate) -> Estimate {
    let over = |size: u64, by: u64| (size as f64 / by as f64).ceil() as u64;
    let (mut count, mut kept) = (ZERO, ZERO);
    if from.min == 0 {
        count.max = size.max.saturating_add(1);
        kept.max = size.max;
    } else if to.max <= from.min {
        kept.max = size.max;
    } else {
        count.max = over(size.max, from.min);
    }
    if from.max == 0 {
        count.min = size.min.saturating_add(1);
        kept.min = size.min;
    } else if from.max <= to.min {
        kept.min = size.min;
    } else {
        count.min = over(size.min, from.max);
    }
    count.multiply(to).add(kept)
}
