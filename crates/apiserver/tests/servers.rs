//! Several servers over one etcd: addresses and node ports are given once, a server that dies loses nothing,
//! and what it left behind goes.

use crate::common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::upstream::Etcd;
use common::{Client, Cluster, Daemon, config_map, eventually};
use futures::future::join_all;
use longshore_store::{EtcdStore, Expect, Store};
use serde_json::{Value, json};

const ETCD: &str = "/usr/bin/etcd";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";
const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const PORTS: &str = "/registry/ranges/servicenodeports";

async fn cluster(etcd: &Etcd, server: u8) -> Cluster {
    let store = Arc::new(EtcdStore::connect([etcd.url.as_str()]).await.unwrap());
    Cluster::start_with(|config| {
        config.store = store;
        config.advertise = format!("192.0.2.{server}").parse().unwrap();
        config.service_ranges = "10.96.0.0/27".parse().unwrap();
        config.node_ports = "30000-30019".parse().unwrap();
    })
    .await
}

fn service(name: &str, spec: Value) -> Value {
    let mut spec = spec;
    spec["ports"] = json!([{"port": 80}]);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
}

/// Creates services at all servers at once: what was made.
async fn create_at_once(
    servers: &[Cluster],
    prefix: &str,
    count: usize,
    spec: &Value,
) -> Vec<(u16, Value)> {
    let made = (0..count).map(|i| {
        let admin = servers[i % servers.len()].admin.clone();
        let body = service(&format!("{prefix}-{i}"), spec.clone());
        async move { admin.call("POST", SERVICES, Some(body)).await }
    });
    join_all(made).await
}

