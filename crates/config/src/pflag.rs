//! The command-line syntax of Kubernetes components: `--flag=value`, `--flag value`, `--flag` for
//! booleans, `-v2`, underscores as dashes. The tables of flags are passed in.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Display;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use longshore_base::logging::parse_vmodule;

use super::GoDuration;
use super::kubelet::{MemoryReservation, VModuleItem};
use super::{labels, quantities};

/// A flag: its name and its target in `T`.
pub(super) struct Flag<T: 'static> {
    pub(super) name: &'static str,
    pub(super) target: Target<T>,
    /// Deprecated: the setting belongs in the configuration file.
    pub(super) deprecated: bool,
}

/// The type of the value and its target.
pub(super) enum Target<T> {
    Bool(fn(&mut T) -> &mut bool),
    Int(fn(&mut T) -> &mut i32),
    Long(fn(&mut T) -> &mut i64),
    Float(fn(&mut T) -> &mut f32),
    Text(fn(&mut T) -> &mut String),
    Ip(fn(&mut T) -> &mut String),
    Duration(fn(&mut T) -> &mut GoDuration),
    /// Comma-separated; the first use replaces the default, later ones append.
    List(fn(&mut T) -> &mut Vec<String>),
    /// Comma-separated pairs; the first use replaces the default, later ones append.
    Pairs(char, fn(&mut T) -> &mut BTreeMap<String, String>),
    Headers(fn(&mut T) -> &mut BTreeMap<String, Vec<String>>),
    /// `Gate=true,…`, merged with the file.
    Gates(fn(&mut T) -> &mut BTreeMap<String, bool>),
    Labels(fn(&mut T) -> &mut BTreeMap<String, String>),
    Taints(fn(&mut T) -> &mut Vec<Taint>),
    ReservedMemory(fn(&mut T) -> &mut Vec<MemoryReservation>),
    Verbosity(fn(&mut T) -> &mut u32),
    /// `pattern=N,…`; each use replaces the last.
    VModule(fn(&mut T) -> &mut Vec<VModuleItem>),
    /// A quantity.
    Amount(fn(&mut T) -> &mut Quantity),
    /// `true`, `false` or a string: `--version`, `--version=raw`.
    Word(fn(&mut T) -> &mut String),
    /// Accepted without effect.
    IgnoredBool,
    Ignored,
}

impl<T> Target<T> {
    fn may_stand_alone(&self) -> bool {
        matches!(self, Self::Bool(_) | Self::IgnoredBool | Self::Word(_))
    }

    /// Whether it has no effect.
    pub(super) fn is_ignored(&self) -> bool {
        matches!(self, Self::Ignored | Self::IgnoredBool)
    }

