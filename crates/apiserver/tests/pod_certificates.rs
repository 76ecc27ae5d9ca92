//! PodCertificateRequests over real HTTPS, up to the code of the node that has certificates for its pods.

use std::sync::Arc;
use std::time::Duration;

use crate::common;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::*;
use k8s_openapi::api::core::v1::{Node, Pod};
use longshore_client::events::{PodEventRecorder, Recorder};
use longshore_client::objects::Objects;
use longshore_client::pod_certificates::PodCertificates;
use longshore_metrics::Registry;
use rcgen::{CertificateParams, CertificateSigningRequestParams, KeyPair};
use serde_json::{Value, json};
use tokio::sync::watch;

const GROUP: &str = "/apis/certificates.k8s.io/v1beta1";
const REQUESTS: &str =
    "/apis/certificates.k8s.io/v1beta1/namespaces/default/podcertificaterequests";
const EVERYWHERE: &str = "/apis/certificates.k8s.io/v1beta1/podcertificaterequests";
const NODES: &str = "/api/v1/nodes";
const PODS: &str = "/api/v1/namespaces/default/pods";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CLEANER: &str = "system:controller:podcertificaterequestcleaner";

/// With these feature gates, and with this of the API switched on.
async fn cluster(gates: &str, runtime_config: &str) -> Cluster {
    Cluster::start_with(|config| {
        config.gates = gates.parse().unwrap();
        config.runtime_config = runtime_config.parse().unwrap();
    })
    .await
}

async fn with_certificates() -> Cluster {
    let resource = "certificates.k8s.io/v1beta1/podcertificaterequests=true";
    cluster("PodCertificateRequest=true", resource).await
}

/// A pod on a node, with a certificate of that type of key in its volume `v`.
fn pod(name: &str, node: &str, key_type: &str) -> Value {
    let source = json!({
        "signerName": "example.com/s", "keyType": key_type, "maxExpirationSeconds": 7200,
        "credentialBundlePath": "bundle.pem", "userAnnotations": {"example.com/a": "b"},
    });
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "image": "web:1"}],
            "volumes": [{"name": "v", "projected": {"sources": [{"podCertificate": source}]}}],
        },
    })
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap()
}

/// A request for a pod on n1, as its node makes it.
async fn request(cluster: &Cluster, pod: &Value) -> Value {
    let (_, account) = cluster.admin.get(&format!("{ACCOUNTS}/default")).await;
    let (_, node) = cluster.admin.get(&format!("{NODES}/n1")).await;
    let key = KeyPair::generate().unwrap();
    let proof = CertificateParams::default().serialize_request(&key).unwrap();
    json!({
        "metadata": {"generateName": "req-"},
        "spec": {
            "signerName": "example.com/s", "podName": pod["metadata"]["name"],
            "podUID": uid(pod), "serviceAccountName": "default", "serviceAccountUID": uid(&account),
            "nodeName": "n1", "nodeUID": uid(&node), "maxExpirationSeconds": 7200,
            "stubPKCS10Request": STANDARD.encode(proof.der()),
        },
    })
}

fn path_of(request: &Value) -> String {
    format!("{REQUESTS}/{}", request["metadata"]["name"].as_str().unwrap())
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

fn time(second: i64) -> String {
    jiff::Timestamp::from_second(second).unwrap().to_string()
}

fn condition(kind: &str) -> Value {
    json!({
        "type": kind, "status": "True", "reason": "Tested", "message": "so it is",
        "lastTransitionTime": time(now()),
    })
}

/// Issues a certificate for two hours. Returns the status.
fn issue(request: &Value) -> Value {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = params.self_signed(&key).unwrap().pem();
    let (from, to) = (now(), now() + 7200);
    let date = |second: i64| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(u64::try_from(second).unwrap())
    };
    let der = STANDARD.decode(request["spec"]["stubPKCS10Request"].as_str().unwrap()).unwrap();
    let mut asked = CertificateSigningRequestParams::from_der(&der.into()).unwrap();
    (asked.params.not_before, asked.params.not_after) = (date(from), date(to));
    let leaf = asked.signed_by(&rcgen::Issuer::from_params(&params, &key)).unwrap().pem();
    json!({
        "conditions": [condition("Issued")], "certificateChain": format!("{leaf}{authority}"),
        "notBefore": time(from), "beginRefreshAt": time(from + 3600), "notAfter": time(to),
    })
}

