//! Claims for devices: what is written to them when a pod is bound.

use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaim as ApiClaim;
use longshore_client::error_message;
use serde_json::{Value, json};

use super::executor::{ApiExecutor, is_gone, now};
use crate::model::{
    CLAIM_FINALIZER, ClaimKey, DeviceReservation, Pod, ResourceClaim, SPECIAL_CLAIM, SpecialClaim,
};

/// How often a write is tried that another one comes before.
const MAX_ATTEMPTS: u32 = 5;
/// The pause before the second attempt; it doubles.
const PAUSE: Duration = Duration::from_millis(10);

fn path(key: &ClaimKey) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}", key.namespace, key.name)
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn read(claim: Value) -> Result<ResourceClaim, String> {
    let api: ApiClaim = serde_json::from_value(claim)
        .map_err(|error| format!("a claim cannot be read: {error}"))?;
    Ok(ResourceClaim::new(&api))
}

/// How one attempt to write failed.
enum Failure {
    /// Another write came before.
    Conflict(String),
    Failed(String),
}

impl Failure {
    fn of(what: &str, key: &ClaimKey, error: &kube::Error) -> Self {
        let text = format!("{what} {key}: {}", error_message(error));
        if is_conflict(error) { Self::Conflict(text) } else { Self::Failed(text) }
    }
}

impl ApiExecutor {
    /// Allocates and reserves claims for a pod, one after the other. What was written is added to `done`
    /// even if a later one fails.
    pub(super) async fn reserve_devices(
        &self,
        pod: &Pod,
        devices: &[DeviceReservation],
        done: &mut Vec<ResourceClaim>,
    ) -> Result<(), String> {
        for own in devices {
            let mut own = own.clone();
            if let Some(special) = own.special.clone() {
                let made = self.make_claim(pod, &special).await?;
                (own.claim, own.uid) = (made.key.clone(), made.uid.clone());
                // If what follows fails it is deleted.
                done.push(made);
            }
            let mut pause = PAUSE;
            let mut attempt = 1;
            let claim = loop {
                match self.reserve(pod, &own).await {
                    Ok(claim) => break claim,
                    Err(Failure::Conflict(_)) if attempt < MAX_ATTEMPTS => {
                        tokio::time::sleep(pause).await;
                        pause = pause.saturating_mul(2);
                        attempt = attempt.saturating_add(1);
                    }
                    Err(Failure::Conflict(error) | Failure::Failed(error)) => return Err(error),
                }
            };
            done.retain(|made| made.key != own.claim);
            done.push(read(claim)?);
            if let Some(special) = &own.special {
                self.report_claim(pod, special, &own.claim).await?;
            }
        }
        Ok(())
    }

