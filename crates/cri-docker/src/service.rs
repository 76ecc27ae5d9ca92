//! The CRI runtime service.

use std::sync::Arc;

use longshore_cri::v1::runtime_service_server::RuntimeService;

use crate::{Engine, Settings};

/// Serves sandboxes and containers.
#[derive(Debug, Clone)]
pub struct Service {
    #[allow(dead_code)]
    engine: Engine,
    #[allow(dead_code)]
    settings: Arc<Settings>,
}

impl Service {
    /// The service over this engine.
    #[must_use]
    pub fn new(engine: Engine, settings: Arc<Settings>) -> Self {
        Self { engine, settings }
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {}
