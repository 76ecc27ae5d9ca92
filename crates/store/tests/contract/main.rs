//! One contract, put to both backends. A case knows nothing of the backend that it runs on.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod backend;
mod cases;
mod etcd_only;
mod watches;

macro_rules! contract {
    ($($group:ident::$case:ident)*) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let backend = crate::backend::Embedded::start().await;
                crate::$group::$case(backend.store.clone()).await;
            })*
        }
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let backend = crate::backend::Etcd::start().await;
                crate::$group::$case(backend.store.clone()).await;
            })*
        }
    };
}

contract! {
    cases::create_update_delete
    cases::a_key_made_again_is_a_new_key
    cases::list_pages_are_of_one_revision
    cases::prefixes_are_of_bytes
    cases::values_of_any_size
    cases::compacted_history_is_gone
    cases::the_future_is_refused
    cases::keys_with_a_ttl_go
    cases::a_ttl_ends_with_its_version
    cases::no_increment_is_lost
    watches::history_then_live
    watches::from_now_on
    watches::a_watch_of_compacted_history_ends
    watches::a_slow_watcher_misses_nothing
    watches::watchers_agree_under_concurrency
    watches::progress_follows_other_keys
}
