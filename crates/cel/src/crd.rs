//! `x-kubernetes-validations` of structural schemas: compiled when a schema is written, and evaluated for
//! each object.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value as Json;

use crate::decl::{Decl, DeclKind, ListKind, escape, max_cardinality};
use crate::{
    Budget, Declarations, ESTIMATED_RULE_LIMIT, ESTIMATED_SCHEMA_LIMIT, Error, MAX_MESSAGE,
    Program, Type, Value, compile,
};

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    /// The field, such as `spec.replicas` or `spec.items[0]`.
    pub path: String,
    /// How it is wrong.
    pub kind: FailureKind,
    /// What it has; `None` for objects and lists, which upstream leaves out.
    pub value: Option<Json>,
    /// What is said about it.
    pub detail: String,
}

/// How a field is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureKind {
    /// `FieldValueInvalid`
    Invalid,
    /// `FieldValueRequired`
    Required,
    /// `FieldValueForbidden`
    Forbidden,
    /// `FieldValueDuplicate`
    Duplicate,
    /// `FieldValueNotSupported`
    NotSupported,
    /// `InternalError`
    Internal,
}

impl Failure {
    fn new(kind: FailureKind, path: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { path: path.into(), kind, value: None, detail: detail.into() }
    }

    fn with(mut self, value: impl Into<Json>) -> Self {
        self.value = Some(value.into());
        self
    }
}

/// What an object is validated to have.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong.
    pub failures: Vec<Failure>,
    /// What is wrong, but was so before, in a part that the update does not change.
    pub warnings: Vec<Failure>,
}

const SELF: usize = 0;
const OLD_SELF: usize = 1;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The compiled rules of a schema.
#[derive(Debug)]
pub struct Validator {
    rules: Result<Vec<Rule>, String>,
    decl: Option<Arc<Decl>>,
    /// The type in the schema.
    of: String,
    items: Option<Box<Validator>>,
    properties: BTreeMap<String, Validator>,
    additional: Option<Box<Validator>>,
    all_of: Vec<Validator>,
    /// Whether an entry of the map is the same one before and after an update.
    correlatable: bool,
}

#[derive(Debug)]
struct Rule {
    program: Result<Program, String>,
    uses_old: bool,
    optional_old: bool,
    /// What messages call it: its message, or the rule.
    shown: String,
    message: String,
    message_expression: Option<Result<Program, String>>,
    reason: FailureKind,
    /// Where in the object the failure is reported, with a leading dot or bracket.
    field: String,
    optional_old_is_set: bool,
}

/// The rules of a schema, if it has any. `root`: of a whole resource.
pub fn validator(schema: &Json, root: bool) -> Option<Validator> {
    if !has_rules(schema) {
        return None;
    }
    build(schema, schema, Decl::of_schema(schema, "selfType", root))
}

fn has_rules(schema: &Json) -> bool {
    rules_of(schema).next().is_some()
        || schema.get("items").is_some_and(has_rules)
        || schema.get("additionalProperties").is_some_and(has_rules)
        || schema["properties"].as_object().into_iter().flatten().any(|(_, of)| has_rules(of))
        || schema["allOf"].as_array().into_iter().flatten().any(has_rules)
}

fn rules_of(schema: &Json) -> impl Iterator<Item = &Json> {
    schema["x-kubernetes-validations"].as_array().into_iter().flatten()
}

fn element(decl: Option<&Arc<Decl>>) -> Option<Arc<Decl>> {
    decl.and_then(|decl| decl.element().cloned())
}

