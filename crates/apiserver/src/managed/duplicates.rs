//! Keys that occur twice in the YAML of an apply, with the lines on which they do so.

use std::collections::BTreeSet;

/// What upstream's YAML reader says of keys that occur twice. `paths` are those that were found to. A
/// line is known of maps in block style, which all generated YAML has.
pub(super) fn complaint(body: &[u8], paths: &[String]) -> Option<String> {
    if paths.is_empty() {
        return None;
    }
    let names: BTreeSet<&str> = paths.iter().filter_map(|path| path.rsplit('.').next()).collect();
    let text = String::from_utf8_lossy(body);
    let found: Vec<String> = repeated(&text)
        .into_iter()
        .filter(|(_, key)| names.contains(key))
        .map(|(line, key)| format!("  line {line}: key {key:?} already set in map"))
        .collect();
    if found.is_empty() {
        let paths: Vec<String> =
            paths.iter().map(|path| format!("duplicate field {path:?}")).collect();
        return Some(paths.join(", "));
    }
    let found = found.join("\n");
    Some(format!("error converting YAML to JSON: yaml: unmarshal errors:\n{found}"))
}

/// Lines, from 1, with a key that the map which they are in has already.
fn repeated(text: &str) -> Vec<(usize, &str)> {
    let mut maps: Vec<(usize, BTreeSet<&str>)> = Vec::new();
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut rest = line.trim_start_matches(' ');
        let mut begins_item = false;
        while let Some(item) = rest.strip_prefix("- ") {
            begins_item = true;
            rest = item.trim_start_matches(' ');
        }
        let indent = line.len().saturating_sub(rest.len());
        let Some((key, _)) = rest.split_once(':') else { continue };
        if rest.starts_with('#') {
            continue;
        }
        let key = key.trim().trim_matches(['"', '\'']);
        while maps
            .last()
            .is_some_and(|(depth, _)| *depth > indent || begins_item && *depth >= indent)
        {
            maps.pop();
        }
        match maps.last_mut() {
            Some((depth, keys)) if *depth == indent => {
                if !keys.insert(key) {
                    found.push((number, key));
                }
            }
            _ => maps.push((indent, BTreeSet::from([key]))),
        }
    }
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn apply_duplicates_are_named_by_line() {
        let yaml = "\nkind: A\nspec:\n  foo: 1\n  foo: 2\n  list:\n  - name: x\n    foo: 3\n  - name: y\n    foo: 4\n";
        assert_eq!(repeated(yaml), [(5, "foo")]);
        let paths = ["spec.foo".to_owned()];
        assert_eq!(
            complaint(yaml.as_bytes(), &paths).unwrap(),
            "error converting YAML to JSON: yaml: unmarshal errors:\n  line 5: key \"foo\" already set in map"
        );
        let json = br#"{"a":1,"a":2}"#;
        assert_eq!(complaint(json, &["a".to_owned()]).unwrap(), "duplicate field \"a\"");
        assert_eq!(complaint(json, &[]), None);
    }
}
