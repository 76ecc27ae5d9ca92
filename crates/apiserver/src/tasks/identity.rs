//! The identity of this server: a Lease in `kube-system` that says that it is there, as upstream's
//! APIServerIdentity. It is renewed, goes with the server, and those of servers that are dead go after
//! their time.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::kinds::known;
use crate::object;
use crate::operations::{Api, DeleteOptions};
use crate::schema::value::text;
use crate::status::StatusError;
use crate::user::User;

const NAMESPACE: &str = "kube-system";
const COMPONENT: &str = "kube-apiserver";
const LABEL: &str = "apiserver.kubernetes.io/identity";
/// How long a lease lasts that is not renewed, in seconds.
const DURATION_SECONDS: i64 = 3600;
/// How often it is renewed.
const RENEW: Duration = Duration::from_secs(10);
/// How often the leases of dead servers are looked for.
const COLLECT: Duration = Duration::from_secs(3600);
/// How long the end of the server waits for its lease to go.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// A server's name, and who holds it.
pub(crate) struct Identity {
    /// Of the lease, such as `apiserver-…`.
    name: String,
    holder: String,
    hostname: String,
}

impl Identity {
    /// Of this process.
    pub(crate) fn new() -> Result<Identity, StatusError> {
        let hostname = super::hostname();
        let name = name_of(&hostname);
        let holder = format!("{name}_{}", object::new_uid().map_err(StatusError::internal)?);
        Ok(Identity { name, holder, hostname })
    }

    /// What the lease is to say at a time.
    fn write(&self, lease: &mut Value, now: Timestamp) {
        let labels = object::metadata_mut(lease).entry("labels").or_insert_with(|| json!({}));
        labels[LABEL] = COMPONENT.into();
        labels["kubernetes.io/hostname"] = self.hostname.as_str().into();
        let spec = object::child_mut(lease, "spec");
        spec.insert("leaseDurationSeconds".into(), DURATION_SECONDS.into());
        spec.insert("renewTime".into(), format!("{now:.6}").into());
        spec.entry("holderIdentity").or_insert_with(|| self.holder.as_str().into());
    }
}

/// The name of the lease of this server.
pub(crate) fn name() -> String {
    name_of(&super::hostname())
}

/// The name of the lease of the server on a host: upstream's hash of host and component.
fn name_of(hostname: &str) -> String {
    let mut hash = Sha256::new();
    for part in [hostname, COMPONENT] {
        hash.update(u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let hash = hash.finalize();
    format!("apiserver-{}", base32(hash.get(..16).unwrap_or_default()))
}

/// Lower-case base32 without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |index: usize| {
        let byte = bytes.get(index >> 3).copied().unwrap_or(0);
        usize::from(byte >> (7 - (index & 7)) & 1)
    };
    let bits = bytes.len().saturating_mul(8);
    (0..bits)
        .step_by(5)
        .map(|first| {
            (first..first.saturating_add(5)).fold(0, |digit, index| digit << 1 | bit(index))
        })
        .filter_map(|digit| ALPHABET.get(digit).map(|letter| char::from(*letter)))
        .collect()
}

/// Keeps this server's lease and removes those of dead ones, until `stop`; then removes its own.
pub(crate) async fn run(api: &Api, stop: CancellationToken) {
    let identity = match Identity::new() {
        Ok(identity) => identity,
        Err(error) => return tracing::error!(%error, "this server has no identity"),
    };
    // One of an earlier process says nothing of this one.
    let removed = remove(api, &identity.name).await;
    if let Err(error) = removed {
        tracing::warn!(%error, name = identity.name, "cannot remove the old identity lease");
    }
    tokio::join!(keep(api, &identity, &stop), collect_all(api, &stop));
    match timeout(STOP_TIMEOUT, remove(api, &identity.name)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "cannot remove this server's identity lease"),
        Err(_) => tracing::warn!("cannot remove this server's identity lease in time"),
    }
}

async fn keep(api: &Api, identity: &Identity, stop: &CancellationToken) {
    loop {
        if let Err(error) = renew(api, identity, Timestamp::now()).await {
            tracing::warn!(%error, name = identity.name, "cannot renew this server's identity lease");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RENEW) => {}
        }
    }
}

