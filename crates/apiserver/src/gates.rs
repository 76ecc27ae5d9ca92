//! Feature gates, under upstream's names.

use std::str::FromStr;

/// The gates that have an effect in this apiserver. Every other one is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// `PodLogsQuerySplitStreams`: stdout or stderr may be requested alone.
    pub split_log_streams: bool,
}

/// Gates of other programs that upstream's apiserver takes without effect: the value that is in
/// force anyway, and what to do for another one.
const WITHOUT_EFFECT: [(&str, bool, &str); 1] = [(
    "AllowServiceExternalIPs",
    true,
    "it is a gate of the node's; the apiserver refuses external addresses of services with \
     --enable-admission-plugins=DenyServiceExternalIPs",
)];

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
            match (name.trim(), WITHOUT_EFFECT.iter().find(|(known, ..)| *known == name.trim())) {
                ("PodLogsQuerySplitStreams", _) => gates.split_log_streams = value,
                (_, Some((_, in_force, _))) if value == *in_force => {}
                (name, Some((.., why))) => return Err(format!("{name}={value}: {why}")),
                (name, None) => return Err(format!("unrecognized feature gate: {name}")),
            }
        }
        Ok(gates)
    }
}
