//! Webhooks and policies within a write: what the store's loop of attempts decides at once, they decide
//! later. The attempt pauses with an error, they are called, and the next attempt goes on from what
//! they said, as long as the stored object is the same.

use serde_json::Value;

use crate::object;
use crate::status::{MODIFIED, StatusError};

/// How often a write is reviewed anew because others change the object meanwhile.
const MAX_PAUSES: usize = 32;

/// What a write waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pause {
    /// What changes the object.
    Mutate,
    /// What it needs of the cluster is reserved: addresses and ports.
    Reserve,
    /// What looks at the complete object.
    Validate,
}

/// What is known of the reviews of a write.
#[derive(Debug, Default)]
pub(super) struct Reviews {
    waiting: Option<(Pause, Value, Value)>,
    /// The version of the stored object that the others are about.
    version: String,
    mutated: Option<Value>,
    reserved: Option<Value>,
    validated: Option<Value>,
    pauses: usize,
}

impl Reviews {
    /// Stops an attempt, to have the object reviewed. The error ends the attempt, and is nobody's to see.
    pub(super) fn pause(&mut self, pause: Pause, new: Value, current: &Value) -> StatusError {
        self.waiting = Some((pause, new, current.clone()));
        StatusError::internal("the object is being reviewed")
    }

    /// What the last attempt waits for: the new object and the stored one.
    pub(super) fn take(&mut self) -> Result<Option<(Pause, Value, Value)>, StatusError> {
        let Some(waiting) = self.waiting.take() else { return Ok(None) };
        self.pauses += 1;
        match self.pauses > MAX_PAUSES {
            true => Err(StatusError::internal_plain(MODIFIED)),
            false => Ok(Some(waiting)),
        }
    }

    /// The review is done, and left this object.
    pub(super) fn done(&mut self, pause: Pause, new: Value, current: &Value) {
        if !self.is_about(current) {
            (self.mutated, self.reserved, self.validated) = (None, None, None);
        }
        object::resource_version(current).clone_into(&mut self.version);
        match pause {
            Pause::Mutate => {
                self.mutated = Some(new);
                (self.reserved, self.validated) = (None, None);
            }
            Pause::Reserve => {
                self.reserved = Some(new);
                self.validated = None;
            }
            Pause::Validate => self.validated = Some(new),
        }
    }

    /// The object that is mutated, if it is so for this version of the stored one.
    pub(super) fn mutated(&self, current: &Value) -> Option<Value> {
        self.mutated.clone().filter(|_| self.is_about(current))
    }

    /// The same of one for which something is reserved.
    pub(super) fn reserved(&self, current: &Value) -> Option<Value> {
        self.reserved.clone().filter(|_| self.is_about(current))
    }

    /// The same of one that is complete and validated.
    pub(super) fn validated(&self, current: &Value) -> Option<Value> {
        self.validated.clone().filter(|_| self.is_about(current))
    }

    /// Whether any object is complete and validated.
    pub(super) fn is_validated(&self) -> bool {
        self.validated.is_some()
    }

    fn is_about(&self, current: &Value) -> bool {
        self.version == object::resource_version(current)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(version: &str) -> Value {
        json!({"metadata": {"resourceVersion": version}})
    }

    #[test]
    fn reviews_count_for_one_version_of_the_stored_object() {
        let mut reviews = Reviews::default();
        assert!(reviews.take().unwrap().is_none());
        assert!(reviews.mutated(&version("1")).is_none());
        let _ = reviews.pause(Pause::Mutate, json!("new"), &version("1"));
        let (pause, _, old) = reviews.take().unwrap().unwrap();
        reviews.done(pause, json!("mutated"), &old);
        assert_eq!(reviews.mutated(&version("1")), Some(json!("mutated")));
        assert_eq!(reviews.mutated(&version("2")), None);
        reviews.done(Pause::Reserve, json!("reserved"), &old);
        assert_eq!(reviews.reserved(&version("1")), Some(json!("reserved")));
        reviews.done(Pause::Validate, json!("validated"), &old);
        assert_eq!(reviews.validated(&version("1")), Some(json!("validated")));
        reviews.done(Pause::Mutate, json!("again"), &version("2"));
        assert_eq!(reviews.validated(&version("2")), None, "that was another object");
        assert_eq!(reviews.reserved(&version("2")), None);
        reviews.done(Pause::Reserve, json!("reserved"), &version("3"));
        assert_eq!(reviews.mutated(&version("3")), None, "that was another version");
    }

    #[test]
    fn reviews_end_when_the_object_changes_all_the_time() {
        let mut reviews = Reviews::default();
        let rounds = (0..1000).take_while(|_| {
            let _ = reviews.pause(Pause::Validate, json!({}), &version("1"));
            reviews.take().is_ok()
        });
        assert_eq!(rounds.count(), MAX_PAUSES);
    }
}
