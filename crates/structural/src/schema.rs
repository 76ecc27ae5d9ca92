//! A schema, read once from the JSON of a definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value};

/// The deepest nesting of schemas in each other.
pub const MAX_DEPTH: usize = 64;
/// The most schemas in one schema.
pub const MAX_NODES: usize = 20_000;
/// The most bytes that a compiled pattern takes.
const MAX_PATTERN: usize = 1 << 20;

/// Why a schema cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Schemas are nested too deeply.
    #[error("{0}: the schema is nested deeper than {MAX_DEPTH} levels")]
    TooDeep(String),
    /// There are too many schemas.
    #[error("{0}: the schema holds more than {MAX_NODES} schemas")]
    TooLarge(String),
}

/// What a list is for those who merge it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListKind {
    /// One value.
    Atomic,
    /// Unique values.
    Set,
    /// Objects with unique keys.
    Map,
}

/// What is known of the values of a map.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Additional {
    /// There are none but the named ones.
    #[default]
    None,
    /// They may be anything, or (`false`) must not be.
    Allowed(bool),
    /// They are all like this.
    Like(Box<Schema>),
}

/// A rule in CEL: `x-kubernetes-validations`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rule {
    /// The expression.
    pub rule: String,
    /// What is said when it does not hold.
    pub message: String,
    /// An expression for that.
    pub message_expression: String,
    /// The machine-readable reason.
    pub reason: String,
    /// The path of the field that is named.
    pub field_path: String,
    /// Whether it is evaluated without an old value.
    pub optional_old_self: bool,
}

/// Schemas of which all, one, any or none must hold.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Junctors {
    /// All of them.
    pub all_of: Vec<Schema>,
    /// At least one.
    pub any_of: Vec<Schema>,
    /// Exactly one.
    pub one_of: Vec<Schema>,
    /// Not this one.
    pub not: Option<Box<Schema>>,
}

/// Limits of values.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Values {
    /// A format of text or numbers.
    pub format: String,
    /// The values there are.
    pub any: Option<Vec<Value>>,
    /// Upper bound, and whether it is excluded.
    pub maximum: Option<f64>,
    /// The upper bound is excluded.
    pub exclusive_maximum: bool,
    /// Lower bound.
    pub minimum: Option<f64>,
    /// The lower bound is excluded.
    pub exclusive_minimum: bool,
    /// A number that divides it.
    pub multiple_of: Option<f64>,
    /// Characters at most.
    pub max_length: Option<i64>,
    /// Characters at least.
    pub min_length: Option<i64>,
    /// A regular expression that a text matches.
    pub pattern: Option<Pattern>,
    /// Items at most.
    pub max_items: Option<i64>,
    /// Items at least.
    pub min_items: Option<i64>,
    /// No item twice.
    pub unique_items: bool,
    /// Fields at most.
    pub max_properties: Option<i64>,
    /// Fields at least.
    pub min_properties: Option<i64>,
    /// Fields that must be there.
    pub required: Vec<String>,
}

/// A regular expression, compiled if it can be.
#[derive(Debug, Clone)]
pub struct Pattern {
    /// Its text.
    pub text: String,
    /// What it is, or why it is none.
    pub compiled: Result<Arc<Regex>, String>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    fn new(text: &str) -> Pattern {
        let compiled = RegexBuilder::new(text).size_limit(MAX_PATTERN).build();
        let compiled = compiled.map(Arc::new).map_err(|error| {
            let text = error.to_string();
            text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
        });
        Pattern { text: text.to_owned(), compiled }
    }
}

/// One schema.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schema {
    /// `object`, `array`, `string`, `integer`, `number`, `boolean`, or empty.
    pub kind: String,
    /// What it is for people.
    pub title: String,
    /// The same at length.
    pub description: String,
    /// The value of a field that is absent.
    pub default: Option<Value>,
    /// `null` is a value.
    pub nullable: bool,
    /// Named fields.
    pub properties: BTreeMap<String, Schema>,
    /// Other fields.
    pub additional: Additional,
    /// Items of a list.
    pub items: Option<Box<Schema>>,
    /// Fields that are not named are kept.
    pub preserves_unknown: bool,
    /// The value is an object with kind and metadata.
    pub embedded: bool,
    /// The value is a number or a text.
    pub int_or_string: bool,
    /// What a list is.
    pub list: Option<ListKind>,
    /// `x-kubernetes-list-type` as it is given.
    pub list_type: Option<String>,
    /// The keys of its items.
    pub list_keys: Vec<String>,
    /// `x-kubernetes-map-type` as it is given.
    pub map_type: Option<String>,
    /// Rules in CEL.
    pub rules: Vec<Rule>,
    /// Limits of values.
    pub values: Values,
    /// Schemas that must hold too.
    pub junctors: Junctors,
}

impl Schema {
    /// Reads the JSON of a schema that conforms to `JSONSchemaProps`. Fields of other types than theirs
    /// are left out.
    pub fn read(json: &Value) -> Result<Schema, ReadError> {
        let mut reader = Reader { nodes: 0, path: String::from("schema") };
        reader.schema(json, 0)
    }

