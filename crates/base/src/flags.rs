//! Command lines as upstream's programs read them.

use std::ffi::OsString;

/// Without flags that are given as `--NAME=`, if an empty value is as good as none for them.
pub fn without_empty(
    arguments: impl IntoIterator<Item = OsString>,
    is_unset: impl Fn(&str) -> bool,
) -> Vec<OsString> {
    let is_empty = |argument: &OsString| {
        let name = argument.to_str().and_then(|text| text.strip_prefix("--")?.strip_suffix('='));
        name.is_some_and(&is_unset)
    };
    arguments.into_iter().filter(|argument| !is_empty(argument)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_without_a_value_are_left_out_where_that_is_none() {
        let given = ["x", "--a=", "--b=", "--a", "", "--a=1", "-a=", "--c=="];
        let left = without_empty(given.map(OsString::from), |name| name == "a");
        assert_eq!(left, ["x", "--b=", "--a", "", "--a=1", "-a=", "--c=="]);
    }
}
