//! Options of the static CPU policy.

use std::collections::BTreeMap;

/// The options of `cpuManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `full-pcpus-only`: only whole cores.
    pub full_cores_only: bool,
    /// `distribute-cpus-across-numa`: evenly over the nodes, if one is not enough.
    pub spread_over_nodes: bool,
    /// `align-by-socket`: alignment by socket instead of node.
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`: threads of different cores.
    pub spread_over_cores: bool,
    /// `strict-cpu-reservation`: reserved CPUs are not shared.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: from one uncore cache, if possible.
    pub by_uncore: bool,
}

/// Invalid options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// Unknown option.
    #[error("unknown option {0:?}")]
    Unknown(String),
    /// Its feature gate is off.
    #[error("option {option:?} needs the feature gate {gate}")]
    Gated {
        /// The option.
        option: String,
        /// The gate.
        gate: &'static str,
    },
    /// Its value is invalid.
    #[error("bad value {value:?} for option {option:?}")]
    Value {
        /// The option.
        option: String,
        /// The value.
        value: String,
    },
    /// Two options are incompatible.
    #[error("options {0} and {1} can not be used at the same time")]
    Both(&'static str, &'static str),
    /// Less than the minimum.
    #[error("option {option:?} must not be less than {least}")]
    TooFew {
        /// The option.
        option: &'static str,
        /// The minimum.
        least: usize,
    },
}

const FULL: &str = "full-pcpus-only";
const NODES: &str = "distribute-cpus-across-numa";
const SOCKET: &str = "align-by-socket";
const CORES: &str = "distribute-cpus-across-cores";
const STRICT: &str = "strict-cpu-reservation";
const UNCORE: &str = "prefer-align-cpus-by-uncorecache";

impl Options {
    /// Parses the options; `gate` returns whether a feature gate is on.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn parse(
        texts: &BTreeMap<String, String>,
        gate: impl Fn(&str) -> bool,
    ) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for (name, value) in texts {
            let (slot, needs) = match name.as_str() {
                FULL => (&mut options.full_cores_only, None),
                NODES => (&mut options.spread_over_nodes, Some("CPUManagerPolicyBetaOptions")),
                SOCKET => (&mut options.align_by_socket, Some("CPUManagerPolicyAlphaOptions")),
                CORES => (&mut options.spread_over_cores, Some("CPUManagerPolicyAlphaOptions")),
                STRICT => (&mut options.strict_reservation, None),
                UNCORE => (&mut options.by_uncore, None),
                _ => return Err(OptionError::Unknown(name.clone())),
            };
            if let Some(needs) = needs.filter(|needs| !gate(needs)) {
                return Err(OptionError::Gated { option: name.clone(), gate: needs });
            }
            *slot = flag(name, value)?;
        }
        for (one, one_name, other, other_name) in [
            (options.full_cores_only, FULL, options.spread_over_cores, CORES),
            (options.spread_over_nodes, NODES, options.spread_over_cores, CORES),
            (options.by_uncore, UNCORE, options.spread_over_cores, CORES),
            (options.by_uncore, UNCORE, options.spread_over_nodes, NODES),
        ] {
            if one && other {
                return Err(OptionError::Both(one_name, other_name));
            }
        }
        Ok(options)
    }
}

/// A boolean in any format that Go accepts.
pub(crate) fn flag(option: &str, value: &str) -> Result<bool, OptionError> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(OptionError::Value { option: option.to_owned(), value: value.to_owned() }),
    }
}
