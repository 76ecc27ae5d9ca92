//! What calls cost, as upstream counts it.

use crate::Error;
use crate::runtime::functions::opaque::Opaque;
use crate::runtime::meter::Meter;
use crate::runtime::value::Value;

/// How the cost of a call follows from its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CostRule {
    Zero,
    One,
    /// A check of an authorizer.
    Check,
    /// Reading the target.
    Scan,
    ScanTwice,
    /// Reading the result twice.
    ResultTwice,
    /// Reading all that the target has.
    Traverse,
    /// Reading the shorter one.
    Compare,
    /// Reading both.
    Concat,
    /// Each item of the list.
    Items,
    Contains,
    Matching,
    Selector,
    ContainsIp {
        text: bool,
    },
    ContainsCidr {
        text: bool,
    },
    Validate,
}

impl CostRule {
    /// The rule of a function. Where an argument is `dyn`, several overloads are left, and upstream counts
    /// one.
    pub(crate) fn of(name: &str, overloads: &[&str]) -> Self {
        match name {
            "check" => return Self::Check,
            "fieldSelector" | "labelSelector" => return Self::Selector,
            "isSorted" | "sum" | "max" | "min" | "indexOf" | "lastIndexOf" => {
                return Self::Traverse;
            }
            "url"
            | "lowerAscii"
            | "upperAscii"
            | "substring"
            | "trim"
            | "jsonpatch.escapeKey"
            | "cidr"
            | "isIP"
            | "isCIDR"
            | "quantity"
            | "isQuantity"
            | "semver"
            | "isSemver" => {
                return Self::Scan;
            }
            "replace" | "split" | "ip.isCanonical" => return Self::ScanTwice,
            "join" => return Self::ResultTwice,
            "find" | "findAll" => return Self::Matching,
            "ip" if overloads != ["cidr_ip"] => return Self::Scan,
            "containsIP" => {
                return Self::ContainsIp { text: overloads == ["cidr_contains_ip_string"] };
            }
            "containsCIDR" => {
                return Self::ContainsCidr { text: overloads == ["cidr_contains_cidr_string"] };
            }
            "validate" => return Self::Validate,
            _ => {}
        }
        let [overload] = overloads else { return Self::One };
        match *overload {
            "starts_with_string" | "ends_with_string" | "string_to_bytes" | "bytes_to_string"
            | "strings_quote" | "string_format" => Self::Scan,
            "in_list" => Self::Items,
            "less_string"
            | "greater_string"
            | "less_equals_string"
            | "greater_equals_string"
            | "less_bytes"
            | "greater_bytes"
            | "less_equals_bytes"
            | "greater_equals_bytes"
            | "equals"
            | "not_equals" => Self::Compare,
            "add_string" | "add_bytes" => Self::Concat,
            "matches_string" | "matches" => Self::Matching,
            "contains_string" => Self::Contains,
            _ => Self::One,
        }
    }

    /// What is known before the call is made.
    pub(crate) fn before(self, meter: &mut Meter, args: &[Value<'_>]) -> Result<u64, Error> {
        let size = |index: usize| args.get(index).map_or(1, Value::size);
        Ok(match self {
            Self::Zero | Self::ResultTwice => 0,
            Self::One => 1,
            Self::Check => 350_000,
            Self::Scan => tenths(size(0)),
            Self::ScanTwice => fifths(size(0)),
            Self::Traverse => args.first().map_or(Ok(0), |value| meter.traversal(value))?,
            Self::Compare => match args {
                [Value::Opaque(_), _] => 1,
                _ => tenths(size(0).min(size(1))),
            },
            Self::Concat => tenths(size(0).saturating_add(size(1))),
            Self::Items => size(1),
            Self::Contains => tenths(size(0)).saturating_mul(tenths(size(1))),
            Self::Matching => matching(size(0), usize::try_from(size(1)).unwrap_or(usize::MAX)),
            Self::Selector => {
                let length = size(1);
                let requirements = length.div_ceil(2).saturating_mul(50);
                tenths(length).saturating_add(10).saturating_add(requirements)
            }
            Self::ContainsIp { text } => {
                let other = if text { tenths(size(1)) } else { 0 };
                fifths(size(0)).saturating_add(other)
            }
            Self::ContainsCidr { text } => {
                let other = if text { tenths(size(1)) } else { 0 };
                let own = fifths(size(0)).saturating_add(tenths(size(0)));
                own.saturating_add(1).saturating_add(other)
            }
            Self::Validate => match args {
                [Value::Opaque(opaque), _] => match &**opaque {
                    Opaque::Format(format) => matching(size(1), format.cost),
                    _ => 1,
                },
                _ => 1,
            },
        })
    }

    /// What the result adds.
    pub(crate) fn after(self, result: &Value<'_>) -> u64 {
        match self {
            Self::ResultTwice => fifths(result.size()),
            _ => 0,
        }
    }
}

/// The cost of matching so many characters with a pattern of so many.
pub(crate) fn matching(size: u64, pattern: usize) -> u64 {
    let pattern = u64::try_from(pattern).unwrap_or(u64::MAX).div_ceil(4);
    tenths(size.saturating_add(1)).saturating_mul(pattern)
}

pub(crate) fn tenths(size: u64) -> u64 {
    size.div_ceil(10)
}

fn fifths(size: u64) -> u64 {
    size.div_ceil(5)
}
