//! What probes and hooks do: run a program in a container, or ask it over the network.

use longshore_cri::Runtime;

/// Carries out the actions of probes and hooks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Handlers {
    #[allow(dead_code)]
    cri: Runtime,
}

impl Handlers {
    /// Handlers that run programs through `cri`.
    pub fn new(cri: Runtime) -> Self {
        Self { cri }
    }
}
