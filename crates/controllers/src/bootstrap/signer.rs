//! Signs the config map `kube-public/cluster-info` with each bootstrap token that may sign, so that
//! whoever has a token can verify the cluster's address and CA (`kubeadm join`).

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use longshore_informer::{Event, Informer, Options, WorkQueue, run_workers};
use ring::hmac;

use super::{ID_LENGTH, Life, PREFIX, life, text, tokens};
use crate::Context;
use crate::writes::{unless_replaced, unless_stopped};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
/// What is signed.
const CONTENT: &str = "kubeconfig";
/// Before the id of a token: the key of its signature.
const SIGNATURE: &str = "jws-kubeconfig-";

/// PURE: id and secret of a token that may sign.
fn signing_token(secret: &Secret, now: Timestamp) -> Option<(&str, &str)> {
    let name = secret.metadata.name.as_deref()?.strip_prefix(PREFIX)?;
    let is_id = name.len() == ID_LENGTH
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let (id, token) = (text(secret, "token-id"), text(secret, "token-secret"));
    let is_valid = is_id
        && id == name
        && !token.is_empty()
        && secret.metadata.deletion_timestamp.is_none()
        && life(secret, now) != Life::Over
        && text(secret, "usage-bootstrap-signing") == "true";
    is_valid.then_some((id, token))
}

/// PURE: a JSON web signature (HS256) without its content.
fn signature(content: &str, id: &str, token: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let tag = hmac::sign(&key, signed.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

/// PURE: the map with the signatures of these secrets and no others; `None`: it has them.
fn signed<'a>(
    map: &ConfigMap,
    secrets: impl IntoIterator<Item = &'a Secret>,
    now: Timestamp,
) -> Option<ConfigMap> {
    let data = map.data.as_ref()?;
    let content = data.get(CONTENT)?;
    let tokens: BTreeMap<&str, &str> =
        secrets.into_iter().filter_map(|secret| signing_token(secret, now)).collect();
    let signatures = tokens
        .into_iter()
        .map(|(id, token)| (format!("{SIGNATURE}{id}"), signature(content, id, token)));
    let others = data.iter().filter(|(key, _)| !key.starts_with(SIGNATURE));
    let wanted: BTreeMap<_, _> =
        others.map(|(key, value)| (key.clone(), value.clone())).chain(signatures).collect();
    (wanted != *data).then(|| ConfigMap { data: Some(wanted), ..map.clone() })
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let queue: WorkQueue<String> = WorkQueue::new("bootstrap_signer_queue", &context.queues);
    let fields = Some(format!("metadata.namespace={NAMESPACE},metadata.name={NAME}"));
    let maps: Informer<ConfigMap> =
        Informer::start(context.informers.client(), Options { fields, ..Options::default() });
    let secrets = tokens(&context);
    // there is but one map to be signed, whatever changes
    maps.subscribe({
        let queue = queue.clone();
        move |_: &Event<ConfigMap>| queue.add(NAME.to_owned())
    });
    secrets.subscribe({
        let queue = queue.clone();
        move |_: &Event<Secret>| queue.add(NAME.to_owned())
    });
    let all = async {
        maps.synced().await;
        secrets.synced().await;
    };
    if !unless_stopped(&context, all).await {
        return;
    }
    run_workers("bootstrap-signer-controller", &queue, 1, &context.stop, |_| {
        sync(&context.client, &maps, &secrets)
    })
    .await;
}

async fn sync(
    client: &Client,
    maps: &Informer<ConfigMap>,
    secrets: &Informer<Secret>,
) -> Result<(), kube::Error> {
    let Some(map) = maps.store().get_named(NAMESPACE, NAME) else { return Ok(()) };
    let secrets = secrets.store().list();
    let secrets = secrets.iter().map(|secret| &**secret);
    let Some(map) = signed(&map, secrets, Timestamp::now()) else { return Ok(()) };
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    unless_replaced(api.replace(NAME, &PostParams::default(), &map).await).map(drop)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use serde_json::{from_value, json};

    use super::*;

    fn token(id: &str, change: &[(&str, &str)]) -> Secret {
        let mut secret: Secret =
            from_value(json!({"metadata": {"name": format!("{PREFIX}{id}")}})).unwrap();
        let good = [
            ("token-id", id),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-signing", "true"),
        ];
        let data = good.iter().chain(change);
        let data =
            data.map(|(key, value)| (String::from(*key), ByteString(value.as_bytes().into())));
        secret.data = Some(data.collect());
        secret
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn bootstrap_signature_is_that_of_kubeadm() {
        // as upstream's `jws.ComputeDetachedSignature` prints it
        let signature = signature("apiVersion: v1\n", "abcdef", "0123456789abcdef");
        assert_eq!(signature, include_str!("testdata/signature.txt").trim());
    }

    #[test]
    fn bootstrap_tokens_that_sign() {
        assert!(signing_token(&token("abcdef", &[]), now()).is_some());
        assert!(
            signing_token(&token("abcdef", &[("expiration", "2026-01-01T00:00:01Z")]), now())
                .is_some()
        );
        for change in [
            ("token-id", "abcdeg"),
            ("token-secret", ""),
            ("usage-bootstrap-signing", "True"),
            ("expiration", "2026-01-01T00:00:00Z"),
            ("expiration", "tomorrow"),
        ] {
            assert!(signing_token(&token("abcdef", &[change]), now()).is_none(), "{change:?}");
        }
        for id in ["", "abc", "abcdefg", "ABCDEF", "abc\"ef"] {
            assert!(signing_token(&token(id, &[]), now()).is_none(), "{id}");
        }
    }

    #[test]
    fn cluster_info_has_a_signature_for_each_token() {
        let map = |data| from_value::<ConfigMap>(json!({"data": data})).unwrap();
        let info = map(json!({"kubeconfig": "c", "jws-kubeconfig-gone00": "x", "other": "o"}));
        let tokens = [token("abcdef", &[]), token("abcde0", &[("usage-bootstrap-signing", "")])];
        let made = signed(&info, &tokens, now()).unwrap();
        let keys: Vec<_> = made.data.as_ref().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["jws-kubeconfig-abcdef", "kubeconfig", "other"]);
        assert!(signed(&made, &tokens, now()).is_none(), "nothing is left to do");
        let changed = ConfigMap {
            data: made.data.clone().map(|mut data| {
                data.insert("kubeconfig".into(), "d".into());
                data
            }),
            ..made.clone()
        };
        assert!(signed(&changed, &tokens, now()).is_some());
        assert!(signed(&map(json!({"other": "o"})), &tokens, now()).is_none());
    }
}
