//! Binds claims to volumes, makes the claims of ephemeral volumes, keeps what is used from being
//! deleted, and says which volumes are to be attached to which node: stand-ins for the volume
//! controllers of a full cluster, with which these are disabled by `--bind-volumes=false`.
//!
//! One task, fed by the store's watches: a change enqueues items (`world`), pure functions decide the
//! next step of each (`binder`, `matching`, `attachments`), and `writes` and `consumers` execute it.
//!
//! Current limitations: volumes are not provisioned or recycled here.

mod attachments;
mod binder;
mod consumers;
mod events;
mod matching;
mod pod;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
mod tests;
mod world;
mod writes;

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::select_all;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use self::events::EventRecorder;
use self::world::{Item, World};
use crate::admission::storage;
use crate::kinds::core;
use crate::object;
use crate::operations::Api;
use crate::registry::{self, Change, Subscription};
use crate::status::StatusError;

const RETRY: Duration = Duration::from_secs(1);

/// What the cluster's administrator chose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Whether data below `/tmp` of this machine is deleted with its volume.
    pub(crate) delete_host_paths: bool,
}

/// Runs until `stop`.
pub(crate) async fn run(api: &Api, settings: Settings, stop: CancellationToken) {
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = follow(api, settings) => ended,
        };
        if let Err(error) = ended {
            tracing::warn!(%error, "cannot reconcile volumes");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    }
}

/// The one task.
struct Task<'a> {
    api: &'a Api,
    settings: Settings,
    world: World,
    work: BTreeSet<Item>,
    /// Failed items, to be retried.
    failed: BTreeSet<Item>,
    recorder: EventRecorder,
}

/// Reconciles everything, and then what changes, until a change is missed.
async fn follow(api: &Api, settings: Settings) -> Result<(), StatusError> {
    let followed = [
        core("nodes")?,
        core("pods")?,
        core("persistentvolumes")?,
        core("persistentvolumeclaims")?,
        storage::resource("storageclasses")?,
        storage::resource("csidrivers")?,
        storage::resource("volumeattachments")?,
        storage::resource("volumeattributesclasses")?,
    ];
    // Subscribed before the lists, so that no change in between is missed.
    let after = api.registry.store().revision().await.map_err(registry::refusal)?;
    let mut task = Task {
        api,
        settings,
        world: World::default(),
        work: BTreeSet::new(),
        failed: BTreeSet::new(),
        recorder: EventRecorder::default(),
    };
    let mut feeds = Vec::new();
    for resource in followed {
        feeds.push(api.registry.feeds().subscribe(resource, after).await?);
        for object in api.list_all(resource, "").await? {
            task.world.put(&object, &mut task.work);
        }
    }
    task.work = task.world.everything();
    loop {
        // All pending changes are applied before anything is decided.
        while let Some(change) = next(&mut feeds).now_or_never() {
            let Some(change) = change? else { return Ok(()) };
            task.apply(&change);
        }
        if let Some(item) = task.work.pop_first() {
            task.reconcile(item).await;
            continue;
        }
        tokio::select! {
            change = next(&mut feeds) => {
                let Some(change) = change? else { return Ok(()) };
                task.apply(&change);
            }
            () = retry_delay(!task.failed.is_empty()) => {
                task.work.append(&mut task.failed);
            }
        }
    }
}

async fn retry_delay(is_wanted: bool) {
    match is_wanted {
        true => sleep(RETRY).await,
        false => pending().await,
    }
}

/// The next change of any resource. `None`: one is missed.
async fn next(feeds: &mut [Subscription]) -> Result<Option<Arc<Change>>, StatusError> {
    select_all(feeds.iter_mut().map(|feed| feed.next().boxed())).await.0
}

impl Task<'_> {
    fn apply(&mut self, change: &Change) {
        if let Some(current) = &change.current {
            // An undecodable object still exists.
            if let Some(object) = current.value() {
                self.world.put(object, &mut self.work);
            }
        } else if let Some(last) = change.previous.as_ref().and_then(|last| last.value()) {
            self.world.remove(last, &mut self.work);
            self.recorder.forget(object::uid(last));
        }
    }

    /// Reconciles one item. Failed ones are retried later.
    async fn reconcile(&mut self, item: Item) {
        let done = match &item {
            Item::Pod(key) => self.pod(key).await,
            Item::Claim(key) => self.claim(key).await,
            Item::Volume(name) => self.volume(name).await,
            Item::Node(name) => self.node(name).await,
            Item::Attributes(name) => self.attributes(name).await,
        };
        match done {
            Ok(()) => {}
            Err(error) if error.code == 404 => {}
            Err(error) => {
                tracing::warn!(%error, ?item, "cannot reconcile volumes");
                self.failed.insert(item);
            }
        }
    }
}
