//! Publishes the CA of the apiserver's serving certificate as a ClusterTrustBundle of the signer
//! `kubernetes.io/kube-apiserver-serving`. Runs with the feature gate `ClusterTrustBundle`.

use std::fmt::Write;

use k8s_openapi::api::certificates::v1beta1::{ClusterTrustBundle, ClusterTrustBundleSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use longshore_informer::{Event, Informer, Options, WorkQueue, run_workers};
use ring::digest::{SHA256, digest};
use tracing::warn;

use crate::Context;
use crate::writes::{is_conflict, unless_gone, unless_stopped};
use std::time::Instant;

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
/// How much of the hash of a bundle is in its name.
const HASH_BYTES: usize = 12;

/// PURE: the name of a bundle.
fn name_of(bundle: &str) -> String {
    let mut name = SIGNER.replace('/', ":");
    name.push(':');
    for byte in digest(&SHA256, bundle.as_bytes()).as_ref().iter().take(HASH_BYTES) {
        // writing to a string does not fail
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let settings = &context.settings.cluster;
    let Some(ca) = settings.root_ca.clone().filter(|_| settings.cluster_trust_bundle) else {
        return;
    };
    let queue: WorkQueue<String> =
        WorkQueue::new("ca_cert_publisher_cluster_trust_bundles", &context.queues);
    let fields = Some(format!("spec.signerName={SIGNER}"));
    let bundles: Informer<ClusterTrustBundle> =
        Informer::start(context.informers.client(), Options { fields, ..Options::default() });
    bundles.subscribe({
        let queue = queue.clone();
        move |_: &Event<ClusterTrustBundle>| queue.add(SIGNER.to_owned())
    });
    if !unless_stopped(&context, bundles.synced()).await {
        return;
    }
    queue.add(SIGNER.to_owned());
    let name = "kube-apiserver-serving-clustertrustbundle-publisher-controller";
    run_workers(name, &queue, 1, &context.stop, async |_| {
        let start = Instant::now();
        let synced = sync(&context.client, &bundles, &ca).await;
        context.metrics.trust_bundle.synced(&synced, start.elapsed());
        synced
    })
    .await;
}

async fn sync(
    client: &Client,
    bundles: &Informer<ClusterTrustBundle>,
    ca: &str,
) -> Result<(), kube::Error> {
    let (api, name): (Api<ClusterTrustBundle>, _) = (Api::all(client.clone()), name_of(ca));
    let params = PostParams::default();
    match bundles.store().get(&name) {
        None => {
            let bundle = ClusterTrustBundle {
                metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                spec: ClusterTrustBundleSpec {
                    signer_name: Some(SIGNER.to_owned()),
                    trust_bundle: ca.to_owned(),
                },
            };
            match api.create(&params, &bundle).await {
                Err(error) if is_conflict(&error) => {}
                created => drop(created?),
            }
        }
        Some(bundle) if bundle.spec.trust_bundle != ca => {
            let mut bundle = ClusterTrustBundle::clone(&bundle);
            ca.clone_into(&mut bundle.spec.trust_bundle);
            api.replace(&name, &params, &bundle).await?;
        }
        Some(_) => {}
    }
    // Those of earlier CAs.
    for old in bundles.store().list() {
        let Some(old) = old.metadata.name.as_deref().filter(|old| *old != name) else { continue };
        if let Err(error) = unless_gone(api.delete(old, &DeleteParams::default()).await) {
            warn!(name = old, "cannot delete a cluster trust bundle");
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn trust_bundle_name_is_upstreams() {
        // sha256("ca") = 6959097001d10501…
        assert_eq!(
            super::name_of("ca"),
            "kubernetes.io:kube-apiserver-serving:6959097001d10501ac7d54c0"
        );
    }
}
