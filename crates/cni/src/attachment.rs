//! One container on one network.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::{Error, Result};

/// A container that is, or is to be, attached.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attachment {
    /// Its identifier.
    pub container_id: String,
    /// The file of its network namespace; `None` when it is gone already.
    pub netns: Option<PathBuf>,
    /// The interface inside: `eth0`.
    pub interface: String,
    /// `CNI_ARGS`, in this order.
    pub args: Vec<(String, String)>,
    /// Arguments by capability (`portMappings`, `bandwidth`, `dns`…): a plugin gets those that it has.
    pub capability_args: Map<String, Value>,
}

impl Attachment {
    /// # Errors
    /// When a part would be something else in a file name or a variable.
    pub(crate) fn validate(&self) -> Result<()> {
        if !is_identifier(&self.container_id) {
            return Err(invalid("container ID", &self.container_id));
        }
        if !is_interface(&self.interface) {
            return Err(invalid("interface name", &self.interface));
        }
        for (key, value) in &self.args {
            if key.is_empty() || [key, value].iter().any(|part| part.contains([';', '=', '\0'])) {
                return Err(invalid("CNI argument", &format!("{key}={value}")));
            }
        }
        Ok(())
    }
}

fn invalid(what: &'static str, value: &str) -> Error {
    Error::Invalid { what, value: value.to_owned() }
}

/// What CNI takes as the name of a network or a container: it becomes part of a file name.
pub(crate) fn is_identifier(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphanumeric())
        && letters.all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '.' | '-'))
}

fn is_interface(text: &str) -> bool {
    (1..16).contains(&text.len())
        && !matches!(text, "." | "..")
        && !text
            .contains(|letter: char| matches!(letter, '/' | ':' | '\0') || letter.is_whitespace())
}
