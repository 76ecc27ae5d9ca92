//! Validation of garbage collection settings.

use super::Faults;
use crate::{GoDuration, KubeletConfiguration};

/// Thresholds and ages of image garbage collection.
pub(super) fn images(s: &KubeletConfiguration, f: &mut Faults) {
    let (high, low) = (s.image_gc_high_threshold_percent, s.image_gc_low_threshold_percent);
    f.range("imageGCHighThresholdPercent", high, 0..=100);
    f.range("imageGCLowThresholdPercent", low, 0..=100);
    f.unless(low < high, || {
        format!(
            "imageGCLowThresholdPercent: {low} must be less than imageGCHighThresholdPercent, {high}"
        )
    });
    let (least, most) = (s.image_minimum_gc_age, s.image_maximum_gc_age);
    for (field, age) in [("imageMinimumGCAge", least), ("imageMaximumGCAge", most)] {
        f.unless(age >= GoDuration::ZERO, || format!("{field}: {age} must not be negative"));
    }
    f.unless(most <= GoDuration::ZERO || most > least, || {
        format!("imageMaximumGCAge: {most} must be greater than imageMinimumGCAge, {least}")
    });
}

/// Errors of the flags for dead containers.
pub(crate) fn container_faults(minimum_ttl: GoDuration) -> Vec<String> {
    let mut faults = Faults(Vec::new());
    faults.unless(minimum_ttl >= GoDuration::ZERO, || {
        format!("--minimum-container-ttl-duration: {minimum_ttl} must not be negative")
    });
    faults.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_image_gc_settings_are_consistent() {
        let (second, hour) = (GoDuration::secs(1), GoDuration::secs(3600));
        for (high, low, least, most, faults) in [
            (85, 80, second, GoDuration::ZERO, &[][..]),
            (100, 0, second, hour, &[]),
            (
                101,
                80,
                second,
                hour,
                &["imageGCHighThresholdPercent: 101 must be between 0 and 100"],
            ),
            (85, -1, second, hour, &["imageGCLowThresholdPercent: -1 must be between 0 and 100"]),
            (
                80,
                80,
                second,
                hour,
                &[
                    "imageGCLowThresholdPercent: 80 must be less than imageGCHighThresholdPercent, 80",
                ],
            ),
            (85, 80, GoDuration::secs(-1), hour, &["imageMinimumGCAge: -1s must not be negative"]),
            (
                85,
                80,
                second,
                GoDuration::secs(-1),
                &["imageMaximumGCAge: -1s must not be negative"],
            ),
            (
                85,
                80,
                hour,
                hour,
                &["imageMaximumGCAge: 1h0m0s must be greater than imageMinimumGCAge, 1h0m0s"],
            ),
        ] {
            let settings = KubeletConfiguration {
                image_gc_high_threshold_percent: high,
                image_gc_low_threshold_percent: low,
                image_minimum_gc_age: least,
                image_maximum_gc_age: most,
                ..KubeletConfiguration::without_file()
            };
            let mut found = Faults(Vec::new());
            images(&settings, &mut found);
            assert_eq!(found.0.len(), faults.len(), "{:?}", found.0);
            for (found, fault) in found.0.iter().zip(faults) {
                assert!(found.starts_with(fault), "{found}");
            }
        }
        assert!(container_faults(GoDuration::ZERO).is_empty());
        let negative = container_faults(GoDuration::secs(-1));
        assert_eq!(negative, ["--minimum-container-ttl-duration: -1s must not be negative"]);
    }
}
