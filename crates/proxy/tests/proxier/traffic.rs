//! What traffic may rely on: its share of the endpoints, its affinity, its source address, and who
//! is let in.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use longshore_proxy::Family;
use longshore_proxy::apply::{Limits, Variant, cleanup};
use longshore_proxy::bounded_frequency::Reason;
use longshore_proxy::model::ServiceName;
use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::proxier::world::{
    World, answerers, ask, ask_in_pod, everywhere, is_dropped_in_pod, refused_in_pod,
};

/// How many connections the shares are taken of, and how far they may be off: five times the
/// standard deviation, which happens to one run in a million.
const CONNECTIONS: usize = 300;
const SHARE: std::ops::RangeInclusive<usize> = 59..=141;

async fn sync(it: &World) {
    it.proxier.sync(Reason::Change).await.unwrap();
}

async fn shares_and_affinity(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let web = it.ip(96, 1);
    it.service("web", 1, json!({}));
    it.endpoints("web", &[1, 2, 3], json!({}));
    sync(&it).await;
    let mut shares: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for _ in 0..CONNECTIONS {
        *shares.entry(ask(web, 80).await.unwrap()).or_default() += 1;
    }
    assert!(shares.len() == 3 && shares.values().all(|it| SHARE.contains(it)), "{shares:?}");

    let config = json!({"clientIP": {"timeoutSeconds": 1}});
    it.service("web", 1, json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}));
    sync(&it).await;
    let mut first = ask(web, 80).await.unwrap();
    for _ in 0..20 {
        assert_eq!(ask(web, 80).await, Ok(first));
    }
    // It lasts as long as the client comes again in time, and no longer.
    for _ in 0..4 {
        sleep(Duration::from_millis(500)).await;
        assert_eq!(ask(web, 80).await, Ok(first));
    }
    let mut moved = false;
    for _ in 0..12 {
        sleep(Duration::from_millis(2100)).await;
        let next = ask(web, 80).await.unwrap();
        moved |= next != first;
        first = next;
        if moved {
            break;
        }
    }
    assert!(moved, "twelve times the same of three");
    // A deleted endpoint keeps no clients.
    let others: Vec<u8> = (1..=3).filter(|number| it.ip(1, *number) != first).collect();
    it.endpoints("web", &others, json!({}));
    sync(&it).await;
    assert_ne!(ask(web, 80).await, Ok(first));
    cleanup(Limits::default()).await.unwrap();
}

/// Listens in the pod, and replies with the client's address.
async fn serve_in_pod(ip: IpAddr) -> tokio::task::JoinHandle<()> {
    let bind = move || {
        let netns = std::fs::File::open("/run/netns/pod").unwrap();
        setns(netns, CloneFlags::CLONE_NEWNET).unwrap();
        std::net::TcpListener::bind((ip, 8081)).unwrap()
    };
    let listener = std::thread::spawn(bind).join().unwrap();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            let _ = stream.write_all(peer.ip().to_string().as_bytes()).await;
        }
    })
}

async fn sources(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let (node, bridge, pod) = match family {
        Family::V4 => ("10.0.0.9", "10.2.0.1", "10.2.0.2"),
        Family::V6 => ("fd00::9", "fd00:2::1", "fd00:2::2"),
    };
    let [node, bridge, pod]: [IpAddr; 3] = [node, bridge, pod].map(|ip| ip.parse().unwrap());
    let server = serve_in_pod(pod).await;
    it.service("web", 1, json!({}));
    let endpoint =
        json!([{"addresses": [pod], "nodeName": "node-a", "conditions": {"ready": true}}]);
    let ports = json!([{"name": "p", "port": 8081, "protocol": "TCP"}]);
    it.endpoints("web", &[], json!({"endpoints": endpoint, "ports": ports}));
    sync(&it).await;
    let web = it.ip(96, 1);
    assert_eq!(ask(web, 80).await, Ok(node), "kept to a cluster IP");
    assert_eq!(ask(node, 30001).await, Ok(bridge), "masqueraded to a node port");
    assert_eq!(ask_in_pod(web, 80).await, bridge, "a pod reaches itself");
    server.abort();
    let _ = server.await;
    cleanup(Limits::default()).await.unwrap();
}

