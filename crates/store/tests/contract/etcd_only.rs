//! What only a store on the other side of a network has.

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use longshore_store::{Error, Expect};

use crate::contract::backend::Etcd;
use crate::contract::cases::create;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keys_share_leases() {
    let etcd = Etcd::start().await;
    let hour = Some(Duration::from_secs(3600));
    let events = (0..1500).map(|i| {
        let store = etcd.store.clone();
        async move {
            store.put(&format!("/event/{i}"), Bytes::new(), Expect::Absent, hour).await.unwrap()
        }
    });
    futures::stream::iter(events).buffer_unordered(32).collect::<Vec<_>>().await;
    let mut client = etcd_client::Client::connect([&etcd.endpoint], None).await.unwrap();
    let leases = client.leases().await.unwrap();
    assert_eq!(leases.leases().len(), 2, "one for each thousand");
    for lease in leases.leases() {
        let left = client.lease_client().time_to_live(lease.id(), None).await.unwrap().ttl();
        assert!((3590..=3660).contains(&left), "{left} s left of an hour");
    }

    // a lease that etcd has lost is replaced
    for lease in leases.leases() {
        client.lease_client().revoke(lease.id()).await.unwrap();
    }
    let kv = etcd.store.put("/event/new", Bytes::new(), Expect::Absent, hour).await.unwrap();
    assert_eq!(etcd.store.list("/event/", Default::default()).await.unwrap().items, [kv]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_hanging_server_times_out() {
    let etcd = Etcd::start().await;
    create(&etcd.store, "/a", "x").await;
    let mut watch = etcd.store.watch("/", 0).await.unwrap();
    watch.next().await.unwrap().unwrap();
    signal(&etcd, "-STOP");
    let started = Instant::now();
    let error = etcd.store.get("/a").await.unwrap_err();
    assert!(matches!(&error, Error::Backend(why) if why.contains("etcd KV/Range")), "{error}");
    let ended =
        tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("the watch hangs");
    assert!(matches!(ended, Some(Err(Error::Backend(_)))), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    signal(&etcd, "-CONT");
    while etcd.store.get("/a").await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(60), "it does not come back");
    }
}

fn signal(etcd: &Etcd, signal: &str) {
    let done = Command::new("kill").args([signal, &etcd.server.id().to_string()]).status().unwrap();
    assert!(done.success());
}
