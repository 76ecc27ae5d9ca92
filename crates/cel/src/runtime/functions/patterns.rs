//! Regular expressions: RE2's syntax, which takes time linear in the text.

use regex::{Regex, RegexBuilder};

use super::{Found, Function};
use crate::Error;
use crate::runtime::meter::Meter;
use crate::runtime::value::Value;

/// The most memory of a compiled pattern, in bytes.
const MOST_SIZE: usize = 1 << 20;

/// A function whose pattern is known before.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Compiled {
    Matches,
    Find,
    FindAll,
}

impl Compiled {
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "matches" => Some(Self::Matches),
            "find" => Some(Self::Find),
            "findAll" => Some(Self::FindAll),
            _ => None,
        }
    }

    /// The arguments are without the pattern.
    pub(crate) fn apply<'v>(
        self,
        meter: &mut Meter,
        regex: &Regex,
        args: &[Value<'v>],
    ) -> Found<'v> {
        let Some(Value::String(text)) = args.first() else {
            return Err(Error::no_such_overload());
        };
        meter.bytes(text.len())?;
        match (self, args.get(1)) {
            (Self::Matches, None) => Ok(Value::Bool(regex.is_match(text))),
            (Self::Find, None) => Ok(Value::text(regex.find(text).map_or("", |m| m.as_str()))),
            (Self::FindAll, most @ (None | Some(Value::Int(_)))) => {
                let most = match most {
                    Some(Value::Int(most)) => usize::try_from(*most).unwrap_or(usize::MAX),
                    _ => usize::MAX,
                };
                let mut found = Vec::new();
                for part in regex.find_iter(text).take(most) {
                    meter.bytes(part.len().saturating_add(8))?;
                    found.push(Value::text(part.as_str()));
                }
                Ok(Value::list(found))
            }
            _ => Err(Error::no_such_overload()),
        }
    }
}

pub(super) fn named(name: &str) -> Option<Function> {
    Some(match name {
        "matches" => |meter, args| with(Compiled::Matches, meter, args),
        "find" => |meter, args| with(Compiled::Find, meter, args),
        "findAll" => |meter, args| with(Compiled::FindAll, meter, args),
        _ => return None,
    })
}

fn with<'v>(function: Compiled, meter: &mut Meter, args: &[Value<'v>]) -> Found<'v> {
    let Some((text, [Value::String(pattern), rest @ ..])) = args.split_first() else {
        return Err(Error::no_such_overload());
    };
    // to compile one costs far more than to match
    meter.work(pattern.len().saturating_mul(50).saturating_add(2_000))?;
    let regex = match compile(pattern) {
        Ok(regex) => regex,
        Err(error) => return Err(Error::new(format!("Illegal regex: {error}"))),
    };
    let args: Vec<_> = std::iter::once(text).chain(rest).cloned().collect();
    function.apply(meter, &regex, &args)
}

/// A pattern of RE2.
pub(crate) fn compile(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(&translated(pattern))
        .size_limit(MOST_SIZE)
        .dfa_size_limit(MOST_SIZE)
        .nest_limit(100)
        .build()
}

/// RE2's classes are of ASCII, and what combines sets in a class is literal there.
fn translated(pattern: &str) -> String {
    let mut to = String::with_capacity(pattern.len());
    let mut class = false;
    let mut rest = pattern;
    while let Some(c) = rest.chars().next() {
        let after = rest.get(c.len_utf8()..).unwrap_or_default();
        let next = after.chars().next();
        let (text, taken): (&str, usize) = match (c, next) {
            ('\\', Some('Q')) if !class => {
                let body = after.get(1..).unwrap_or_default();
                let (literal, size) = match body.split_once("\\E") {
                    Some((literal, _)) => (literal, literal.len() + 4),
                    None => (body, body.len() + 2),
                };
                to.push_str(&regex::escape(literal));
                ("", size)
            }
            ('\\', Some('d')) => ("[0-9]", 2),
            ('\\', Some('D')) => ("[^0-9]", 2),
            ('\\', Some('w')) => ("[0-9A-Za-z_]", 2),
            ('\\', Some('W')) => ("[^0-9A-Za-z_]", 2),
            ('\\', Some('s')) => ("[\\t\\n\\f\\r ]", 2),
            ('\\', Some('S')) => ("[^\\t\\n\\f\\r ]", 2),
            ('\\', Some('b')) if !class => ("(?-u:\\b)", 2),
            ('\\', Some('B')) if !class => ("(?-u:\\B)", 2),
            ('\\', Some('<')) => ("<", 2),
            ('\\', Some('>')) => (">", 2),
            ('\\', Some(other)) => {
                let size = 1 + other.len_utf8();
                (rest.get(..size).unwrap_or_default(), size)
            }
            ('[', _) if !class => {
                class = true;
                let negated = if next == Some('^') { "[^" } else { "[" };
                // the first `]` is literal
                match rest.get(negated.len()..).is_some_and(|rest| rest.starts_with(']')) {
                    true => {
                        to.push_str(negated);
                        ("\\]", negated.len() + 1)
                    }
                    false => (negated, negated.len()),
                }
            }
            ('[', Some(':')) => match rest.find(":]") {
                Some(end) => (rest.get(..end + 2).unwrap_or_default(), end + 2),
                None => ("\\[", 1),
            },
            ('[', _) => ("\\[", 1),
            (']', _) => {
                class = false;
                ("]", 1)
            }
            ('&', _) if class => ("\\&", 1),
            ('~', _) if class => ("\\~", 1),
            (c, _) => (rest.get(..c.len_utf8()).unwrap_or_default(), c.len_utf8()),
        };
        to.push_str(text);
        rest = rest.get(taken..).unwrap_or_default();
    }
    to
}
