//! Label selectors: `a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1`.

use std::fmt;
use std::iter::Peekable;
use std::vec::IntoIter;

use serde_json::Value;

use crate::schema::value::{entries, items, text};
use crate::schema::{label_value, qualified};
use crate::status::StatusError;

/// All of its requirements must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelSelector(Vec<Requirement>);

/// One requirement on one label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requirement {
    key: String,
    operator: Operator,
    /// Sorted and unique.
    values: Vec<String>,
}

/// The operator of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `=` or `==`
    Equals,
    /// `!=`
    NotEquals,
    /// `in`
    In,
    /// `notin`
    NotIn,
    /// The key alone.
    Exists,
    /// `!` and the key.
    DoesNotExist,
    /// `>`
    GreaterThan,
    /// `<`
    LessThan,
}

impl LabelSelector {
    /// Reads a selector; 400 when it cannot. Empty text selects everything.
    pub fn parse(text: &str) -> Result<Self, StatusError> {
        let mut parser = Parser { tokens: scan(text).into_iter().peekable() };
        let mut requirements = parser.requirements().map_err(StatusError::bad_request)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self(requirements))
    }

    /// A `LabelSelector` object, which conforms to its type.
    pub fn of(selector: &Value) -> Result<Self, String> {
        let mut requirements = Vec::new();
        for (key, value) in entries(&selector["matchLabels"]) {
            let values = vec![value.as_str().unwrap_or_default().to_owned()];
            requirements.push(Requirement::new(key.clone(), Operator::Equals, values)?);
        }
        for expression in items(&selector["matchExpressions"]) {
            let operator = match text(&expression["operator"]) {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(format!("{other:?} is not a valid label selector operator")),
            };
            let values: Vec<String> =
                items(&expression["values"]).iter().map(|value| text(value).to_owned()).collect();
            let takes_values = matches!(operator, Operator::In | Operator::NotIn);
            if values.is_empty() == takes_values {
                let wants = if takes_values { "at least one value" } else { "no values" };
                return Err(format!("{operator:?} takes {wants}"));
            }
            let key = text(&expression["key"]).to_owned();
            requirements.push(Requirement::new(key, operator, values)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self(requirements))
    }

    /// One `matchExpression` of a node selector, which conforms to its type: those can compare
    /// numbers too.
    pub fn of_node(expression: &Value) -> Result<Self, String> {
        let operator = match text(&expression["operator"]) {
            "Gt" => Operator::GreaterThan,
            "Lt" => Operator::LessThan,
            _ => return Self::of(&serde_json::json!({"matchExpressions": [expression]})),
        };
        let values = items(&expression["values"]).iter().map(|v| text(v).to_owned()).collect();
        let key = text(&expression["key"]).to_owned();
        Requirement::new(key, operator, values).map(|requirement| Self(vec![requirement]))
    }

    /// Whether it selects everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the object's labels match.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.0.iter().all(|requirement| {
            requirement.matches(labels.get(&requirement.key).and_then(Value::as_str))
        })
    }
}

impl Requirement {
    fn new(key: String, operator: Operator, mut values: Vec<String>) -> Result<Self, String> {
        if let Some(complaint) = qualified(&key).first() {
            return Err(format!("key: Invalid value: {key:?}: {complaint}"));
        }
        values.sort();
        values.dedup();
        for (i, value) in values.iter().enumerate() {
            if matches!(operator, Operator::GreaterThan | Operator::LessThan)
                && value.parse::<i64>().is_err()
            {
                return Err(format!(
                    "values[{i}]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
            if let Some(complaint) = label_value(value).first() {
                return Err(format!("values[{i}][{key}]: Invalid value: {value:?}: {complaint}"));
            }
        }
        Ok(Self { key, operator, values })
    }

    fn matches(&self, label: Option<&str>) -> bool {
        // They are sorted.
        let listed =
            |label: &str| self.values.binary_search_by(|value| value.as_str().cmp(label)).is_ok();
        let number = |text: &str| text.parse::<i64>().ok();
        let compare = |label: Option<&str>| {
            label.and_then(number).zip(self.values.first().and_then(|v| number(v)))
        };
        match self.operator {
            Operator::Equals | Operator::In => label.is_some_and(listed),
            Operator::NotEquals | Operator::NotIn => !label.is_some_and(listed),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => compare(label).is_some_and(|(label, limit)| label > limit),
            Operator::LessThan => compare(label).is_some_and(|(label, limit)| label < limit),
        }
    }
}

impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, values) = (&self.key, self.values.join(","));
        match self.operator {
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Sign(&'static str),
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Sign(sign) => f.write_str(sign),
        }
    }
}

const SIGNS: [&str; 9] = ["!=", "==", "=", "!", ",", "(", ")", ">", "<"];

fn scan(text: &str) -> Vec<Token> {
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            tokens.push(Token::Sign(sign));
            rest = &rest[sign.len()..];
        } else {
            let end = rest.find(|c| is_space(c) || "!=,()><".contains(c)).unwrap_or(rest.len());
            tokens.push(Token::Word(rest[..end].to_owned()));
            rest = &rest[end..];
        }
        rest = rest.trim_start_matches(is_space);
    }
    tokens
}

