//! How many volumes a driver takes on the node, kept up to date in the CSINode for a scheduler: as
//! often as the CSIDriver wants it, and at once when there was no room for one.

use std::future::pending;
use std::time::Duration;

use k8s_openapi::api::storage::v1::CSIDriver;
use longshore_client::objects::follow_driver;
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{debug, warn};

use super::error::Error;
use super::registration::Registrar;

impl Registrar {
    /// Does so for as long as a driver is registered, if the cluster says that its number changes.
    pub(super) async fn keep_allocatable(&self, name: &str) {
        let Some(client) = self.csi_node.client() else { return pending().await };
        let (tell, periods) = watch::channel(None);
        let tell = |driver: Option<CSIDriver>| {
            let new = driver.as_ref().and_then(period);
            tell.send_if_modified(|known| std::mem::replace(known, new) != new);
        };
        tokio::select! {
            () = follow_driver(client.clone(), name, tell) => {}
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
                        () = exhausted.notified() => debug!(driver = name, "no room for a volume"),
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
                    "how many volumes it takes is not told to the cluster: {error}"
                );
            }
        }
    }

    async fn update(&self, name: &str) -> Result<(), Error> {
        let Some(driver) = self.drivers.get(name) else { return Ok(()) };
        let told = driver.info().await?;
        self.csi_node.update(name, &told).await
    }
}

/// How often a driver's number is to be asked for; `None`: it does not change.
fn period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = driver.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}
