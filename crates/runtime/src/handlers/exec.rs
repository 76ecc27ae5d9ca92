//! Programs that run in a container, by the runtime.

use std::collections::HashMap;
use std::time::Duration;

use crate::arguments::expanded_words;
use k8s_openapi::api::core::v1::Container;
use longshore_config::GoDuration;
use longshore_cri::{Code, Runtime};
use tokio::time::timeout;

use super::{Error, Outcome, rpc_error};

/// How much of a program's output is told.
const MAX_OUTPUT: usize = 10 * 1024;
/// How long the runtime may take to end a program whose time is over. The verdict is the same then.
const SLACK: Duration = Duration::from_millis(500);

/// What became of a program.
pub(super) enum Ended {
    /// It ended by itself.
    Exited { code: i32, output: String, stderr: String },
    /// It was cut off.
    TimedOut(String),
}

/// Run a program to its end, or for `limit` at most.
pub(super) async fn run(
    cri: &Runtime,
    id: &str,
    command: Vec<String>,
    limit: Option<Duration>,
) -> Result<Ended, Error> {
    let words = command.join(" ");
    let exec = cri.exec_sync(id, command, limit);
    let ended = match limit {
        // Dropping the call, too, makes the runtime end the program.
        Some(limit) => timeout(limit.saturating_add(SLACK), exec).await.ok(),
        None => Some(exec.await),
    };
    match ended {
        Some(Ok(answer)) => {
            let output = [head(&answer.stdout), head(&answer.stderr)].concat();
            let stderr = text(&answer.stderr);
            return Ok(Ended::Exited { code: answer.exit_code, output: text(&output), stderr });
        }
        Some(Err(error)) if !error.is_deadline_exceeded() => return Err(runtime_error(error)),
        Some(Err(_)) => {}
        // The runtime may wait for what the program has left behind, or may be at a loss itself;
        // then the container is not to blame.
        None => drop(timeout(SLACK, cri.version()).await.map_err(|_| silence())?),
    }
    let seconds = limit.unwrap_or_default().as_secs().try_into().unwrap_or(i64::MAX);
    let limit = GoDuration::secs(seconds);
    Ok(Ended::TimedOut(format!("command timed out: {words:?} timed out after {limit}")))
}

fn silence() -> Error {
    Error::Runtime(rpc_error(Code::DeadlineExceeded, "the runtime does not answer"))
}

/// Run the program of a probe.
pub(super) async fn probe(
    cri: &Runtime,
    id: &str,
    container: &Container,
    command: &[String],
    limit: Duration,
) -> Result<Outcome, Error> {
    // Of the environment, only what stands in the spec is known here.
    let variables = container.env.iter().flatten();
    let variables: HashMap<&str, &str> = variables
        .map(|variable| (&*variable.name, variable.value.as_deref().unwrap_or_default()))
        .collect();
    let command = expanded_words("command", command, |name| variables.get(name).copied());
    let command = command.map_err(|error| Error::Runtime(error.to_string()))?;
    Ok(match run(cri, id, command, Some(limit)).await? {
        Ended::Exited { code: 0, .. } => Outcome::Success,
        Ended::Exited { output, .. } => Outcome::Failure(output),
        Ended::TimedOut(message) => Outcome::Failure(message),
    })
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(head(output)).into_owned()
}

fn head(output: &[u8]) -> &[u8] {
    &output[..output.len().min(MAX_OUTPUT)]
}

/// The runtime's own words, as users know them.
fn runtime_error(error: longshore_cri::Error) -> Error {
    Error::Runtime(match (error.code(), &error) {
        (Some(code), longshore_cri::Error::Status { message, .. }) => rpc_error(code, message),
        (Some(code), error) => rpc_error(code, &error.to_string()),
        (None, error) => error.to_string(),
    })
}
