//! The ServiceAccount admission plugin: adds the token to every container and the account's pull
//! secrets, and enforces mountable secrets. A pod whose account does not exist is rejected. A mirror
//! pod must not refer to an account or any other API object.

use serde_json::{Value, json};

use crate::api_types::Resource;
use crate::authz;
use crate::kinds::core;
use crate::kinds::pod::is_mirror;
use crate::object;
use crate::registry::Registry;
use crate::schema::value::{items, items_mut, text};
use crate::status::StatusError;

/// The account of a pod that names none.
pub(crate) const DEFAULT: &str = "default";
/// The config map that holds the CA of this server's certificate, in each namespace.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";
/// The expiration of the tokens that pods get by default (seconds): an odd number, which
/// distinguishes them from explicitly requested ones.
pub(crate) const PODS_TOKEN_EXPIRATION: i64 = 3607;
/// The prefix of the names of token volumes.
const VOLUME_PREFIX: &str = "kube-api-access-";
/// The mount path of the token.
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The annotation that restricts pods to the secrets that their account names.
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
const FILE_MODE: i64 = 0o644;
const EPHEMERAL_CONTAINERS: &str = "ephemeralcontainers";

pub(crate) async fn admit_create(
    registry: &Registry,
    resource: &Resource,
    pod: &mut Value,
) -> Result<(), StatusError> {
    if resource.kind != "Pod" {
        return Ok(());
    }
    let admitted = match is_mirror(pod) {
        true => check_mirror(pod),
        false => {
            let account = account_of(registry, resource, pod).await?;
            add_token_and_pull_secrets(&account, pod).map_err(StatusError::internal)?;
            check_secrets(&account, pod)
        }
    };
    admitted.map_err(|why| StatusError::forbidden(resource, object::name(pod), &why))
}

/// The account of a pod whose ephemeral containers are to be updated; it is the same for as long as the pod
/// lives.
pub(crate) async fn account_for_update(
    registry: &Registry,
    pods: &Resource,
    subresource: &str,
    (namespace, name): (&str, &str),
) -> Result<Option<Value>, StatusError> {
    if subresource != EPHEMERAL_CONTAINERS {
        return Ok(None);
    }
    let pod = registry.get(pods, namespace, name).await?;
    match text(&pod["spec"]["serviceAccountName"]) {
        "" => Ok(None),
        name => registry.find(core("serviceaccounts")?, namespace, name).await,
    }
}

/// Admits ephemeral containers.
pub(crate) fn admit_ephemeral_containers(
    account: Option<&Value>,
    resource: &Resource,
    subresource: &str,
    pod: &Value,
) -> Result<(), StatusError> {
    if subresource != EPHEMERAL_CONTAINERS {
        return Ok(());
    }
    let forbidden = |why: &str| Err(StatusError::forbidden(resource, object::name(pod), why));
    if is_mirror(pod) {
        return Ok(());
    }
    let Some(account) = account else {
        return forbidden(&not_found(
            object::namespace(pod),
            text(&pod["spec"]["serviceAccountName"]),
        ));
    };
    if !is_enforced(account) {
        return Ok(());
    }
    match check_containers(account, "ephemeral container", &pod["spec"]["ephemeralContainers"]) {
        Ok(()) => Ok(()),
        Err(why) => forbidden(&why),
    }
}

fn not_found(namespace: &str, account: &str) -> String {
    format!(
        "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
    )
}

pub(crate) fn check_mirror(pod: &Value) -> Result<(), String> {
    let spec = &pod["spec"];
    let mut has_secrets = false;
    authz::secrets(spec, |name| has_secrets |= !text(name).is_empty());
    let mut sources =
        items(&spec["volumes"]).iter().flat_map(|volume| items(&volume["projected"]["sources"]));
    let fault = if !text(&spec["serviceAccountName"]).is_empty() {
        "reference service accounts"
    } else if has_secrets {
        "reference secrets"
    } else if sources.any(|source| source["serviceAccountToken"].is_object()) {
        "use ServiceAccountToken volume projections"
    } else {
        return Ok(());
    };
    Err(format!("a mirror pod may not {fault}"))
}

/// The pod's account; sets the default one.
async fn account_of(
    registry: &Registry,
    resource: &Resource,
    pod: &mut Value,
) -> Result<Value, StatusError> {
    let spec = object::child_mut(pod, "spec");
    let named = spec.get("serviceAccountName").map_or("", text);
    let name = if named.is_empty() { DEFAULT } else { named }.to_owned();
    spec.insert("serviceAccountName".into(), name.as_str().into());
    spec.insert("serviceAccount".into(), name.as_str().into());
    let namespace = object::namespace(pod);
    let account = registry.find(core("serviceaccounts")?, namespace, &name).await?;
    account.ok_or_else(|| {
        StatusError::forbidden(resource, object::name(pod), &not_found(namespace, &name))
    })
}

