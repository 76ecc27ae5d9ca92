//! How a command has ended, as it is sent to a client: a `metav1.Status` in JSON from
//! `v4.channel.k8s.io` on, and text before.

use serde_json::{Value, json};

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
    /// From what a client gets: JSON, or the text of older versions.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let Ok(status) = serde_json::from_str::<Value>(&text) else {
            return if text.is_empty() { Self::Success } else { Self::Internal(text.into_owned()) };
        };
        if status["status"] == "Success" {
            return Self::Success;
        }
        let causes = status["details"]["causes"].as_array();
        let code = causes.into_iter().flatten().find(|cause| cause["reason"] == "ExitCode");
        match code.and_then(|cause| cause["message"].as_str()?.parse().ok()) {
            Some(code) => Self::Exit(code),
            None => {
                let message = status["message"].as_str().unwrap_or("no reason was given");
                Self::Internal(message.trim_start_matches("Internal error occurred: ").to_owned())
            }
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_read_as_it_is_written() {
        for status in [
            Status::Success,
            Status::Exit(0),
            Status::Exit(-1),
            Status::Exit(127),
            Status::Internal("no such file".to_owned()),
        ] {
            assert_eq!(Status::parse(status.json().as_bytes()), status);
        }
        let internal = |text: &str| Status::Internal(text.to_owned());
        for (text, expected) in [
            ("", Status::Success),
            ("old text", internal("old text")),
            ("{}", internal("no reason was given")),
            ("[]", internal("no reason was given")),
            (r#"{"status":"Failure","details":{"causes":7},"message":"m"}"#, internal("m")),
            (
                r#"{"details":{"causes":[{"reason":"ExitCode","message":"many"}]},"message":"m"}"#,
                internal("m"),
            ),
        ] {
            assert_eq!(Status::parse(text.as_bytes()), expected, "{text}");
        }
    }
}
