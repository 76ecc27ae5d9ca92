//! Priority and fairness: what an apiserver does with requests of a level of one seat.

use crate::common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use longshore_apiserver::{RequestLimits, kubeconfig, pki};
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const SCHEMAS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas";
const LEVELS: &str = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const DUMPS: &str = "/debug/api_priority_and_fairness";

/// 200 seats: with the 245 shares of a new cluster, one share is one seat.
async fn cluster(has_flow_control: bool) -> Cluster {
    let cluster = Cluster::start_with(|config| {
        config.requests = RequestLimits { reading: 150, mutating: 50, has_flow_control };
    })
    .await;
    for user in ["ann", "bob"] {
        let pki = pki::Pki::open(&cluster.pki()).unwrap();
        kubeconfig(&pki, &format!("https://{}", cluster.address), user, "").unwrap();
    }
    cluster
}

fn level(shares: u32, length: u32) -> Value {
    json!({
        "metadata": {"name": "small"},
        "spec": {"type": "Limited", "limited": {
            "nominalConcurrencyShares": shares,
            "borrowingLimitPercent": 0,
            "limitResponse": {"type": "Queue", "queuing": {
                "queues": 1, "handSize": 1, "queueLengthLimit": length}},
        }},
    })
}

fn schema(level: &str) -> Value {
    json!({
        "metadata": {"name": "ann"},
        "spec": {
            "matchingPrecedence": 900,
            "priorityLevelConfiguration": {"name": level},
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [{
                "subjects": [{"kind": "User", "user": {"name": "ann"}}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"],
                                   "namespaces": ["*"], "clusterScope": true}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            }],
        },
    })
}

/// The level and the schema; their UIDs.
async fn install(cluster: &Cluster, length: u32) -> (String, String) {
    let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
    let level = cluster.admin.create(LEVELS, level(1, length)).await;
    let schema = cluster.admin.create(SCHEMAS, schema("small")).await;
    let uids = (uid(&schema), uid(&level));
    let expected = uids.clone();
    eventually("the schema is in force", || async {
        get(cluster, "ann", "/version").uids() == expected
    })
    .await;
    uids
}

/// Head and body of an answer.
struct Answer(String);

impl Answer {
    fn has(&self, text: &str) -> bool {
        self.0.to_lowercase().contains(&text.to_lowercase())
    }

    fn header(&self, name: &str) -> Option<String> {
        let lines = self.0.lines().filter_map(|line| line.split_once(": "));
        let mut own = lines.filter(|(own, _)| own.eq_ignore_ascii_case(name));
        own.next().map(|(_, value)| value.trim().to_owned())
    }

    /// Of the schema and the level.
    fn uids(&self) -> (String, String) {
        let uid = |kind| self.header(&format!("x-kubernetes-pf-{kind}-uid")).unwrap_or_default();
        (uid("flowschema"), uid("prioritylevel"))
    }
}

fn get(cluster: &Cluster, user: &str, path: &str) -> Answer {
    let file = |end: &str| cluster.pki().join(format!("client-{user}.{end}")).display().to_string();
    let (certificate, key) = (file("crt"), file("key"));
    let arguments = ["-i", "--max-time", "20", "--cert", &certificate, "--key", &key];
    Answer(tokio::task::block_in_place(|| cluster.curl(path, &arguments)).1)
}

