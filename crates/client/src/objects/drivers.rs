//! What the cluster says of CSI drivers: objects that no pod refers to, and that are followed for as
//! long as their driver runs.

use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client};
use tokio::sync::Notify;
use tracing::debug;

use super::cache::{Key, Named};
use super::follow::follow;
use crate::Item;

impl Named for CSIDriver {
    const NAME: &'static str = "csidriver.storage.k8s.io";

    fn api(client: Client, _: &str) -> Api<Item<Self>> {
        Api::all(client)
    }

    fn immutable(&self) -> bool {
        false
    }
}

/// Reports the CSIDriver object of a driver and its changes until this is dropped; `None`: there is
/// no such object.
pub async fn follow_driver(client: Client, name: &str, report: impl Fn(Option<CSIDriver>)) {
    let retry_now = Notify::new();
    let report = |found| match found {
        Ok(driver) => report(driver),
        Err(error) => debug!(driver = name, "cannot read the CSIDriver: {error}"),
    };
    follow::<CSIDriver>(client, Key::new("", name), &retry_now, report).await;
}