/// Answers a request as this client.
async fn answer(client: &Client, request: &Value, status: Value) -> (u16, Value) {
    let mut answered = request.clone();
    answered["status"] = status;
    client.call("PUT", &format!("{}/status", path_of(request)), Some(answered)).await
}

fn names(list: &Value) -> Vec<&str> {
    let items = list["resources"].as_array().unwrap();
    items.iter().map(|item| item["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_certificates_are_off_by_default() {
    let on = "PodCertificateRequest=true";
    for (gates, runtime_config) in [("", ""), (on, ""), ("", "api/all=true")] {
        let cluster = cluster(gates, runtime_config).await;
        assert_eq!(cluster.admin.get(EVERYWHERE).await.0, 404, "{gates} {runtime_config}");
        let (_, list) = cluster.admin.get(GROUP).await;
        assert_eq!(names(&list), ["clustertrustbundles"]);
        let (code, _) = cluster.admin.get(&format!("{RBAC}/clusterroles/{CLEANER}")).await;
        assert_eq!(code, if gates.is_empty() { 404 } else { 200 });
        let (code, _) = cluster.admin.get(&format!("{RBAC}/clusterrolebindings/{CLEANER}")).await;
        assert_eq!(code, if gates.is_empty() { 404 } else { 200 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_certificates_are_served_when_they_are_switched_on() {
    let cluster = with_certificates().await;
    let admin = &cluster.admin;
    let (_, list) = admin.get(GROUP).await;
    let all = ["clustertrustbundles", "podcertificaterequests", "podcertificaterequests/status"];
    assert_eq!(names(&list), all);
    let of_kind = &list["resources"][2];
    assert_eq!(
        (&of_kind["kind"], &of_kind["version"]),
        (&json!("PodCertificateRequest"), &json!(null))
    );
    let (_, document) = admin.get("/openapi/v3/apis/certificates.k8s.io/v1beta1").await;
    for path in [EVERYWHERE, &format!("{GROUP}/clustertrustbundles")] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    let schema = "io.k8s.api.certificates.v1beta1.PodCertificateRequestSpec";
    assert!(document["components"]["schemas"][schema].is_object());
    let (_, index) = admin.get("/openapi/v3").await;
    assert!(index["paths"]["apis/certificates.k8s.io/v1beta1"].is_object());
    let (_, swagger) = admin.get("/openapi/v2").await;
    assert!(swagger["paths"][EVERYWHERE].is_object());

    admin.create(NODES, json!({"metadata": {"name": "n1"}})).await;
    let pod = admin.create(PODS, pod("p", "n1", "ED25519")).await;
    let mut wanted = request(&cluster, &pod).await;
    wanted["status"] = json!({"certificateChain": "mine"});
    let made = admin.create(REQUESTS, wanted.clone()).await;
    let name = made["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("req-") && name.len() > 4, "{name}");
    assert_eq!(made["status"], json!({}));
    let manager = &made["metadata"]["managedFields"][0];
    assert_eq!(manager["apiVersion"], "certificates.k8s.io/v1beta1", "{manager}");
    for (selector, count) in [
        ("spec.nodeName=n1", 1),
        ("spec.nodeName=n2", 0),
        ("spec.podName=p", 1),
        ("spec.signerName=example.com/s", 1),
        ("spec.signerName!=example.com/s", 0),
    ] {
        let (code, list) = admin.get(&format!("{EVERYWHERE}?fieldSelector={selector}")).await;
        assert_eq!((code, list["items"].as_array().unwrap().len()), (200, count), "{selector}");
    }
    assert_eq!(admin.get(&format!("{EVERYWHERE}?fieldSelector=spec.podUID%3Da")).await.0, 400);

    let path = path_of(&made);
    let mut changed = made.clone();
    changed["spec"]["podName"] = "q".into();
    let (code, said) = admin.call("PUT", &path, Some(changed)).await;
    assert_eq!((code, &said["details"]["causes"][0]["field"]), (422, &json!("spec")), "{said}");
    let mut unversioned = made.clone();
    unversioned["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (code, said) = admin.call("PUT", &path, Some(unversioned)).await;
    assert_eq!(code, 422, "{said}");
    assert!(
        said["message"].as_str().unwrap().contains("must be specified for an update"),
        "{said}"
    );
    let labels = json!({"metadata": {"labels": {"a": "b"}}, "status": {"certificateChain": "x"}});
    let (code, labelled) = admin.call("PATCH", &path, Some(labels)).await;
    assert_eq!((code, &labelled["status"]), (200, &json!({})), "{labelled}");

    // No role, the subresource alone, and the signer too.
    let [other, clerk, signer] = ["other", "clerk", "signer"].map(|user| cluster.user(user, "g"));
    let (other, clerk, signer) = (other.await, clerk.await, signer.await);
    let rule = |group: &str, resource: &str, verbs: Value, names: Value| {
        json!({
            "apiGroups": [group], "resources": [resource], "verbs": verbs, "resourceNames": names,
        })
    };
    let group = "certificates.k8s.io";
    let status = rule(group, "podcertificaterequests/status", json!(["update"]), json!([]));
    let sign = rule(group, "signers", json!(["sign"]), json!(["example.com/*"]));
    for (name, rules) in [("clerk", json!([status])), ("signer", json!([status, sign]))] {
        let role = json!({"metadata": {"name": name}, "rules": rules});
        admin.create(&format!("{RBAC}/clusterroles"), role).await;
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
        });
        admin.create(&format!("{RBAC}/clusterrolebindings"), binding).await;
    }
    let issued = issue(&labelled);
    assert_eq!(answer(&other, &labelled, issued.clone()).await.0, 403);
    let (code, said) = answer(&clerk, &labelled, issued.clone()).await;
    assert_eq!(
        (code, &said["details"]["causes"]),
        (
            422,
            &json!([{
                "reason": "FieldValueForbidden", "field": "spec.signerName",
                "message": "Forbidden: User \"clerk\" is not permitted to \"sign\" for signer \
                            \"example.com/s\"",
            }])
        ),
        "{said}"
    );
    let (code, same) = answer(&clerk, &labelled, json!({})).await;
    assert_eq!(code, 200, "nothing is answered: {same}");
    let mut late = issued.clone();
    late["beginRefreshAt"] = late["notAfter"].clone();
    let (code, said) = answer(&signer, &same, late).await;
    assert_eq!(
        (code, &said["details"]["causes"][0]["field"]),
        (422, &json!("status.beginRefreshAt"))
    );
    let (code, answered) = answer(&signer, &same, issued.clone()).await;
    assert_eq!((code, &answered["status"]), (200, &issued), "{answered}");
    let (code, said) = answer(&signer, &answered, json!({})).await;
    assert_eq!(code, 422, "{said}");
    assert!(said["message"].as_str().unwrap().contains("immutable after"), "{said}");

    let (code, _) = admin.call("DELETE", &path, None).await;
    assert_eq!((code, admin.get(&path).await.0), (200, 404));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_certificates_are_requested_by_the_nodes_of_pods() {
    let cluster = with_certificates().await;
    let (admin, node) = (&cluster.admin, cluster.node().await);
    for name in ["n1", "n2"] {
        admin.create(NODES, json!({"metadata": {"name": name}})).await;
    }
    let own = admin.create(PODS, pod("own", "n1", "ED25519")).await;
    let foreign = admin.create(PODS, pod("foreign", "n2", "ED25519")).await;
    let mut mirror = pod("mirror", "n1", "ED25519");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "a"});
    mirror["spec"].as_object_mut().unwrap().remove("volumes");
    let mirror = admin.create(PODS, mirror).await;
    let good = request(&cluster, &own).await;
    let with = |field: &str, value: &str| {
        let mut request = good.clone();
        request["spec"][field] = value.into();
        request
    };
    let own_uid = uid(&own);
    for (request, code, expected) in [
        (
            with("nodeName", "n2"),
            403,
            "PodCertificateRequest.Spec.NodeName=\"n2\", which is not the requesting node \"n1\"",
        ),
        (
            with("nodeUID", "u"),
            500,
            "PodCertificateRequest for pod \"default/own\" names node UID \"u\", inconsistent with \
             the running node",
        ),
        (
            with("podName", "absent"),
            500,
            "while retrieving pod \"default/absent\" named in the PodCertificateRequest: pods \
             \"absent\" not found",
        ),
        (with("podUID", "u"), 500, "contains pod UID (\"u\") which differs from running pod"),
        (
            request(&cluster, &foreign).await,
            403,
            "pod \"default/foreign\" is not running on node \"n1\" named in the PodCertificateRequest",
        ),
        (request(&cluster, &mirror).await, 403, "pod \"default/mirror\" is a mirror pod"),
        (
            with("serviceAccountName", "sa"),
            403,
            "contains serviceAccountName (\"sa\") that differs from running pod (\"default\")",
        ),
        (with("serviceAccountUID", own_uid), 500, "names service account UID"),
    ] {
        let (got, said) = node.call("POST", REQUESTS, Some(request)).await;
        let message = said["message"].as_str().unwrap_or_default();
        assert!(got == code && message.contains(expected), "{expected}: {got} {said}");
    }
    let made = node.create(REQUESTS, good).await;
    let path = path_of(&made);
    eventually("the node reads its request", || async { node.get(&path).await.0 == 200 }).await;
    for (method, path) in [
        ("PUT", path.clone()),
        ("PUT", format!("{path}/status")),
        ("DELETE", path.clone()),
        ("GET", format!("{path}/status")),
        ("GET", REQUESTS.to_owned()),
    ] {
        let body = (method == "PUT").then(|| made.clone());
        assert_eq!(node.call(method, &path, body).await.0, 403, "{method} {path}");
    }
    let selected = format!("{EVERYWHERE}?fieldSelector=spec.nodeName%3Dn1");
    assert_eq!(node.get(&selected).await.1["items"].as_array().unwrap().len(), 1);
}

/// Waits until there is a request for the pod that has no answer yet.
async fn asked(admin: &Client, pod: &str) -> Value {
    let path = format!("{EVERYWHERE}?fieldSelector=spec.podName%3D{pod}");
    loop {
        let (_, list) = admin.get(&path).await;
        let mut items = list["items"].as_array().unwrap().iter();
        if let Some(request) = items.find(|request| request["status"] == json!({})) {
            return request.clone();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The node's own code, this apiserver and a signer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pod_certificates_reach_the_node() {
    let cluster = with_certificates().await;
    let (admin, client) = (&cluster.admin, cluster.node().await.0);
    let node = admin.create(NODES, json!({"metadata": {"name": "n1"}})).await;
    let node: Arc<Node> = Arc::new(serde_json::from_value(node).unwrap());
    let node = watch::Sender::new(Some(node));
    let (recorder, _task) = Recorder::start(Some(client.clone()), "n1");
    let events = PodEventRecorder::new(recorder);
    let registry = Registry::default();
    let certificates =
        PodCertificates::new(client.clone(), "n1", node.subscribe(), events, &registry);
    let _following =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(certificates.clone().run()));
    let objects = Objects::with_certificates(client, certificates);

    for (key_type, is_issued) in [
        ("ED25519", true),
        ("ECDSAP256", true),
        ("ECDSAP384", true),
        // the library that this signer is made with has not this curve
        ("ECDSAP521", false),
    ] {
        let name = key_type.to_lowercase();
        let made = admin.create(PODS, pod(&name, "n1", key_type)).await;
        let pod: Pod = serde_json::from_value(made).unwrap();
        let changes = objects.register(&pod);
        let request = asked(admin, &name).await;
        let spec = &request["spec"];
        assert_eq!((&spec["podName"], &spec["nodeName"]), (&json!(name), &json!("n1")), "{spec}");
        assert_eq!(spec["unverifiedUserAnnotations"], json!({"example.com/a": "b"}));
        let status = match is_issued {
            true => issue(&request),
            false => json!({"conditions": [condition("Denied")]}),
        };
        let (code, said) = answer(admin, &request, status.clone()).await;
        assert_eq!(code, 200, "{said}");
        let obtained = loop {
            // other objects of the pod may have changed
            changes.next().await;
            match objects.pod_certificate(&pod, "v", 0) {
                Err(error) if error.to_string() == "credential bundle is not issued yet" => {}
                obtained => break obtained,
            }
        };
        match obtained {
            Ok(credentials) => {
                assert_eq!(credentials.certificates, status["certificateChain"], "{key_type}");
                let key = KeyPair::from_pem(&credentials.key).unwrap();
                let der = spec["stubPKCS10Request"].as_str().unwrap();
                let der = STANDARD.decode(der).unwrap();
                let public = key.public_key_raw();
                assert!(der.windows(public.len()).any(|part| part == public), "{key_type}");
                assert!(is_issued);
            }
            Err(error) => {
                let expected = "PodCertificateRequest was permanently denied: reason=\"Tested\" \
                                message=\"so it is\"";
                assert_eq!((is_issued, error.to_string().as_str()), (false, expected));
            }
        }
        objects.unregister(pod.metadata.uid.as_deref().unwrap());
    }
}