async fn collect_all(api: &Api, stop: &CancellationToken) {
    loop {
        if let Err(error) = collect(api, Timestamp::now()).await {
            tracing::warn!(%error, "cannot remove identity leases of dead servers");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(COLLECT) => {}
        }
    }
}

async fn renew(api: &Api, identity: &Identity, now: Timestamp) -> Result<(), StatusError> {
    let leases = known("coordination.k8s.io", "leases")?;
    let mut new = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": identity.name, "namespace": NAMESPACE},
    });
    identity.write(&mut new, now);
    let renewed = api.amend(leases, NAMESPACE, &identity.name, |lease| {
        identity.write(lease, now);
        Ok(())
    });
    match renewed.await {
        Err(error) if error.code == 404 => api.ensure(leases, new).await,
        renewed => renewed.map(drop),
    }
}

async fn remove(api: &Api, name: &str) -> Result<(), StatusError> {
    remove_if(api, name, &DeleteOptions::default()).await
}

async fn remove_if(api: &Api, name: &str, options: &DeleteOptions) -> Result<(), StatusError> {
    let leases = known("coordination.k8s.io", "leases")?;
    match api.delete(&User::apiserver(), leases, NAMESPACE, name, options).await {
        // Another server did, or the dead one is back.
        Err(error) if error.code != 404 && error.code != 409 => Err(error),
        _ => Ok(()),
    }
}

/// Removes the leases of servers that are dead.
async fn collect(api: &Api, now: Timestamp) -> Result<(), StatusError> {
    let leases = known("coordination.k8s.io", "leases")?;
    let dead = api.registry.select(leases, NAMESPACE, |lease| {
        let is_identity = lease["metadata"]["labels"][LABEL] == COMPONENT;
        (is_identity && is_expired(&lease, now)).then_some(lease)
    });
    for lease in dead.await? {
        let options = DeleteOptions {
            resource_version: Some(object::resource_version(&lease).to_owned()),
            ..DeleteOptions::default()
        };
        remove_if(api, object::name(&lease), &options).await?;
        tracing::info!(name = object::name(&lease), "removed the identity lease of a dead server");
    }
    Ok(())
}

/// One without a time or a duration is no lease of a server.
fn is_expired(lease: &Value, now: Timestamp) -> bool {
    let renewed: Option<Timestamp> = text(&lease["spec"]["renewTime"]).parse().ok();
    let lasts = lease["spec"]["leaseDurationSeconds"].as_i64();
    match renewed.zip(lasts) {
        Some((renewed, lasts)) => renewed.as_second().saturating_add(lasts) < now.as_second(),
        None => true,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn identity_names_are_as_upstreams() {
        assert_eq!(base32(b""), "");
        assert_eq!(base32(b"f"), "my");
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        let name = name_of("host");
        assert_eq!(name.len(), "apiserver-".len() + 26);
        assert_ne!(name, name_of("other"));
    }

    #[test]
    fn identity_leases_end() {
        let lease = |renewed: Value, lasts: Value| json!({"spec": {"renewTime": renewed, "leaseDurationSeconds": lasts}});
        let now = "2026-01-01T01:00:01Z".parse().unwrap();
        for (lease, expected) in [
            (lease(json!("2026-01-01T00:00:00.000000Z"), json!(3600)), true),
            (lease(json!("2026-01-01T00:00:01.000000Z"), json!(3600)), false),
            (lease(Value::Null, json!(3600)), true),
            (lease(json!("2026-01-01T00:00:01.000000Z"), Value::Null), true),
            (lease(json!("soon"), json!(3600)), true),
            (lease(json!("2026-01-01T00:00:01.000000Z"), json!(i64::MAX)), false),
        ] {
            assert_eq!(is_expired(&lease, now), expected, "{lease}");
        }
    }

    #[test]
    fn identity_leases_say_who_is_there() {
        let identity = Identity { name: "n".into(), holder: "n_u".into(), hostname: "h".into() };
        let mut lease =
            json!({"metadata": {"labels": {"own": "x"}}, "spec": {"holderIdentity": "first"}});
        identity.write(&mut lease, "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(
            lease,
            json!({
                "metadata": {"labels": {"own": "x", LABEL: COMPONENT, "kubernetes.io/hostname": "h"}},
                "spec": {"holderIdentity": "first", "leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"},
            })
        );
    }
}
