//! Mutexes whose holders do not panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also what a panic has left locked: what is in it is whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
