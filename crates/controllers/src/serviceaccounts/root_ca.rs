//! The config map `kube-root-ca.crt` of each namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use longshore_informer::{Event, Informer, Options, WorkQueue, key_of, run_workers};
use tracing::warn;

use super::default_account::is_active;
use crate::Context;
use crate::writes::{has_code, is_terminating, unless_stopped};
use std::time::Instant;

const NAME: &str = "kube-root-ca.crt";
const KEY: &str = "ca.crt";
const DESCRIPTION: &str = "kubernetes.io/description";
const TEXT: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The map to be written; `None`: the existing one is right.
fn plan(namespace: &str, existing: Option<&ConfigMap>, ca: &str) -> Option<ConfigMap> {
    let data = BTreeMap::from([(KEY.to_owned(), ca.to_owned())]);
    if let Some(existing) = existing {
        let annotations = existing.metadata.annotations.as_ref();
        let description = annotations.and_then(|own| own.get(DESCRIPTION));
        let is_described = description.is_some_and(|own| !own.is_empty());
        if existing.data.as_ref() == Some(&data) && is_described {
            return None;
        }
    }
    let mut map = existing.cloned().unwrap_or_else(|| ConfigMap {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    });
    map.data = Some(data);
    map.metadata.annotations.get_or_insert_default().insert(DESCRIPTION.into(), TEXT.into());
    Some(map)
}

/// A process-wide informer of all config maps would keep their data: this one has the maps of that
/// name alone.
fn maps(context: &Context) -> Informer<ConfigMap> {
    let fields = Some(format!("metadata.name={NAME}"));
    Informer::start(context.informers.client(), Options { fields, ..Options::default() })
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let ca = match context.settings.cluster.root_ca.clone() {
        Some(ca) => ca,
        None => {
            warn!("no --root-ca-file: namespaces get no config map kube-root-ca.crt");
            return;
        }
    };
    let queue: WorkQueue<String> = WorkQueue::new("root_ca_cert_publisher", &context.queues);
    let namespaces = context.informers.get::<Namespace>();
    let maps = maps(&context);
    namespaces.subscribe({
        let queue = queue.clone();
        move |event: &Event<Namespace>| queue.add(key_of(&**event.latest()))
    });
    maps.subscribe({
        let queue = queue.clone();
        move |event: &Event<ConfigMap>| {
            queue.add(event.latest().metadata.namespace.clone().unwrap_or_default());
        }
    });
    let all = async {
        namespaces.synced().await;
        maps.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let client = context.client.clone();
    let workers = context.settings.cluster.root_ca_workers;
    let name = "root-ca-certificate-publisher-controller";
    run_workers(name, &queue, workers, &context.stop, |namespace: String| {
        let is_wanted =
            namespaces.store().get(&namespace).is_some_and(|namespace| is_active(&namespace));
        let existing = maps.store().get_named(&namespace, NAME);
        let planned = plan(&namespace, existing.as_deref(), &ca).filter(|_| is_wanted);
        let api = Api::namespaced(client.clone(), &namespace);
        let metrics = &context.metrics.root_ca;
        async move {
            let start = Instant::now();
            let written = write(api, planned, existing.is_some()).await;
            metrics.synced(&written, start.elapsed());
            written
        }
    })
    .await;
}

async fn write(
    api: Api<ConfigMap>,
    map: Option<ConfigMap>,
    exists: bool,
) -> Result<(), kube::Error> {
    let Some(map) = map else { return Ok(()) };
    let params = PostParams::default();
    let written = match exists {
        true => api.replace(NAME, &params, &map).await,
        false => api.create(&params, &map).await,
    };
    match written {
        Err(error) if is_terminating(&error) || has_code(&error, 404) => Ok(()),
        written => written.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::plan;

    #[test]
    fn root_ca_is_published_and_restored() {
        let made = plan("ns", None, "CA").unwrap();
        assert_eq!(made.data.as_ref().unwrap()["ca.crt"], "CA");
        assert_eq!(plan("ns", Some(&made), "CA"), None);
        assert!(plan("ns", Some(&made), "another").is_some());
        let mut edited = made.clone();
        edited.data.as_mut().unwrap().insert("more".into(), "x".into());
        assert_eq!(plan("ns", Some(&edited), "CA").unwrap().data, made.data);
        let annotations = made.metadata.annotations.as_ref().unwrap();
        assert!(annotations["kubernetes.io/description"].starts_with("Contains a CA bundle"));
        let mut bare = made.clone();
        bare.metadata.annotations = None;
        assert!(plan("ns", Some(&bare), "CA").is_some());
    }
}
