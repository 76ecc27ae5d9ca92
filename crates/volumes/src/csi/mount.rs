//! Volumes that a driver mounts for a pod.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use longshore_base::panics;
use tracing::{debug, warn};

use super::super::host::mounts::Table;
use super::super::persistent::{Persistent, Task};
use super::super::{Error, Inner, Mounted, blocking, layout};
use super::Chore;
use super::error;
use super::notes::Notes;
use super::paths::{Place, device_name};
use super::request::Volume;
use super::staging::{self, Staged};

/// How long a published volume is left before the driver is asked to publish it anew, if it wants
/// that; upstream's kubelet does so with every sync of the pod, each minute or two.
const REPUBLISH: Duration = Duration::from_secs(75);

/// Publishes a volume to the pod, staged before if the driver wants that. What stands is kept.
pub(super) async fn set_up(task: &Task<'_>, volume: &Volume<'_>) -> Result<Mounted, Error> {
    let place = Place::of_pod(&task.node.root, task.uid(), &task.persistent.dir_name());
    let stands = stands(task).await?;
    if !stands || volume.policy.republishes() {
        let published = publish(task, volume, &place, stands).await;
        match published {
            // What the pod has keeps working; it is tried again.
            Err(error) if stands => {
                let (pod, volume) = (task.uid(), &task.persistent.spec_name);
                warn!(pod, volume, "volume not published anew: {error}");
            }
            published => published?,
        }
    }
    if volume.policy.republishes() {
        republish_later(task);
    }
    let read_only = task.persistent.read_only;
    let relabel = !read_only && volume.label().is_none() && has_labels(&place).await?;
    Ok(Mounted { read_only, relabel, ..Mounted::at(place.mount) })
}

/// Whether the files of a volume can be given labels, now that it is mounted.
async fn has_labels(place: &Place) -> Result<bool, Error> {
    let path = place.mount.clone();
    blocking(move || Ok(Table::read()?.has_labels(&path))).await
}

/// Whether the volume is published as it should be, since the machine was started.
pub(super) async fn stands(task: &Task<'_>) -> Result<bool, Error> {
    let place = Place::of_pod(&task.node.root, task.uid(), &task.persistent.dir_name());
    blocking(move || {
        let done = Notes::read(&place.dir)?.is_some_and(|notes| notes.is_done());
        Ok(done && Table::read()?.has(&place.mount))
    })
    .await
}

async fn publish(
    task: &Task<'_>,
    volume: &Volume<'_>,
    place: &Place,
    again: bool,
) -> Result<(), Error> {
    let attaches = !volume.is_inline() && volume.policy.attaches();
    let context = match attaches {
        true => task.node.csi.attached(task, volume).await?,
        false => Default::default(),
    };
    let _held = task.devices().hold(&volume.device).await;
    if !again && stands(task).await? {
        // An earlier attempt, for which nobody waited any more, has come to its end.
        return Ok(());
    }
    // By the note the rest is found, from the first call on.
    let notes = volume.notes(task).in_mode(volume.mode).labelled(volume.label());
    write(place.dir.clone(), notes.clone().done(again)).await?;
    if let Err(error) = ask(task, volume, place, context).await {
        if !again && !error::is_under_way(&error) && !staging::is_noted(task, volume).await? {
            clear_if_unmounted(place).await;
        }
        return Err(error);
    }
    if volume.is_for_group(task) {
        task.give_to_group(place.mount.clone()).await?;
    }
    write(place.dir.clone(), notes.done(true)).await
}

/// Asks the driver to stage the volume, if it wants that and has not, and to publish it.
async fn ask(
    task: &Task<'_>,
    volume: &Volume<'_>,
    place: &Place,
    context: BTreeMap<String, String>,
) -> Result<(), Error> {
    let staging = match volume.able.stage && !volume.is_inline() {
        true => Some(staging::stage(task, volume, context.clone()).await?),
        false => None,
    };
    let target = place.mount.display().to_string();
    let request = volume.publish_request(task, context, staging, target).await?;
    volume.driver.publish(request).await.map_err(|error| error::Error::from(error).into())
}

/// Removes what was made for a driver that has refused. What it has mounted nonetheless stays for
/// the next try.
pub(super) async fn clear_if_unmounted(place: &Place) {
    if let Err(error) = clear(place.clone()).await {
        debug!(path = %place.dir.display(), "not cleared: {error}");
    }
}

/// Takes a volume of a pod back from it; the last pod's is unstaged soon.
pub(super) async fn take_down(node: &Arc<Inner>, uid: &str, name: &str) -> Result<(), Error> {
    let place = Place::of_pod(&node.root, uid, name);
    let dir = place.dir.clone();
    let Some(notes) = blocking(move || Notes::read(&dir)).await? else {
        // The set-up, or the tear-down, was broken off beyond the driver's part.
        return clear(place).await;
    };
    let (driver, handle) = notes.volume(&place.dir)?;
    let held = node.devices.hold(&device_name(driver, handle)).await;
    node.csi.release(uid, name);
    let target = place.mount.display().to_string();
    let client = node.csi.driver(driver)?;
    client.unpublish(handle, &target).await.map_err(error::Error::from)?;
    clear(place).await?;
    if notes.is_inline() {
        return Ok(());
    }
    let staged = Staged::Mount { driver: driver.to_owned(), handle: handle.to_owned() };
    staging::leave(node, held, uid, staged).await
}

pub(super) async fn write(dir: std::path::PathBuf, notes: Notes) -> Result<(), Error> {
    blocking(move || notes.write(&dir)).await
}

/// Removes what is left of a volume that the driver has taken back. Nothing is removed of one that
/// is mounted still.
pub(super) async fn clear(place: Place) -> Result<(), Error> {
    blocking(move || clear_of(&Table::read()?, &place)).await
}

/// The same where these are the mounts.
pub(super) fn clear_of(mounts: &Table, place: &Place) -> Result<(), Error> {
    if mounts.has(&place.mount) {
        return Err(error::Error::StillMounted(place.mount.clone()).into());
    }
    // Which the driver should have removed.
    layout::remove_dir(&place.mount)?;
    Notes::remove(&place.dir)
}

/// Publishes the volume anew from time to time, until it is taken down.
fn republish_later(task: &Task<'_>) {
    let (node, pod) = (Arc::clone(task.node), task.pod.clone());
    let persistent = task.persistent.clone();
    let republishing = tokio::spawn(panics::contain(republish(node, pod, persistent)));
    let handle = republishing.abort_handle();
    task.node.csi.keep(task.uid(), &task.persistent.dir_name(), Chore::Republish, handle);
}

async fn republish(node: Arc<Inner>, pod: Pod, persistent: Persistent) {
    loop {
        tokio::time::sleep(REPUBLISH).await;
        let task = Task { node: &node, pod: &pod, persistent: &persistent };
        if let Err(error) = republish_once(&task).await {
            let (pod, volume) = (task.uid(), &persistent.spec_name);
            warn!(pod, volume, "volume not published anew: {error}");
        }
    }
}

async fn republish_once(task: &Task<'_>) -> Result<(), Error> {
    use super::super::persistent::PersistentSource as Source;
    let volume = match &task.persistent.source {
        Source::Csi(source) => Volume::persistent(task, source).await?,
        Source::CsiInline(source) => Volume::inline(task, source).await?,
        _ => return Ok(()),
    };
    let place = Place::of_pod(&task.node.root, task.uid(), &task.persistent.dir_name());
    if volume.policy.republishes() && stands(task).await? {
        publish(task, &volume, &place, true).await?;
    }
    Ok(())
}