struct Parser {
    tokens: Peekable<IntoIter<Token>>,
}

/// What was found, for messages; nothing at the end of the text.
fn found(token: Option<&Token>) -> String {
    token.map(Token::to_string).unwrap_or_default()
}

impl Parser {
    fn at_end_of_requirement(&mut self) -> bool {
        matches!(self.tokens.peek(), None | Some(Token::Sign(",")))
    }

    fn requirements(&mut self) -> Result<Vec<Requirement>, String> {
        let mut list = Vec::new();
        loop {
            match self.tokens.peek() {
                None => return Ok(list),
                Some(Token::Word(_) | Token::Sign("!")) => {}
                other => {
                    return Err(format!(
                        "found '{}', expected: !, identifier, or 'end of string'",
                        found(other)
                    ));
                }
            }
            super::check_count(list.len())?;
            list.push(self.requirement().map_err(|e| format!("unable to parse requirement: {e}"))?);
            match self.tokens.next() {
                None => return Ok(list),
                Some(Token::Sign(",")) => match self.tokens.peek() {
                    Some(Token::Word(_) | Token::Sign("!")) => {}
                    other => {
                        return Err(format!(
                            "found '{}', expected: identifier after ','",
                            found(other)
                        ));
                    }
                },
                other => {
                    return Err(format!(
                        "found '{}', expected: ',' or 'end of string'",
                        found(other.as_ref())
                    ));
                }
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, String> {
        let absent = self.tokens.next_if_eq(&Token::Sign("!")).is_some();
        let key = match self.tokens.next() {
            Some(Token::Word(key)) => key,
            other => {
                return Err(format!("found '{}', expected: identifier", found(other.as_ref())));
            }
        };
        let complaints = qualified(&key);
        if !complaints.is_empty() {
            return Err(format!("<nil>: Invalid value: {key:?}: {}", complaints.join("; ")));
        }
        if absent {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if self.at_end_of_requirement() {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.value()?],
        };
        Requirement::new(key, operator, values)
    }

    fn operator(&mut self) -> Result<Operator, String> {
        let token = self.tokens.next();
        match token.as_ref().map(Token::to_string).as_deref() {
            Some("in") => Ok(Operator::In),
            Some("notin") => Ok(Operator::NotIn),
            Some("=" | "==") => Ok(Operator::Equals),
            Some("!=") => Ok(Operator::NotEquals),
            Some(">") => Ok(Operator::GreaterThan),
            Some("<") => Ok(Operator::LessThan),
            _ => Err(format!(
                "found '{}', expected: in, notin, =, ==, !=, gt, lt",
                found(token.as_ref())
            )),
        }
    }

    fn value(&mut self) -> Result<String, String> {
        if self.at_end_of_requirement() {
            return Ok(String::new());
        }
        match self.tokens.next() {
            Some(Token::Word(value)) => Ok(value),
            other => Err(format!("found '{}', expected: identifier", found(other.as_ref()))),
        }
    }

    /// `(a,b)`; a missing word between commas is the empty value.
    fn values(&mut self) -> Result<Vec<String>, String> {
        match self.tokens.next() {
            Some(Token::Sign("(")) => {}
            other => return Err(format!("found '{}' expected: '('", found(other.as_ref()))),
        }
        let mut values = Vec::new();
        loop {
            let word = self.tokens.next_if(|t| matches!(t, Token::Word(_)));
            let is_first = values.is_empty() && word.is_none();
            values.push(word.as_ref().map(Token::to_string).unwrap_or_default());
            match self.tokens.next() {
                Some(Token::Sign(")")) => return Ok(values),
                Some(Token::Sign(",")) => {}
                other if is_first => {
                    let found = found(other.as_ref());
                    return Err(format!("found '{found}', expected: ',', ')' or identifier"));
                }
                other => {
                    return Err(format!("found '{}', expected: ',' or ')'", found(other.as_ref())));
                }
            }
        }
    }
}
