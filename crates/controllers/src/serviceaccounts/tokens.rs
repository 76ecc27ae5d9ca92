//! Fills secrets of type `kubernetes.io/service-account-token` with a token of their account, and
//! deletes those whose account is gone.
//!
//! Current limitations: the token is one of the TokenRequest API, bound to the secret, and ends after
//! the longest time that the apiserver issues; upstream's never ends.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};
use longshore_informer::{Event, Informer, Options, WorkQueue, key_of, run_workers, split_key};

use crate::Context;
use crate::writes::{is_conflict, unless_replaced, unless_stopped};

const TYPE: &str = "kubernetes.io/service-account-token";
const ACCOUNT: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";
/// Ten years, in seconds; the apiserver may shorten it.
const LONG: i64 = 10 * 365 * 24 * 3600;

/// What becomes of a secret.
#[derive(Debug, PartialEq)]
enum Step {
    Keep,
    /// Its account is gone.
    Delete,
    /// These of its data are missing or wrong; whether the token is one of them.
    Fill {
        data: BTreeMap<String, ByteString>,
        token: bool,
    },
}

fn annotation<'a>(secret: &'a Secret, name: &str) -> Option<&'a String> {
    secret.metadata.annotations.as_ref()?.get(name)
}

/// PURE: decides on a secret by its account.
fn decide(secret: &Secret, account: Option<&ServiceAccount>, ca: Option<&str>) -> Step {
    let is_ours = secret.type_.as_deref() == Some(TYPE) && annotation(secret, ACCOUNT).is_some();
    if !is_ours || secret.metadata.deletion_timestamp.is_some() {
        return Step::Keep;
    }
    let Some(account) = account else { return Step::Delete };
    let uid = annotation(secret, ACCOUNT_UID).filter(|uid| !uid.is_empty());
    if uid.is_some() && uid != account.metadata.uid.as_ref() {
        return Step::Delete;
    }
    let has = |key: &str| secret.data.as_ref().and_then(|data| data.get(key));
    let mut data = BTreeMap::new();
    let mut want = |key: &str, value: &str| {
        if has(key).is_none_or(|own| own.0 != value.as_bytes()) {
            data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
        }
    };
    if let Some(ca) = ca {
        want("ca.crt", ca);
    }
    want("namespace", secret.metadata.namespace.as_deref().unwrap_or_default());
    let token = has("token").is_none_or(|token| token.0.is_empty());
    match data.is_empty() && !token && uid.is_some() {
        true => Step::Keep,
        false => Step::Fill { data, token },
    }
}

