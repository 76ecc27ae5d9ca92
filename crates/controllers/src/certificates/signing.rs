//! Signs approved requests, each signer with the CA of its files. The files are read for each
//! certificate, so that a new CA is used from the moment on that it is there.

use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::{Api, Client};
use longshore_base::panics;
use longshore_csr::Request;
use longshore_informer::{Informer, WorkQueue, run_workers};
use serde_json::json;
use tracing::{info, warn};

use super::{
    APPROVED, DENIED, Error, FAILED, WORKERS, amend, has_certificate, has_condition, requests,
    usages, wanted, with_condition,
};
use crate::Context;
use crate::signer_files::{SignerError, SignerFiles};
use crate::writes::unless_stopped;

/// Requests for less get this much, since certificates begin a little in the past.
const MIN_DURATION: Duration = Duration::from_secs(600);

struct Signing {
    client: Client,
    requests: Informer<CertificateSigningRequest>,
    signers: Vec<SignerFiles>,
    /// The longest duration of a certificate.
    longest: Duration,
}

/// Runs until the context's stop.
pub(crate) async fn run(context: Context) {
    let settings = &context.settings.cluster;
    if settings.signers.is_empty() {
        warn!("no --cluster-signing-cert-file: certificate signing requests are not signed");
        return;
    }
    let queue: WorkQueue<String> =
        WorkQueue::with_retries("certificate", &context.queues, super::RETRIES);
    let signing = Signing {
        client: context.client.clone(),
        requests: requests(&context, &queue),
        signers: settings.signers.clone(),
        longest: settings.signing_duration,
    };
    if !unless_stopped(&context, signing.requests.synced()).await {
        return;
    }
    let name = "certificatesigningrequest-signing-controller";
    run_workers(name, &queue, WORKERS, &context.stop, |key| signing.sync(key)).await;
}

impl Signing {
    async fn sync(&self, name: String) -> Result<(), Error> {
        let Some(request) = self.requests.store().get(&name) else { return Ok(()) };
        let is_due = has_condition(&request, APPROVED)
            && !has_condition(&request, DENIED)
            && !has_condition(&request, FAILED)
            && !has_certificate(&request);
        if !is_due {
            return Ok(());
        }
        let Some((signer, wanted)) = wanted(&request) else { return Ok(()) };
        let Some(files) = self.signers.iter().find(|files| files.signer == signer) else {
            return Ok(());
        };
        let api = Api::all(self.client.clone());
        if let Err(refusal) = signer.check(&wanted, &usages(&request)) {
            let why = refusal.to_string();
            let status = with_condition(&request, FAILED, "SignerValidationFailure", &why);
            return amend(&api, &request, "status", status).await;
        }
        let user = wanted.common_name.clone();
        let certificate = self.issue(files.clone(), wanted, &request).await?;
        let status = json!({"certificate": ByteString(certificate.into_bytes())});
        amend(&api, &request, "status", status).await?;
        info!(name, user, ?signer, "signed a certificate");
        Ok(())
    }

    /// The certificate in PEM. Files and RSA take their time, so it is made on a thread of its own.
    async fn issue(
        &self,
        files: SignerFiles,
        wanted: Request,
        request: &CertificateSigningRequest,
    ) -> Result<String, SignerError> {
        let usages: Vec<String> = usages(request).into_iter().map(str::to_owned).collect();
        let seconds =
            request.spec.expiration_seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0));
        let life = life(self.longest, seconds);
        panics::blocking(move || {
            let usages: Vec<&str> = usages.iter().map(String::as_str).collect();
            Ok(files.read()?.issue(&wanted, &usages, life)?)
        })
        .await?
    }
}

/// PURE: the duration of the certificate.
fn life(longest: Duration, wanted: Option<u64>) -> Duration {
    match wanted.map(Duration::from_secs) {
        None => longest,
        Some(wanted) if wanted > longest => longest,
        Some(wanted) => wanted.max(MIN_DURATION),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csr_certificate_duration() {
        let (hour, year) = (Duration::from_secs(3600), Duration::from_secs(365 * 86400));
        assert_eq!(life(year, None), year);
        assert_eq!(life(year, Some(3600)), hour);
        assert_eq!(life(hour, Some(86400)), hour);
        assert_eq!(life(year, Some(1)), Duration::from_secs(600));
    }
}