/// `rules` has the rules, and `schema` says what is there: they differ within `allOf`.
fn build(rules: &Json, schema: &Json, decl: Option<Arc<Decl>>) -> Option<Validator> {
    let both = |field: &str| Some((rules.get(field)?, schema.get(field)?));
    let compiled = compiled(rules, schema, decl.as_ref());
    let items = both("items")
        .and_then(|(rules, schema)| build(rules, schema, element(decl.as_ref())).map(Box::new));
    let additional = both("additionalProperties")
        .filter(|(rules, schema)| rules.is_object() && schema.is_object())
        .and_then(|(rules, schema)| build(rules, schema, element(decl.as_ref())).map(Box::new));
    let mut properties = BTreeMap::new();
    for (name, own) in rules["properties"].as_object().into_iter().flatten() {
        let Some(schema) = schema["properties"].get(name) else { continue };
        let of = match escape(name) {
            Some(escaped) => {
                let field = decl.as_ref().and_then(|decl| decl.field(&escaped));
                let Some(field) = field else { continue };
                field.decl.clone()
            }
            None => {
                let embedded = schema["x-kubernetes-embedded-resource"] == true;
                let Some(of) = Decl::of_schema(schema, name, embedded) else { continue };
                of
            }
        };
        if let Some(validator) = build(own, schema, Some(of)) {
            properties.insert(name.clone(), validator);
        }
    }
    let all_of: Vec<_> = rules["allOf"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|rules| build(rules, schema, decl.clone()))
        .collect();
    let empty = compiled.as_ref().is_ok_and(Vec::is_empty)
        && items.is_none()
        && additional.is_none()
        && properties.is_empty()
        && all_of.is_empty();
    (!empty).then(|| Validator {
        rules: compiled,
        decl,
        of: schema["type"].as_str().unwrap_or_default().to_owned(),
        items,
        properties,
        additional,
        all_of,
        correlatable: matches!(
            schema["x-kubernetes-map-type"].as_str(),
            None | Some("granular" | "atomic")
        ),
    })
}

fn compiled(rules: &Json, schema: &Json, decl: Option<&Arc<Decl>>) -> Result<Vec<Rule>, String> {
    let mut list = rules_of(rules).peekable();
    if list.peek().is_none() {
        return Ok(Vec::new());
    }
    let decl = decl.ok_or("failed to convert to declType for CEL validation rules")?;
    let mut plain = Declarations::default();
    plain.declared("self", decl);
    let mut optional = plain.clone();
    plain.declared("oldSelf", decl);
    optional.variable_of_type("oldSelf", Type::optional(decl.cel_type()));
    let compiled = list.map(|rule| {
        let declarations = match rule["optionalOldSelf"] == true {
            true => &optional,
            false => &plain,
        };
        one_rule(rule, schema, declarations)
    });
    Ok(compiled.collect())
}

fn one_rule(rule: &Json, schema: &Json, declarations: &Declarations) -> Rule {
    let text = |field: &str| rule[field].as_str().unwrap_or_default();
    let program = compile(text("rule"), declarations)
        .map_err(|issues| format!("compilation failed: {issues}"))
        .and_then(|program| match program.output() {
            Type::Bool => Ok(program),
            _ => Err("cel expression must evaluate to a bool".to_owned()),
        });
    let message_expression = Some(text("messageExpression")).filter(|text| !text.is_empty());
    let message_expression = message_expression.filter(|_| program.is_ok()).map(|text| {
        let program = compile(text, declarations)
            .map_err(|issues| format!("messageExpression compilation failed: {issues}"))?;
        match program.output() {
            Type::String => Ok(program),
            _ => Err("messageExpression must evaluate to a string".to_owned()),
        }
    });
    let message = text("message").trim();
    Rule {
        uses_old: program.as_ref().is_ok_and(|program| program.uses(OLD_SELF)),
        program,
        optional_old: rule["optionalOldSelf"] == true,
        optional_old_is_set: rule["optionalOldSelf"].is_boolean(),
        shown: if message.is_empty() { text("rule").trim() } else { message }.to_owned(),
        message: message.to_owned(),
        message_expression,
        reason: match text("reason") {
            "FieldValueForbidden" => FailureKind::Forbidden,
            "FieldValueRequired" => FailureKind::Required,
            "FieldValueDuplicate" => FailureKind::Duplicate,
            _ => FailureKind::Invalid,
        },
        field: field_path(text("fieldPath"), schema).unwrap_or_default(),
    }
}

/// The pair that an update makes of a part of the object.
#[derive(Clone, Copy, Default)]
struct Correlation<'a> {
    own: Option<(&'a Json, &'a Json)>,
    parent: Option<(&'a Json, &'a Json)>,
}

impl<'a> Correlation<'a> {
    /// Whether the update leaves the part as it was.
    fn unchanged(&self) -> bool {
        self.own.or(self.parent).is_some_and(|(new, old)| new == old)
    }

    fn child(self, new: &'a Json, old: Option<&'a Json>) -> Self {
        match self.own {
            Some(own) => Self { own: old.map(|old| (new, old)), parent: Some(own) },
            None => self,
        }
    }
}

