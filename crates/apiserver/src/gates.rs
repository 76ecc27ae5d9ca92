//! Feature gates: what of the API is there only when it is asked for, by upstream's names.

use std::str::FromStr;

/// The gates that this apiserver knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// `PodLogsQuerySplitStreams`: one stream of a container's output may be asked for alone.
    pub split_log_streams: bool,
}

impl FromStr for FeatureGates {
    type Err = String;

    /// Reads `NAME=BOOL,…`.
    fn from_str(text: &str) -> Result<FeatureGates, String> {
        let mut gates = FeatureGates::default();
        for gate in text.split(',').map(str::trim).filter(|gate| !gate.is_empty()) {
            let (name, value) =
                gate.split_once('=').ok_or_else(|| format!("missing bool value for {gate}"))?;
            let value = match value.trim() {
                "true" | "True" | "TRUE" | "t" | "T" | "1" => true,
                "false" | "False" | "FALSE" | "f" | "F" | "0" => false,
                other => return Err(format!("invalid value of {name}={other}")),
            };
            match name.trim() {
                "PodLogsQuerySplitStreams" => gates.split_log_streams = value,
                name => return Err(format!("unrecognized feature gate: {name}")),
            }
        }
        Ok(gates)
    }
}
