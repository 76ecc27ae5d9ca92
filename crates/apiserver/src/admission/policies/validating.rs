//! What a validating policy says about a request.

use longshore_cel::{Error, MATCH_CONDITIONS_BUDGET, MAX_MESSAGE, RUNTIME_BUDGET, Value as Cel};

use super::activation::{Activation, Facts};
use super::definition::{Annotation, Conditions, Definition};
use crate::expressions::{Expression, all_hold};

/// What is left of a longer value of an annotation (bytes).
const MAX_ANNOTATION: usize = 10 << 10;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) message: String,
    /// Empty when the policy could not be evaluated.
    pub(super) reason: String,
    /// It holds whatever the binding's actions are.
    pub(super) is_certain: bool,
    /// Which validation it is of; 0 when the policy could not be evaluated.
    pub(super) index: usize,
}

/// What a policy says about a request.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// None: it admits the request.
    pub(super) denials: Vec<Denial>,
    /// Keys and values for the audit.
    pub(super) annotations: Vec<(String, String)>,
}

impl Denial {
    fn failure(message: String) -> Denial {
        Denial { message, reason: String::new(), is_certain: false, index: 0 }
    }

    /// The policy cannot be evaluated, as its parameters are not known.
    pub(super) fn unconfigured(message: String) -> Denial {
        Denial { is_certain: true, ..Denial::failure(message) }
    }
}

/// The text of an error of an expression.
pub(super) fn failed(expression: &Expression, error: &Error) -> String {
    match error {
        Error::OutOfBudget => {
            "validation failed due to running out of cost budget, no further validation rules will be run"
                .to_owned()
        }
        error => format!("expression '{}' resulted in error: {error}", expression.source),
    }
}

/// Whether all conditions hold; an error when that cannot be found out.
pub(super) fn conditions_hold(conditions: &Conditions, facts: &Facts<'_>) -> Result<bool, String> {
    if conditions.list.is_empty() {
        return Ok(true);
    }
    let activation = Activation::new(facts, &conditions.environment, MATCH_CONDITIONS_BUDGET);
    all_hold(&conditions.list, |program| activation.evaluate(program), failed)
}

/// Evaluates a policy.
pub(super) fn findings(policy: &Definition, facts: &Facts<'_>) -> Findings {
    let failure = |message: String| match policy.ignores_failures {
        true => Findings::default(),
        false => Findings { denials: vec![Denial::failure(message)], ..Findings::default() },
    };
    if let Some(error) = &policy.error {
        return failure(error.clone());
    }
    match conditions_hold(&policy.conditions, facts) {
        Ok(true) => {}
        Ok(false) => return Findings::default(),
        Err(error) => return failure(error),
    }
    let activation = Activation::new(facts, &policy.environment, RUNTIME_BUDGET);
    let mut found = Findings::default();
    for (index, validation) in policy.validations.iter().enumerate() {
        let expression = &validation.expression;
        let Ok(program) = &expression.program else { continue };
        match activation.evaluate(program) {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => {
                let given = validation
                    .message_expression
                    .as_ref()
                    .and_then(|program| message(activation.evaluate(program.as_ref().ok()?)));
                let message = given.unwrap_or_else(|| match validation.message.is_empty() {
                    true => format!("failed expression: {}", expression.source),
                    false => validation.message.clone(),
                });
                let reason = match &*validation.reason {
                    "" => "Invalid",
                    reason => reason,
                };
                let reason = reason.to_owned();
                found.denials.push(Denial { message, reason, is_certain: false, index });
            }
            Err(Error::OutOfBudget) => return failure(failed(expression, &Error::OutOfBudget)),
            Err(_) if policy.ignores_failures => {}
            Err(error) => {
                let failure = Denial::failure(failed(expression, &error));
                found.denials.push(Denial { index, ..failure });
            }
        }
    }
    let activation = Activation::new(facts, &policy.environment, RUNTIME_BUDGET);
    for Annotation { key, value: expression } in &policy.annotations {
        let Ok(program) = &expression.program else { continue };
        match activation.evaluate(program) {
            Ok(Cel::String(value)) if !value.trim().is_empty() => {
                let value = value.trim();
                let end = value.floor_char_boundary(MAX_ANNOTATION);
                found.annotations.push((key.clone(), value[..end].to_owned()));
            }
            Ok(_) => {}
            Err(_) if policy.ignores_failures => {}
            Err(error) => {
                let message = failed(expression, &error);
                found.denials.push(Denial { is_certain: true, ..Denial::failure(message) });
            }
        }
    }
    found
}

fn message(result: Result<Cel<'_>, Error>) -> Option<String> {
    let Ok(Cel::String(message)) = result else { return None };
    let message = message.trim();
    let fits = !message.is_empty() && message.len() <= MAX_MESSAGE && !message.contains('\n');
    fits.then(|| message.to_owned())
}
