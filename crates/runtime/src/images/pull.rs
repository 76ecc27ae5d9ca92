//! The pull itself: with each credential that fits, at the rate that the configuration allows, and
//! the words for one that fails.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use longshore_base::rate::TokenBucket;
use longshore_cri::v1;

use super::Images;
use super::credentials::{Credential, SecretLogin};

/// gRPC's code for what has none.
const UNKNOWN: i32 = 2;

impl Images {
    /// Try each credential that fits the image; with none, try without. Gives what to run it by,
    /// and the secret whose credential it was.
    pub(super) async fn pull(
        &self,
        image: &v1::ImageSpec,
        credentials: &[Credential],
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<(String, Option<SecretLogin>), String> {
        let pull = async |auth| {
            if !self.may_begin() {
                return Err("pull QPS exceeded".to_owned());
            }
            let pulled = self.cri.pull_image(image.clone(), auth, Some(sandbox_config.clone()));
            pulled.await.map_err(|error| match &error {
                // A code that says nothing is not worth telling.
                longshore_cri::Error::Status { code, message, .. } if *code as i32 == UNKNOWN => {
                    message.clone()
                }
                _ => error.go_text(),
            })
        };
        if credentials.is_empty() {
            return Ok((pull(None).await?, None));
        }
        let mut errors: Vec<String> = Vec::new();
        for credential in credentials {
            match pull(Some(credential.login.config())).await {
                Ok(reference) => return Ok((reference, credential.secret.clone())),
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        match &mut errors[..] {
            [only] => Err(std::mem::take(only)),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    fn may_begin(&self) -> bool {
        let take = |bucket: &Mutex<TokenBucket>| {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).try_take(Instant::now())
        };
        self.rate.as_ref().is_none_or(take)
    }
}

/// Reason and message of a pull that failed, which runtimes tell by how their error begins.
pub(super) fn verdict(image: &str, error: String) -> (&'static str, String) {
    for (reason, what) in [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ] {
        if let Some(rest) = error.strip_prefix(reason) {
            return (reason, format!("image pull failed for {image} because {what}{rest}"));
        }
    }
    ("ErrImagePull", error)
}
