//! PURE: reads a label selector in its form as text, in which a scale has it.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// The selector; the error says what of it is wrong.
pub(super) fn parse(text: &str) -> Result<Selector, String> {
    requirements(text).into_iter().map(|requirement| expression(requirement.trim())).collect()
}

/// The parts between commas that are not in parentheses.
fn requirements(text: &str) -> Vec<&str> {
    let mut is_inside = false;
    let parts = text.split(move |c| {
        match c {
            '(' => is_inside = true,
            ')' => is_inside = false,
            _ => {}
        }
        c == ',' && !is_inside
    });
    parts.filter(|part| !part.trim().is_empty()).collect()
}

fn expression(text: &str) -> Result<Expression, String> {
    let key = |key: &str| {
        let key = key.trim();
        let is_key =
            !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        if is_key { Ok(key.to_owned()) } else { Err(format!("{text:?} is no requirement")) }
    };
    if let Some((head, values)) = text.split_once('(') {
        let values: BTreeSet<String> = values
            .strip_suffix(')')
            .ok_or_else(|| format!("{text:?} does not end its values"))?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = head.split_whitespace();
        let of = key(words.next().unwrap_or_default())?;
        return match (words.next(), words.next()) {
            (Some("in"), None) => Ok(Expression::In(of, values)),
            (Some("notin"), None) => Ok(Expression::NotIn(of, values)),
            _ => Err(format!("{text:?} is no requirement")),
        };
    }
    if let Some((of, value)) = text.split_once("!=") {
        return Ok(Expression::NotEqual(key(of)?, value.trim().to_owned()));
    }
    if let Some((of, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return Ok(Expression::Equal(key(of)?, value.trim().to_owned()));
    }
    match text.strip_prefix('!') {
        Some(of) => Ok(Expression::DoesNotExist(key(of)?)),
        None => Ok(Expression::Exists(key(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt;

    use super::parse;

    #[test]
    fn hpa_reads_selectors_of_scales() {
        let labels: BTreeMap<String, String> =
            [("app", "web"), ("tier", "front")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        for (text, expected) in [
            ("app=web", true),
            ("app==web,tier", true),
            ("app!=web", false),
            ("app in (db, web),!gone", true),
            ("app notin (db,web)", false),
            ("gone", false),
            ("tier in (a),app=web", false),
        ] {
            assert_eq!(parse(text).unwrap().matches(&labels), expected, "{text}");
        }
        for text in ["app in (a", "app near (a)", "a b", "=x", "!"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
