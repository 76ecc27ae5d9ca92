//! Settings of garbage collection that are out of range or contradict each other.

use super::Faults;
use crate::config::{GoDuration, KubeletConfiguration};

/// Thresholds and ages of images.
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

/// Every fault of the flags about dead containers.
pub(in crate::config) fn container_faults(minimum_ttl: GoDuration) -> Vec<String> {
    let mut faults = Faults(Vec::new());
    faults.unless(minimum_ttl >= GoDuration::ZERO, || {
        format!("--minimum-container-ttl-duration: {minimum_ttl} must not be negative")
    });
    faults.0
}