    /// Makes the claim for extended resources of a pod.
    async fn make_claim(&self, pod: &Pod, special: &SpecialClaim) -> Result<ResourceClaim, String> {
        let body = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "namespace": &*pod.namespace,
                "generateName": format!("{}-extended-resources-", pod.name),
                "annotations": {SPECIAL_CLAIM: "true"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name,
                    "uid": &*pod.uid, "controller": true}],
            },
            "spec": {"devices": {"requests": special.requests}},
        });
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims", pod.namespace);
        let made = self.post(&path, &body).await;
        let status = if made.is_ok() { "success" } else { "failure" };
        self.claim_creates.with([status]).inc();
        read(made.map_err(|error| {
            let error = error_message(&error);
            format!("create claim for extended resources {}: {error}", pod.key())
        })?)
    }

    /// Writes into a pod's status which claim serves its extended resources.
    async fn report_claim(
        &self,
        pod: &Pod,
        special: &SpecialClaim,
        claim: &ClaimKey,
    ) -> Result<(), String> {
        let path = format!("/api/v1/namespaces/{}/pods/{}/status", pod.namespace, pod.name);
        let body = json!({
            "metadata": {"uid": &*pod.uid},
            "status": {"extendedResourceClaimStatus": {
                "resourceClaimName": &*claim.name,
                "requestMappings": special.mappings,
            }},
        });
        self.patch_strategic(&path, &body).await.map_err(|error| {
            let error = error_message(&error);
            format!("update pod {} ExtendedResourceClaimStatus: {error}", pod.key())
        })
    }

    /// Deletes a claim that was made for extended resources of a pod.
    pub(super) async fn delete_claim(&self, key: &ClaimKey, uid: &str) {
        let path = path(key);
        let deleted = async {
            let mut claim = self.get(&path).await?;
            if claim["metadata"]["uid"] != *uid {
                return Ok(());
            }
            if let Value::Array(all) = &mut claim["metadata"]["finalizers"] {
                let before = all.len();
                all.retain(|own| own != CLAIM_FINALIZER);
                if all.len() < before {
                    self.put(&path, &claim).await?;
                }
            }
            self.delete(&path, uid).await
        };
        match deleted.await {
            Err(error) if !is_gone(&error) => {
                tracing::warn!(claim = %key, "cannot delete: {error}");
            }
            _ => {}
        }
    }

    async fn reserve(&self, pod: &Pod, own: &DeviceReservation) -> Result<Value, Failure> {
        let key = &own.claim;
        let path = path(key);
        let claim = self.get(&path).await;
        let mut claim = claim.map_err(|error| Failure::of("get updated claim", key, &error))?;
        let failed = |reason: &str| {
            Err(Failure::Failed(format!("claim {key} got {reason} in the meantime")))
        };
        let meta = &claim["metadata"];
        if !meta["deletionTimestamp"].is_null() || meta["uid"].as_str() != Some(&*own.uid) {
            return failed("deleted");
        }
        let is_allocated = !claim["status"]["allocation"].is_null();
        let what = match &own.allocation {
            Some(_) if is_allocated => return failed("allocated elsewhere"),
            None if !is_allocated => return failed("deallocated elsewhere"),
            Some(allocation) => {
                claim = self.protect(key, &path, claim).await?;
                let mut allocation = json!(**allocation);
                allocation["allocationTimestamp"] = now();
                claim["status"]["allocation"] = allocation;
                "add allocation and reservation to claim"
            }
            None => "add reservation to claim",
        };
        let consumer = json!({"resource": "pods", "name": pod.name, "uid": &*pod.uid});
        match &mut claim["status"]["reservedFor"] {
            Value::Array(all) => {
                if all.iter().any(|one| one["uid"] == consumer["uid"]) {
                    return Ok(claim);
                }
                all.push(consumer);
            }
            none => *none = json!([consumer]),
        }
        let path = format!("{path}/status");
        self.put(&path, &claim).await.map_err(|error| Failure::of(what, key, &error))
    }

    /// Adds the finalizer that keeps an allocated claim.
    async fn protect(
        &self,
        key: &ClaimKey,
        path: &str,
        mut claim: Value,
    ) -> Result<Value, Failure> {
        match &mut claim["metadata"]["finalizers"] {
            Value::Array(all) if all.iter().any(|own| own == CLAIM_FINALIZER) => return Ok(claim),
            Value::Array(all) => all.push(CLAIM_FINALIZER.into()),
            none => *none = json!([CLAIM_FINALIZER]),
        }
        let written = self.put(path, &claim).await;
        written.map_err(|error| Failure::of("add finalizer to claim", key, &error))
    }

    /// Takes a pod from those that use claims.
    pub(super) async fn unreserve(&self, pod: &Pod, claims: &[(ClaimKey, Box<str>)]) {
        for (key, uid) in claims {
            let body = json!({
                "metadata": {"uid": uid},
                "status": {"reservedFor": [{"$patch": "delete", "uid": &*pod.uid}]},
            });
            match self.patch_strategic(&format!("{}/status", path(key)), &body).await {
                Err(error) if !is_gone(&error) => {
                    tracing::warn!(claim = %key, "cannot take back the reservation: {error}");
                }
                _ => {}
            }
        }
    }

    /// Takes devices from a claim that nobody but this pod uses.
    pub(super) async fn deallocate(&self, pod: &Pod, key: &ClaimKey, uid: &str) {
        let path = path(key);
        let failed = |error: kube::Error| {
            if !is_gone(&error) {
                tracing::warn!(claim = %key, "cannot deallocate: {error}");
            }
        };
        let mut claim = match self.get(&path).await {
            Ok(claim) => claim,
            Err(error) => return failed(error),
        };
        let consumers = claim["status"]["reservedFor"].as_array();
        let is_used = consumers.into_iter().flatten().any(|one| one["uid"] != *pod.uid);
        if is_used || claim["metadata"]["uid"] != *uid {
            return;
        }
        if let Value::Object(status) = &mut claim["status"] {
            for field in ["reservedFor", "allocation", "devices"] {
                status.remove(field);
            }
        }
        if let Err(error) = self.put(&format!("{path}/status"), &claim).await {
            failed(error);
        }
    }
}
