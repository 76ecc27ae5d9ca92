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

/// Tells what the cluster says of a driver, and what becomes of that, until this is dropped; `None`:
/// it says nothing.
pub async fn follow_driver(client: Client, name: &str, tell: impl Fn(Option<CSIDriver>)) {
    let hurry = Notify::new();
    let tell = |found| match found {
        Ok(driver) => tell(driver),
        Err(error) => debug!(driver = name, "what the cluster says of it is not known: {error}"),
    };
    follow::<CSIDriver>(client, Key::new("", name), &hurry, tell).await;
}
