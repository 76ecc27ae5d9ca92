//! Metrics of plugins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longshore_metrics::{Kind, Labels, Registry};
use parking_lot::Mutex;

/// The sockets of plugins, and whether they are registered.
#[derive(Clone)]
pub(crate) struct Metrics(Arc<Mutex<BTreeMap<PathBuf, bool>>>);

impl Metrics {
    pub(crate) fn new(registry: &Registry) -> Self {
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

    pub(crate) fn note(&self, socket: &Path, registered: bool) {
        self.0.lock().insert(socket.to_owned(), registered);
    }

    pub(crate) fn forget(&self, socket: &Path) {
        self.0.lock().remove(socket);
    }
}