/// Endpoints with the conditions ready, serving and terminating.
fn conditions(it: &World, endpoints: &[(u8, [bool; 3])]) -> Value {
    let endpoint = |(number, [ready, serving, terminating]): &(u8, [bool; 3])| {
        json!({
            "addresses": [it.ip(1, *number)],
            "nodeName": "node-a",
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        })
    };
    json!({"endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>()})
}

async fn userspace_addresses_of_relays_and_clients(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let (web, outer, balancer) = (it.ip(96, 1), it.ip(96, 71), it.ip(96, 72));
    // Terminating endpoints serve when there are no others.
    it.service("web", 1, json!({"externalIPs": [outer]}));
    let (ready, ending, gone) = ([true, true, false], [false, true, true], [false, false, true]);
    it.endpoints("web", &[], conditions(&it, &[(1, ending), (2, gone)]));
    sync(&it).await;
    assert_eq!(answerers(web, 80).await, [it.ip(1, 1)].into());
    it.endpoints("web", &[], conditions(&it, &[(1, ending), (2, gone), (3, ready)]));
    sync(&it).await;
    assert_eq!(answerers(web, 80).await, [it.ip(1, 3)].into());
    assert_eq!(ask(outer, 80).await, Ok(it.ip(1, 3)));
    it.endpoints("web", &[], conditions(&it, &[(2, gone)]));
    sync(&it).await;
    for (ip, port) in [(web, 80), (it.ip(0, 9), 30001)] {
        assert_eq!(ask(ip, port).await, Err(ErrorKind::ConnectionRefused), "{ip} {port}");
    }
    // What the node itself sends to such an address leaves it, as upstream.
    refused_in_pod(outer, 80).await;

    // A load balancer's address allows the clients in its source ranges.
    let (pods, others) = match family {
        Family::V4 => ("10.2.0.0/24", "10.9.0.0/16"),
        Family::V6 => ("fd00:2::/64", "fd00:9::/64"),
    };
    for (range, let_in) in [(others, false), (pods, true)] {
        let fields = json!({"type": "LoadBalancer", "loadBalancerSourceRanges": [range]});
        let mut service = it.service_object("lb", 2, fields);
        let status = json!({"loadBalancer": {"ingress": [{"ip": balancer}]}});
        service.status = Some(serde_json::from_value(status).unwrap());
        it.proxier.update(|tracker| tracker.apply_service(&service));
        it.endpoints("lb", &[1], json!({}));
        sync(&it).await;
        if let_in {
            assert_eq!(ask_in_pod(balancer, 80).await, it.ip(1, 1), "{range}");
        } else {
            assert!(is_dropped_in_pod(balancer, 80).await, "{range}");
        }
        assert_eq!(ask_in_pod(it.ip(96, 2), 80).await, it.ip(1, 1), "ranges are not for that");
    }

    // With a policy of its node, a service has only what is there.
    it.service("near", 3, json!({"internalTrafficPolicy": "Local"}));
    let far = json!([
        {"addresses": [it.ip(1, 1)], "nodeName": "node-b", "conditions": {"ready": true}},
        {"addresses": [it.ip(1, 2)], "nodeName": "node-a", "conditions": {"ready": true}},
    ]);
    it.endpoints("near", &[], json!({"endpoints": far}));
    sync(&it).await;
    assert_eq!(answerers(it.ip(96, 3), 80).await, [it.ip(1, 2)].into());
    let name = ServiceName::new("default", "near");
    it.proxier.update(|tracker| tracker.delete_service(&name));
    sync(&it).await;
    assert!(ask(it.ip(96, 3), 80).await.is_err());
    cleanup(Limits::default()).await.unwrap();
}

#[test]
fn shares_are_equal_and_affinity_lasts_its_time() {
    everywhere(shares_and_affinity);
}

#[test]
fn rules_keep_or_masquerade_the_source() {
    everywhere(sources);
}

#[test]
fn rules_for_terminating_endpoints_and_source_ranges() {
    everywhere(userspace_addresses_of_relays_and_clients);
}