async fn connect(cluster: &Cluster, user: &str) -> TlsStream<TcpStream> {
    let pki = cluster.pki();
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(pki.join("ca.crt")).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let file = |end: &str| pki.join(format!("client-{user}.{end}"));
    let chain = CertificateDer::pem_file_iter(file("crt")).unwrap().map(Result::unwrap);
    let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain.collect(), key)
        .unwrap();
    let stream = TcpStream::connect(cluster.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// A request that is executed until this is dropped: its body does not come.
async fn slow(cluster: &Cluster, user: &str) -> TlsStream<TcpStream> {
    let mut stream = connect(cluster, user).await;
    let head = format!(
        "POST {REVIEWS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: 100\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// A request that has come as a whole, and whose client may go.
async fn whole(cluster: &Cluster, user: &str) -> TlsStream<TcpStream> {
    let mut stream = connect(cluster, user).await;
    stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    stream
}

/// What the server says of priority and fairness.
async fn page(cluster: &Cluster) -> longshore_metrics::parse::Page {
    let (_, text) = cluster.admin.text("/metrics").await;
    let own = text.lines().filter(|line| line.contains("apiserver_flowcontrol_"));
    let own: String = own.map(|line| format!("{line}\n")).collect();
    longshore_metrics::parse::parse(&own).unwrap()
}

/// The value of a series of the schema `ann`, or of the level `small`.
async fn metric(cluster: &Cluster, name: &str, labels: &str) -> String {
    let (_, text) = cluster.admin.text("/metrics").await;
    let own = format!("apiserver_flowcontrol_{name}{{{labels}}} ");
    let found = text.lines().find_map(|line| line.strip_prefix(own.as_str()));
    found.unwrap_or("none").to_owned()
}

const OWN: &str = "flow_schema=\"ann\",priority_level=\"small\"";

async fn dumped(cluster: &Cluster, page: &str) -> Vec<String> {
    let (code, text) = cluster.admin.text(&format!("{DUMPS}/{page}")).await;
    assert_eq!(code, 200, "{text}");
    let own = text.lines().filter(|line| line.starts_with("small,"));
    own.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_requests_wait_for_the_seats_of_their_level() {
    let cluster = cluster(true).await;
    let uids = install(&cluster, 1).await;
    let held = slow(&cluster, "ann").await;
    eventually("it is executed", || async {
        metric(&cluster, "current_executing_requests", OWN).await == "1"
    })
    .await;
    // the next one waits in its queue, and the one after it finds that full
    let ann = cluster.user("ann", "").await;
    let waiting = tokio::spawn(async move { ann.get("/version").await.0 });
    eventually("it waits", || async {
        metric(&cluster, "current_inqueue_requests", OWN).await == "1"
    })
    .await;
    let refused = get(&cluster, "ann", "/version");
    assert!(refused.has("429") && refused.has("retry-after: 1"), "{}", refused.0);
    assert!(refused.0.ends_with("\r\n\r\nToo many requests, please try again later.\n"));
    assert_eq!(refused.uids(), uids);
    // others are not concerned
    assert!(get(&cluster, "bob", "/version").has("gitVersion"));
    assert_eq!(cluster.admin.get("/api/v1/namespaces/default").await.0, 200);
    // what the pages and metrics say
    assert_eq!(dumped(&cluster, "dump_priority_levels").await.len(), 1);
    let levels = dumped(&cluster, "dump_priority_levels").await.concat();
    assert!(levels.starts_with("small, 1, false, false, 1, 1, "), "{levels}");
    assert!(levels.ends_with(", 1, 0, 0"), "{levels}");
    assert!(dumped(&cluster, "dump_queues").await.concat().starts_with("small, 0, 1, 1, 1, "));
    let requests = dumped(&cluster, "dump_requests?includeRequestDetails=1").await;
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(
        requests[0].starts_with("small, ann, 0, 0, ann, 20") && requests[0].contains("/version")
    );
    assert!(requests[1].starts_with("small, ann, 0, -1, ann, 20"), "{requests:?}");
    let details = ", ann, create, /apis/authorization.k8s.io/v1/selfsubjectaccessreviews, , , \
                   authorization.k8s.io/v1, selfsubjectaccessreviews,";
    assert!(requests[1].ends_with(details), "{requests:?}");
    for (name, labels, expected) in [
        ("rejected_requests_total", format!("{OWN},reason=\"queue-full\""), "1"),
        ("current_executing_seats", OWN.to_owned(), "1"),
        ("current_inqueue_seats", OWN.to_owned(), "1"),
        ("nominal_limit_seats", "priority_level=\"small\"".into(), "1"),
        ("current_limit_seats", "priority_level=\"small\"".into(), "1"),
        ("upper_limit_seats", "priority_level=\"small\"".into(), "1"),
    ] {
        assert_eq!(metric(&cluster, name, &labels).await, expected, "{name}");
    }
    let (_, text) = cluster.admin.text("/metrics").await;
    assert!(text.contains("apiserver_current_inqueue_requests{request_kind=\"readOnly\"} 1\n"));
    assert!(text.contains("apiserver_current_inflight_requests{request_kind=\"mutating\"} 1\n"));
    let page = page(&cluster).await;
    assert!(page.families.contains_key("apiserver_flowcontrol_priority_level_seat_utilization"));
    // more seats, and the one that waits is served
    let shares = json!({"spec": {"limited": {"nominalConcurrencyShares": 10}}});
    let (code, _) = cluster.admin.call("PATCH", &format!("{LEVELS}/small"), Some(shares)).await;
    assert_eq!(code, 200);
    assert_eq!(timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap(), 200);
    // the seat of a client that goes is free
    drop(held);
    eventually("nothing is left", || async {
        metric(&cluster, "current_executing_seats", OWN).await == "0"
            && metric(&cluster, "current_inqueue_seats", OWN).await == "0"
    })
    .await;
    let levels = dumped(&cluster, "dump_priority_levels").await.concat();
    assert!(levels.starts_with("small, 0, true, false, 0, 0, "), "{levels}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_client_that_goes_leaves_its_queue() {
    let cluster = cluster(true).await;
    install(&cluster, 10).await;
    let held = slow(&cluster, "ann").await;
    eventually("it is executed", || async {
        metric(&cluster, "current_executing_requests", OWN).await == "1"
    })
    .await;
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(whole(&cluster, "ann").await);
    }
    eventually("they wait", || async {
        metric(&cluster, "current_inqueue_requests", OWN).await == "5"
    })
    .await;
    drop(waiting);
    eventually("their queue is empty", || async {
        metric(&cluster, "current_inqueue_requests", OWN).await == "0"
    })
    .await;
    assert_eq!(metric(&cluster, "current_executing_requests", OWN).await, "1");
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_watches_have_a_seat_until_they_are_set_up() {
    let cluster = cluster(true).await;
    install(&cluster, 10).await;
    let role = json!({"metadata": {"name": "maps"}, "rules": [
        {"verbs": ["list", "watch"], "apiGroups": [""], "resources": ["configmaps"]}]});
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    cluster.admin.create(&format!("{rbac}/clusterroles"), role).await;
    let binding = json!({"metadata": {"name": "maps"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "maps"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]});
    cluster.admin.create(&format!("{rbac}/clusterrolebindings"), binding).await;
    let ann = cluster.user("ann", "").await;
    let maps = "/api/v1/namespaces/default/configmaps";
    eventually("ann may list", || async { ann.get(maps).await.0 == 200 }).await;
    let mut watches = Vec::new();
    for _ in 0..12 {
        watches.push(ann.watch(&format!("{maps}?watch=1&resourceVersion=0")).await);
    }
    assert_eq!(ann.get("/version").await.0, 200, "the level has one seat");
    cluster.admin.create(maps, config_map("a", json!({}))).await;
    for watch in &mut watches {
        while watch.line().await != "ADDED a" {}
    }
    let executed = format!("{OWN},type=\"watch\"");
    assert_eq!(metric(&cluster, "request_execution_seconds_count", &executed).await, "12");
    // the write was wide
    let page = page(&cluster).await;
    let sum =
        page.sum("apiserver_flowcontrol_watch_count_samples_sum", &[("flow_schema", "exempt")]);
    assert!(sum.unwrap() >= 12.0, "{sum:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_schemas_and_levels_are_followed_and_kept() {
    let cluster = cluster(true).await;
    let (schema_uid, _) = install(&cluster, 1).await;
    let object = async |path: String| cluster.admin.get(&path).await.1;
    let uid =
        async |path: String| object(path).await["metadata"]["uid"].as_str().unwrap().to_owned();
    // answers name the schema and the level, refusals too
    let exempt = (uid(format!("{SCHEMAS}/exempt")).await, uid(format!("{LEVELS}/exempt")).await);
    assert_eq!(get(&cluster, "kubernetes-admin", "/version").uids(), exempt);
    let forbidden = get(&cluster, "ann", "/api/v1/secrets");
    assert!(forbidden.has("403") && forbidden.uids().0 == schema_uid, "{}", forbidden.0);
    let default = uid(format!("{LEVELS}/global-default")).await;
    assert_eq!(get(&cluster, "bob", "/version").uids().1, default);
    assert!(get(&cluster, "bob", "/livez").uids().0 == uid(format!("{SCHEMAS}/probes")).await);
    // a schema says whether its level is there, and is for nothing without it
    let dangling = async || {
        let conditions = object(format!("{SCHEMAS}/ann")).await["status"]["conditions"].take();
        conditions[0]["status"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the schema has a condition", || async { dangling().await == "False" }).await;
    assert_eq!(cluster.admin.call("DELETE", &format!("{LEVELS}/small"), None).await.0, 200);
    eventually("the level is gone", || async { dangling().await == "True" }).await;
    assert_eq!(get(&cluster, "ann", "/version").uids().1, default);
    cluster.admin.create(LEVELS, level(1, 1)).await;
    eventually("the level is there again", || async { dangling().await == "False" }).await;
    eventually("the schema is in force", || async {
        get(&cluster, "ann", "/version").uids().0 == schema_uid
    })
    .await;
    // mandatory ones cannot be changed, and come again
    let stolen = json!({"spec": {"matchingPrecedence": 5}});
    let (code, status) =
        cluster.admin.call("PATCH", &format!("{SCHEMAS}/exempt"), Some(stolen)).await;
    let why = "spec of 'exempt' must equal the fixed value";
    assert!(code == 422 && status["message"].as_str().unwrap().contains(why), "{status}");
    for path in [format!("{SCHEMAS}/catch-all"), format!("{LEVELS}/exempt")] {
        assert_eq!(cluster.admin.call("DELETE", &path, None).await.0, 200);
    }
    assert_eq!(get(&cluster, "kubernetes-admin", "/version").uids().0, exempt.0);
    // suggested ones follow the server, unless somebody says otherwise
    let shares = json!({"spec": {"limited": {"nominalConcurrencyShares": 77}}});
    let own = json!({"metadata": {"annotations": {"apf.kubernetes.io/autoupdate-spec": "false"}}});
    for (name, patch) in
        [("workload-low", &shares), ("workload-high", &own), ("workload-high", &shares)]
    {
        let path = format!("{LEVELS}/{name}");
        assert_eq!(cluster.admin.call("PATCH", &path, Some(patch.clone())).await.0, 200);
    }
    let shares = async |name: &str| {
        let level = object(format!("{LEVELS}/{name}")).await;
        level["spec"]["limited"]["nominalConcurrencyShares"].as_i64()
    };
    eventually("all is restored", || async {
        shares("workload-low").await == Some(100)
            && cluster.admin.get(&format!("{SCHEMAS}/catch-all")).await.0 == 200
            && cluster.admin.get(&format!("{LEVELS}/exempt")).await.0 == 200
    })
    .await;
    assert_eq!(shares("workload-high").await, Some(77));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_one_user_does_not_hold_up_others() {
    let cluster = cluster(true).await;
    // `global-default` has 17 seats at least: this many slow requests would take them all
    let mut held = Vec::new();
    for _ in 0..150 {
        held.push(slow(&cluster, "ann").await);
    }
    sleep(Duration::from_millis(300)).await;
    let own = "flow_schema=\"global-default\",priority_level=\"global-default\"";
    assert_ne!(metric(&cluster, "current_inqueue_requests", own).await, "0");
    let bob = cluster.user("bob", "").await;
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}});
    let served = timeout(Duration::from_secs(8), bob.create(REVIEWS, review)).await;
    assert!(served.is_ok(), "bob waits behind ann");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                       "metadata": {"name": "n1", "namespace": "kube-node-lease"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    cluster.node().await.create(leases, lease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flow_control_can_be_switched_off() {
    let cluster = cluster(false).await;
    let answer = get(&cluster, "bob", "/version");
    assert!(answer.has("gitVersion") && answer.uids() == Default::default(), "{}", answer.0);
    assert_eq!(cluster.admin.get(&format!("{DUMPS}/dump_queues")).await.0, 404);
    let (_, text) = cluster.admin.text("/metrics").await;
    assert!(!text.contains("apiserver_flowcontrol_"));
    assert!(text.contains("apiserver_current_inflight_requests{request_kind=\"readOnly\"} 1\n"));
}
