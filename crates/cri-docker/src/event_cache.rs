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

/// The question is to be asked: there had been so many changes when that was found.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Absent(u64);

impl<K: Eq + Hash, V: Clone> EventCache<K, V> {
    pub(crate) fn new(age: Duration) -> Self {
        let known = Known { is_followed: false, changes: 0, answers: HashMap::new() };
        Self { age, known: Mutex::new(known) }
    }

    /// The answer, if it holds.
    pub(crate) fn get(&self, question: &K) -> Result<V, Absent> {
        let known = self.known.lock();
        match known.answers.get(question) {
            Some((at, answer)) if at.elapsed() < self.age => Ok(answer.clone()),
            _ => Err(Absent(known.changes)),
        }
    }

    /// Keeps an answer, unless something has changed since it was absent.
    pub(crate) fn insert(&self, question: K, answer: V, asked: Absent) {
        let mut known = self.known.lock();
        if !known.is_followed || known.changes != asked.0 {
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

    fn ask(cache: &EventCache<&'static str, u32>, answer: u32) -> u32 {
        cache.get(&"q").unwrap_or_else(|absent| {
            cache.insert("q", answer, absent);
            answer
        })
    }

    #[tokio::test(start_paused = true)]
    async fn answers_hold_until_something_changes() {
        let cache = EventCache::new(AGE);
        assert_eq!((ask(&cache, 1), ask(&cache, 2)), (1, 2), "not followed");
        cache.follow(true);
        assert_eq!((ask(&cache, 3), ask(&cache, 4)), (3, 3));
        cache.changed();
        assert_eq!((ask(&cache, 5), ask(&cache, 6)), (5, 5));
        tokio::time::advance(AGE).await;
        assert_eq!((ask(&cache, 7), ask(&cache, 8)), (7, 7), "too old");
        cache.follow(false);
        assert_eq!((ask(&cache, 9), ask(&cache, 10)), (9, 10), "not followed any more");
    }

    #[test]
    fn an_answer_from_before_a_change_is_not_kept() {
        let cache = EventCache::new(AGE);
        cache.follow(true);
        let absent = cache.get(&"q").unwrap_err();
        cache.changed();
        cache.insert("q", 1, absent);
        assert!(cache.get(&"q").is_err());
    }

    #[test]
    fn there_is_room_for_new_answers() {
        let cache = EventCache::new(AGE);
        cache.follow(true);
        for question in 0..=ANSWERS {
            let absent = cache.get(&question).unwrap_err();
            cache.insert(question, (), absent);
        }
        assert!(cache.get(&ANSWERS).is_ok());
        assert!(cache.known.lock().answers.len() <= ANSWERS);
    }
}
