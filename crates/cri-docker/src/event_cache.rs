//! Answers of the engine that hold until it tells of a change.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Answers that are kept.
const ANSWERS: usize = 4096;

/// What the engine has answered, as long as its events are followed and tell of no change. The engine drops events
/// that are not taken in time: no answer is kept for longer than `age`.
#[derive(Debug)]
pub(crate) struct EventCache<K, V> {
    age: Duration,
    known: Mutex<Known<K, V>>,
}

#[derive(Debug)]
struct Known<K, V> {
    /// Whether changes are told of; otherwise nothing is kept.
    is_followed: bool,
    changes: u64,
    answers: HashMap<K, (Instant, V)>,
}

impl<K: Eq + Hash, V: Clone> EventCache<K, V> {
    pub(crate) fn new(age: Duration) -> Self {
        let known = Known { is_followed: false, changes: 0, answers: HashMap::new() };
        Self { age, known: Mutex::new(known) }
    }

    /// The answer that holds, or else the engine's, which is kept unless something changes meanwhile.
    ///
    /// # Errors
    /// Of the engine; they are not kept.
    pub(crate) async fn get<E>(
        &self,
        question: K,
        ask: impl Future<Output = Result<V, E>>,
    ) -> Result<V, E> {
        let changes = match self.known(&question) {
            Ok(answer) => return Ok(answer),
            Err(changes) => changes,
        };
        let answer = ask.await?;
        self.insert(question, answer.clone(), changes);
        Ok(answer)
    }

    /// The answer, if it holds, or how many changes there were so far.
    fn known(&self, question: &K) -> Result<V, u64> {
        let known = self.known.lock();
        match known.answers.get(question) {
            Some((at, answer)) if at.elapsed() < self.age => Ok(answer.clone()),
            _ => Err(known.changes),
        }
    }

    /// Keeps an answer, unless there have been more changes.
    fn insert(&self, question: K, answer: V, changes: u64) {
        let mut known = self.known.lock();
        if !known.is_followed || known.changes != changes {
            return;
        }
        if known.answers.len() >= ANSWERS {
            known.answers.clear();
        }
        known.answers.insert(question, (Instant::now(), answer));
    }

    /// Something has changed.
    pub(crate) fn changed(&self) {
        self.known.lock().changed();
    }

    /// From now on changes are told of, or no longer.
    pub(crate) fn follow(&self, is_followed: bool) {
        let mut known = self.known.lock();
        known.changed();
        known.is_followed = is_followed;
    }
}

impl<K, V> Known<K, V> {
    fn changed(&mut self) {
        self.changes = self.changes.wrapping_add(1);
        self.answers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(10);

    async fn ask(cache: &EventCache<&'static str, u32>, answer: u32) -> u32 {
        cache.get("q", async { Ok::<_, ()>(answer) }).await.unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn answers_hold_until_something_changes() {
        let cache = EventCache::new(AGE);
        assert_eq!((ask(&cache, 1).await, ask(&cache, 2).await), (1, 2), "not followed");
        cache.follow(true);
        assert_eq!((ask(&cache, 3).await, ask(&cache, 4).await), (3, 3));
        cache.changed();
        assert_eq!((ask(&cache, 5).await, ask(&cache, 6).await), (5, 5));
        tokio::time::advance(AGE).await;
        assert_eq!((ask(&cache, 7).await, ask(&cache, 8).await), (7, 7), "too old");
        cache.follow(false);
        assert_eq!((ask(&cache, 9).await, ask(&cache, 10).await), (9, 10), "not followed any more");
    }

    #[tokio::test]
    async fn an_answer_from_before_a_change_is_not_kept() {
        let cache = EventCache::new(AGE);
        cache.follow(true);
        let answer = async {
            cache.changed();
            Ok::<_, ()>(1)
        };
        assert_eq!(cache.get("q", answer).await, Ok(1));
        assert!(cache.known(&"q").is_err());
        assert_eq!(cache.get("q", async { Err("failed") }).await, Err("failed"));
        assert!(cache.known(&"q").is_err());
    }

    #[tokio::test]
    async fn there_is_room_for_new_answers() {
        let cache = EventCache::new(AGE);
        cache.follow(true);
        for question in 0..=ANSWERS {
            assert_eq!(cache.get(question, async { Ok::<_, ()>(()) }).await, Ok(()));
        }
        assert!(cache.known(&ANSWERS).is_ok());
        assert!(cache.known.lock().answers.len() <= ANSWERS);
    }
}
