//! What is known of sandboxes and containers because this process has created them: the engine is not asked for it.

use std::collections::HashMap;

use bollard::models::ContainerCreateBody;
use parking_lot::Mutex;

use crate::labels::Kind;
use crate::logs;

/// All of them, by identifier.
#[derive(Debug, Default)]
pub(crate) struct Created {
    /// The runtimes of sandboxes; none is the engine's default.
    runtimes: Mutex<HashMap<String, Option<String>>>,
    /// Where logs are to be of containers that have not been started; none has no log.
    logs: Mutex<HashMap<String, Option<String>>>,
}

impl Created {
    /// One was created with this.
    pub(crate) fn insert(&self, id: &str, kind: Kind, body: &ContainerCreateBody) {
        let id = id.to_owned();
        match kind {
            Kind::Sandbox => {
                let runtime = body.host_config.as_ref().and_then(|host| host.runtime.clone());
                self.runtimes.lock().insert(id, runtime);
            }
            Kind::Container => {
                let log = logs::target(body.labels.as_ref()).map(str::to_owned);
                self.logs.lock().insert(id, log);
            }
        }
    }

    /// The runtime of a sandbox that is known.
    pub(crate) fn runtime(&self, sandbox: &str) -> Option<Option<String>> {
        self.runtimes.lock().get(sandbox).cloned()
    }

    /// A container that is known is started: where its log is to be.
    pub(crate) fn start(&self, container: &str) -> Option<Option<String>> {
        self.logs.lock().remove(container)
    }

    /// One is gone.
    pub(crate) fn remove(&self, id: &str) {
        self.runtimes.lock().remove(id);
        self.logs.lock().remove(id);
    }

    /// Any may be gone, or started by somebody else.
    pub(crate) fn clear(&self) {
        self.runtimes.lock().clear();
        self.logs.lock().clear();
    }
}