struct Controller {
    client: Client,
    secrets: Informer<Secret>,
    accounts: Informer<ServiceAccount>,
    ca: Option<String>,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("serviceaccount_tokens_service", &context.queues);
    // Not the secrets of other types.
    let fields = Some(format!("type={TYPE}"));
    let secrets: Informer<Secret> =
        Informer::start(context.informers.client(), Options { fields, ..Options::default() });
    let accounts = context.informers.get::<ServiceAccount>();
    secrets.subscribe({
        let queue = queue.clone();
        move |event: &Event<Secret>| {
            if !matches!(event, Event::Deleted(_)) {
                queue.add(key_of(&**event.latest()));
            }
        }
    });
    accounts.subscribe({
        let (queue, secrets) = (queue.clone(), secrets.clone());
        move |event: &Event<ServiceAccount>| {
            let account = event.latest();
            let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
            for secret in secrets.store().list_namespace(namespace) {
                if annotation(&secret, ACCOUNT) == account.metadata.name.as_ref() {
                    queue.add(key_of(&*secret));
                }
            }
        }
    });
    let all = async {
        secrets.synced().await;
        accounts.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    let controller = Controller {
        client: context.client.clone(),
        secrets,
        accounts,
        ca: context.settings.cluster.root_ca.clone(),
    };
    let workers = context.settings.cluster.service_account_workers;
    let name = "serviceaccount-token-controller";
    run_workers(name, &queue, workers, &context.stop, |key| controller.sync(key)).await;
}

impl Controller {
    async fn sync(&self, key: String) -> Result<(), kube::Error> {
        let Some(secret) = self.secrets.store().get(&key) else { return Ok(()) };
        let (namespace, name) = split_key(&key);
        let Some(account_name) = annotation(&secret, ACCOUNT) else { return Ok(()) };
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let account = match self.accounts.store().get_named(namespace, account_name) {
            Some(account) => Some(account),
            // Made a moment ago, perhaps.
            None => accounts.get_opt(account_name).await?.map(Arc::new),
        };
        match decide(&secret, account.as_deref(), self.ca.as_deref()) {
            Step::Keep => Ok(()),
            Step::Delete => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: secret.metadata.uid.clone(),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
                unless_replaced(api.delete(name, &params).await).map(drop)
            }
            Step::Fill { mut data, token } => {
                if token {
                    let made = self.token(&accounts, account_name, &secret).await?;
                    data.insert("token".into(), ByteString(made.into_bytes()));
                }
                let mut new = (*secret).clone();
                new.data.get_or_insert_default().extend(data);
                let uid = account.and_then(|account| account.metadata.uid.clone());
                new.metadata
                    .annotations
                    .get_or_insert_default()
                    .insert(ACCOUNT_UID.into(), uid.unwrap_or_default());
                match api.replace(name, &PostParams::default(), &new).await {
                    // The informer shows the newer one.
                    Err(error) if is_conflict(&error) => Ok(()),
                    written => unless_replaced(written).map(drop),
                }
            }
        }
    }

    async fn token(
        &self,
        accounts: &Api<ServiceAccount>,
        account: &str,
        secret: &Secret,
    ) -> Result<String, kube::Error> {
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: None,
                expiration_seconds: Some(LONG),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".into()),
                    kind: Some("Secret".into()),
                    name: secret.metadata.name.clone(),
                    uid: secret.metadata.uid.clone(),
                }),
            }),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let made = accounts.create_token_request(account, &params, &request).await?;
        Ok(made.status.and_then(|status| status.token).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
    use serde_json::{Value, json};

    use super::{Step, TYPE, decide};

    fn secret(uid: &str, data: Value) -> Secret {
        serde_json::from_value(json!({
            "metadata": {"namespace": "ns", "name": "s", "annotations": {
                "kubernetes.io/service-account.name": "robot",
                "kubernetes.io/service-account.uid": uid,
            }},
            "type": TYPE,
            "data": data,
        }))
        .unwrap()
    }

    #[test]
    fn service_account_token_secrets_are_filled_and_deleted() {
        let robot: ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "robot", "uid": "u1"}})).unwrap();
        let step = |secret: &Secret, account| decide(secret, account, Some("CA"));
        let filled = |step: Step| match step {
            Step::Fill { data, token } => (data.into_keys().collect::<Vec<_>>(), token),
            other => panic!("{other:?}"),
        };
        assert_eq!(step(&secret("", Value::Null), None), Step::Delete);
        assert_eq!(step(&secret("before", Value::Null), Some(&robot)), Step::Delete);
        let empty = filled(step(&secret("", Value::Null), Some(&robot)));
        assert_eq!(empty, (vec!["ca.crt".into(), "namespace".into()], true));
        // in base64: CA, ns, t
        let full = json!({"ca.crt": "Q0E=", "namespace": "bnM=", "token": "dA=="});
        assert_eq!(step(&secret("u1", full.clone()), Some(&robot)), Step::Keep);
        assert_eq!(filled(step(&secret("", full.clone()), Some(&robot))), (vec![], false));
        let mut opaque = secret("u1", full);
        opaque.type_ = Some("Opaque".into());
        assert_eq!(step(&opaque, None), Step::Keep);
    }
}
