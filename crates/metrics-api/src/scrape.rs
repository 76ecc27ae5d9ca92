//! Reads the pages of all nodes, again and again.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt;
use http_body_util::{BodyExt, Limited};
use hyper::Request;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::{MissedTickBehavior, timeout};
use tracing::{debug, warn};

use crate::directory::{Directory, DirectoryError, Selection};
use crate::page;
use crate::samples::Shared;

/// The time between two pages of a node, as metrics-server is usually installed.
const RESOLUTION: Duration = Duration::from_secs(15);
/// How long a node may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Nodes at once.
const CONCURRENT: usize = 16;
/// The longest page in bytes.
const MAX_PAGE: usize = 16 << 20;

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// The request failed.
    #[error(transparent)]
    Request(#[from] kube::Error),
    /// The node refused.
    #[error("the node answered with {0}")]
    Refused(u16),
    /// The page is too long, not text, or was not sent to its end.
    #[error("the page cannot be read: {0}")]
    Unreadable(String),
    /// It took too long.
    #[error("no answer in time")]
    Timeout,
}

/// Gets the page `/metrics/resource` of a node.
#[async_trait::async_trait]
pub trait Source: Send + Sync + 'static {
    /// The text of the page.
    async fn page(&self, node: &str) -> Result<String, ScrapeError>;
}

/// Gets pages through the apiserver (`nodes/proxy`).
#[derive(Clone)]
pub struct ProxySource(pub Client);

#[async_trait::async_trait]
impl Source for ProxySource {
    async fn page(&self, node: &str) -> Result<String, ScrapeError> {
        let name = utf8_percent_encode(node, NON_ALPHANUMERIC);
        let unreadable = |error: &dyn std::fmt::Display| ScrapeError::Unreadable(error.to_string());
        let request = Request::get(format!("/api/v1/nodes/{name}/proxy/metrics/resource"))
            .body(Body::empty())
            .map_err(|error| unreadable(&error))?;
        let response = self.0.send(request).await?;
        if !response.status().is_success() {
            return Err(ScrapeError::Refused(response.status().as_u16()));
        }
        let body = Limited::new(response.into_body(), MAX_PAGE).collect().await;
        let bytes = body.map_err(|error| unreadable(&error))?.to_bytes();
        String::from_utf8(bytes.into()).map_err(|error| unreadable(&error))
    }
}

/// Keeps samples up to date.
pub struct Scraper<S, D> {
    samples: Shared,
    source: S,
    directory: D,
}

impl<S: Source, D: Directory> Scraper<S, D> {
    /// A scraper of the nodes of `directory` into `samples`.
    pub fn new(samples: Shared, source: S, directory: D) -> Self {
        Self { samples, source, directory }
    }

    /// Reads all pages every 15 seconds, until dropped.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(RESOLUTION);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.round().await {
                warn!(%error, "cannot list the nodes");
            }
        }
    }

    /// Reads all pages once.
    ///
    /// # Errors
    /// The nodes are not known. A node that does not answer is none.
    pub async fn round(&self) -> Result<(), DirectoryError> {
        let nodes = self.directory.nodes(&Selection::default()).await?;
        let names: BTreeSet<String> = nodes.into_iter().map(|node| node.name).collect();
        self.samples.write().retain(&names);
        let each = futures::stream::iter(names).map(|node| async move {
            let page = timeout(TIMEOUT, self.source.page(&node)).await;
            match page.unwrap_or(Err(ScrapeError::Timeout)) {
                Ok(text) => {
                    let page = page::read(&text, Timestamp::now().as_millisecond());
                    self.samples.write().record(&node, page);
                }
                Err(error) => debug!(node, %error, "cannot read the metrics"),
            }
        });
        each.buffer_unordered(CONCURRENT).collect::<()>().await;
        Ok(())
    }
}
