//! The pull: with each matching credential, at the configured rate, and the reason and message of a
//! failure.

use std::time::Instant;

use longshore_base::rate::TokenBucket;
use longshore_cri::v1;
use parking_lot::Mutex;

use super::Images;
use super::credentials::{Credential, Source};

/// The gRPC code of unknown errors.
const UNKNOWN: i32 = 2;

impl Images {
    /// Try each matching credential, or none if there is none. Returns the image reference, and the
    /// source of the credential.
    pub(super) async fn pull(
        &self,
        image: &v1::ImageSpec,
        credentials: &[Credential],
        sandbox_config: &v1::PodSandboxConfig,
    ) -> Result<(String, Source), String> {
        let pull = async |auth| {
            if !self.is_within_rate() {
                return Err("pull QPS exceeded".to_owned());
            }
            let pulled = self.cri.pull_image(image.clone(), auth, Some(sandbox_config.clone()));
            pulled.await.map_err(|error| match &error {
                // The code of unknown errors is left out.
                longshore_cri::Error::Status { code, message, .. } if *code as i32 == UNKNOWN => {
                    message.clone()
                }
                _ => error.go_text(),
            })
        };
        if credentials.is_empty() {
            return Ok((pull(None).await?, Source::Node));
        }
        let mut errors: Vec<String> = Vec::new();
        for credential in credentials {
            match pull(Some(credential.login.config())).await {
                Ok(reference) => return Ok((reference, credential.source.clone())),
                Err(error) if errors.contains(&error) => {}
                Err(error) => errors.push(error),
            }
        }
        match &mut errors[..] {
            [only] => Err(std::mem::take(only)),
            several => Err(format!("[{}]", several.join(", "))),
        }
    }

    fn is_within_rate(&self) -> bool {
        let take = |bucket: &Mutex<TokenBucket>| bucket.lock().try_take(Instant::now());
        self.rate.as_ref().is_none_or(take)
    }
}

/// Reason and message of a failed pull; some reasons are the prefix of the runtime's error.
pub(super) fn failure_reason(image: &str, error: String) -> (&'static str, String) {
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