impl Validator {
    /// Validates an object, that comes after an old one in an update.
    pub fn validate(&self, new: &Json, old: Option<&Json>, budget: &mut Budget) -> Report {
        let mut report = Report::default();
        let correlation = Correlation { own: old.map(|old| (new, old)), parent: None };
        self.part("", new, old, correlation, budget, &mut report);
        report
    }

    /// Whether validation goes on.
    fn part<'a>(
        &self,
        path: &str,
        new: &'a Json,
        old: Option<&'a Json>,
        correlation: Correlation<'a>,
        budget: &mut Budget,
        report: &mut Report,
    ) -> bool {
        if new.is_null() {
            return true;
        }
        if !self.expressions(path, new, old, correlation, budget, report) {
            return false;
        }
        let outer = Correlation { own: None, parent: correlation.parent };
        for all_of in &self.all_of {
            if !all_of.part(path, new, old, outer, budget, report) {
                return false;
            }
        }
        match new {
            Json::Array(items) => {
                let Some(validator) = &self.items else { return true };
                for (index, item) in items.iter().enumerate() {
                    let before = self.old_item(item, old);
                    let path = format!("{path}[{index}]");
                    let correlation = correlation.child(item, before);
                    if !validator.part(&path, item, before, correlation, budget, report) {
                        return false;
                    }
                }
                true
            }
            Json::Object(map) => {
                for (key, value) in map {
                    let before = old.and_then(|old| old.get(key));
                    let same = before.filter(|_| self.correlatable);
                    let root =
                        correlation.parent.is_none() && matches!(&**key, "apiVersion" | "kind");
                    let correlation = match root {
                        true => Correlation::default(),
                        false => correlation.child(value, before),
                    };
                    let (validator, path) = match (self.properties.get(key), &self.additional) {
                        (Some(validator), _) => (validator, child(path, key)),
                        (None, Some(validator)) => (&**validator, format!("{path}[{key}]")),
                        (None, None) => continue,
                    };
                    if !validator.part(&path, value, same, correlation, budget, report) {
                        return false;
                    }
                }
                true
            }
            _ => true,
        }
    }

    /// The item of a list that is a map, with the same keys.
    fn old_item<'a>(&self, item: &Json, old: Option<&'a Json>) -> Option<&'a Json> {
        let DeclKind::List(_, ListKind::Map(keys)) = &self.decl.as_ref()?.kind else { return None };
        let same = |other: &&Json| keys.iter().all(|key| other[key] == item[key]);
        old?.as_array()?.iter().find(same)
    }

    fn expressions(
        &self,
        path: &str,
        new: &Json,
        old: Option<&Json>,
        correlation: Correlation<'_>,
        budget: &mut Budget,
        report: &mut Report,
    ) -> bool {
        let invalid =
            |detail: String| Failure::new(FailureKind::Invalid, path, detail).with(self.of.clone());
        let rules = match &self.rules {
            Ok(rules) => rules,
            Err(error) => {
                let detail = format!("rule compiler initialization error: {error}");
                report.failures.push(invalid(detail));
                return true;
            }
        };
        let Some(decl) = self.decl.as_ref().filter(|_| !rules.is_empty()) else { return true };
        if budget.0 == 0 {
            report.failures.push(invalid(OUT_OF_BUDGET.to_owned()));
            return false;
        }
        let old = old.filter(|old| !old.is_null());
        for rule in rules {
            let program = match &rule.program {
                Ok(program) => program,
                Err(error) => {
                    report.failures.push(invalid(format!("rule compile error: {error}")));
                    continue;
                }
            };
            if rule.uses_old && old.is_none() && !rule.optional_old {
                continue;
            }
            let variables = Variables { new, old, decl, optional: rule.optional_old };
            let detail = match program.evaluate(&variables, budget) {
                Ok(Value::Bool(true)) => continue,
                Ok(_) => None,
                Err(error) => {
                    let (error_text, rule_text) = (error.to_string(), &rule.shown);
                    let (detail, end) = match error {
                        Error::OutOfBudget => (OUT_OF_BUDGET.to_owned(), true),
                        Error::CostLimit => (
                            format!(
                                "'{error_text}': no further validation rules will be run due to call cost exceeds limit for rule: {rule_text}"
                            ),
                            true,
                        ),
                        _ if error_text.starts_with("no such overload") => (
                            format!(
                                "'{error_text}': call arguments did not match a supported operator, function or macro signature for rule: {rule_text}"
                            ),
                            false,
                        ),
                        _ => (format!("{error_text} evaluating rule: {rule_text}"), false),
                    };
                    report.failures.push(invalid(detail));
                    if end {
                        return false;
                    }
                    continue;
                }
            };
            let path = joined(path, &rule.field);
            let mut add = |failure| match !rule.uses_old && correlation.unchanged() {
                true => report.warnings.push(failure),
                false => report.failures.push(failure),
            };
            let detail: Option<String> = match &rule.message_expression {
                Some(Ok(program)) => match message(program, &variables, budget) {
                    Ok(message) => Some(message),
                    Err(Some(detail)) => {
                        add(Failure::new(FailureKind::Invalid, &*path, detail)
                            .with(self.of.clone()));
                        return false;
                    }
                    Err(None) => detail,
                },
                _ => detail,
            };
            let detail = detail.unwrap_or_else(|| match rule.message.is_empty() {
                true => format!("failed rule: {}", rule.shown),
                false => rule.message.clone(),
            });
            let value = match &*self.of {
                "object" | "array" => None,
                _ => Some(new.clone()),
            };
            add(Failure { path, kind: rule.reason, value, detail });
        }
        true
    }
}

