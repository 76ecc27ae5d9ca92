//! Options of the topology manager.

use std::collections::BTreeMap;

use crate::OptionError;
use crate::cpu::flag;

/// The options of `topologyManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `prefer-closest-numa-nodes`: of sets with the same number of nodes, the one with the least
    /// distance.
    pub prefer_closest: bool,
    /// `max-allowable-numa-nodes`: with more nodes, only the policy `none` is possible.
    pub most_nodes: usize,
}

/// Default limit of nodes, as the number of sets is exponential.
const MOST_NODES: usize = 8;
const CLOSEST: &str = "prefer-closest-numa-nodes";
const MOST: &str = "max-allowable-numa-nodes";

impl Default for Options {
    fn default() -> Self {
        Self { prefer_closest: false, most_nodes: MOST_NODES }
    }
}

impl Options {
    /// Parses the options of the configuration.
    ///
    /// # Errors
    /// The first invalid option.
    pub fn parse(texts: &BTreeMap<String, String>) -> Result<Self, OptionError> {
        let mut options = Self::default();
        for (option, value) in texts {
            let bad = || OptionError::Value { option: option.clone(), value: value.clone() };
            match option.as_str() {
                CLOSEST => options.prefer_closest = flag(option, value)?,
                MOST => options.most_nodes = value.parse().map_err(|_| bad())?,
                _ => return Err(OptionError::Unknown(option.clone())),
            }
        }
        match options.most_nodes < MOST_NODES {
            true => Err(OptionError::TooFew { option: MOST, least: MOST_NODES }),
            false => Ok(options),
        }
    }
}
