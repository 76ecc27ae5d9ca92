//! Devices of pods that are being admitted: what plugins are asked before the decision, and told after
//! it.

use k8s_openapi::api::core::v1::Pod;
use longshore_devices::{DeviceRefusal, Preferences};
use longshore_pod::spec;
use longshore_pod::status::Verdict;

use super::{Admission, Refusal, Reservation};

impl Admission {
    /// Decides again about a pod for which plugins have to be asked, until none has to be. Returns the
    /// answers with a rejection.
    pub(super) async fn ask_plugins(
        &self,
        pod: &Pod,
        mut refusal: Refusal,
    ) -> Result<Reservation, (Refusal, Preferences)> {
        let mut preferences = Preferences::default();
        // The device manager stops asking after some answers.
        while let Some(query) = refusal.query.take() {
            let preference = self.shared.sources.devices.prefer(&query).await;
            preferences.add(*query, preference);
            match self.admit_preferring(pod, &preferences) {
                Ok(reservation) => return Ok(reservation),
                Err(next) => refusal = next,
            }
        }
        Err((refusal, preferences))
    }

    /// Has plugins allocate the devices of an admitted pod.
    ///
    /// # Errors
    /// Why it is rejected after all.
    pub async fn allocate_devices(&self, pod: &Pod) -> Result<(), Verdict> {
        let devices = &self.shared.sources.devices;
        devices.allocate(spec::uid(pod)).await.map_err(|error| {
            devices.release(spec::uid(pod));
            let refusal = DeviceRefusal::Failed(error.to_string());
            let verdict = Verdict::failed("UnexpectedAdmissionError", refusal.to_string());
            self.count(&verdict);
            verdict
        })
    }

    /// Whether a pod that was admitted before has to be admitted again, as its devices may be gone.
    pub fn must_readmit(&self, pod: &Pod, runs: bool) -> bool {
        self.shared.sources.devices.must_readmit(pod, runs)
    }
}
