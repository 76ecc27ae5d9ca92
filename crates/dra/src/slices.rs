//! The ResourceSlices of drivers that are gone: pods would be scheduled to devices that nobody prepares.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::Client;
use kube::api::{DeleteParams, ListParams};
use kube::core::{Request, Resource as _};
use longshore_base::retry::Delays;
use longshore_client::{error_message, field_selector};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::debug;

/// Delays between attempts.
const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// Deletes ResourceSlices of this node.
#[derive(Clone)]
pub(crate) struct Slices {
    pub(crate) client: Client,
    pub(crate) node_name: String,
    /// The Node. Without one, nothing may be deleted.
    pub(crate) node: watch::Receiver<Option<Arc<Node>>>,
}

impl Slices {
    /// Deletes the slices of a driver, or of all drivers. Returns when they are deleted.
    pub(crate) async fn wipe(&self, driver: Option<&str>) {
        let mut node = self.node.clone();
        let mut delays = Delays::doubling(FIRST_DELAY, LONGEST_DELAY);
        loop {
            if node.wait_for(Option::is_some).await.is_err() {
                return; // the daemon stops
            }
            match self.delete(driver).await {
                Ok(_) => return,
                Err(kube::Error::Api(status)) if status.code == 404 => return,
                Err(error) => {
                    let error = error_message(&error);
                    debug!(driver, error, "ResourceSlices are not deleted, will be retried");
                }
            }
            let delay = delays.next_delay();
            let jitter = delay.mul_f64(fastrand::f64() * 0.2);
            sleep(delay.saturating_add(jitter)).await;
        }
    }

    async fn delete(&self, driver: Option<&str>) -> kube::Result<String> {
        let own = ("spec.nodeName", self.node_name.as_str());
        let terms = driver.map(|driver| ("spec.driver", driver)).into_iter().chain([own]);
        let (delete, list) =
            (DeleteParams::default(), ListParams::default().fields(&field_selector(terms)));
        let request = Request::new(ResourceSlice::url_path(&(), None));
        let request = request.delete_collection(&delete, &list);
        let request = request.map_err(kube::Error::BuildRequest)?;
        self.client.request_text(request).await
    }
}
