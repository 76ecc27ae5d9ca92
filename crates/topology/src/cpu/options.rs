//! What fine-tunes the static CPU policy.

use std::collections::BTreeMap;

/// The options of `cpuManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `full-pcpus-only`: whole cores or nothing.
    pub full_cores_only: bool,
    /// `distribute-cpus-across-numa`: evenly over the nodes, where one does not do.
    pub spread_over_nodes: bool,
    /// `align-by-socket`: a socket's nodes count as one.
    pub align_by_socket: bool,
    /// `distribute-cpus-across-cores`: threads of different cores.
    pub spread_over_cores: bool,
    /// `strict-cpu-reservation`: the reserved CPUs are not shared either.
    pub strict_reservation: bool,
    /// `prefer-align-cpus-by-uncorecache`: within one cache, where that can be.
    pub by_uncore: bool,
}

/// An option that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is none of that name.
    #[error("unknown option {0:?}")]
    Unknown(String),
    /// It waits behind a feature gate.
    #[error("option {option:?} needs the feature gate {gate}")]
    Gated {
        /// The option.
        option: String,
        /// The gate.
        gate: &'static str,
    },
    /// Its value is of the wrong kind.
    #[error("bad value {value:?} for option {option:?}")]
    Value {
        /// The option.
        option: String,
        /// What it is set to.
        value: String,
    },
    /// Two that contradict each other.
    #[error("options {0} and {1} can not be used at the same time")]
    Both(&'static str, &'static str),
    /// Less than is always allowed.
    #[error("option {option:?} must not be less than {least}")]
    TooFew {
        /// The option.
        option: &'static str,
        /// The least.
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
    /// Read the options of the configuration; `gate` tells whether a feature gate is on.
    ///
    /// # Errors
    /// The first that cannot be.
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

/// A truth value in one of the words that Go knows.
pub(crate) fn flag(option: &str, value: &str) -> Result<bool, OptionError> {
    match value {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(OptionError::Value { option: option.to_owned(), value: value.to_owned() }),
    }
}
