//! Credentials from credential provider plugins, for a pod and with the token of its service account.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use longshore_client::objects::Objects;
use longshore_credential_provider::{Account, CredentialProviders, Given, Requester};
use longshore_pod::spec::{self, describe};
use tracing::error;

use super::events::ImageEvents;

/// What the plugins give for an image. One that fails is named in an event and in the log, and the pull is
/// tried without it.
pub(super) async fn credentials(
    providers: &CredentialProviders,
    objects: &Objects,
    events: &ImageEvents<'_>,
    image: &str,
) -> Vec<Given> {
    let pod = events.pod;
    let mut given = Vec::new();
    for answer in providers.credentials(image, &PodRequester { objects, pod }).await {
        let plugin = answer.plugin;
        match answer.outcome {
            Ok(logins) => given.push(logins),
            Err(error) => {
                error!(provider = plugin, image, pod = describe(pod), %error, "Failed to provide credentials for image");
                let message = format!(
                    "Image credential provider {plugin:?} failed ({error}); attempting to pull the \
                     image may not succeed."
                );
                events.pod_events.pod(pod, true, "FailedToRetrieveImagePullSecret", &message);
            }
        }
    }
    given
}

/// A pod that an image is pulled for.
struct PodRequester<'a> {
    objects: &'a Objects,
    pod: &'a Pod,
}

impl Requester for PodRequester<'_> {
    fn namespace(&self) -> &str {
        spec::namespace(self.pod)
    }

    fn service_account(&self) -> &str {
        spec::service_account(self.pod).unwrap_or_default()
    }

    fn account(&self) -> BoxFuture<'_, Result<Account, String>> {
        async {
            let account = self.objects.service_account(self.pod).await;
            let metadata = account.map_err(|error| error.to_string())?.metadata;
            let annotations = metadata.annotations.unwrap_or_default();
            Ok(Account { uid: metadata.uid.unwrap_or_default(), annotations })
        }
        .boxed()
    }

    fn token<'a>(
        &'a self,
        audience: &'a str,
        account_uid: &'a str,
    ) -> BoxFuture<'a, Result<Arc<str>, String>> {
        async move {
            let token = self.objects.plugin_token(self.pod, audience, account_uid).await;
            token.map_err(|error| error.to_string())
        }
        .boxed()
    }
}
