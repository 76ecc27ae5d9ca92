//! Metrics of pod admission.

use std::sync::Arc;

use longshore_metrics::{Kind, Labels, Registry};

use super::Admission;

impl Admission {
    /// Registers the metrics of admission.
    pub fn register_metrics(&self, registry: &Registry) {
        let shared = Arc::downgrade(&self.shared);
        registry.collect(move |text| {
            let Some(shared) = shared.upgrade() else { return };
            let counts = shared.state().counts.clone();
            let help = "Pods that were not taken in, by reason.";
            let name = "kubelet_admission_rejections_total";
            let mut samples = text.family(name, help, Kind::Counter);
            for (reason, count) in &counts.rejections {
                samples.add(&Labels::new(&[("reason", reason)]), *count as f64);
            }
            let help = "Pods that had to make way for critical ones, by what those lacked.";
            let mut samples = text.family("kubelet_preemptions", help, Kind::Counter);
            for (lacked, count) in &counts.preemptions {
                samples.add(&Labels::new(&[("preemption_signal", lacked)]), *count as f64);
            }
        });
    }
}
