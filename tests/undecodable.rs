//! Objects that a client library cannot decode do not affect others.

use crate::common;

use std::time::Duration;

use axum::http::Request;
use common::{Cluster, FOREVER, TIMEOUT, script};
use longshore_store::{EmbeddedStore, Expect, Store};
use longshore_testkit::wait_until;
use serde_json::{Value, json};

/// No timestamp of the library that the node uses can hold this one, which the API allows.
const LATE: &str = "9999-12-31T23:59:59Z";

async fn get(cluster: &Cluster, path: &str) -> Result<Value, String> {
    let request = Request::get(path).body(Vec::new()).unwrap();
    cluster.client.request(request).await.map_err(|error| error.to_string())
}

/// Writes to the store what another apiserver may have written there: our own would not.
async fn put_managed_fields(cluster: &mut Cluster, keys: &[&str]) {
    let file = cluster.host.dir().join("apiserver").join("longshore.db");
    cluster.apiserver.daemon().terminate(Duration::from_secs(30)).expect("it ends");
    let store = EmbeddedStore::open(file).await.expect("the store");
    for key in keys {
        let stored = store.get(key).await.unwrap().expect("the object");
        let mut object: Value = serde_json::from_slice(&stored.value).unwrap();
        object["metadata"]["managedFields"] = json!([{"manager": "m", "time": LATE}]);
        let value = serde_json::to_vec(&object).unwrap().into();
        store.put(key, value, Expect::Revision(stored.mod_revision), None).await.unwrap();
    }
    // Nor does what no apiserver could read hide the others.
    let garbage = b"k8s\0garbage".as_slice().into();
    store.put("/registry/services/specs/x/garbage", garbage, Expect::Absent, None).await.unwrap();
    drop(store);
    cluster.apiserver.restart(&cluster.host).expect("it starts again");
}

/// Finding 13: one Service in any namespace kept every restarted node from starting pods, and one
/// pod blinded its node.
#[tokio::test]
async fn undecodable_object_does_not_block_pods() {
    let mut cluster = Cluster::start().await;
    for pod in ["before", "bad"] {
        cluster.create(pod, script(FOREVER)).await;
        cluster.until_ready(pod).await;
    }
    let kubernetes = "/registry/services/specs/default/kubernetes";
    put_managed_fields(&mut cluster, &[kubernetes, "/registry/pods/default/bad"]).await;
    for path in ["services/kubernetes", "pods/bad"] {
        let path = format!("/api/v1/namespaces/default/{path}");
        let stored = wait_until(TIMEOUT, "the object", async || get(&cluster, &path).await);
        let stored = stored.await.unwrap();
        assert_eq!(stored["metadata"]["managedFields"][0]["time"], LATE, "else this shows nothing");
    }
    cluster.node.restart(&cluster.host).expect("the node starts again");
    cluster.create("after", script(FOREVER)).await;
    cluster.until_ready("after").await;
    let before = cluster.until_ready("before").await;
    assert_eq!(common::run_of(&before).0, 0, "it has not been restarted");
    // The answer to the last write of its status holds what cannot be decoded, too.
    let request = Request::delete("/api/v1/namespaces/default/pods/bad?gracePeriodSeconds=1");
    let request = request.body(Vec::new()).unwrap();
    let _: Value = cluster.client.request(request).await.expect("it is taken");
    wait_until(TIMEOUT, "the bad pod is gone", async || {
        match get(&cluster, "/api/v1/namespaces/default/pods/bad").await {
            Ok(pod) => Err(pod["status"].to_string()),
            Err(_) => Ok(()),
        }
    })
    .await
    .unwrap_or_else(|error| panic!("{error}"));
    cluster.host.assert_clean();
}
