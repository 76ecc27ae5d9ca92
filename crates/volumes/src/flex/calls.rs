//! Calls of a driver, and how long they may take. What sets a volume up may take as long as it does while
//! its pod is wanted, as disks may be large and servers slow; what undoes it is ended after some minutes,
//! and tried again.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

use crate::error::{self, Error};
use crate::host;
use crate::state::State;
use crate::state::flex::{Answer, Driver};
use crate::task::Task;

/// How many limits of usual tools a call may take that undoes something.
const UNDO_FACTOR: u32 = 5;

/// Has the driver do something to set up a volume. When it has taken as long as a tool may take, there is an
/// event; if then the pod is to end, it is killed.
pub(super) async fn set_up(
    task: &Task<'_>,
    driver: &Driver,
    command: &'static str,
    args: &[&OsStr],
) -> Result<Option<Answer>, Error> {
    let tools = &task.node.tools;
    let limit = async {
        sleep(tools.limit()).await;
        report(task, driver, command, tools.limit());
        task.node.ending.of(task.uid()).await;
    };
    driver.call(tools, command, args, limit).await
}

/// Has the driver undo something.
pub(super) async fn undo(
    node: &State,
    driver: &Driver,
    command: &'static str,
    args: &[&OsStr],
) -> Result<Option<Answer>, Error> {
    let limit = node.tools.limit().saturating_mul(UNDO_FACTOR);
    driver.call(&node.tools, command, args, sleep(limit)).await
}

/// Has the driver unmount a path, or does that in its place.
pub(super) async fn unmount(
    node: &State,
    driver: &Driver,
    command: &'static str,
    path: &Path,
) -> Result<(), Error> {
    if undo(node, driver, command, &[path.as_os_str()]).await?.is_none() {
        host::unmount(path.to_owned()).await?;
    }
    Ok(())
}

/// Records that a call takes long.
fn report(task: &Task<'_>, driver: &Driver, command: &str, after: Duration) {
    let (operation, volume, driver) = (error::SET_UP, &task.persistent.spec_name, &driver.name);
    let message = format!(
        "{operation} for volume {volume:?} is not done yet: FlexVolume driver {driver} has not ended \
         its {command} command after {after:?}; it is waited for"
    );
    task.node.pod_events.pod(task.pod, true, "FailedMount", &message);
}
