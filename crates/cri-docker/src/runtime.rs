//! What all calls share: the engine, and what is known of its containers.

use std::sync::Arc;
use std::time::Duration;

use longshore_cri::v1::{Container, PodSandbox};

use crate::checkpoint::Checkpoints;
use crate::created::Created;
use crate::creations::Creations;
use crate::event_cache::EventCache;
use crate::event_sender::EventSender;
use crate::image_names::ImageNames;
use crate::info::Info;
use crate::layer_sizes::LayerSizes;
use crate::logs::Logs;
use crate::network::Network;
use crate::{Engine, Error, Result, Settings};

/// How long a list holds of which no event has told that it has changed, and all else.
const LIST_AGE: Duration = Duration::from_secs(30);
const MAX_AGE: Duration = Duration::from_secs(60);

/// What all calls share.
#[derive(Debug)]
pub(crate) struct DockerRuntime {
    pub(crate) engine: Engine,
    pub(crate) settings: Arc<Settings>,
    pub(crate) network: Network,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) creations: Creations,
    pub(crate) created: Created,
    pub(crate) events: EventSender,
    pub(crate) logs: Logs,
    /// The engine's version: to say it, the engine runs other programs.
    pub(crate) versions: EventCache<(), String>,
    /// All sandboxes that the engine has.
    pub(crate) sandboxes: EventCache<(), Vec<PodSandbox>>,
    /// All containers.
    pub(crate) containers: EventCache<(), Vec<Container>>,
    /// What images are called that are there, by identifier; that of sandboxes by its name.
    pub(crate) image_names: EventCache<String, ImageNames>,
    pub(crate) sizes: LayerSizes,
}

impl DockerRuntime {
    pub(crate) fn new(engine: Engine, settings: Arc<Settings>) -> Self {
        Self {
            network: Network::new(&settings),
            checkpoints: Checkpoints::new(&settings.root_dir),
            creations: Creations::default(),
            created: Created::default(),
            events: EventSender::default(),
            logs: Logs::default(),
            versions: EventCache::new(MAX_AGE),
            sandboxes: EventCache::new(LIST_AGE),
            containers: EventCache::new(LIST_AGE),
            image_names: EventCache::new(MAX_AGE),
            sizes: LayerSizes::default(),
            engine,
            settings,
        }
    }

    /// Something has been done to a sandbox or a container, or the engine says so.
    pub(crate) fn containers_changed(&self) {
        self.sandboxes.changed();
        self.containers.changed();
    }

    /// From now on the engine's events are followed, or no longer.
    pub(crate) fn events_followed(&self, is_followed: bool) {
        if !is_followed {
            self.created.clear();
        }
        self.versions.follow(is_followed);
        self.sandboxes.follow(is_followed);
        self.containers.follow(is_followed);
        self.image_names.follow(is_followed);
    }

    /// The engine's version.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn version(&self) -> Result<String> {
        let ask = async { Ok(self.engine.version().await?.version.unwrap_or_default()) };
        let version = self.versions.get((), ask).await;
        version.map_err(|error| Error::docker("failed to get docker version", error))
    }

    /// What the engine says of itself.
    ///
    /// # Errors
    /// Of the engine.
    pub(crate) async fn info(&self) -> Result<Arc<Info>> {
        self.engine.settings().await
    }
}
