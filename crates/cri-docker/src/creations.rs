//! Names of what is being created: a second request for one of them does not disturb the first.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::{Error, Result};

/// All names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Creations(Arc<Mutex<HashSet<String>>>);

/// A name, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    all: Creations,
    name: String,
}

impl Creations {
    /// # Errors
    /// When the name is being created already.
    pub(crate) fn enter(&self, name: &str) -> Result<Place> {
        if self.0.lock().insert(name.to_owned()) {
            return Ok(Place { all: self.clone(), name: name.to_owned() });
        }
        Err(Error::Exists(format!("{name} is being created already")))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.name);
    }
}
