//! Tokens: each stands for one requested session, can be used once, and lives for a minute.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Error;

/// How long a token can be used.
const LIFE: Duration = Duration::from_secs(60);
/// The most sessions that were requested and have not begun.
pub(crate) const MAX_IN_FLIGHT: usize = 1000;
/// Random bytes of a token.
const SIZE: usize = 16;

/// Values by token.
pub(crate) struct Tokens<T>(Mutex<Cache<T>>);

struct Cache<T> {
    values: HashMap<String, T>,
    /// Tokens and when they were made, oldest first; also those that are used already.
    ages: VecDeque<(Instant, String)>,
}

impl<T> Default for Tokens<T> {
    fn default() -> Self {
        Self(Mutex::new(Cache { values: HashMap::new(), ages: VecDeque::new() }))
    }
}

impl<T> Tokens<T> {
    /// A new token for this value.
    ///
    /// # Errors
    /// When there are too many already, and when there is no randomness.
    pub(crate) fn insert(&self, value: T) -> Result<String, Error> {
        let mut bytes = [0; SIZE];
        getrandom::fill(&mut bytes).map_err(|error| Error::Random(error.to_string()))?;
        let token = URL_SAFE_NO_PAD.encode(bytes);
        let mut cache = self.0.lock();
        cache.expire();
        if cache.values.len() >= MAX_IN_FLIGHT {
            return Err(Error::TooMany);
        }
        cache.values.insert(token.clone(), value);
        cache.ages.push_back((Instant::now(), token.clone()));
        Ok(token)
    }

    /// The value of a token, which cannot be used again. `None`: it was used, or never given, or it is
    /// too old.
    pub(crate) fn take(&self, token: &str) -> Option<T> {
        let mut cache = self.0.lock();
        cache.expire();
        cache.values.remove(token)
    }
}

impl<T> Cache<T> {
    /// Drops tokens that are too old, and forgets the ages of the oldest that were used.
    fn expire(&mut self) {
        while let Some((made, token)) = self.ages.front() {
            if made.elapsed() < LIFE && self.values.contains_key(token) {
                break;
            }
            self.values.remove(token);
            self.ages.pop_front();
        }
        // an old one that is never used must not keep the ages of others
        if self.ages.len() > 2 * MAX_IN_FLIGHT {
            self.ages.retain(|(_, token)| self.values.contains_key(token));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokens_are_used_once_and_within_a_minute() {
        let tokens = Tokens::default();
        let (first, second) = (tokens.insert(1).unwrap(), tokens.insert(2).unwrap());
        assert_ne!(first, second);
        assert!(
            first.len() >= 20
                && first.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        );
        assert_eq!((tokens.take(&first), tokens.take(&first)), (Some(1), None));
        assert_eq!((tokens.take(""), tokens.take("none")), (None, None));
        tokio::time::advance(LIFE - Duration::from_millis(1)).await;
        let third = tokens.insert(3).unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((tokens.take(&second), tokens.take(&third)), (None, Some(3)));
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_are_bounded() {
        let tokens = Tokens::default();
        let old = tokens.insert(0).unwrap();
        for i in 0..10 * MAX_IN_FLIGHT {
            let token = tokens.insert(i).unwrap();
            assert_eq!(tokens.take(&token), Some(i));
            assert!(tokens.0.lock().ages.len() <= 2 * MAX_IN_FLIGHT + 1);
        }
        for i in 1..MAX_IN_FLIGHT {
            tokens.insert(i).unwrap();
        }
        assert_eq!(tokens.insert(0), Err(Error::TooMany));
        assert_eq!(tokens.take(&old), Some(0));
        tokens.insert(0).unwrap();
        tokio::time::advance(LIFE).await;
        tokens.insert(0).unwrap();
        let cache = tokens.0.lock();
        assert_eq!((cache.values.len(), cache.ages.len()), (1, 1));
    }
}
