//! Updates the allocatable count of a driver in the CSINode: periodically, as the CSIDriver says,
//! and at once when the limit was reached.

use std::future::pending;
use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIDriver;
use longshore_client::objects::follow_driver;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::error::Error;
use super::registration::CsiPlugins;

impl CsiPlugins {
    /// Runs while a driver is registered, if its CSIDriver has an update period.
    pub(super) async fn update_allocatable(&self, name: &str) {
        let Some(client) = self.csi_node.client() else { return pending().await };
        let (period_tx, periods) = watch::channel(None);
        let on_change = |driver: Option<CSIDriver>| {
            let new = driver.as_ref().and_then(period);
            period_tx.send_if_modified(|known| std::mem::replace(known, new) != new);
        };
        tokio::select! {
            () = follow_driver(client.clone(), name, on_change) => {}
            () = self.refresh(name, periods) => {}
        }
    }

    async fn refresh(&self, name: &str, mut periods: watch::Receiver<Option<Duration>>) {
        let Some(exhausted) = self.drivers.exhausted(name) else { return pending().await };
        loop {
            let period = *periods.borrow_and_update();
            let wanted = async {
                match period {
                    None => pending().await,
                    Some(period) => tokio::select! {
                        () = sleep(period) => {}
                        () = exhausted.notified() => debug!(driver = name, "attach limit reached"),
                    },
                }
            };
            tokio::select! {
                changed = periods.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return pending().await,
                },
                () = wanted => {}
            }
            if let Err(error) = self.update(name).await {
                warn!(
                    driver = name,
                    "failed to update the allocatable count of the CSINode: {error}"
                );
            }
        }
    }

    async fn update(&self, name: &str) -> Result<(), Error> {
        let Some(driver) = self.drivers.get(name) else { return Ok(()) };
        let info = driver.info().await?;
        self.csi_node.update(name, &info).await
    }
}

/// The update period of a CSIDriver; `None`: no updates.
fn period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = driver.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}
