//! Go's programs hash what they want to know again as `spew` prints it, types and all: the kubelet
//! static pods for their UIDs and state files for their checksums, controllers the templates of pods.
//! A node or cluster that changes hands must find the same values, to the bit.
//!
//! The printer walks a value's JSON along a table of Go's types, which its user brings along.

#![cfg_attr(test, allow(clippy::arithmetic_side_effects))]

mod fnv;
mod json;
mod quantity;
mod types;

use std::fmt::{self, Write};

use serde_json::Value;

pub use fnv::{Fnv32, Fnv32a, Fnv128a};
pub use json::{as_go, write_json};
pub use quantity::Quantity;
use types::Shape;
pub use types::Types;

/// Print `value` of Go's type `ty` the way `%#v` of spew does with methods off and keys sorted.
///
/// # Errors
/// What `out` fails with.
pub fn print(types: &Types, ty: &str, value: &Value, out: &mut dyn Write) -> fmt::Result {
    Printer { types, out }.typed(ty, value)
}

struct Printer<'a> {
    types: &'a Types,
    out: &'a mut dyn Write,
}

impl Printer<'_> {
    /// A value with its type in front.
    fn typed(&mut self, ty: &str, value: &Value) -> fmt::Result {
        // Go's name of the struct without fields has a space in it, where a table's words end.
        write!(self.out, "({})", ty.replace("struct{}", "struct {}"))?;
        match self.types.shape(ty) {
            Shape::Pointer(inner) if !value.is_null() => self.bare(inner, value),
            _ => self.bare(ty, value),
        }
    }

    /// A value alone. What is absent is null, and prints as Go's zero value.
    fn bare(&mut self, ty: &str, value: &Value) -> fmt::Result {
        match self.types.shape(ty) {
            Shape::Pointer(_) if value.is_null() => self.out.write_str("<nil>"),
            Shape::Pointer(inner) => {
                self.out.write_str("<*>")?;
                self.bare(inner, value)
            }
            Shape::Alias(inner) => self.bare(inner, value),
            Shape::Slice(inner) => match value.as_array() {
                None => self.out.write_str("<nil>"),
                Some(items) => {
                    self.list("[", items.iter(), |printer, item| printer.bare(inner, item))
                }
            },
            Shape::Map { key, inner } => match value.as_object() {
                None => self.out.write_str("<nil>"),
                Some(entries) => {
                    let mut entries: Vec<_> = entries.iter().collect();
                    match key {
                        "int" | "int64" => {
                            entries.sort_by_key(|(key, _)| key.parse::<i64>().unwrap_or(0))
                        }
                        _ => entries.sort_unstable_by_key(|(key, _)| key.as_str()),
                    }
                    self.list("map[", entries.into_iter(), |printer, (key, value)| {
                        write!(printer.out, "{key}:")?;
                        match inner {
                            // The quantities of a map are resources, which are counted in thousandths.
                            "resource.Quantity" => printer.quantity(value, Quantity::rounded),
                            inner => printer.bare(inner, value),
                        }
                    })
                }
            },
            Shape::Struct(fields) => {
                self.out.write_char('{')?;
                for (index, field) in fields.iter().enumerate() {
                    let separator = if index == 0 { "" } else { " " };
                    write!(self.out, "{separator}{}:", field.name)?;
                    match field.json.as_ref() {
                        "." => self.typed(field.ty, value)?,
                        "-" => self.typed(field.ty, &Value::Null)?,
                        json => self.typed(field.ty, &value[json])?,
                    }
                }
                self.out.write_char('}')
            }
            Shape::Other => self.scalar(ty, value),
        }
    }

    fn scalar(&mut self, ty: &str, value: &Value) -> fmt::Result {
        match ty {
            "string" => self.out.write_str(value.as_str().unwrap_or_default()),
            "bool" => write!(self.out, "{}", value.as_bool().unwrap_or_default()),
            "resource.Quantity" => self.quantity(value, |quantity| quantity),
            "intstr.IntOrString" => {
                let (kind, text) =
                    (value.as_str().map_or(0, |_| 1), value.as_str().unwrap_or_default());
                let number = value.as_i64().unwrap_or_default();
                write!(
                    self.out,
                    "{{Type:(intstr.Type){kind} IntVal:(int32){number} StrVal:(string){text}}}"
                )
            }
            "v1.Time" => match value.as_str() {
                Some(moment) => self.out.write_str(moment),
                None => self.out.write_str(
                    "{Time:(time.Time){wall:(uint64)0 ext:(int64)0 loc:(*time.Location)<nil>}}",
                ),
            },
            "v1.FieldsV1" => write!(self.out, "{value}"),
            _ => match (value.as_i64(), value.as_u64()) {
                (None, Some(large)) => write!(self.out, "{large}"),
                (small, _) => write!(self.out, "{}", small.unwrap_or_default()),
            },
        }
    }

    fn quantity(&mut self, value: &Value, as_kept: fn(Quantity) -> Quantity) -> fmt::Result {
        let quantity = value.as_str().and_then(Quantity::parse).unwrap_or_default();
        write!(self.out, "{}", as_kept(quantity))
    }

    fn list<T>(
        &mut self,
        open: &str,
        items: impl Iterator<Item = T>,
        mut print: impl FnMut(&mut Self, T) -> fmt::Result,
    ) -> fmt::Result {
        self.out.write_str(open)?;
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.write_char(' ')?;
            }
            print(self, item)?;
        }
        self.out.write_char(']')
    }
}

#[cfg(test)]
mod tests;