fn address(service: &Value) -> String {
    service["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

fn port(service: &Value) -> u64 {
    service["spec"]["ports"][0]["nodePort"].as_u64().unwrap()
}

/// All services and IPAddress objects, and what they say of each other.
async fn check_addresses(admin: &Client) {
    let (_, services) = admin.get("/api/v1/services").await;
    let of = |list: &Value| list["items"].as_array().unwrap().clone();
    let held: Vec<String> =
        of(&services).iter().filter(|it| it["spec"]["clusterIP"] != "None").map(address).collect();
    let distinct: BTreeSet<&String> = held.iter().collect();
    assert_eq!(distinct.len(), held.len(), "an address is given twice: {held:?}");
    let (_, objects) = admin.get(ADDRESSES).await;
    let objects: Vec<Value> = of(&objects);
    let taken: BTreeSet<&str> =
        objects.iter().map(|it| it["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(taken, held.iter().map(String::as_str).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_give_addresses_and_ports_once() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Path::new(ETCD), dir.path()).await;
    etcd.ready().await;
    // All of them prepare the empty store.
    let servers = join_all((1..=3).map(|server| cluster(&etcd, server))).await;
    // 30 addresses, of which the service kubernetes has one, and 20 ports.
    let spec = json!({"type": "NodePort"});
    let made = create_at_once(&servers, "port", 24, &spec).await;
    let (good, refused): (Vec<_>, Vec<_>) = made.into_iter().partition(|(code, _)| *code == 201);
    assert_eq!((good.len(), refused.len()), (20, 4), "{refused:?}");
    let good: Vec<Value> = good.into_iter().map(|(_, made)| made).collect();
    assert_eq!(good.iter().map(port).collect::<BTreeSet<_>>().len(), 20);
    for (code, error) in &refused {
        let said = error["message"].as_str().unwrap();
        assert!(
            *code == 500 && said.contains("failed to allocate a nodePort: range is full"),
            "{said}"
        );
    }
    // What was refused for its port has left no address.
    check_addresses(&servers[0].admin).await;
    let made = create_at_once(&servers, "address", 12, &json!({})).await;
    assert_eq!(made.iter().filter(|(code, _)| *code == 201).count(), 9, "{made:?}");
    check_addresses(&servers[1].admin).await;

    // Given ones are one server's too.
    let taken = &good[7];
    let free: Vec<_> = good[..5]
        .iter()
        .map(|service| {
            let name = service["metadata"]["name"].as_str().unwrap();
            format!("{SERVICES}/{name}")
        })
        .collect();
    let deleted = free
        .iter()
        .zip(servers.iter().cycle().skip(1))
        .map(|(path, server)| server.admin.call("DELETE", path, None));
    for (code, status) in join_all(deleted).await {
        assert_eq!(code, 200, "{status}");
    }
    let asked = json!({"type": "NodePort", "clusterIP": address(&good[0])});
    let made = create_at_once(&servers, "given", 6, &asked).await;
    let good_again: Vec<&Value> =
        made.iter().filter(|(code, _)| *code == 201).map(|(_, made)| made).collect();
    assert_eq!(good_again.len(), 1, "{made:?}");
    for (_, error) in made.iter().filter(|(code, _)| *code != 201) {
        let said = error["message"].as_str().unwrap();
        assert!(said.contains("provided IP is already allocated"), "{said}");
    }
    let mut asked = service("port-again", json!({"type": "NodePort"}));
    asked["spec"]["ports"][0]["nodePort"] = port(taken).into();
    for server in &servers {
        let (code, error) = server.admin.call("POST", SERVICES, Some(asked.clone())).await;
        let said = error["message"].as_str().unwrap();
        assert!(code == 422 && said.contains("provided port is already allocated"), "{said}");
        // It is tried, and nothing is taken for it.
        let path = format!("{SERVICES}?dryRun=All");
        let (code, tried) = server.admin.call("POST", &path, Some(service("dry", json!({})))).await;
        assert_eq!(code, 201, "{tried}");
    }
    check_addresses(&servers[2].admin).await;

    // Updates that need more, and less.
    let path = format!("{SERVICES}/{}", good_again[0]["metadata"]["name"].as_str().unwrap());
    let own = port(good_again[0]);
    let change = json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": null}]}});
    let (code, changed) = servers[0].admin.call("PATCH", &path, Some(change)).await;
    assert_eq!(code, 200, "{changed}");
    asked["spec"]["ports"][0]["nodePort"] = own.into();
    let path_again = format!("{SERVICES}/port-again");
    servers[1].admin.create(SERVICES, asked).await;
    let change = json!({"spec": {"type": "ExternalName", "externalName": "a.example", "clusterIP": null, "clusterIPs": null}});
    let (code, changed) = servers[2].admin.call("PATCH", &path_again, Some(change)).await;
    assert_eq!(code, 200, "{changed}");
    let change = json!({"spec": {"type": "NodePort", "externalName": null}});
    let changed = join_all(
        servers.iter().map(|server| server.admin.call("PATCH", &path_again, Some(change.clone()))),
    );
    for (code, changed) in changed.await {
        assert!(code == 200 || code == 409, "{changed}");
    }
    check_addresses(&servers[0].admin).await;
    let (_, services) = servers[0].admin.get("/api/v1/services").await;
    let held: Vec<u64> = services["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["spec"]["type"] == "NodePort")
        .map(port)
        .collect();
    assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len(), "{held:?}");
    for server in servers {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_repair_what_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Path::new(ETCD), dir.path()).await;
    etcd.ready().await;
    let store = EtcdStore::connect([etcd.url.as_str()]).await.unwrap();
    let first = cluster(&etcd, 1).await;
    let made = first.admin.create(SERVICES, service("web", json!({"type": "NodePort"}))).await;
    // A lease of a server that died long ago.
    let dead = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "apiserver-dead", "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver"}},
        "spec": {"leaseDurationSeconds": 3600, "renewTime": "2026-01-01T00:00:00.000000Z"},
    });
    first.admin.create(LEASES, dead).await;
    first.stop().await;
    let stored = store.get(PORTS).await.unwrap().unwrap();
    store.delete(PORTS, stored.mod_revision).await.unwrap();
    let key = format!("/registry/ipaddresses/{}", address(&made));
    let stored = store.get(&key).await.unwrap().unwrap();
    store.delete(&key, stored.mod_revision).await.unwrap();

    // A server that starts adds what services have before it gives anything out.
    let second = cluster(&etcd, 2).await;
    let (code, object) = second.admin.get(&format!("{ADDRESSES}/{}", address(&made))).await;
    assert_eq!((code, &object["spec"]["parentRef"]["name"]), (200, &json!("web")));
    let mut asked = service("other", json!({"type": "NodePort"}));
    asked["spec"]["ports"][0]["nodePort"] = port(&made).into();
    let (code, error) = second.admin.call("POST", SERVICES, Some(asked)).await;
    assert_eq!(code, 422, "{error}");
    let (_, events) = second.admin.get("/api/v1/namespaces/default/events").await;
    let events = events["items"].as_array().unwrap();
    for (reason, component, message) in [
        (
            "PortNotAllocated",
            "portallocator-repair-controller",
            format!("Port {} is not allocated; repairing", port(&made)),
        ),
        (
            "ClusterIPNotAllocated",
            "ipallocator-repair-controller",
            format!("Cluster IP [IPv4]: {} is not allocated; repairing", address(&made)),
        ),
    ] {
        let event = events.iter().find(|event| event["reason"] == reason).unwrap();
        assert_eq!(
            (&event["reportingComponent"], &event["message"]),
            (&json!(component), &json!(message))
        );
        assert_eq!(event["involvedObject"]["name"], "web");
    }
    eventually("the dead server's lease is removed", || async {
        second.admin.get(&format!("{LEASES}/apiserver-dead")).await.0 == 404
    })
    .await;
    eventually("this server has a lease", || async {
        let path =
            format!("{LEASES}?labelSelector=apiserver.kubernetes.io/identity%3Dkube-apiserver");
        let (_, leases) = second.admin.get(&path).await;
        let lease = &leases["items"][0];
        lease["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("apiserver-"))
            && lease["metadata"]["labels"]["kubernetes.io/hostname"].is_string()
            && lease["spec"]["leaseDurationSeconds"] == 3600
    })
    .await;
    second.stop().await;
    // It has left nothing behind.
    assert!(
        store.list("/registry/masterleases/", Default::default()).await.unwrap().items.is_empty()
    );
    let third = cluster(&etcd, 3).await;
    let (_, endpoints) = third.admin.get(ENDPOINTS).await;
    assert_eq!(endpoints["subsets"][0]["addresses"], json!([{"ip": "192.0.2.3"}]));
    third.stop().await;
}

fn addresses(endpoints: &Value) -> Vec<String> {
    let list = endpoints["subsets"][0]["addresses"].as_array();
    list.into_iter().flatten().map(|it| it["ip"].as_str().unwrap().to_owned()).collect()
}

/// Writes through one server until it stops answering: the names of what was acknowledged.
async fn write_until_dead(client: Client, prefix: String, most: usize) -> Vec<String> {
    let mut acknowledged = Vec::new();
    for i in 0..most {
        let name = format!("{prefix}-{i}");
        let body = config_map(&name, json!({"v": "1"})).to_string();
        let request = hyper::Request::post(CONFIG_MAPS)
            .header("content-type", "application/json")
            .body(kube::client::Body::from(body.into_bytes()))
            .unwrap();
        let sent = tokio::time::timeout(Duration::from_secs(5), client.0.send(request)).await;
        match sent {
            Ok(Ok(response)) if response.status().as_u16() == 201 => acknowledged.push(name),
            _ => break,
        }
    }
    acknowledged
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_go_on_when_one_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Path::new(ETCD), dir.path()).await;
    etcd.ready().await;
    let servers_flag = format!("--etcd-servers={}", etcd.url);
    let start = |server: u8| {
        let advertise = format!("--advertise-address=192.0.2.{server}");
        tokio::task::block_in_place(|| Daemon::start(&[&servers_flag, &advertise]))
    };
    let (mut dies, stays, other) = (start(1), start(2), start(3));
    let (dying, staying) = (dies.client().await, stays.client().await);
    let other_client = other.client().await;
    let (_, endpoints) = staying.get(ENDPOINTS).await;
    assert_eq!(addresses(&endpoints), ["192.0.2.1", "192.0.2.2", "192.0.2.3"]);
    let (_, list) = staying.get(CONFIG_MAPS).await;
    let begin = common::revision(&list);

    let mut watch = dying.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={begin}")).await;
    let writers: Vec<_> = [(&dying, "a"), (&dying, "b"), (&staying, "c"), (&other_client, "d")]
        .map(|(client, prefix)| {
            tokio::spawn(write_until_dead(client.clone(), prefix.to_owned(), 150))
        })
        .into();
    // Revisions and names.
    let mut seen: Vec<(String, String)> = Vec::new();
    let seen_of = |event: &Value| {
        let object = &event["object"];
        let name = object["metadata"]["name"].as_str().unwrap();
        (common::revision(object), name.to_owned())
    };
    while seen.len() < 40 {
        seen.push(seen_of(&watch.next().await.expect("the watch ended")));
    }
    dies.child.kill().unwrap();
    // What came before it died is seen too.
    while let Some(event) = watch.next().await {
        seen.push(seen_of(&event));
    }
    let last = seen.last().unwrap().0.clone();
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    let end = staying.create(CONFIG_MAPS, config_map("end", json!({}))).await;
    let number = |revision: &str| revision.parse::<i64>().unwrap();
    assert!(number(&common::revision(&end)) > number(&last), "revisions grow");

    let mut watch =
        staying.watch(&format!("{CONFIG_MAPS}?watch=true&resourceVersion={last}")).await;
    while seen.last().is_none_or(|(_, name)| name != "end") {
        let event = watch.next().await.expect("the watch ended");
        assert_eq!(event["type"], "ADDED", "{event}");
        seen.push(seen_of(&event));
    }
    let (_, list) = other_client.get(CONFIG_MAPS).await;
    let mut there: Vec<(String, String)> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (common::revision(it), it["metadata"]["name"].as_str().unwrap().to_owned()))
        .collect();
    there.sort_by_key(|(revision, _)| number(revision));
    assert_eq!(seen, there, "each write is seen once, in order");
    let names: BTreeSet<&str> = there.iter().map(|(_, name)| name.as_str()).collect();
    let lost: Vec<&String> =
        acknowledged.iter().filter(|name| !names.contains(name.as_str())).collect();
    assert!(lost.is_empty() && acknowledged.len() > 40, "{lost:?} of {}", acknowledged.len());

    // Its key runs out after 15 s, and the others look every 10 s.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let (_, endpoints) = staying.get(ENDPOINTS).await;
        if addresses(&endpoints) == ["192.0.2.2", "192.0.2.3"] {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{endpoints}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let slice = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
    eventually("the slice follows", || async {
        let (_, slice) = staying.get(slice).await;
        slice["endpoints"].as_array().unwrap().len() == 2
    })
    .await;
}

/// What is stored there is read as kube-apiserver stores it, in either form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_take_over_upstreams_node_ports() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(Path::new(ETCD), dir.path()).await;
    etcd.ready().await;
    let store = EtcdStore::connect([etcd.url.as_str()]).await.unwrap();
    // 30003 is taken by a write that is under way at the other server.
    let stored = json!({"kind": "RangeAllocation", "apiVersion": "v1", "metadata": {"creationTimestamp": null},
        "range": "30000-30019", "data": "CA=="});
    store.put(PORTS, stored.to_string().into(), Expect::Absent, None).await.unwrap();
    let cluster = cluster(&etcd, 1).await;
    let mut asked = service("web", json!({"type": "NodePort"}));
    asked["spec"]["ports"][0]["nodePort"] = 30003.into();
    let (code, error) = cluster.admin.call("POST", SERVICES, Some(asked.clone())).await;
    assert_eq!(code, 422, "{error}");
    asked["spec"]["ports"][0]["nodePort"] = 30004.into();
    cluster.admin.create(SERVICES, asked).await;
    cluster.stop().await;
}
