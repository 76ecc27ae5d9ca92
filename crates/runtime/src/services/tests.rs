use longshore_client::scripted::{Scripted, bad_objects};
use serde_json::{Value, json};

use super::*;

fn service(namespace: &str, name: &str, spec: Value) -> Service {
    serde_json::from_value(
        json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec}),
    )
    .unwrap()
}

fn known(services: &[Service]) -> Known {
    let mut known = Known::default();
    services.iter().for_each(|service| known.set(service));
    known
}

fn pairs(variables: &Variables) -> Vec<String> {
    variables.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[test]
fn service_variables_in_all_formats() {
    let ports = json!([
        {"name": "u-d-p", "port": 8083, "protocol": "UDP"},
        {"port": 8084, "protocol": "TCP"},
    ]);
    let known = known(&[service("ns", "abc-123", json!({"clusterIP": "9.8.7.6", "ports": ports}))]);
    assert_eq!(
        pairs(&known.variables("ns", true).unwrap()),
        [
            "ABC_123_PORT=udp://9.8.7.6:8083",
            "ABC_123_PORT_8083_UDP=udp://9.8.7.6:8083",
            "ABC_123_PORT_8083_UDP_ADDR=9.8.7.6",
            "ABC_123_PORT_8083_UDP_PORT=8083",
            "ABC_123_PORT_8083_UDP_PROTO=udp",
            "ABC_123_PORT_8084_TCP=tcp://9.8.7.6:8084",
            "ABC_123_PORT_8084_TCP_ADDR=9.8.7.6",
            "ABC_123_PORT_8084_TCP_PORT=8084",
            "ABC_123_PORT_8084_TCP_PROTO=tcp",
            "ABC_123_SERVICE_HOST=9.8.7.6",
            "ABC_123_SERVICE_PORT=8083",
            "ABC_123_SERVICE_PORT_U_D_P=8083",
        ]
    );
}

#[test]
fn service_variables_of_the_apiserver_and_the_namespace() {
    let at = |ip: &str| json!({"clusterIP": ip, "ports": [{"port": 1}]});
    let mut known = known(&[
        service("default", "kubernetes", at("10.0.0.1")),
        service("default", "other", at("10.0.0.2")),
        service("ns", "web", at("fd00::1")),
        service("ns", "headless", at("None")),
        service("ns", "waiting", at("")),
        service("own", "kubernetes", at("10.0.0.9")),
    ]);
    let hosts = |known: &Known, namespace, links| {
        let mut all = pairs(&known.variables(namespace, links).unwrap());
        all.retain(|pair| pair.contains("_SERVICE_HOST"));
        all.join(" ")
    };
    for (namespace, links, expected) in [
        ("ns", true, "KUBERNETES_SERVICE_HOST=10.0.0.1 WEB_SERVICE_HOST=fd00::1"),
        ("ns", false, "KUBERNETES_SERVICE_HOST=10.0.0.1"),
        ("default", true, "KUBERNETES_SERVICE_HOST=10.0.0.1 OTHER_SERVICE_HOST=10.0.0.2"),
        ("own", true, "KUBERNETES_SERVICE_HOST=10.0.0.9"),
        ("own", false, "KUBERNETES_SERVICE_HOST=10.0.0.1"),
        ("empty", true, "KUBERNETES_SERVICE_HOST=10.0.0.1"),
    ] {
        assert_eq!(hosts(&known, namespace, links), expected, "{namespace} {links}");
    }
    assert_eq!(known.variables("ns", true).unwrap()["WEB_PORT"], "tcp://[fd00::1]:1");

    // A service can lose its address, and be deleted.
    known.set(&service("ns", "web", at("None")));
    known.remove(("default", "kubernetes"));
    assert_eq!(hosts(&known, "ns", true), "");
    assert!(!known.0.contains_key("ns"), "nothing is kept of an empty namespace");
}

fn pod(source: &str) -> Pod {
    let annotations = json!({spec::SOURCE_ANNOTATION: source});
    serde_json::from_value(json!({"metadata": {"namespace": "ns", "annotations": annotations}}))
        .unwrap()
}

#[tokio::test]
async fn service_variables_wait_for_the_first_list() {
    let (sender, receiver) = watch::channel(None);
    let services = Services { known: Some(receiver) };
    let impatience = Duration::from_millis(1);
    assert_eq!(services.variables_within(impatience, &pod("api")).await, Err(Error::NotYet));
    assert_eq!(services.variables(&pod("file")).await, Ok(Variables::new()));
    let waiting = {
        let services = services.clone();
        tokio::spawn(async move { services.variables(&pod("api")).await })
    };
    tokio::task::yield_now().await;
    let master =
        service("default", "kubernetes", json!({"clusterIP": "1.2.3.4", "ports": [{"port": 443}]}));
    sender.send_replace(Some(known(&[master])));
    assert_eq!(waiting.await.unwrap().unwrap()["KUBERNETES_SERVICE_HOST"], "1.2.3.4");
    assert_eq!(Services::none().variables(&pod("api")).await, Ok(Variables::new()));
}

/// Finding 13: one Service in any namespace kept every restarted node from starting pods.
#[tokio::test]
async fn services_undecodable_object_does_not_affect_others() {
    let rest = r#""spec":{"clusterIP":"10.0.0.7","ports":[{"port":1}]}"#;
    let good = |name: &str, version: u32| {
        format!(
            r#"{{"metadata":{{"name":"{name}","namespace":"x","uid":"{name}","resourceVersion":"{version}"}},{rest}}}"#
        )
    };
    let mut items = bad_objects(rest);
    items.insert(0, good("a", 1));
    items.push(good("b", 2));
    let api = Scripted::start(&items, false).await;
    let (services, follow) = Services::follow(api.client());
    let follow = tokio::spawn(follow);
    let pod: Pod =
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "x"}})).unwrap();
    let hosts = async || {
        let variables = services.variables(&pod).await.unwrap();
        let names = variables.keys().filter_map(|name| name.strip_suffix("_SERVICE_HOST"));
        names.map(str::to_owned).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(hosts().await, "A BAD4 BAD5 B");
    // An object that becomes invalid keeps its last state, and its deletion is seen.
    for bad in bad_objects(rest).iter().take(4) {
        api.send("MODIFIED", &bad.replace(r#""name":"bad"#, r#""name":"a"#));
        api.send("MODIFIED", &bad.replace("bad", "b"));
    }
    let become_bad = r#"{"metadata":{"name":"b","namespace":"x","resourceVersion":"7"},"spec":7}"#;
    api.send("MODIFIED", become_bad);
    api.send("ADDED", &good("c", 8));
    let until = async |expected: &str| {
        let seen = tokio::time::timeout(Duration::from_secs(10), async {
            while hosts().await != expected {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(seen.await.is_ok(), "{expected} and not {}", hosts().await);
    };
    until("A BAD4 BAD5 B C").await;
    api.send("DELETED", become_bad);
    until("A BAD4 BAD5 C").await;
    assert_eq!(api.asked(), (1, 1));
    follow.abort();
}

/// Finding 14: services with thousands of ports took memory for each container of their namespace.
#[test]
fn environment_variables_are_limited() {
    let ports: Vec<Value> = (1..=10_000).map(|port| json!({"port": port})).collect();
    let spec = json!({"clusterIP": "10.0.0.1", "ports": ports});
    let many: Vec<Service> =
        (0..50).map(|index| service("ns", &format!("s{index}"), spec.clone())).collect();
    let known = known(&many);
    assert_eq!(known.variables("ns", true), Err(Error::TooMany));
    assert!(known.variables("ns", false).unwrap().is_empty());
    assert!(known.variables("other", true).unwrap().is_empty());
}