/// The message; an error with a text ends the validation, and one without leaves the static message.
fn message(
    program: &Program,
    variables: &Variables<'_>,
    budget: &mut Budget,
) -> Result<String, Option<String>> {
    match program.evaluate(variables, budget) {
        Ok(Value::String(text)) => {
            let text = text.trim();
            match text.is_empty() || text.contains('\n') || text.len() > MAX_MESSAGE {
                true => Err(None),
                false => Ok(text.to_owned()),
            }
        }
        Ok(_) | Err(Error::Evaluation(_)) => Err(None),
        Err(Error::CostLimit) => Err(Some(
            "no further validation rules will be run due to call cost exceeds limit for messageExpression"
                .to_owned(),
        )),
        Err(Error::OutOfBudget) => Err(Some(
            "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run"
                .to_owned(),
        )),
    }
}

struct Variables<'v> {
    new: &'v Json,
    old: Option<&'v Json>,
    decl: &'v Decl,
    optional: bool,
}

impl<'v> crate::Variables<'v> for Variables<'v> {
    fn get(&self, index: usize) -> Result<Value<'v>, Error> {
        match (index, self.old) {
            (SELF, _) => Value::declared(self.new, self.decl),
            (_, None) => Ok(Value::Optional(None)),
            (_, Some(old)) => {
                let old = Value::declared(old, self.decl)?;
                Ok(if self.optional { Value::some(old) } else { old })
            }
        }
    }
}

fn child(path: &str, name: &str) -> String {
    match path.is_empty() {
        true => name.to_owned(),
        false => format!("{path}.{name}"),
    }
}

fn joined(path: &str, field: &str) -> String {
    match path.is_empty() {
        true => field.trim_start_matches('.').to_owned(),
        false => format!("{path}{field}"),
    }
}

/// A path of a rule (`.spec.items['a']`) as errors write it; `None` for one that the schema does not have.
pub fn field_path(path: &str, schema: &Json) -> Option<String> {
    let mut written = String::new();
    let (mut rest, mut schema) = (path, schema);
    if path.trim().is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let (name, after, quoted) = if let Some(part) = rest.strip_prefix('.') {
            let end = part.find(['.', '[', ']']).unwrap_or(part.len());
            let (name, after) = part.split_at(end);
            (name.to_owned(), after, false)
        } else if let Some(part) = rest.strip_prefix("['") {
            let mut name = String::new();
            let mut chars = part.char_indices();
            let end = loop {
                match chars.next()? {
                    (_, '\\') => name.push(chars.next()?.1),
                    (at, '\'') => break at,
                    (_, c) => name.push(c),
                }
            };
            (name, part.get(end..)?.strip_prefix("']")?, true)
        } else {
            return None;
        };
        if name.is_empty() {
            return None;
        }
        match (schema["properties"].get(&name), schema.get("additionalProperties")) {
            (Some(next), _) => {
                written = format!("{written}.{name}");
                schema = next;
            }
            (None, Some(next)) if quoted && next.is_object() => {
                written = format!("{written}[{name}]");
                schema = next;
            }
            _ => return None,
        }
        rest = after;
    }
    Some(written)
}