/// Adds the account's token and pull secrets to a pod that has none.
pub(crate) fn add_token_and_pull_secrets(
    account: &Value,
    pod: &mut Value,
) -> Result<(), getrandom::Error> {
    let automount = [&pod["spec"], account]
        .into_iter()
        .find_map(|owner| owner["automountServiceAccountToken"].as_bool());
    if automount.unwrap_or(true) {
        mount_token(pod)?;
    }
    let pull_secrets = items(&account["imagePullSecrets"]);
    if items(&pod["spec"]["imagePullSecrets"]).is_empty() && !pull_secrets.is_empty() {
        let names = pull_secrets.iter().map(|secret| json!({"name": secret["name"]})).collect();
        object::child_mut(pod, "spec").insert("imagePullSecrets".into(), Value::Array(names));
    }
    Ok(())
}

fn mount_token(pod: &mut Value) -> Result<(), getrandom::Error> {
    let mut volumes = items(&pod["spec"]["volumes"]).iter().map(|volume| text(&volume["name"]));
    let own = volumes.find(|name| name.starts_with(VOLUME_PREFIX)).map(str::to_owned);
    let name = match &own {
        Some(name) => name.clone(),
        None => object::generated_name(VOLUME_PREFIX)?,
    };
    let spec = object::child_mut(pod, "spec");
    let mut is_mounted = false;
    for list in ["initContainers", "containers"] {
        for container in items_mut(spec.get_mut(list)) {
            let mounts = container.entry("volumeMounts").or_insert(Value::Null);
            if !items(mounts).iter().any(|mount| mount["mountPath"] == MOUNT_PATH) {
                push(mounts, json!({"name": name, "mountPath": MOUNT_PATH, "readOnly": true}));
                is_mounted = true;
            }
        }
    }
    if own.is_none() && is_mounted {
        let volume = json!({"name": name, "projected": token_volume()});
        push(spec.entry("volumes").or_insert(Value::Null), volume);
    }
    Ok(())
}

/// Adds an item to a list that may be absent.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        absent => *absent = json!([item]),
    }
}

/// A token, the CA of the server that it is for, and the pod's namespace.
fn token_volume() -> Value {
    json!({
        "defaultMode": FILE_MODE,
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": PODS_TOKEN_EXPIRATION}},
            {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{
                "path": "namespace",
                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
            }]}},
        ],
    })
}

fn is_enforced(account: &Value) -> bool {
    let mark = text(&account["metadata"]["annotations"][ENFORCE]);
    matches!(mark, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

/// Enforces the mountable secrets of an account.
pub(crate) fn check_secrets(account: &Value, pod: &Value) -> Result<(), String> {
    if !is_enforced(account) {
        return Ok(());
    }
    let (name, spec) = (object::name(account), &pod["spec"]);
    for volume in items(&spec["volumes"]) {
        let secret = &volume["secret"]["secretName"];
        if volume["secret"].is_object() && !names(&account["secrets"], secret) {
            return Err(format!(
                "volume with secret.secretName={secret} is not allowed because service account {name} \
                 does not reference that secret"
            ));
        }
    }
    check_containers(account, "init container", &spec["initContainers"])?;
    check_containers(account, "container", &spec["containers"])?;
    for (index, secret) in items(&spec["imagePullSecrets"]).iter().enumerate() {
        let secret = &secret["name"];
        if !names(&account["imagePullSecrets"], secret) {
            return Err(format!(
                "imagePullSecrets[{index}].name={secret} is not allowed because service account {name} \
                 does not reference that imagePullSecret"
            ));
        }
    }
    Ok(())
}

fn check_containers(account: &Value, what: &str, containers: &Value) -> Result<(), String> {
    for container in items(containers) {
        let variables = items(&container["env"]).iter().map(|variable| {
            let reference = &variable["valueFrom"]["secretKeyRef"];
            (format!("envVar {}", text(&variable["name"])), reference)
        });
        let sources = items(&container["envFrom"]).iter();
        let sources = sources.map(|source| ("envFrom".to_owned(), &source["secretRef"]));
        for (place, reference) in variables.chain(sources) {
            let secret = &reference["name"];
            if reference.is_object() && !names(&account["secrets"], secret) {
                return Err(format!(
                    "{what} {} with {place} referencing secret.secretName={secret} is not allowed \
                     because service account {} does not reference that secret",
                    text(&container["name"]),
                    object::name(account)
                ));
            }
        }
    }
    Ok(())
}

/// Whether a list of references has one of that name.
fn names(list: &Value, name: &Value) -> bool {
    items(list).iter().any(|reference| reference["name"] == *name)
}
