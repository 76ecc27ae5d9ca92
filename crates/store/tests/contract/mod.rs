//! One contract, put to both backends. A case knows nothing of the backend that it runs on.

mod backend;
mod cases;
mod etcd_only;
mod watches;

macro_rules! contract {
    ($($group:ident::$case:ident)*) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let backend = crate::contract::backend::Embedded::start().await;
                crate::contract::$group::$case(backend.store.clone()).await;
            })*
        }
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let backend = crate::contract::backend::Etcd::start().await;
                crate::contract::$group::$case(backend.store.clone()).await;
            })*
        }
    };
}

contract! {
    cases::create_update_delete
    cases::recreated_key_is_a_new_key
    cases::list_pages_are_of_one_revision
    cases::list_pages_end_after_so_many_bytes
    cases::list_prefixes_are_of_bytes
    cases::values_of_any_size
    cases::compaction_removes_history
    cases::watch_of_future_revision_is_rejected
    cases::ttl_keys_expire
    cases::ttl_ends_with_its_version
    cases::write_conflicts_lose_no_increment
    watches::watch_history_then_live
    watches::watch_from_now_on
    watches::watch_of_compacted_history_ends
    watches::watch_slow_consumer_misses_nothing
    watches::watches_agree_under_concurrency
    watches::watch_progress_follows_other_keys
}