    /// Whether a map is one value.
    #[must_use]
    pub fn is_atomic_map(&self) -> bool {
        self.map_type.as_deref() == Some("atomic")
    }

    /// Whether rules in CEL are somewhere in it.
    #[must_use]
    pub fn has_rules(&self) -> bool {
        !self.rules.is_empty() || self.children().any(Schema::has_rules)
    }

    fn children(&self) -> impl Iterator<Item = &Schema> {
        let additional = match &self.additional {
            Additional::Like(schema) => Some(&**schema),
            _ => None,
        };
        self.properties.values().chain(additional).chain(self.items.as_deref())
    }

    /// The schema of a field.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or(match &self.additional {
            Additional::Like(schema) => Some(schema),
            _ => None,
        })
    }
}

struct Reader {
    nodes: usize,
    path: String,
}

impl Reader {
    fn child(&mut self, name: &str, json: &Value, depth: usize) -> Result<Schema, ReadError> {
        let end = self.path.len();
        self.path.push('.');
        self.path.push_str(name);
        let schema = self.schema(json, depth.saturating_add(1));
        self.path.truncate(end);
        schema
    }

    fn list(&mut self, name: &str, json: &Value, depth: usize) -> Result<Vec<Schema>, ReadError> {
        let items = json[name].as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().map(|item| self.child(name, item, depth)).collect()
    }

    fn schema(&mut self, json: &Value, depth: usize) -> Result<Schema, ReadError> {
        self.nodes = self.nodes.saturating_add(1);
        if depth > MAX_DEPTH {
            return Err(ReadError::TooDeep(self.path.clone()));
        }
        if self.nodes > MAX_NODES {
            return Err(ReadError::TooLarge(self.path.clone()));
        }
        let mut properties = BTreeMap::new();
        for (name, property) in json["properties"].as_object().into_iter().flatten() {
            properties.insert(name.clone(), self.child(name, property, depth)?);
        }
        let additional = match &json["additionalProperties"] {
            Value::Bool(allowed) => Additional::Allowed(*allowed),
            schema @ Value::Object(_) => {
                Additional::Like(Box::new(self.child("additionalProperties", schema, depth)?))
            }
            _ => Additional::None,
        };
        let boxed = |reader: &mut Reader, name: &str| match &json[name] {
            schema @ Value::Object(_) => reader.child(name, schema, depth).map(Box::new).map(Some),
            _ => Ok(None),
        };
        let items = boxed(self, "items")?;
        let junctors = Junctors {
            all_of: self.list("allOf", json, depth)?,
            any_of: self.list("anyOf", json, depth)?,
            one_of: self.list("oneOf", json, depth)?,
            not: boxed(self, "not")?,
        };
        let list_type = optional(&json["x-kubernetes-list-type"]);
        Ok(Schema {
            kind: text(&json["type"]),
            title: text(&json["title"]),
            description: text(&json["description"]),
            default: json.get("default").filter(|value| !value.is_null()).cloned(),
            nullable: json["nullable"] == true,
            properties,
            additional,
            items,
            preserves_unknown: json["x-kubernetes-preserve-unknown-fields"] == true,
            embedded: json["x-kubernetes-embedded-resource"] == true,
            int_or_string: json["x-kubernetes-int-or-string"] == true,
            list: match list_type.as_deref() {
                Some("atomic") => Some(ListKind::Atomic),
                Some("set") => Some(ListKind::Set),
                Some("map") => Some(ListKind::Map),
                _ => None,
            },
            list_type,
            list_keys: texts(&json["x-kubernetes-list-map-keys"]),
            map_type: optional(&json["x-kubernetes-map-type"]),
            rules: items_of(&json["x-kubernetes-validations"]).map(rule).collect(),
            values: values(json),
            junctors,
        })
    }
}

fn values(json: &Value) -> Values {
    let number = |name: &str| json[name].as_f64();
    let count = |name: &str| json[name].as_i64();
    Values {
        format: text(&json["format"]),
        any: json["enum"].as_array().cloned(),
        maximum: number("maximum"),
        exclusive_maximum: json["exclusiveMaximum"] == true,
        minimum: number("minimum"),
        exclusive_minimum: json["exclusiveMinimum"] == true,
        multiple_of: number("multipleOf"),
        max_length: count("maxLength"),
        min_length: count("minLength"),
        pattern: optional(&json["pattern"]).map(|text| Pattern::new(&text)),
        max_items: count("maxItems"),
        min_items: count("minItems"),
        unique_items: json["uniqueItems"] == true,
        max_properties: count("maxProperties"),
        min_properties: count("minProperties"),
        required: texts(&json["required"]),
    }
}

fn rule(json: &Map<String, Value>) -> Rule {
    let part = |name: &str| json.get(name).map(text).unwrap_or_default();
    Rule {
        rule: part("rule"),
        message: part("message"),
        message_expression: part("messageExpression"),
        reason: part("reason"),
        field_path: part("fieldPath"),
        optional_old_self: json.get("optionalOldSelf").is_some_and(|value| *value == true),
    }
}

fn items_of(value: &Value) -> impl Iterator<Item = &Map<String, Value>> {
    value.as_array().into_iter().flatten().filter_map(Value::as_object)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn optional(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}
