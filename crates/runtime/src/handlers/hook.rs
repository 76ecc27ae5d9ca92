//! Lifecycle hooks. They have no timeout of their own: the caller drops the future.

use std::time::Duration;

use k8s_openapi::api::core::v1::{HTTPGetAction, LifecycleHandler, Pod};
use longshore_pod::spec::describe;
use tokio::time::sleep;

use super::exec::{self, ExecResult};
use super::http::{Get, GetError};
use super::{Error, HOOK_AGENT, Handlers, Target, dial, port, url};

/// A hook failed. The message may contain confidential data, so it is for the pod's status and the
/// log, not for events.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct HookError(String);

/// A hook over HTTPS was retried over HTTP and succeeded: the message of its event.
#[derive(Debug, PartialEq, Eq)]
pub struct Fallback(pub String);

impl Handlers {
    /// Run a hook.
    pub async fn hook(
        &self,
        pod: &Pod,
        target: Target<'_>,
        handler: &LifecycleHandler,
    ) -> Result<Option<Fallback>, HookError> {
        let failed = |kind: &str, what: &str, error: String| {
            HookError(format!(
                "{kind} lifecycle hook ({what}) for Container {:?} in Pod {:?} failed - error: {error}",
                target.container.name,
                describe(pod)
            ))
        };
        if let Some(action) = &handler.exec {
            let command = action.command.clone().unwrap_or_default();
            let command_text = command.join(" ");
            let ended = exec::run(&self.cri, target.id, command, None).await;
            let (error, output) = match ended {
                Ok(ExecResult::Exited { code: 0, .. }) => return Ok(None),
                Ok(ExecResult::Exited { code, output, stderr }) => {
                    (format!("command '{command_text}' exited with {code}: {stderr}"), output)
                }
                Ok(ExecResult::TimedOut(message)) => (message, String::new()),
                Err(error) => (error.to_string(), String::new()),
            };
            let error = format!("{error}, message: {output:?}");
            return Err(failed("Exec", &format!("[{command_text}]"), error));
        }
        if let Some(action) = &handler.http_get {
            let path = action.path.as_deref().unwrap_or_default();
            return self
                .http_hook(target, action)
                .await
                .map_err(|error| failed("HTTP", path, error));
        }
        if let Some(action) = &handler.tcp_socket {
            let host = action.host.as_deref().filter(|host| !host.is_empty());
            let host = host.unwrap_or(target.ip);
            let failed = |error| failed("TCP", host, error);
            let port = port(&action.port, target.container)
                .map_err(|error: Error| failed(error.to_string()))?;
            dial::dial(host, port).await.map_err(|error| failed(error.to_string()))?;
            return Ok(None);
        }
        if let Some(action) = &handler.sleep {
            sleep(Duration::from_secs(u64::try_from(action.seconds).unwrap_or(0))).await;
            return Ok(None);
        }
        Err(HookError("Cannot run handler: invalid handler: no action is set".to_owned()))
    }

    /// Any response of the server is a success.
    async fn http_hook(
        &self,
        target: Target<'_>,
        action: &HTTPGetAction,
    ) -> Result<Option<Fallback>, String> {
        if target.ip.is_empty() && action.host.as_deref().unwrap_or_default().is_empty() {
            return Err("failed to find networking container: the pod has no address".to_owned());
        }
        let url = url(action, target.container, target.ip).map_err(|error| error.to_string())?;
        let host = url.authority();
        let get = Get::new(url, action, HOOK_AGENT).map_err(|error| error.to_string())?;
        match self.hooks.get(get.clone(), None).await {
            // A response has begun, and its body does not matter.
            Ok(_) | Err(GetError::Body(_)) => Ok(None),
            Err(error) if error.is_plain_http() => {
                match self.hooks.get(get.without_tls(), None).await {
                    Ok(_) | Err(GetError::Body(_)) => Ok(Some(Fallback(format!(
                        "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
                    )))),
                    Err(GetError::Head { .. }) => Err(error.to_string()),
                }
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
