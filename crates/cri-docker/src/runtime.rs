//! What all calls share: the engine, and what is known of its containers.

use std::sync::Arc;

use crate::checkpoint::Checkpoints;
use crate::creations::Creations;
use crate::event_sender::EventSender;
use crate::info::Info;
use crate::layer_sizes::LayerSizes;
use crate::logs::Logs;
use crate::network::Network;
use crate::{Engine, Result, Settings};

/// What all calls share.
#[derive(Debug)]
pub(crate) struct DockerRuntime {
    pub(crate) engine: Engine,
    pub(crate) settings: Arc<Settings>,
    pub(crate) network: Network,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) creations: Creations,
    pub(crate) events: EventSender,
    pub(crate) logs: Logs,
    pub(crate) sizes: LayerSizes,
}

impl DockerRuntime {
    pub(crate) fn new(engine: Engine, settings: Arc<Settings>) -> Self {
        Self {
            network: Network::new(&settings),
            checkpoints: Checkpoints::new(&settings.root_dir),
            creations: Creations::default(),
            events: EventSender::default(),
            logs: Logs::default(),
            sizes: LayerSizes::default(),
            engine,
            settings,
        }
    }

    /// What the engine says of itself.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn info(&self) -> Result<Arc<Info>> {
        self.engine.settings().await
    }
}
