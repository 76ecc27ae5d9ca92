//! Objects in other versions of a custom kind that a webhook converts. What managers own is recorded in
//! the version in which they wrote, and recording cannot wait for a webhook: it notes what it lacks, the
//! write makes these conversions, and records again.

use parking_lot::Mutex;
use serde_json::Value;

use crate::status::StatusError;

/// How often one write makes conversions. Each managed version takes two or three rounds.
const MAX_ROUNDS: usize = 32;

/// The conversions of one write.
#[derive(Debug, Default)]
pub(crate) struct Conversions(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: Vec<Known>,
    missing: Vec<Missing>,
    rounds: usize,
    failure: Option<StatusError>,
}

#[derive(Debug)]
struct Known {
    object: Value,
    api_version: String,
    /// `None`: it cannot be converted.
    converted: Option<Value>,
}

/// Objects to convert to one version.
#[derive(Debug, PartialEq)]
pub(crate) struct Missing {
    pub(crate) api_version: String,
    pub(crate) objects: Vec<Value>,
}

impl Conversions {
    /// An object in another version. `None`: it is not known, which is noted, or cannot be converted.
    pub(super) fn get(&self, object: &Value, api_version: &str) -> Option<Value> {
        let mut state = self.0.lock();
        let is_it = |known: &&Known| known.api_version == api_version && known.object == *object;
        if let Some(known) = state.known.iter().find(is_it) {
            return known.converted.clone();
        }
        let missing = &mut state.missing;
        let same = missing.iter_mut().find(|missing| missing.api_version == api_version);
        match same {
            Some(same) if same.objects.contains(object) => {}
            Some(same) => same.objects.push(object.clone()),
            None => missing.push(Missing {
                api_version: api_version.to_owned(),
                objects: vec![object.clone()],
            }),
        }
        None
    }

    /// Ends an attempt that lacks something. The error is nobody's to see.
    pub(crate) fn pause(&self) -> Option<StatusError> {
        let is_complete = self.0.lock().missing.is_empty();
        (!is_complete).then(|| StatusError::internal("the object is being converted"))
    }

    /// What the last attempt lacked.
    pub(crate) fn take_missing(&self) -> Result<Vec<Missing>, StatusError> {
        let mut state = self.0.lock();
        let missing = std::mem::take(&mut state.missing);
        if !missing.is_empty() {
            state.rounds = state.rounds.saturating_add(1);
            if state.rounds > MAX_ROUNDS {
                return Err(StatusError::internal_plain(
                    "the object changes each time that it is converted",
                ));
            }
        }
        Ok(missing)
    }

    /// What became of it.
    pub(crate) fn put(&self, missing: Missing, converted: Result<Vec<Value>, StatusError>) {
        let mut state = self.0.lock();
        let converted = match converted {
            Ok(converted) => converted,
            Err(error) => {
                state.failure.get_or_insert(error);
                Vec::new()
            }
        };
        let Missing { api_version, objects } = missing;
        let mut converted = converted.into_iter();
        state.known.extend(objects.into_iter().map(|object| Known {
            object,
            api_version: api_version.clone(),
            converted: converted.next(),
        }));
    }

    /// Why something could not be converted.
    pub(super) fn failure(&self) -> Option<StatusError> {
        self.0.lock().failure.clone()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conversions_are_noted_once_and_known_afterwards() {
        let conversions = Conversions::default();
        assert!(conversions.pause().is_none());
        for object in ["a", "b", "a"] {
            assert_eq!(conversions.get(&json!(object), "g/v1"), None);
        }
        assert_eq!(conversions.get(&json!("a"), "g/v2"), None);
        assert!(conversions.pause().is_some());
        let mut missing = conversions.take_missing().unwrap();
        assert!(conversions.pause().is_none());
        let two = missing.pop().unwrap();
        let one = missing.pop().unwrap();
        assert_eq!(one.objects, [json!("a"), json!("b")]);
        conversions.put(one, Ok(vec![json!("A"), json!("B")]));
        assert!(conversions.failure().is_none());
        conversions.put(two, Err(StatusError::internal_plain("broken")));
        assert_eq!(conversions.get(&json!("b"), "g/v1"), Some(json!("B")));
        assert_eq!(conversions.get(&json!("a"), "g/v2"), None);
        assert!(conversions.pause().is_none(), "it is known to fail");
        assert_eq!(conversions.failure().unwrap().message, "broken");
    }

    #[test]
    fn conversions_of_what_changes_each_time_end() {
        let conversions = Conversions::default();
        let rounds = (0..1000).take_while(|i| {
            let _ = conversions.get(&json!(i), "g/v1");
            conversions.take_missing().is_ok()
        });
        assert_eq!(rounds.count(), MAX_ROUNDS);
    }
}
