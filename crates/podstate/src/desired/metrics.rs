//! Metrics of the desired pods.

use longshore_metrics::{Kind, Labels, Registry, Text};
use longshore_pod::{spec, status};

use super::Desired;

impl Desired {
    /// Register the metrics of the desired pods.
    pub fn register_metrics(&self, registry: &Registry) {
        let desired = self.clone();
        registry.collect(move |text| desired.write(text));
    }

    fn write(&self, text: &mut Text) {
        let pods = self.pods();
        let is_active = |phase: &str| !status::is_final(phase);
        let mut counts = [[0_u32; 2]; 2];
        let mut ephemeral = 0;
        for pod in &pods {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            let of = &mut counts[usize::from(spec::is_static(pod))];
            of[0] += 1;
            of[1] += u32::from(is_active(phase.unwrap_or_default()));
            let own = pod.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref());
            ephemeral += own.map_or(0, Vec::len);
        }
        let families = [
            ("kubelet_desired_pods", "Pods that should run; static: not from the apiserver."),
            ("kubelet_active_pods", "Of those, pods that have not come to their end."),
        ];
        for (which, (name, help)) in families.into_iter().enumerate() {
            let mut samples = text.family(name, help, Kind::Gauge);
            for (label, of) in ["", "true"].into_iter().zip(counts) {
                samples.add(&Labels::new(&[("static", label)]), f64::from(of[which]));
            }
        }
        let mirrors = self.state().mirrors.len();
        let help = "Objects in the apiserver that stand for static pods.";
        text.gauge("kubelet_mirror_pods", help, mirrors as f64);
        let help = "Ephemeral containers in pods of this node.";
        text.gauge("kubelet_managed_ephemeral_containers", help, ephemeral as f64);
    }
}