    /// The type in the usage text.
    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) | Self::IgnoredBool => "",
            Self::Int(_) | Self::Long(_) | Self::Verbosity(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_) | Self::Word(_) | Self::Ignored => "string",
            Self::Ip(_) => "ip",
            Self::Duration(_) => "duration",
            Self::List(_) => "strings",
            Self::Pairs(..) | Self::Headers(_) | Self::Gates(_) | Self::Labels(_) => "map",
            Self::Taints(_) => "taints",
            Self::ReservedMemory(_) => "reserved-memory",
            Self::VModule(_) => "pattern=N,...",
            Self::Amount(_) => "quantity",
        }
    }

    /// Stores `value`; `first` if the flag was not given before.
    fn set(&self, into: &mut T, value: &str, first: bool) -> Result<(), String> {
        match self {
            Self::Bool(field) => *field(into) = boolean(value)?,
            Self::Int(field) => *field(into) = integer(value)?,
            Self::Long(field) => *field(into) = integer(value)?,
            Self::Float(field) => {
                *field(into) = value.parse().map_err(|_| format!("{value:?} is not a number"))?;
            }
            Self::Verbosity(field) => *field(into) = integer(value)?,
            Self::VModule(field) => {
                let items = parse_vmodule(value)?.into_iter();
                let items = items.map(|item| VModuleItem {
                    file_pattern: item.pattern,
                    verbosity: item.verbosity,
                });
                *field(into) = items.collect();
            }
            Self::Amount(field) => {
                if quantities::amount(value).is_none() {
                    return Err(format!("{value:?} is not a quantity"));
                }
                *field(into) = Quantity(value.to_owned());
            }
            Self::Text(field) | Self::Word(field) => *field(into) = value.to_owned(),
            Self::Ip(field) => *field(into) = ip(value)?,
            Self::Duration(field) => *field(into) = value.parse().map_err(|e| format!("{e}"))?,
            Self::List(field) => {
                let list = field(into);
                if first {
                    list.clear();
                }
                list.extend(items(value).map(str::to_owned));
            }
            Self::Pairs(separator, field) => {
                let map = field(into);
                if first {
                    map.clear();
                }
                for item in items(value) {
                    let (key, value) = pair(item, *separator)?;
                    map.insert(key, value);
                }
            }
            Self::Headers(field) => {
                let map = field(into);
                if first {
                    map.clear();
                }
                for item in items(value) {
                    let (key, value) = pair(item, ':')?;
                    map.entry(key).or_default().push(value);
                }
            }
            Self::Gates(field) => {
                for item in items(value) {
                    let (gate, value) = pair(item, '=')?;
                    field(into).insert(gate, boolean(&value)?);
                }
            }
            Self::Labels(field) => {
                for item in items(value) {
                    let (key, value) =
                        pair(item, '=').unwrap_or((item.trim().to_owned(), String::new()));
                    field(into).insert(key, value);
                }
            }
            Self::Taints(field) => *field(into) = taints(value)?,
            Self::ReservedMemory(field) => {
                let list = field(into);
                if first {
                    list.clear();
                }
                list.extend(
                    value
                        .split(';')
                        .filter(|item| !item.is_empty())
                        .map(reservation)
                        .collect::<Result<Vec<_>, _>>()?,
                );
            }
            Self::IgnoredBool => {
                boolean(value)?;
            }
            Self::Ignored => {}
        }
        Ok(())
    }

    /// The current value; empty without effect.
    fn show(&self, from: &mut T) -> String {
        match self {
            Self::Bool(field) => field(from).to_string(),
            Self::Int(field) => field(from).to_string(),
            Self::Long(field) => field(from).to_string(),
            Self::Float(field) => field(from).to_string(),
            Self::Verbosity(field) => field(from).to_string(),
            Self::VModule(field) => {
                let items = field(from).iter();
                let items = items.map(|item| format!("{}={}", item.file_pattern, item.verbosity));
                items.collect::<Vec<_>>().join(",")
            }
            Self::Amount(field) => field(from).0.clone(),
            Self::Text(field) | Self::Word(field) | Self::Ip(field) => field(from).clone(),
            Self::Duration(field) => field(from).to_string(),
            Self::List(field) => field(from).join(","),
            Self::Pairs(separator, field) => joined(field(from), *separator),
            Self::Labels(field) => joined(field(from), '='),
            Self::Gates(field) => joined(field(from), '='),
            Self::Headers(field) => {
                let headers = field(from).iter();
                let each = headers.flat_map(|(key, values)| {
                    values.iter().map(move |value| format!("{key}:{value}"))
                });
                each.collect::<Vec<_>>().join(",")
            }
            Self::Taints(field) => {
                let each = field(from).iter().map(|taint| {
                    let value = taint.value.as_deref().unwrap_or_default();
                    format!("{}={value}:{}", taint.key, taint.effect)
                });
                each.collect::<Vec<_>>().join(",")
            }
            Self::ReservedMemory(field) => {
                let each = field(from).iter().map(|reservation| {
                    let limits = reservation.limits.iter();
                    let limits = limits.map(|(name, quantity)| format!("{name}={}", quantity.0));
                    let limits = limits.collect::<Vec<_>>().join(",");
                    format!("{}:{limits}", reservation.numa_node)
                });
                each.collect::<Vec<_>>().join(";")
            }
            Self::IgnoredBool | Self::Ignored => String::new(),
        }
    }
}

/// All flags of `table` with their values in `from`, in command-line syntax.
pub(super) fn shown<T>(table: &[Flag<T>], from: &mut T) -> BTreeMap<&'static str, String> {
    table.iter().map(|flag| (flag.name, flag.target.show(from))).collect()
}

fn joined<K: Display, V: Display>(pairs: &BTreeMap<K, V>, separator: char) -> String {
    let pairs = pairs.iter().map(|(key, value)| format!("{key}{separator}{value}"));
    pairs.collect::<Vec<_>>().join(",")
}

/// Parsed flags, not stored yet.
pub(super) struct Parsed<T: 'static> {
    values: Vec<(&'static Flag<T>, String)>,
}

