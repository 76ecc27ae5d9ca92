//! What a validating policy says about a request.

use longshore_cel::{Error, MATCH_CONDITIONS_BUDGET, MAX_MESSAGE, RUNTIME_BUDGET, Value as Cel};

use super::activation::{Activation, Facts};
use super::definition::{Conditions, Definition};
use crate::expressions::{Expression, all_hold};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Denial {
    pub(super) message: String,
    /// Empty when the policy could not be evaluated.
    pub(super) reason: String,
    /// It holds whatever the binding's actions are.
    pub(super) is_certain: bool,
}

impl Denial {
    fn failure(message: String) -> Denial {
        Denial { message, reason: String::new(), is_certain: false }
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

/// Evaluates a policy. No denials: it admits the request.
pub(super) fn denials(policy: &Definition, facts: &Facts<'_>) -> Vec<Denial> {
    let failure = |message: String| match policy.ignores_failures {
        true => Vec::new(),
        false => vec![Denial::failure(message)],
    };
    if let Some(error) = &policy.error {
        return failure(error.clone());
    }
    match conditions_hold(&policy.conditions, facts) {
        Ok(true) => {}
        Ok(false) => return Vec::new(),
        Err(error) => return failure(error),
    }
    let activation = Activation::new(facts, &policy.environment, RUNTIME_BUDGET);
    let mut found = Vec::new();
    for validation in &policy.validations {
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
                found.push(Denial { message, reason, is_certain: false });
            }
            Err(Error::OutOfBudget) => return failure(failed(expression, &Error::OutOfBudget)),
            Err(_) if policy.ignores_failures => {}
            Err(error) => found.push(Denial::failure(failed(expression, &error))),
        }
    }
    let activation = Activation::new(facts, &policy.environment, RUNTIME_BUDGET);
    for expression in &policy.annotations {
        let Ok(program) = &expression.program else { continue };
        if let Err(error) = activation.evaluate(program)
            && !policy.ignores_failures
        {
            let message = failed(expression, &error);
            found.push(Denial { is_certain: true, ..Denial::failure(message) });
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
