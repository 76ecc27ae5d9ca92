//! The registration of one plugin, for the lifetime of its socket.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use longshore_base::retry::Delays;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::client::{Client, Error};
use crate::metrics::Metrics;
use crate::{Handler, Handlers, Plugin, Refusal};

/// Backoff. It starts short, as a socket may exist before the plugin listens.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(122);
/// Characters of a plugin's own words in errors.
const LONGEST_WORD: usize = 256;

/// Registers plugins with their handlers.
pub(crate) struct Registrar {
    pub(crate) handlers: Handlers,
    pub(crate) metrics: Metrics,
}

/// A plugin that is registered.
struct Registered {
    plugin: Plugin,
    handler: Arc<dyn Handler>,
}

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Call(#[from] Error),
    /// The plugin was refused, and notified of it with this text.
    #[error("{text}")]
    Refused { text: String, is_final: bool },
}

impl Registrar {
    /// Registers the plugin at a socket, with retries, and unregisters it when stopped.
    pub(crate) async fn run(&self, socket: &Path, stop: CancellationToken) {
        self.metrics.note(socket, false);
        let registered = stop.run_until_cancelled(self.registered(socket)).await.flatten();
        if let Some(Registered { plugin, handler }) = &registered {
            info!(plugin = plugin.name, socket = %socket.display(), "plugin registered");
            self.metrics.note(socket, true);
            stop.run_until_cancelled(handler.registered(plugin)).await;
        }
        stop.cancelled().await;
        self.metrics.forget(socket);
        if let Some(Registered { plugin, handler }) = registered {
            handler.unregister(&plugin).await;
            info!(plugin = plugin.name, socket = %socket.display(), "plugin unregistered");
        }
    }

    /// Registers with retries; `None` if it cannot succeed.
    async fn registered(&self, socket: &Path) -> Option<Registered> {
        let mut delays = Delays::doubling(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut is_retry, mut last_error) = (false, None);
        loop {
            let failure = match self.register(socket).await {
                Ok(registered) => return Some(registered),
                Err(failure) => failure,
            };
            let text = failure.to_string();
            if matches!(failure, Failure::Refused { is_final: true, .. }) {
                warn!(socket = %socket.display(), "plugin registration failed: {text}");
                return None;
            }
            // The same error is logged once.
            if is_retry && last_error.as_ref() != Some(&text) {
                warn!(socket = %socket.display(), "plugin registration failed, will be retried: {text}");
                last_error = Some(text);
            }
            is_retry = true;
            sleep(delays.next_delay()).await;
        }
    }

    async fn register(&self, socket: &Path) -> Result<Registered, Failure> {
        let client = Client::new(socket)?;
        let info = client.info().await?;
        let path = socket.display().to_string();
        let Some(handler) = self.handlers.get(&info.r#type) else {
            let kind: String = info.r#type.chars().take(LONGEST_WORD).collect();
            let text = format!("no handler registered for plugin type: {kind} at socket {path}");
            return refuse(&client, text, true).await;
        };
        let endpoint = if info.endpoint.is_empty() { path } else { info.endpoint };
        let (name, versions, socket) = (info.name, info.supported_versions, socket.to_owned());
        let plugin = Plugin { name, endpoint, versions, socket };
        match handler.register(&plugin).await {
            Ok(()) => {}
            Err(Refusal::Invalid(reason)) => {
                let text = format!("plugin validation failed with err: {reason}");
                return refuse(&client, text, true).await;
            }
            Err(Refusal::NotYet(reason)) => {
                let text = format!("plugin validation failed with err: {reason}");
                return refuse(&client, text, false).await;
            }
            Err(Refusal::Failed(reason)) => {
                let text = format!("plugin registration failed with err: {reason}");
                return refuse(&client, text, false).await;
            }
        }
        if let Err(error) = client.notify(None).await {
            // The plugin was not notified, so the registration is repeated.
            handler.unregister(&plugin).await;
            return Err(error.into());
        }
        Ok(Registered { plugin, handler: handler.clone() })
    }
}

/// Notifies a plugin that it is refused.
async fn refuse<T>(client: &Client, reason: String, is_final: bool) -> Result<T, Failure> {
    let text = format!("RegisterPlugin error -- {reason}");
    let notified = client.notify(Some(&text)).await;
    match notified {
        // It has to know before it is given up.
        Err(error) if is_final => Err(error.into()),
        _ => Err(Failure::Refused { text, is_final }),
    }
}
