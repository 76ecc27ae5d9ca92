//! Numbers that may be percentages.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// How a part of a percentage is rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// Up.
    Up,
    /// Down.
    Down,
}

/// A number, or a percentage of the total; what is no number is none.
pub(crate) fn scaled(
    value: Option<&IntOrString>,
    total: isize,
    rounding: Rounding,
) -> Option<isize> {
    match value? {
        IntOrString::Int(number) => isize::try_from(*number).ok(),
        IntOrString::String(text) => {
            let percent: i32 = text.strip_suffix('%')?.parse().ok()?;
            let product = isize::try_from(percent).ok()?.checked_mul(total)?;
            let up = if rounding == Rounding::Up { 99 } else { 0 };
            Some(product.checked_add(up)?.div_euclid(100))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_of_percentages_is_rounded() {
        let text = |text: &str| IntOrString::String(text.into());
        for (value, total, up, down) in [
            (IntOrString::Int(3), 10, Some(3), Some(3)),
            (text("25%"), 10, Some(3), Some(2)),
            (text("0%"), 10, Some(0), Some(0)),
            (text("100%"), 7, Some(7), Some(7)),
            (text("25"), 10, None, None),
            (text("x%"), 10, None, None),
            (text("2147483647%"), isize::MAX, None, None),
        ] {
            assert_eq!(scaled(Some(&value), total, Rounding::Up), up, "{value:?}");
            assert_eq!(scaled(Some(&value), total, Rounding::Down), down, "{value:?}");
        }
        assert_eq!(scaled(None, 1, Rounding::Up), None);
    }
}
