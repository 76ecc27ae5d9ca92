//! Metrics of garbage collection.

use longshore_metrics::{Counter, Family, Registry};

/// Metrics of garbage collection. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Metrics {
    images: Family<Counter, 1>,
}

impl Metrics {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        Self {
            images: registry.counters(
                "kubelet_image_garbage_collected_total",
                "Unused images that were removed, for their age or for the space they took.",
                ["reason"],
            ),
        }
    }

    /// An image was removed: `age` or `space`.
    pub(super) fn removed_image(&self, reason: &'static str) {
        self.images.with([reason]).inc();
    }
}
