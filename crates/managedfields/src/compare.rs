//! What differs between two objects, field by field.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::element::Element;
use crate::schema::{ListType, MapType, Schema, Type, TypeId};
use crate::set::{Node, Set};
use crate::validate::{Mismatch, item_element};

/// The fields that differ between two objects; none is in two of the sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison<'a> {
    /// Those of the first object that the second one has not.
    pub removed: Set<'a>,
    /// Those that both have with different values.
    pub modified: Set<'a>,
    /// Those of the second object that the first one has not.
    pub added: Set<'a>,
}

impl<'a> Comparison<'a> {
    /// Compares two objects of a type.
    ///
    /// # Errors
    ///
    /// An item of a list has no key.
    pub fn of(
        schema: &'a Schema,
        of: TypeId,
        old: &'a Value,
        new: &'a Value,
    ) -> Result<Comparison<'a>, Mismatch> {
        Ok(Walk { schema }.compare(Some(old), Some(new), of)?.below)
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.removed.is_empty() && self.modified.is_empty() && self.added.is_empty()
    }

    /// The same without these fields and those below them.
    #[must_use]
    pub fn without(self, fields: &Set<'_>) -> Comparison<'a> {
        let without = |set: Set<'a>| match set.is_empty() {
            true => set,
            false => set.recursive_difference(fields),
        };
        Comparison {
            removed: without(self.removed),
            modified: without(self.modified),
            added: without(self.added),
        }
    }

    /// The same without borrowed texts.
    #[must_use]
    pub fn into_owned(self) -> Comparison<'static> {
        Comparison {
            removed: self.removed.into_owned(),
            modified: self.modified.into_owned(),
            added: self.added.into_owned(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Removed,
    Modified,
    Added,
}

/// How a value changed, and what is below it.
struct Outcome<'a> {
    change: Option<Change>,
    below: Comparison<'a>,
}

impl Outcome<'_> {
    fn leaf(change: Option<Change>) -> Self {
        Outcome { change, below: Comparison::default() }
    }
}

#[derive(Default)]
struct Nodes<'a> {
    removed: Vec<Node<'a>>,
    modified: Vec<Node<'a>>,
    added: Vec<Node<'a>>,
}

impl<'a> Nodes<'a> {
    fn push(&mut self, element: impl Fn() -> Element<'a>, outcome: Outcome<'a>) {
        let Outcome { change, below } = outcome;
        for (nodes, kind, children) in [
            (&mut self.removed, Change::Removed, below.removed),
            (&mut self.modified, Change::Modified, below.modified),
            (&mut self.added, Change::Added, below.added),
        ] {
            let is_member = change == Some(kind);
            if is_member || !children.is_empty() {
                nodes.push(Node { element: element(), is_member, children });
            }
        }
    }

    fn finish(self) -> Comparison<'a> {
        Comparison {
            removed: Set::from_nodes(self.removed),
            modified: Set::from_nodes(self.modified),
            added: Set::from_nodes(self.added),
        }
    }
}

/// The items of both lists that have the same key.
#[derive(Default)]
struct Same<'a> {
    old: Vec<&'a Value>,
    new: Vec<&'a Value>,
}

static ANY_MAP: MapType = MapType { atomic: false, fields: Vec::new(), element: Some(Schema::ANY) };

struct Walk<'a> {
    schema: &'a Schema,
}

