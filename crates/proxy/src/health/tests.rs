use serde_json::{Value, json};

use super::*;
use crate::render::{Accounting, LocalDetector};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Moments by their seconds from the start.
struct Clock(Instant);

impl Clock {
    fn at(&self, second: u64) -> Time {
        Time {
            instant: self.0 + Duration::from_secs(second),
            time: Timestamp::from_second(1_700_000_000 + i64::try_from(second).unwrap()).unwrap(),
        }
    }
}

fn begin() -> (Clock, Health) {
    let clock = Clock(Instant::now());
    let mut health = Health::new(TIMEOUT, Family::ALL, clock.at(0));
    health.set_node(Some(&Node::default()));
    (clock, health)
}

fn body(answer: &HealthResponse) -> Value {
    serde_json::from_str(&answer.body).unwrap()
}

#[derive(Clone, Copy)]
enum Event {
    Queued(Family),
    /// A sync that began so many seconds before.
    Updated(Family, u64),
}

/// What happens and when, and which family is healthy at a second after that.
type Case = (&'static str, &'static [(u64, Event)], u64, [bool; 2]);

#[test]
fn health_requires_changes_to_be_synced_in_time() {
    use Event::{Queued, Updated};
    use Family::{V4, V6};
    let table: [Case; 9] = [
        ("nothing happens", &[], 9999, [true, true]),
        ("a change waits", &[(10, Queued(V4))], 69, [true, true]),
        ("a change is late", &[(10, Queued(V4))], 70, [false, true]),
        ("the other family", &[(10, Queued(V6))], 70, [true, false]),
        ("both", &[(10, Queued(V6)), (10, Queued(V4))], 70, [false, false]),
        ("the oldest counts", &[(10, Queued(V4)), (60, Queued(V4))], 70, [false, true]),
        ("synced", &[(10, Queued(V4)), (20, Updated(V4, 1))], 9999, [true, true]),
        ("late, then synced", &[(10, Queued(V4)), (99, Updated(V4, 1))], 99, [true, true]),
        (
            "a change while others are synced is not in it",
            &[(10, Queued(V4)), (20, Updated(V4, 11)), (21, Queued(V4))],
            70,
            [false, true],
        ),
    ];
    for (what, events, at, families) in table {
        let (clock, mut health) = begin();
        for (second, event) in events {
            let now = clock.at(*second);
            match *event {
                Queued(family) => health.queued(family, now),
                Updated(family, before) => {
                    health.updated(family, clock.at(second - before).instant, now);
                }
            }
        }
        let now = clock.at(at);
        let good = families == [true, true];
        assert_eq!(health.is_healthy(now), good, "{what}");
        for answer in [health.healthz(now), health.livez(now)] {
            assert_eq!(answer.status, if good { 200 } else { 503 }, "{what}");
            let body = body(&answer);
            assert_eq!(body["healthy"], good, "{what}");
            assert_eq!(body["status"]["IPv4"]["healthy"], families[0], "{what}");
            assert_eq!(body["status"]["IPv6"]["healthy"], families[1], "{what}");
        }
    }
}

