//! Services and slices in, packets through: the whole way with both variants and both families.

mod churn;
use crate::common;
mod traffic;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use common::sh;
use jiff::Timestamp;
use longshore_proxy::Family;
use longshore_proxy::apply::{CANARY, Limits, Table, Variant, cleanup, watch};
use longshore_proxy::bounded_frequency::Reason;
use longshore_proxy::model::{HealthCheck, ServiceName};
use longshore_proxy::proxier::Rules;
use serde_json::json;
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};
use world::{
    World, answerers, ask, ask_in_pod, datagram, everywhere, merge, proxier, refused_in_pod,
};

const NOTHING: usize = 0;

async fn services_work(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let (web, none) = (it.ip(96, 1), it.ip(96, 2));
    let (node, pods) = (it.ip(0, 9), [it.ip(1, 1), it.ip(1, 2), it.ip(1, 3)]);
    let all = |count: usize| pods[..count].iter().copied().collect::<BTreeSet<_>>();
    assert!(it.service("web", 1, json!({})));
    assert!(it.service("none", 2, json!({})));
    assert!(it.endpoints("web", &[1, 2], json!({})));
    let first = it.proxier.sync(Reason::Change).await.unwrap();
    assert!(first.full);
    assert_eq!((first.services, first.endpoints), (2, 2));
    assert_eq!(first.nat.written, first.nat.total + 3, "and the jumps");

    // From the node and from a pod, by each address.
    assert_eq!(answerers(web, 80).await, all(2));
    assert_eq!(answerers(node, 30001).await, all(2));
    assert!(all(2).contains(&ask_in_pod(web, 80).await));
    assert!(all(2).contains(&ask_in_pod(node, 30001).await));
    // A client on the same machine may not be ready to hear it before its second packet, 1 s later:
    // the first is answered while it is still being sent.
    assert_eq!(ask(none, 80).await, Err(ErrorKind::ConnectionRefused));
    refused_in_pod(none, 80).await;

    // Only what changes is written.
    assert!(it.endpoints("web", &[1, 2, 3], json!({})));
    assert!(!it.service("web", 1, json!({})), "that is not news");
    let second = it.proxier.sync(Reason::Change).await.unwrap();
    assert!(!second.full);
    assert_eq!((second.services, second.endpoints), (0, 1));
    assert_eq!(second.nat.total, first.nat.total + 3);
    assert!(second.nat.written < 8 && second.filter.written == 0, "{second:?}");
    assert_eq!(answerers(web, 80).await, all(3));
    assert!(it.endpoints("web", &[3], json!({})));
    it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!(answerers(web, 80).await, BTreeSet::from([pods[2]]));
    assert!(it.endpoints("web", &[], json!({})));
    it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!(ask(web, 80).await, Err(ErrorKind::ConnectionRefused));
    assert_eq!(ask(node, 30001).await, Err(ErrorKind::ConnectionRefused));
    assert!(!it.rules().await.iter().any(|it| it.contains("KUBE-SEP-")), "no chain is left");
    assert!(it.endpoints("web", &[1, 2], json!({})));
    let last = it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!((last.nat.total, last.filter.total), (first.nat.total, first.filter.total));

    // Another process takes over: nothing is written, so counters stay.
    answerers(web, 80).await;
    let before = it.settled().await;
    let again = World { proxier: proxier(&it.backend, family), ..it };
    again.service("web", 1, json!({}));
    again.service("none", 2, json!({}));
    again.endpoints("web", &[1, 2], json!({}));
    let taken = again.proxier.sync(Reason::Change).await.unwrap();
    assert!(taken.full);
    assert_eq!(taken.filter, Rules { written: NOTHING, ..first.filter });
    assert_eq!(taken.nat, Rules { written: NOTHING, ..first.nat });
    assert_eq!([again.counted(Table::Filter).await, again.counted(Table::Nat).await], before);

    // One that comes after a crash, when services went meanwhile, removes what is theirs.
    let it = World { proxier: proxier(&again.backend, family), ..again };
    it.service("none", 2, json!({}));
    it.proxier.sync(Reason::Change).await.unwrap();
    let rules = it.rules().await;
    assert!(!rules.iter().any(|it| it.contains("KUBE-SVC-") || it.contains("web")), "{rules:?}");

    cleanup(Limits::default()).await.unwrap();
    let left = it.rules().await;
    assert!(left.iter().all(|it| it.contains("KUBE-FIREWALL")), "only the kubelet's: {left:?}");
}

