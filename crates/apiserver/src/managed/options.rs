//! The options of a write that are about its manager.

use crate::schema::quoted;
use crate::status::Cause;

/// The longest name of a manager, in bytes.
const MAX_NAME: usize = 128;

/// The manager of a write: the name that its options give, or the client's program.
///
/// # Errors
///
/// The causes of a refusal, for a name that is too long or cannot be printed, and for what an apply
/// needs and another write may not have.
pub(crate) fn manager(name: &str, user_agent: &str, apply: Apply) -> Result<String, Vec<Cause>> {
    let mut causes = Vec::new();
    let mut refuse = |field: &str, reason: &'static str, message: String| {
        causes.push(Cause { reason, message, field: field.to_owned() });
    };
    match apply {
        Apply::Yes if name.is_empty() => {
            let message = "Required value: is required for apply patch".to_owned();
            refuse("fieldManager", "FieldValueRequired", message);
        }
        Apply::No { has_force: true } => {
            let message = "Forbidden: may not be specified for non-apply patch".to_owned();
            refuse("force", "FieldValueForbidden", message);
        }
        _ => {}
    }
    if name.len() > MAX_NAME {
        let message = format!("Too long: may not be more than {MAX_NAME} bytes");
        refuse("fieldManager", "FieldValueTooLong", message);
    }
    for (at, character) in name.char_indices().filter(|(_, c)| !is_printable(*c)) {
        let code = u32::from(character);
        let message = format!(
            "Invalid value: {}: invalid character U+{code:04X} (at position {at})",
            quoted(name)
        );
        refuse("fieldManager", "FieldValueInvalid", message);
    }
    if !causes.is_empty() {
        return Err(causes);
    }
    Ok(if name.is_empty() { program(user_agent) } else { name.to_owned() })
}

/// What the options may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Apply {
    /// The write is an apply.
    Yes,
    /// It is another patch, or no patch.
    No {
        /// Whether `force` is given.
        has_force: bool,
    },
}

/// The name of the program in a user agent, such as `kubectl` in `kubectl/v1.36.0 (linux/amd64)`.
fn program(user_agent: &str) -> String {
    let name = user_agent.split('/').next().unwrap_or_default();
    let mut program = String::new();
    for character in name.chars().filter(|character| is_printable(*character)) {
        if program.len() + character.len_utf8() > MAX_NAME {
            break;
        }
        program.push(character);
    }
    program
}

/// Whether Go counts the character as printable: letters, marks, numbers, punctuation, symbols, and of
/// all spaces the ASCII one.
fn is_printable(character: char) -> bool {
    match character {
        ' ' | '"' | '\'' | '\\' => true,
        other => !other.is_whitespace() && other.escape_debug().len() == 1,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const NO: Apply = Apply::No { has_force: false };

    #[test]
    fn field_manager_defaults_to_the_program() {
        for (name, user_agent, manager_expected) in [
            ("", "kubectl/v1.36.0 (linux/amd64) kubernetes/abc", "kubectl"),
            ("", "curl", "curl"),
            ("", "", ""),
            ("", "a\tb c/1", "ab c"),
            ("mine", "kubectl/v1.36.0", "mine"),
            ("née \"x\"", "", "née \"x\""),
        ] {
            let found = manager(name, user_agent, NO).unwrap();
            assert_eq!(found, manager_expected, "{name} {user_agent}");
        }
        assert_eq!(manager("", &"é".repeat(100), NO).unwrap().len(), 128);
    }

    #[test]
    fn field_manager_options_are_validated() {
        let long = "x".repeat(129);
        for (name, apply, message) in [
            ("", Apply::Yes, "fieldManager: Required value: is required for apply patch"),
            (
                "m",
                Apply::No { has_force: true },
                "force: Forbidden: may not be specified for non-apply patch",
            ),
            (&*long, NO, "fieldManager: Too long: may not be more than 128 bytes"),
            (
                "a\u{7}",
                Apply::Yes,
                "fieldManager: Invalid value: \"a\\a\": invalid character U+0007 (at position 1)",
            ),
            (
                "\u{a0}",
                NO,
                "fieldManager: Invalid value: \"\\u00a0\": invalid character U+00A0 (at position 0)",
            ),
        ] {
            let causes = manager(name, "", apply).unwrap_err();
            let found: Vec<String> =
                causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
            assert_eq!(found, [message]);
        }
        manager(&"x".repeat(128), "", Apply::Yes).unwrap();
    }
}