#[test]
fn healthz_reports_node_deletion_and_livez_does_not() {
    let (clock, mut health) = begin();
    let node = |object: Value| serde_json::from_value::<Node>(object).unwrap();
    let tainted = |key| json!({"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (node, eligible) in [
        (None, false),
        (Some(node(json!({}))), true),
        (Some(node(deleted)), false),
        (Some(node(tainted("ToBeDeletedByClusterAutoscaler"))), false),
        (Some(node(tainted("node.kubernetes.io/unschedulable"))), true),
    ] {
        health.set_node(node.as_ref());
        let healthz = health.healthz(clock.at(1));
        assert_eq!(healthz.status, if eligible { 200 } else { 503 }, "{node:?}");
        assert_eq!(body(&healthz)["nodeEligible"], eligible);
        assert_eq!(body(&healthz)["healthy"], true);
        let livez = health.livez(clock.at(1));
        assert_eq!(livez.status, 200);
        assert_eq!(body(&livez).get("nodeEligible"), None);
    }
}

#[test]
fn health_responses_are_upstreams() {
    let (clock, mut health) = begin();
    health.updated(Family::V4, clock.at(4).instant, clock.at(5));
    health.queued(Family::V6, clock.at(6));
    assert_eq!(
        health.healthz(clock.at(7)),
        HealthResponse {
            status: 200,
            headers: vec![
                ("Content-Type", "application/json".to_owned()),
                ("X-Content-Type-Options", "nosniff".to_owned()),
            ],
            // with good news it is always recent
            body: concat!(
                r#"{"lastUpdated":"2023-11-14T22:13:27Z","currentTime":"2023-11-14T22:13:27Z","#,
                r#""nodeEligible":true,"healthy":true,"status":{"#,
                r#""IPv4":{"lastUpdated":"2023-11-14T22:13:25Z","healthy":true},"#,
                r#""IPv6":{"lastUpdated":"2023-11-14T22:13:20Z","healthy":true}}}"#,
            )
            .to_owned(),
        }
    );
    let late = body(&health.livez(clock.at(66)));
    assert_eq!(late["lastUpdated"], "2023-11-14T22:13:25Z", "the latest of all families");
}

#[test]
fn health_check_reports_the_number_of_local_endpoints() {
    let (clock, mut health) = begin();
    let name = ServiceName::new("shop", "web");
    let check = |local_endpoints| HealthCheck { port: 30500, local_endpoints };
    let answer = health.service(&name, check(2), clock.at(0));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.headers[2], ("X-Load-Balancing-Endpoint-Weight", "2".to_owned()));
    assert_eq!(
        answer.body,
        "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"web\"\n\t},\n\
         \t\"localEndpoints\": 2,\n\t\"serviceProxyHealthy\": true\n}"
    );
    assert_eq!(health.service(&name, check(0), clock.at(0)).status, 503, "nobody is here");
    // A node that goes still serves those that are here.
    health.set_node(None);
    assert_eq!(health.service(&name, check(1), clock.at(0)).status, 200);
    health.queued(Family::V6, clock.at(0));
    let late = health.service(&name, check(1), clock.at(60));
    assert_eq!((late.status, &body(&late)["serviceProxyHealthy"]), (503, &json!(false)));
}

#[test]
fn health_check_ports_listen_on_node_port_addresses() {
    let settings = |family, node_ports| Settings {
        family,
        masquerade_all: false,
        masquerade_bit: 14,
        random_fully: true,
        detector: LocalDetector::None,
        node_ip: Ipv4Addr::UNSPECIFIED.into(),
        node_ports,
        localhost_node_ports: true,
        drop_invalid: true,
        accounting: Accounting::default(),
    };
    let addresses =
        NodePorts::Addresses(["10.0.0.9", "10.0.0.8"].map(|ip| ip.parse().unwrap()).into());
    let service =
        |name, port| (ServiceName::new("default", name), HealthCheck { port, local_endpoints: 1 });
    let checks = BTreeMap::from([service("a", 1), service("b", 2), service("c", 1)]);
    for (settings, expected) in [
        (settings(Family::V4, NodePorts::All), vec!["0.0.0.0:1 a", "0.0.0.0:2 b"]),
        (settings(Family::V6, NodePorts::All), vec!["[::]:1 a", "[::]:2 b"]),
        (
            settings(Family::V4, addresses),
            vec!["10.0.0.8:1 a", "10.0.0.8:2 b", "10.0.0.9:1 a", "10.0.0.9:2 b"],
        ),
    ] {
        let listeners = listeners(&checks, &settings);
        let listeners: Vec<_> =
            listeners.iter().map(|(at, service)| format!("{at} {}", service.name)).collect();
        assert_eq!(listeners, expected);
    }
}
