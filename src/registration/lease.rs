//! Renews the node's lease in `kube-node-lease`, the heartbeat of the node, with a task and a client of
//! its own.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use longshore_base::retry::Delays;
use longshore_base::time;
use longshore_client::{Item, object, optional};
use tokio::sync::watch;
use tracing::{info, warn};

const NAMESPACE: &str = "kube-node-lease";
/// Backoff while the lease cannot be renewed.
const BACKOFF_BASE: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(7);

/// Renews the lease of the node `name` four times per lease duration. Never ends.
///
/// A missing lease is created once the node object, its owner, is known.
pub async fn renew(
    client: Client,
    name: String,
    duration_seconds: i32,
    node: watch::Receiver<Option<Arc<Node>>>,
) {
    let interval =
        time::part(Duration::from_secs(duration_seconds.max(1).unsigned_abs().into()), 4);
    let mut controller = LeaseController {
        api: Api::namespaced(client, NAMESPACE),
        name,
        duration_seconds,
        node,
        lease: None,
    };
    let mut delays = Delays::doubling(BACKOFF_BASE, BACKOFF_MAX.min(interval));
    let mut is_failing = false;
    loop {
        let outcome = tokio::time::timeout(interval, controller.renew()).await;
        if let Ok(Ok(())) = outcome {
            if std::mem::take(&mut is_failing) {
                info!("lease renewed again");
                delays.reset();
            }
            tokio::time::sleep(interval).await;
            continue;
        }
        is_failing = true;
        let pause = delays.next_delay();
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(RenewError::NoNode)) => {}
            Ok(Err(RenewError::Api(error))) => {
                warn!(retry = ?pause, "cannot renew the node's lease: {error}")
            }
            Err(_) => warn!(retry = ?pause, "cannot renew the node's lease within {interval:?}"),
        }
        tokio::time::sleep(pause).await;
    }
}

struct LeaseController {
    api: Api<Item<Lease>>,
    name: String,
    duration_seconds: i32,
    node: watch::Receiver<Option<Arc<Node>>>,
    /// The last known lease; `None`: to be read.
    lease: Option<Lease>,
}

enum RenewError {
    /// There is no lease, and no node object that could own one.
    NoNode,
    Api(Error),
}

impl From<Error> for RenewError {
    fn from(error: Error) -> Self {
        Self::Api(error)
    }
}

impl LeaseController {
    async fn renew(&mut self) -> Result<(), RenewError> {
        // taken, so that it is read again after an error
        let known = match self.lease.take() {
            Some(lease) => Some(lease),
            None => optional(self.api.get_opt(&self.name)).await?,
        };
        let parameters = PostParams::default();
        self.lease = Some(match known {
            Some(lease) => {
                let renewed = self.renewed(lease).into();
                object(self.api.replace(&self.name, &parameters, &renewed)).await?
            }
            None => {
                let owner = self.owner().ok_or(RenewError::NoNode)?;
                let metadata = ObjectMeta {
                    name: Some(self.name.clone()),
                    namespace: Some(NAMESPACE.to_owned()),
                    owner_references: Some(vec![owner]),
                    ..ObjectMeta::default()
                };
                let lease = self.renewed(Lease { metadata, spec: None });
                object(self.api.create(&parameters, &lease.into())).await?
            }
        });
        Ok(())
    }

    fn renewed(&self, mut lease: Lease) -> Lease {
        if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
            lease.metadata.owner_references = self.owner().map(|owner| vec![owner]);
        }
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.name.clone()),
            lease_duration_seconds: Some(self.duration_seconds),
            renew_time: Some(MicroTime(Timestamp::now())),
            ..lease.spec.unwrap_or_default()
        });
        lease
    }

    fn owner(&self) -> Option<OwnerReference> {
        let node = self.node.borrow();
        Some(OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.name.clone(),
            uid: node.as_ref()?.metadata.uid.clone()?,
            ..OwnerReference::default()
        })
    }
}