async fn sync_repairs_damaged_rules(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let web = it.ip(96, 1);
    it.service("web", 1, json!({}));
    it.endpoints("web", &[1, 2], json!({}));
    it.proxier.sync(Reason::Change).await.unwrap();
    let good = it.rules().await;
    let (iptables, _) = it.programs();

    // A flush is noticed, and all is there again.
    let handle = it.backend.family(family);
    let watching = watch(&handle, CANARY, Duration::from_millis(500), || it.proxier.resync());
    let test = async {
        for table in Table::ALL {
            while !handle.has_chain(table, CANARY).await.unwrap() {
                sleep(Duration::from_millis(5)).await;
            }
        }
        // Changes before the first sync.
        let _ = timeout(Duration::ZERO, it.proxier.changes().notified()).await;
        sh(&format!("for t in nat filter; do {iptables} -t $t -F; {iptables} -t $t -X; done"));
        timeout(Duration::from_secs(10), it.proxier.changes().notified()).await.unwrap();
        let repaired = it.proxier.sync(Reason::Change).await.unwrap();
        assert!(repaired.full);
        assert!(repaired.nat.written > repaired.nat.total);
    };
    tokio::select! { () = watching => {}, () = test => {} }
    let without_canary = |rules: Vec<String>| {
        rules.into_iter().filter(|it| !it.contains("CANARY")).collect::<Vec<_>>()
    };
    assert_eq!(without_canary(it.rules().await), good);
    assert!(ask(web, 80).await.is_ok());

    // A rule that only a comparison finds: the first quiet moment repairs it.
    sh(&format!("{iptables} -t nat -F KUBE-NODEPORTS"));
    it.proxier.resync();
    let repaired = it.proxier.sync(Reason::Period).await.unwrap();
    assert_eq!((repaired.full, repaired.nat.written, repaired.filter.written), (true, 1, 0));
    assert_eq!(without_canary(it.rules().await), good);

    // A partial sync that the kernel refuses: the next is full.
    sh(&format!("{iptables} -t nat -F KUBE-SERVICES"));
    let gone = ServiceName::new("default", "web");
    it.proxier.update(|tracker| tracker.delete_service(&gone));
    let failed = it.proxier.sync(Reason::Change).await.unwrap_err();
    assert!(!failed.full);
    let words = format!("partial sync of {family} rules: ");
    assert!(failed.to_string().starts_with(&words), "{failed}");
    it.service("late", 3, json!({}));
    it.endpoints("late", &[3], json!({}));
    let repaired = it.proxier.sync(Reason::Retry).await.unwrap();
    assert!(repaired.full);
    assert_eq!(ask(it.ip(96, 3), 80).await, Ok(it.ip(1, 3)));
    assert!(!it.rules().await.iter().any(|it| it.contains("default/web")));
    cleanup(Limits::default()).await.unwrap();
}

async fn flows_and_facts(variant: Variant, family: Family) {
    let it = World::new(variant, family).await;
    let dns = SocketAddr::new(it.ip(96, 5), 53);
    let spec =
        json!({"type": "ClusterIP", "ports": [{"name": "p", "port": 53, "protocol": "UDP"}]});
    let udp = json!({"ports": [{"name": "p", "port": 8080, "protocol": "UDP"}]});
    it.service("dns", 5, spec);
    it.endpoints("dns", &[1], udp.clone());
    it.service(
        "lb",
        6,
        json!({
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 32000,
            "ports": [{"name": "p", "port": 80, "nodePort": 30006}],
        }),
    );
    it.endpoints("lb", &[1, 2], json!({}));
    it.proxier.sync(Reason::Change).await.unwrap();
    let checks = BTreeMap::from([(
        ServiceName::new("default", "lb"),
        HealthCheck { port: 32000, local_endpoints: 2 },
    )]);
    assert_eq!(it.proxier.health_checks(), checks);

    // A client that keeps its port: first the rules, then its flow, so it moves.
    let client = UdpSocket::bind((it.ip(0, 9), 0)).await.unwrap();
    assert_eq!(datagram(&client, dns).await, Some(it.ip(1, 1)));
    let changed =
        json!({"endpoints.kubernetes.io/last-change-trigger-time": "2026-01-02T03:04:05Z"});
    let metadata = json!({
        "namespace": "default",
        "name": "dns",
        "labels": {"kubernetes.io/service-name": "dns"},
        "annotations": changed,
    });
    let mut fields = udp;
    merge(&mut fields, json!({"metadata": metadata}));
    it.endpoints("dns", &[2], fields);
    let synced = it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!((synced.full, synced.stale_flows), (false, 1));
    let trigger: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
    assert_eq!(synced.triggers, BTreeMap::from([(ServiceName::new("default", "dns"), trigger)]));
    assert!(synced.at > trigger);
    assert_eq!(datagram(&client, dns).await, Some(it.ip(1, 2)));

    // The service goes, and with it the flow.
    let gone = ServiceName::new("default", "dns");
    it.proxier.update(|tracker| tracker.delete_service(&gone));
    let synced = it.proxier.sync(Reason::Change).await.unwrap();
    assert_eq!((synced.stale_flows, synced.triggers.len()), (1, 0));
    assert_eq!(datagram(&client, dns).await, None);
    cleanup(Limits::default()).await.unwrap();
}

#[test]
fn packets_reach_endpoints() {
    everywhere(services_work);
}

#[test]
fn sync_repairs_rules_broken_by_others() {
    everywhere(sync_repairs_damaged_rules);
}

#[test]
fn sync_deletes_stale_flows_and_reports_results() {
    everywhere(flows_and_facts);
}