/// Checks the rules of a schema when it is written. `path` is that of the schema, as in
/// `spec.versions[0].schema.openAPIV3Schema`.
pub fn check(schema: &Json, path: &str) -> Vec<Failure> {
    let mut checker = Checker { failures: Vec::new(), total: 0, expensive: Vec::new() };
    let place = Place { decl: None, cardinality: Some(1), uncorrelatable: None };
    checker.schema(schema, path, true, &place);
    if checker.total > ESTIMATED_SCHEMA_LIMIT {
        checker.expensive.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        for (_, path) in checker.expensive.iter().take(4) {
            let detail = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
            checker.failures.push(Failure::new(FailureKind::Forbidden, path, detail));
        }
        let what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema";
        let detail = over_budget(what, checker.total, ESTIMATED_SCHEMA_LIMIT);
        checker.failures.push(Failure::new(FailureKind::Forbidden, path, detail));
    }
    checker.failures
}

struct Checker {
    failures: Vec<Failure>,
    total: u64,
    expensive: Vec<(u64, String)>,
}

/// What a schema is in.
struct Place {
    decl: Option<Arc<Decl>>,
    /// How often its values are in an object at most.
    cardinality: Option<u64>,
    /// The path of the list or map whose parts have no counterpart before an update.
    uncorrelatable: Option<String>,
}

impl Checker {
    fn schema(&mut self, schema: &Json, path: &str, root: bool, place: &Place) {
        let limit = |field: &str| schema[field].as_f64().map(|most| most.max(0.0) as u64);
        let times = |most: Option<u64>| {
            place.cardinality.and_then(|count| Some(count.saturating_mul(most?)))
        };
        let rules = rules_of(schema).next().is_some();
        let decl = match &place.decl {
            Some(decl) => Some(decl.clone()),
            None if rules => {
                let root = root || schema["x-kubernetes-embedded-resource"] == true;
                Decl::of_schema(schema, "selfType", root)
            }
            None => None,
        };
        let before = self.failures.len();
        if let Some(of) = schema.get("additionalProperties").filter(|of| of.is_object()) {
            let own = &schema["x-kubernetes-map-type"];
            let uncorrelatable = match own.as_str() {
                None | Some("granular" | "atomic") => place.uncorrelatable.clone(),
                Some(_) => Some(path.to_owned()),
            };
            let place = Place {
                decl: element(decl.as_ref()),
                cardinality: times(limit("maxProperties")),
                uncorrelatable,
            };
            self.schema(of, &format!("{path}.additionalProperties"), false, &place);
        }
        for (name, of) in schema["properties"].as_object().into_iter().flatten() {
            let field =
                escape(name).and_then(|name| Some(decl.as_ref()?.field(&name)?.decl.clone()));
            let place = Place {
                decl: field,
                cardinality: place.cardinality,
                uncorrelatable: place.uncorrelatable.clone(),
            };
            self.schema(of, &format!("{path}.properties[{name}]"), false, &place);
        }
        if let Some(of) = schema.get("items") {
            let uncorrelatable = match schema["x-kubernetes-list-type"].as_str() {
                Some("map") => place.uncorrelatable.clone(),
                _ => Some(path.to_owned()),
            };
            let place = Place {
                decl: element(decl.as_ref()),
                cardinality: times(limit("maxItems")),
                uncorrelatable,
            };
            self.schema(of, &format!("{path}.items"), false, &place);
        }
        if rules {
            let path = format!("{path}.x-kubernetes-validations");
            let sound = self.texts(schema, &path) && self.failures.len() == before;
            if sound {
                self.rules(schema, &path, decl.as_ref(), place);
            }
        }
    }

