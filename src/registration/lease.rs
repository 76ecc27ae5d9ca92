//! The node's lease in `kube-node-lease`: the heartbeat by which the control plane knows that the
//! node lives. Its own task and its own client, so that no other work can hold it up.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use longshore_base::time;
use longshore_client::{Item, object, optional};
use tokio::sync::watch;
use tracing::{info, warn};

const NAMESPACE: &str = "kube-node-lease";
/// Pauses between tries while the lease cannot be renewed.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(7);

/// Renews the lease of the node `name` for ever: four times in the time that it lasts.
///
/// A missing lease is made once the node object is known, as that owns it.
pub async fn renew(
    client: Client,
    name: String,
    duration_seconds: i32,
    node: watch::Receiver<Option<Arc<Node>>>,
) {
    let interval =
        time::part(Duration::from_secs(duration_seconds.max(1).unsigned_abs().into()), 4);
    let mut heart = Heart {
        api: Api::namespaced(client, NAMESPACE),
        name,
        duration_seconds,
        node,
        lease: None,
    };
    let mut pause = FIRST_PAUSE;
    loop {
        let beat = tokio::time::timeout(interval, heart.beat()).await;
        match beat {
            Ok(Ok(())) => {
                if pause > FIRST_PAUSE {
                    info!("lease renewed again");
                }
                pause = FIRST_PAUSE;
                tokio::time::sleep(interval).await;
                continue;
            }
            Ok(Err(BeatError::NoNode)) => {}
            Ok(Err(BeatError::Api(error))) => {
                warn!(retry = ?pause, "cannot renew the node's lease: {error}")
            }
            Err(_) => warn!(retry = ?pause, "cannot renew the node's lease within {interval:?}"),
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE.min(interval));
    }
}

struct Heart {
    api: Api<Item<Lease>>,
    name: String,
    duration_seconds: i32,
    node: watch::Receiver<Option<Arc<Node>>>,
    /// As the apiserver last gave it; `None`: to be asked for.
    lease: Option<Lease>,
}

enum BeatError {
    /// There is no lease and no node object yet that could own one.
    NoNode,
    Api(Error),
}

impl From<Error> for BeatError {
    fn from(error: Error) -> Self {
        Self::Api(error)
    }
}

impl Heart {
    async fn beat(&mut self) -> Result<(), BeatError> {
        // taken, so that whatever fails below leads to asking for it anew
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
                let owner = self.owner().ok_or(BeatError::NoNode)?;
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