impl<T> Parsed<T> {
    /// Parses `args` with `table`.
    pub(super) fn new(table: &'static [Flag<T>], args: &[String]) -> Result<Self, String> {
        let find = |name: &str| table.iter().find(|flag| flag.name == name);
        let mut values = Vec::new();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let (flag, value) = if arg == "--" {
                match args.next() {
                    Some(arg) => return Err(format!("unknown command {arg}")),
                    None => break,
                }
            } else if let Some(long) = arg.strip_prefix("--") {
                let (name, value) =
                    long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                let flag = find(&name.replace('_', "-"))
                    .ok_or_else(|| format!("unknown flag: --{name}"))?;
                (flag, value)
            } else if let Some(short) = arg.strip_prefix('-').filter(|short| !short.is_empty()) {
                let first = &short[..short.chars().next().map_or(0, char::len_utf8)];
                let name = if first == "h" { "help" } else { first };
                let flag = find(name)
                    .ok_or_else(|| format!("unknown shorthand flag: {first:?} in {arg}"))?;
                let value = &short[first.len()..];
                (
                    flag,
                    Some(value.strip_prefix('=').unwrap_or(value))
                        .filter(|value| !value.is_empty()),
                )
            } else {
                return Err(format!("unknown command {arg}"));
            };
            let value = match value {
                Some(value) => value,
                None if flag.target.may_stand_alone() => "true",
                None => {
                    args.next().ok_or_else(|| format!("flag needs an argument: --{}", flag.name))?
                }
            };
            values.push((flag, value.to_owned()));
        }
        Ok(Self { values })
    }

    /// Stores all values in `into`, in order.
    pub(super) fn apply(&self, into: &mut T) -> Result<(), String> {
        let mut seen = HashSet::new();
        for (flag, value) in &self.values {
            let first = seen.insert(flag.name);
            flag.target.set(into, value, first).map_err(|reason| {
                format!("invalid argument {value:?} for \"--{}\" flag: {reason}", flag.name)
            })?;
        }
        Ok(())
    }

    /// The given deprecated flags.
    pub(super) fn deprecated(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.given(|flag| flag.deprecated && !flag.target.is_ignored())
    }

    /// The given flags without effect.
    pub(super) fn ignored(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.given(|flag| flag.target.is_ignored())
    }

    /// Those of these flags that are given.
    pub(super) fn among(&self, names: &[&str]) -> impl Iterator<Item = &'static str> {
        self.given(|flag| names.contains(&flag.name))
    }

    /// The names of matching flags, each once.
    fn given(&self, so: impl Fn(&Flag<T>) -> bool) -> impl Iterator<Item = &'static str> {
        let names = self.values.iter().filter(|(flag, _)| so(flag)).map(|(flag, _)| flag.name);
        names.collect::<BTreeSet<_>>().into_iter()
    }
}

fn items(value: &str) -> impl Iterator<Item = &str> {
    value.split(',').filter(|item| !item.is_empty())
}

fn pair(item: &str, separator: char) -> Result<(String, String), String> {
    let (key, value) = item
        .split_once(separator)
        .ok_or_else(|| format!("malformed pair {item:?}, expect string{separator}string"))?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("{value:?} is neither true nor false")),
    }
}

/// An integer, decimal or with the prefixes of Go (`0x`, `0o`, `0b`).
fn integer<N: TryFrom<i64>>(value: &str) -> Result<N, String> {
    let (negative, digits) =
        value.strip_prefix('-').map_or((false, value), |digits| (true, digits));
    let (radix, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, &digits[2..]),
        Some("0o" | "0O") => (8, &digits[2..]),
        Some("0b" | "0B") => (2, &digits[2..]),
        _ => (10, digits),
    };
    // from_str_radix accepts a sign, which would make "--5" valid
    let number = Some(digits)
        .filter(|digits| digits.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .and_then(|digits| i64::from_str_radix(digits, radix).ok());
    number
        .map(|number| if negative { number.saturating_neg() } else { number })
        .and_then(|number| N::try_from(number).ok())
        .ok_or_else(|| format!("{value:?} is not a number, or out of range"))
}

fn ip(value: &str) -> Result<String, String> {
    match value.parse::<std::net::IpAddr>() {
        Ok(_) => Ok(value.to_owned()),
        Err(_) => Err(format!("{value:?} is not a valid IP address")),
    }
}

/// `key=value:Effect,…`, as written by kubeadm.
fn taints(value: &str) -> Result<Vec<Taint>, String> {
    let mut taints: Vec<Taint> = Vec::new();
    for item in items(value) {
        let taint =
            taint(item).map_err(|reason| format!("invalid taint spec {item:?}: {reason}"))?;
        if taints.iter().any(|other| other.key == taint.key && other.effect == taint.effect) {
            return Err(format!(
                "two taints with the key {:?} and the effect {:?}",
                taint.key, taint.effect
            ));
        }
        taints.push(taint);
    }
    Ok(taints)
}

fn taint(item: &str) -> Result<Taint, String> {
    let (pair, effect) = item.split_once(':').ok_or("it has no effect")?;
    let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
    let taint = Taint {
        key: key.to_owned(),
        value: (!value.is_empty()).then(|| value.to_owned()),
        effect: effect.to_owned(),
        time_added: None,
    };
    labels::check_taint(&taint)?;
    Ok(taint)
}

/// `0:memory=1Gi,hugepages-2Mi=64Mi`: memory reserved on a NUMA node.
fn reservation(item: &str) -> Result<MemoryReservation, String> {
    let (node, limits) = item
        .split_once(':')
        .ok_or_else(|| format!("{item:?} is not node:type=quantity[,type=quantity...]"))?;
    let limits = items(limits)
        .map(|limit| pair(limit, '=').map(|(name, quantity)| (name, Quantity(quantity))))
        .collect::<Result<_, _>>()?;
    Ok(MemoryReservation { numa_node: integer(node)?, limits })
}
