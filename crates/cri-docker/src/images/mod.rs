//! The CRI image service over the images of a Docker Engine.

use std::sync::Arc;

use longshore_cri::v1::image_service_server::ImageService;

use crate::{Engine, Settings};

/// Serves images.
#[derive(Debug, Clone)]
pub struct Images {
    #[allow(dead_code)]
    engine: Engine,
    #[allow(dead_code)]
    settings: Arc<Settings>,
}

impl Images {
    /// The images of this engine.
    #[must_use]
    pub fn new(engine: Engine, settings: Arc<Settings>) -> Self {
        Self { engine, settings }
    }
}

#[tonic::async_trait]
impl ImageService for Images {}
