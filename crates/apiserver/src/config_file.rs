//! Configuration files: how they are parsed, and how those are followed that may change while the server runs.

use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tokio::time::sleep;

/// Reads YAML or JSON. An error does not quote the text, which may hold credentials.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let options = serde_saphyr::options! { with_snippet: false };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())
}

/// Why a changed file is not in force.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// It never will be; the file is not looked at before it changes again.
    Invalid(String),
    /// It may be later, as what it names is not ready.
    NotYet(String),
}

/// A file that is read again at intervals. What is not valid leaves in force what was.
pub(crate) struct FollowedFile {
    path: PathBuf,
    /// How often it is read.
    interval: Duration,
    /// How soon it is read after a failure.
    retry: Duration,
    state: Mutex<State>,
}

struct State {
    /// The digest of the text that needs no other look; the text may hold keys.
    known: [u8; 32],
    /// The time until the file is read.
    wait: Duration,
}

impl FollowedFile {
    /// `text` is in force already.
    pub(crate) fn new(path: PathBuf, text: &str, interval: Duration, retry: Duration) -> Self {
        let state = Mutex::new(State { known: Sha256::digest(text).into(), wait: interval });
        FollowedFile { path, interval, retry, state }
    }

    /// The next text of the file that is not known; the caller says what became of it, see
    /// [`FollowedFile::noted`].
    pub(crate) async fn changed(&self) -> Result<String, String> {
        loop {
            let wait = self.state.lock().wait;
            sleep(wait).await;
            let read = tokio::fs::read_to_string(&self.path).await;
            let mut state = self.state.lock();
            match read {
                Ok(text) if state.known == <[u8; 32]>::from(Sha256::digest(&text)) => {
                    state.wait = self.interval;
                }
                read => {
                    state.wait = self.retry;
                    return read.map_err(|error| format!("{}: {error}", self.path.display()));
                }
            }
        }
    }

    /// Notes whether a text is in force now, and returns why it is not.
    pub(crate) fn noted(&self, text: &str, result: Result<(), Rejected>) -> Result<(), String> {
        let reason = match result {
            Ok(()) => None,
            Err(Rejected::Invalid(reason)) => Some(reason),
            Err(Rejected::NotYet(reason)) => return Err(reason),
        };
        let mut state = self.state.lock();
        state.known = Sha256::digest(text).into();
        state.wait = if reason.is_some() { self.retry } else { self.interval };
        reason.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn config_file_is_read_again_until_it_is_known() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("first");
        let (interval, retry) = (Duration::from_secs(60), Duration::from_secs(10));
        let followed = FollowedFile::new(file.path().to_owned(), "first", interval, retry);
        let started = Instant::now();
        let next = async || {
            let text = tokio::time::timeout(Duration::from_secs(200), followed.changed()).await;
            (text.ok(), started.elapsed().as_secs())
        };
        let text = |text: &str| Some(Ok(text.to_owned()));
        assert_eq!(next().await, (None, 200), "it is as it was");
        write("early");
        assert_eq!(next().await, (text("early"), 260));
        let early = Err(Rejected::NotYet("early".to_owned()));
        assert_eq!(followed.noted("early", early), Err("early".to_owned()));
        assert_eq!(next().await, (text("early"), 270), "it may be ready now");
        followed.noted("early", Ok(())).unwrap();
        assert_eq!(next().await, (None, 470));
        write("odd");
        assert_eq!(next().await, (text("odd"), 530));
        let odd = Err(Rejected::Invalid("odd".to_owned()));
        assert_eq!(followed.noted("odd", odd), Err("odd".to_owned()));
        assert_eq!(next().await, (None, 730), "it stays as odd as it is");
        std::fs::remove_file(file.path()).unwrap();
        assert!(matches!(next().await, (Some(Err(_)), 790)));
    }
}
