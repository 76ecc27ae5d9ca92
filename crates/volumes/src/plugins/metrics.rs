//! Metrics of CSI calls and plugins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longshore_csi::Observer;
use longshore_metrics::{Buckets, Family, Histogram, Kind, Labels, Registry};
use parking_lot::Mutex;

/// Metrics of calls to CSI drivers.
pub(super) struct Calls {
    durations: Family<Histogram, 4>,
}

impl Calls {
    pub(super) fn new(registry: &Registry) -> Self {
        let durations = registry.histograms(
            "csi_operations_seconds",
            "How long calls to CSI drivers took, in seconds, by their gRPC status.",
            ["driver_name", "method_name", "grpc_status_code", "migrated"],
            Buckets::of(&[
                0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0,
            ]),
        );
        Self { durations }
    }
}

impl Observer for Calls {
    fn observe(&self, driver: &str, method: &str, took: Duration, code: &str) {
        self.durations.with([driver, method, code, "false"]).took(took);
    }
}

/// The sockets of plugins, and whether they are registered.
#[derive(Clone)]
pub(super) struct Metrics(Arc<Mutex<BTreeMap<PathBuf, bool>>>);

impl Metrics {
    pub(super) fn new(registry: &Registry) -> Self {
        let sockets = Arc::<Mutex<BTreeMap<PathBuf, bool>>>::default();
        let known = sockets.clone();
        registry.collect(move |text| {
            let help =
                "Plugins by their socket: those that should be registered, and those that are.";
            let mut samples = text.family("plugin_manager_total_plugins", help, Kind::Gauge);
            for (socket, registered) in known.lock().iter() {
                let socket = socket.display().to_string();
                for (state, there) in
                    [("desired_state_of_world", true), ("actual_state_of_world", *registered)]
                {
                    let labels = Labels::new(&[("socket_path", &socket), ("state", state)]);
                    if there {
                        samples.add(&labels, 1.0);
                    }
                }
            }
        });
        Self(sockets)
    }

    pub(super) fn note(&self, socket: &Path, registered: bool) {
        self.0.lock().insert(socket.to_owned(), registered);
    }

    pub(super) fn forget(&self, socket: &Path) {
        self.0.lock().remove(socket);
    }
}
