//! Paths to a value in an object, such as `.status.conditions[?(@.type=="Ready")].status`: the part of
//! kubectl's JSON paths that columns, scales and selectable fields use.

use serde_json::{Map, Value};

/// A path, read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Path(Vec<Step>);

#[derive(Debug, Clone, PartialEq)]
enum Step {
    Field(String),
    Index(i64),
    All,
    /// Items whose field is, or is not, this value.
    Where(Path, bool, Value),
}

impl Path {
    /// Reads a path; `None` for one that is beyond what is known here.
    #[must_use]
    pub fn parse(text: &str) -> Option<Path> {
        let mut steps = Vec::new();
        let mut rest = text.strip_prefix('$').unwrap_or(text);
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let (inside, after) = bracketed(after)?;
                steps.push(bracket(inside)?);
                rest = after;
                continue;
            }
            let after = rest.strip_prefix('.').unwrap_or(rest);
            let (name, after) = field(after);
            match name.as_str() {
                "" => {}
                "*" => steps.push(Step::All),
                _ => steps.push(Step::Field(name)),
            }
            rest = after;
        }
        Some(Path(steps))
    }

    /// The first value at the path.
    #[must_use]
    pub fn first<'a>(&self, object: &'a Value) -> Option<&'a Value> {
        find(&self.0, object)
    }

    /// Sets the value of a path that has only fields; maps are made on the way. `false`: it cannot be.
    pub fn set(&self, object: &mut Value, value: Value) -> bool {
        let Some((last, way)) = self.0.split_last() else { return false };
        let mut at = object;
        for step in way {
            let (Step::Field(name), Value::Object(map)) = (step, at) else { return false };
            at = map.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
        }
        match (last, at) {
            (Step::Field(name), Value::Object(map)) => {
                map.insert(name.clone(), value);
                true
            }
            _ => false,
        }
    }

    /// Its fields, if it has nothing else.
    #[must_use]
    pub fn fields(&self) -> Option<Vec<&str>> {
        fn name(step: &Step) -> Option<&str> {
            match step {
                Step::Field(name) => Some(name.as_str()),
                _ => None,
            }
        }
        self.0.iter().map(name).collect()
    }
}

fn find<'a>(steps: &[Step], value: &'a Value) -> Option<&'a Value> {
    let Some((step, rest)) = steps.split_first() else { return Some(value) };
    match step {
        Step::Field(name) => find(rest, value.get(name)?),
        Step::Index(index) => {
            let list = value.as_array()?;
            let index = match usize::try_from(*index) {
                Ok(index) => index,
                Err(_) => {
                    let back = usize::try_from(index.unsigned_abs()).ok()?;
                    list.len().checked_sub(back)?
                }
            };
            find(rest, list.get(index)?)
        }
        Step::All => match value {
            Value::Array(list) => list.iter().find_map(|item| find(rest, item)),
            Value::Object(map) => map.values().find_map(|item| find(rest, item)),
            _ => None,
        },
        Step::Where(path, equal, wanted) => {
            let matches = |item: &Value| (path.first(item) == Some(wanted)) == *equal;
            value.as_array()?.iter().filter(|item| matches(item)).find_map(|item| find(rest, item))
        }
    }
}

/// A name up to the next dot or bracket, and what follows. A backslash takes the next sign as it is.
fn field(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((i, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, text.get(i..).unwrap_or_default()),
            c => name.push(c),
        }
    }
    (name, "")
}

/// What is inside of brackets, and what follows them.
fn bracketed(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let mut depth = 0usize;
    for (i, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '[') => depth = depth.saturating_add(1),
            (None, ']') if depth == 0 => {
                return Some((text.get(..i)?, text.get(i.checked_add(1)?..)?));
            }
            (None, ']') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
    }
    None
}

fn bracket(inside: &str) -> Option<Step> {
    let inside = inside.trim();
    if inside == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = inside.strip_prefix("?(").and_then(|text| text.strip_suffix(')')) {
        let (left, equal, right) = match (condition.split_once("=="), condition.split_once("!=")) {
            (Some((left, right)), _) => (left, true, right),
            (None, Some((left, right))) => (left, false, right),
            (None, None) => return None,
        };
        let path = Path::parse(left.trim().strip_prefix('@')?)?;
        return Some(Step::Where(path, equal, literal(right.trim())?));
    }
    match unquoted(inside) {
        Some(name) => Some(Step::Field(name.to_owned())),
        None => inside.parse().ok().map(Step::Index),
    }
}

fn unquoted(text: &str) -> Option<&str> {
    let inside = |quote| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\''))
}

fn literal(text: &str) -> Option<Value> {
    match unquoted(text) {
        Some(text) => Some(text.into()),
        None => serde_json::from_str(text).ok(),
    }
}