impl<'a> Walk<'a> {
    fn compare(
        &self,
        old: Option<&'a Value>,
        new: Option<&'a Value>,
        of: TypeId,
    ) -> Result<Outcome<'a>, Mismatch> {
        let presence = match (old, new) {
            (None, _) => Some(Change::Added),
            (_, None) => Some(Change::Removed),
            _ => None,
        };
        let leaf = || presence.or_else(|| (old != new).then_some(Change::Modified));
        let below = match self.schema.get(of) {
            Type::Any if [old, new].into_iter().flatten().any(Value::is_object) => {
                self.maps(&ANY_MAP, as_map(old), as_map(new))?
            }
            Type::Map(of) if !of.atomic && (has_parts(of, old) || has_parts(of, new)) => {
                self.maps(of, as_map(old), as_map(new))?
            }
            Type::List(of) if of.is_granular() && (has_items(old) || has_items(new)) => {
                self.lists(of, old, new)?
            }
            _ => return Ok(Outcome::leaf(leaf())),
        };
        let of_other_kinds = [old, new].into_iter().flatten().any(|value| match value {
            Value::Null => false,
            Value::Array(_) => !matches!(self.schema.get(of), Type::List(_)),
            Value::Object(_) => matches!(self.schema.get(of), Type::List(_)),
            _ => true,
        });
        let change = if of_other_kinds { leaf() } else { presence };
        Ok(Outcome { change, below })
    }

    fn maps(
        &self,
        of: &'a MapType,
        old: Option<&'a Map<String, Value>>,
        new: Option<&'a Map<String, Value>>,
    ) -> Result<Comparison<'a>, Mismatch> {
        let mut nodes = Nodes::default();
        let get = |map: Option<&'a Map<String, Value>>, name: &str| {
            let map = map?;
            map.get(name).or_else(|| of.field(name)?.implied.as_ref())
        };
        let mut visit = |name: &'a str, in_old: Option<&'a Value>, in_new: Option<&'a Value>| {
            let below = of.of(name).unwrap_or(Schema::ANY);
            let outcome =
                self.compare(in_old, in_new, below).map_err(|error| error.below_field(name))?;
            nodes.push(|| Element::field(name), outcome);
            Ok::<(), Mismatch>(())
        };
        for (name, value) in old.into_iter().flatten() {
            visit(name, Some(value), get(new, name))?;
        }
        for (name, value) in new.into_iter().flatten() {
            if !old.is_some_and(|old| old.contains_key(name)) {
                visit(name, get(old, name), Some(value))?;
            }
        }
        // Where both have them, they are equal.
        if let (Some(one), None) | (None, Some(one)) = (old, new) {
            for (field, value) in of.implied() {
                if !one.contains_key(field.name.as_ref()) {
                    let value = Some(value);
                    let (old, new) = if old.is_some() { (value, None) } else { (None, value) };
                    visit(&field.name, old, new)?;
                }
            }
        }
        Ok(nodes.finish())
    }

    fn lists(
        &self,
        of: &'a ListType,
        old: Option<&'a Value>,
        new: Option<&'a Value>,
    ) -> Result<Comparison<'a>, Mismatch> {
        if old == new {
            return Ok(Comparison::default());
        }
        let mut items: BTreeMap<Element<'a>, Same<'a>> = BTreeMap::new();
        for (i, item) in as_list(old).iter().enumerate() {
            items.entry(item_element(of, i, item)?).or_default().old.push(item);
        }
        for (i, item) in as_list(new).iter().enumerate() {
            items.entry(item_element(of, i, item)?).or_default().new.push(item);
        }
        let mut nodes = Nodes::default();
        for (element, same) in items {
            let compare = |old: Option<&&'a Value>, new: Option<&&'a Value>| {
                let outcome = self.compare(old.copied(), new.copied(), of.element);
                outcome.map_err(|error| error.below(&element))
            };
            let mut push = |outcome| nodes.push(|| element.clone(), outcome);
            match (same.old.as_slice(), same.new.as_slice()) {
                ([] | [_], [] | [_]) => push(compare(same.old.first(), same.new.first())?),
                // Items with the same key are one value.
                ([_, _, ..], [_, _, ..]) => {
                    let differ = same.old != same.new;
                    push(Outcome::leaf(differ.then_some(Change::Modified)));
                }
                (_, rest @ ([] | [_])) => {
                    if let Some(one) = rest.first() {
                        push(compare(None, Some(one))?);
                    }
                    push(Outcome::leaf(Some(Change::Removed)));
                }
                (rest, _) => {
                    if let Some(one) = rest.first() {
                        push(compare(Some(one), None)?);
                    }
                    push(Outcome::leaf(Some(Change::Added)));
                }
            }
        }
        Ok(nodes.finish())
    }
}

fn as_map(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

fn as_list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// An empty map is a value of its own, unless some fields are always there.
fn has_parts(of: &MapType, value: Option<&Value>) -> bool {
    as_map(value).is_some_and(|map| !map.is_empty() || of.implied().next().is_some())
}

fn has_items(value: Option<&Value>) -> bool {
    !as_list(value).is_empty()
}
