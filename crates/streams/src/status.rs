//! How a command has ended, as it is sent to a client: a `metav1.Status` in JSON from
//! `v4.channel.k8s.io` on, and text before.

use serde_json::json;

/// How a command has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Status {
    /// With exit code 0.
    Success,
    /// With another exit code.
    Exit(i32),
    /// It did not run, or its end is not known: why.
    Internal(String),
}

impl Status {
    /// As JSON.
    #[must_use]
    pub fn json(&self) -> String {
        let status = match self {
            Status::Success => json!({"metadata": {}, "status": "Success"}),
            Status::Exit(code) => json!({
                "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
                "message": self.text(),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Status::Internal(why) => json!({
                "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
                "message": self.text(),
                "details": {"causes": [{"message": why}]},
            }),
        };
        status.to_string()
    }

    /// As text: empty for success.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Status::Success => String::new(),
            Status::Exit(code) => {
                format!("command terminated with non-zero exit code: exit status {code}")
            }
            Status::Internal(why) => format!("Internal error occurred: {why}"),
        }
    }
}