    /// The texts of rules; whether they are sound.
    fn texts(&mut self, schema: &Json, path: &str) -> bool {
        const REASONS: [&str; 4] = [
            "FieldValueDuplicate",
            "FieldValueForbidden",
            "FieldValueInvalid",
            "FieldValueRequired",
        ];
        let before = self.failures.len();
        let breaks = |text: &str| text.contains(['\n', '\r']);
        for (index, rule) in rules_of(schema).enumerate() {
            let text = |field: &str| rule[field].as_str().unwrap_or_default();
            let at = |field: &str| format!("{path}[{index}].{field}");
            let mut add = |kind, field: &str, detail: &str| {
                let failure = Failure::new(kind, at(field), detail);
                self.failures.push(match kind {
                    FailureKind::Required => failure,
                    _ => failure.with(text(field)),
                });
            };
            let (own, message) = (text("rule").trim(), text("message").trim());
            if own.is_empty() {
                add(FailureKind::Required, "rule", "rule is not specified");
            } else if !text("message").is_empty() && message.is_empty() {
                add(FailureKind::Invalid, "message", "must be non-empty if specified");
            } else if breaks(message) {
                add(FailureKind::Invalid, "message", "must not contain line breaks");
            } else if breaks(own) && message.is_empty() {
                let detail = "message must be specified if rule contains line breaks";
                add(FailureKind::Required, "message", detail);
            }
            if !text("messageExpression").is_empty() && text("messageExpression").trim().is_empty()
            {
                let detail = "messageExpression must be non-empty if specified";
                add(FailureKind::Required, "messageExpression", detail);
            }
            if !text("reason").is_empty() && !REASONS.contains(&text("reason")) {
                let values = REASONS.map(|reason| format!("\"{reason}\"")).join(", ");
                add(FailureKind::NotSupported, "reason", &format!("supported values: {values}"));
            }
            let field = text("fieldPath");
            if !field.is_empty() {
                if field.trim().is_empty() {
                    add(FailureKind::Invalid, "fieldPath", "must be non-empty if specified");
                }
                if breaks(field) {
                    add(FailureKind::Invalid, "fieldPath", "must not contain line breaks");
                }
                if field_path(field, schema).is_none() {
                    add(FailureKind::Invalid, "fieldPath", "must be a valid path");
                }
            }
        }
        self.failures.len() == before
    }

    fn rules(&mut self, schema: &Json, path: &str, decl: Option<&Arc<Decl>>, place: &Place) {
        let Some(decl) = decl else {
            let detail = "Internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            return self.failures.push(Failure::new(FailureKind::Internal, path, detail));
        };
        let rules = compiled(schema, schema, Some(decl)).unwrap_or_default();
        let count = place.cardinality.unwrap_or_else(|| max_cardinality(decl.min_size));
        for (index, (rule, text)) in rules.iter().zip(rules_of(schema)).enumerate() {
            let at = |field: &str| format!("{path}[{index}].{field}");
            let invalid = |field: &str, value: &Json, detail: &str| {
                Failure::new(FailureKind::Invalid, at(field), detail).with(value.clone())
            };
            match &rule.program {
                Ok(program) => {
                    let cost = program.estimate().max.saturating_mul(count);
                    self.cost(at("rule"), "estimated rule cost", cost);
                }
                Err(error) => self.failures.push(invalid("rule", text, error)),
            }
            match &rule.message_expression {
                Some(Ok(program)) => {
                    let cost = program.estimate().max;
                    let what = "estimated messageExpression cost";
                    self.cost(at("messageExpression"), what, cost);
                }
                Some(Err(error)) => {
                    self.failures.push(invalid("messageExpression", text, error));
                }
                None => {}
            }
            match (&place.uncorrelatable, rule.uses_old) {
                (Some(within), true) => {
                    let detail = format!(
                        "oldSelf cannot be used on the uncorrelatable portion of the schema within {within}"
                    );
                    self.failures.push(invalid("rule", &text["rule"], &detail));
                }
                (_, false) if rule.optional_old_is_set => {
                    let detail = "may not be set if oldSelf is not used in rule";
                    let value = &text["optionalOldSelf"];
                    self.failures.push(invalid("optionalOldSelf", value, detail));
                }
                _ => {}
            }
        }
    }

    fn cost(&mut self, path: String, what: &str, cost: u64) {
        if cost > ESTIMATED_RULE_LIMIT {
            let detail = over_budget(what, cost, ESTIMATED_RULE_LIMIT);
            self.failures.push(Failure::new(FailureKind::Forbidden, &*path, detail));
        }
        self.total = self.total.saturating_add(cost);
        // what is less than a hundredth of the limit does not matter
        if cost.saturating_mul(100) >= ESTIMATED_SCHEMA_LIMIT {
            self.expensive.push((cost, path));
        }
    }
}

fn over_budget(what: &str, cost: u64, limit: u64) -> String {
    let factor = cost as f64 / limit as f64;
    let factor = if factor > 100.0 {
        "more than 100x".to_owned()
    } else if factor < 1.5 {
        format!("{factor:.6}x")
    } else {
        format!("{factor:.1}x")
    };
    format!(
        "{what} exceeds budget by factor of {factor} (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
}
