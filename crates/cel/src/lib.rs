//! CEL, the language of validation rules and admission policies, with Kubernetes' libraries.
//!
//! ```text
//! text ─ lexer, parser ─→ tree ─ check ─→ types ─ estimate ─→ cost at most
//!                                          └─ plan ─→ Program ─ eval ─→ Value
//! ```
//!
//! Expressions and the values that they see are hostile: trees have a greatest depth, each operation is
//! paid for out of a budget before it allocates, and nothing is recursive in the size of a value
//! without paying. Costs are upstream's. Values are read where they stand in JSON.
//!
//! Current limitations: types, functions and texts of errors are upstream's; texts of syntax errors are
//! similar. Trees are less deep than upstream's (120 levels), so that evaluation fits into the stack of
//! any thread. Protobuf messages do not exist.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod ast;
mod check;
pub mod crd;
pub mod decl;
pub mod device;
mod estimate;
mod eval;
mod issue;
mod keywords;
mod lexer;
mod overloads;
mod parser;
mod plan;
mod runtime;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;

use std::sync::Arc;

pub use decl::types::Type;
pub use estimate::Estimate;
pub use eval::Variables;
pub use issue::{Issue, Issues};
pub use keywords::is_identifier;
pub use runtime::functions::opaque::{Attributes, Authorizer, Decision, Opaque};
pub use runtime::value::{Key, List, Map, Str, Value};

use decl::{Decl, DeclKind};
use plan::Node;

/// The most that one evaluation may cost.
pub const PER_CALL_LIMIT: u64 = 1_000_000;
/// The most that the rules of an object, or a policy, may cost together.
pub const RUNTIME_BUDGET: u64 = 10_000_000;
/// The most that match conditions may cost together.
pub const MATCH_CONDITIONS_BUDGET: u64 = 2_500_000;
/// The most that a rule of a schema may cost by its estimate.
pub const ESTIMATED_RULE_LIMIT: u64 = 10_000_000;
/// The most that the rules of a schema may cost together by their estimates.
pub const ESTIMATED_SCHEMA_LIMIT: u64 = 100_000_000;
/// The longest message that an expression may give, in bytes.
pub const MAX_MESSAGE: usize = 5 * 1024;

/// Why an evaluation has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An operation failed: a key is not there, a number is too large.
    #[error("{0}")]
    Evaluation(String),
    /// It costs more than one evaluation may.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
    /// It costs more than is left of the budget.
    #[error("out of budget")]
    OutOfBudget,
}

impl Error {
    /// A failed operation.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Evaluation(message.into())
    }

    pub(crate) fn no_such_overload() -> Self {
        Self::new("no such overload")
    }
}

/// What evaluations may still cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(pub u64);

impl Budget {
    /// Takes a cost off it.
    pub fn spend(&mut self, cost: u64) -> Result<(), Error> {
        match self.0.checked_sub(cost) {
            Some(left) => {
                self.0 = left;
                Ok(())
            }
            None => {
                self.0 = 0;
                Err(Error::OutOfBudget)
            }
        }
    }
}

/// The name of the type of [`Declarations::composition`].
const COMPOSITION: &str = "kubernetes.variables";

/// The variables that an expression may use.
#[derive(Debug, Clone, Default)]
pub struct Declarations {
    variables: Vec<(String, Type, Option<Arc<Decl>>)>,
    patches: bool,
}

impl Declarations {
    /// With a variable of a type. Its index is the number of those before it.
    pub fn variable_of_type(&mut self, name: &str, of: Type) {
        self.variables.push((name.to_owned(), of, None));
    }

    /// With a variable that is so declared.
    pub fn declared(&mut self, name: &str, decl: &Arc<Decl>) {
        self.variables.push((name.to_owned(), decl.cel_type(), Some(decl.clone())));
    }

    /// With a variable of which nothing is known.
    pub fn dynamic(&mut self, name: &str) {
        self.variable_of_type(name, Type::Dyn);
    }

    /// With an object whose fields are the variables of qualified names, such as `variables.x`.
    pub fn composition(&mut self, name: &str) {
        self.variable_of_type(name, Type::Object(Decl::object(COMPOSITION, [])));
    }

    /// Lets expressions make objects for patches: `Object{}` and `JSONPatch{}`.
    pub fn with_patches(mut self) -> Self {
        self.patches = true;
        self
    }

    fn variable(&self, name: &str) -> Option<(usize, &Type)> {
        let mut all = self.variables.iter().enumerate();
        all.find(|(_, (own, ..))| own == name).map(|(index, (_, of, _))| (index, of))
    }

    fn decl(&self, name: &str) -> Option<&Arc<Decl>> {
        self.variables.iter().find(|(own, ..)| own == name)?.2.as_ref()
    }

    fn constructs(&self, name: &str) -> bool {
        self.patches && (name == "JSONPatch" || name == "Object" || name.starts_with("Object."))
    }

    /// The type of a field that the object's declaration does not have.
    fn own_type(&self, decl: &Decl, field: &str) -> Option<Type> {
        let DeclKind::Object(object) = &decl.kind else { return None };
        if self.constructs(&object.name) {
            return Some(Type::Dyn);
        }
        match object.name == COMPOSITION {
            true => self.variable(&format!("variables.{field}")).map(|(_, of)| of.clone()),
            false => None,
        }
    }
}

/// A compiled expression.
#[derive(Debug)]
pub struct Program {
    node: Node,
    slots: usize,
    output: Type,
    estimate: Estimate,
    uses: Vec<usize>,
}

/// Whether an expression selects this field of this variable, as in `claims.email`; not whether it reads
/// it in another way. An expression that does not parse selects nothing.
pub fn selects(source: &str, variable: &str, field: &str) -> bool {
    parser::parse(source).is_ok_and(|(expr, _)| expr.selects(variable, field))
}

/// Compiles an expression: parses, checks types, and estimates the cost.
pub fn compile(source: &str, declarations: &Declarations) -> Result<Program, Issues> {
    let failed = |issue| Issues::new(source, vec![issue]);
    let (mut expr, ids) = parser::parse(source).map_err(failed)?;
    let checked =
        check::check(&mut expr, ids, declarations).map_err(|issues| Issues::new(source, issues))?;
    let estimate = estimate::estimate(&expr, &checked, declarations);
    let output = checked.types.get(expr.id).cloned().unwrap_or(Type::Dyn);
    let plan = plan::plan(&expr, &checked, declarations);
    Ok(Program { node: plan.node, slots: plan.slots, output, estimate, uses: plan.uses })
}

impl Program {
    /// The type of its values.
    pub fn output(&self) -> &Type {
        &self.output
    }

    /// What an evaluation costs, before one is made.
    pub fn estimate(&self) -> Estimate {
        self.estimate
    }

    /// Whether it uses the variable of this index.
    pub fn uses(&self, variable: usize) -> bool {
        self.uses.contains(&variable)
    }

    /// Evaluates it. What it costs comes off the budget, also when it fails.
    pub fn evaluate<'v>(
        &self,
        variables: &dyn Variables<'v>,
        budget: &mut Budget,
    ) -> Result<Value<'v>, Error> {
        let (result, cost) = eval::run(&self.node, self.slots, variables);
        budget.spend(cost)?;
        result
    }
}
