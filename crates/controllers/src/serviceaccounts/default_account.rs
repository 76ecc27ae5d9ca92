//! The service account `default` of each namespace.

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use longshore_informer::{Event, Informer, WorkQueue, key_of, run_workers};

use crate::Context;
use crate::writes::{has_code, is_terminating, unless_stopped};

const DEFAULT: &str = "default";

/// Whether the namespace is to have its default objects.
pub(super) fn is_active(namespace: &Namespace) -> bool {
    let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
    phase != Some("Terminating") && namespace.metadata.deletion_timestamp.is_none()
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("serviceaccount", &context.queues);
    let namespaces = context.informers.get::<Namespace>();
    let accounts = context.informers.get::<ServiceAccount>();
    namespaces.subscribe({
        let queue = queue.clone();
        move |event: &Event<Namespace>| queue.add(key_of(&**event.latest()))
    });
    accounts.subscribe({
        let queue = queue.clone();
        move |event: &Event<ServiceAccount>| {
            if let Event::Deleted(account) = event {
                queue.add(account.metadata.namespace.clone().unwrap_or_default());
            }
        }
    });
    let all = async {
        namespaces.synced().await;
        accounts.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let client = context.client.clone();
    let workers = context.settings.cluster.service_account_workers;
    run_workers("serviceaccount-controller", &queue, workers, &context.stop, |namespace| {
        sync(client.clone(), &namespaces, &accounts, namespace)
    })
    .await;
}

async fn sync(
    client: kube::Client,
    namespaces: &Informer<Namespace>,
    accounts: &Informer<ServiceAccount>,
    name: String,
) -> Result<(), kube::Error> {
    let is_wanted = namespaces.store().get(&name).is_some_and(|namespace| is_active(&namespace));
    if !is_wanted || accounts.store().get_named(&name, DEFAULT).is_some() {
        return Ok(());
    }
    let account = ServiceAccount {
        metadata: ObjectMeta {
            name: Some(DEFAULT.into()),
            namespace: Some(name.clone()),
            ..ObjectMeta::default()
        },
        ..ServiceAccount::default()
    };
    let api: Api<ServiceAccount> = Api::namespaced(client, &name);
    match api.create(&PostParams::default(), &account).await {
        Err(error) if is_terminating(&error) || has_code(&error, 409) || has_code(&error, 404) => {
            Ok(())
        }
        created => created.map(drop),
    }
}
