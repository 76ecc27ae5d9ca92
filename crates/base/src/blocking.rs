//! Work that blocks its thread, on a thread of the runtime.

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// Runs work that blocks. On a thread of a runtime with several, another one takes over its tasks
/// meanwhile.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    if may_block() { block_in_place(work) } else { work() }
}

/// Whether this is a thread of a runtime that has others to go on with.
pub fn may_block() -> bool {
    Handle::try_current().is_ok_and(|handle| handle.runtime_flavor() == RuntimeFlavor::MultiThread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn blocking_work_does_not_keep_other_tasks_waiting() {
        let (done, wait) = std::sync::mpsc::channel();
        let works = tokio::spawn(async move { in_place(|| wait.recv()) });
        // it runs only once another thread has taken over from the runtime's single one
        tokio::spawn(async move { done.send(7) }).await.unwrap().unwrap();
        assert_eq!(works.await.unwrap(), Ok(7));
    }

    #[tokio::test]
    async fn blocking_work_is_done_here_where_there_is_one_thread() {
        assert_eq!(in_place(|| 7), 7);
    }

    #[test]
    fn blocking_work_is_done_without_a_runtime() {
        assert_eq!(in_place(|| 7), 7);
    }
}
