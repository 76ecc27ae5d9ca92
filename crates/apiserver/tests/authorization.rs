//! Roles, bindings and certificate requests, with the real kubectl and real certificates.

use crate::common;

use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::*;
use longshore_tls::testing::certificate_request;
use rcgen::KeyPair;
use serde_json::{Value, json};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// kubectl as the administrator: whether it went well, and what it said.
fn kubectl(cluster: &Cluster, arguments: &str) -> (bool, String) {
    let mut command = Command::new("kubectl");
    command
        .args(["--kubeconfig", cluster.kubeconfig().to_str().unwrap(), "--cache-dir"])
        .arg(cluster.dir.path().join("cache"))
        .args(arguments.split_whitespace());
    let output = outside(&mut command);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

fn kubectl_ok(cluster: &Cluster, arguments: &str) -> String {
    let (is_fine, said) = kubectl(cluster, arguments);
    assert!(is_fine, "kubectl {arguments}: {said}");
    said
}

/// A key, and a request for a certificate of it.
fn signing_request(
    name: &str,
    signer: &str,
    user: &str,
    group: &str,
    names: &[&str],
) -> (KeyPair, Value) {
    let (key, pem) = certificate_request(user, group, names);
    let purpose = if signer == "kubelet-serving" { "server auth" } else { "client auth" };
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": STANDARD.encode(pem),
            "signerName": format!("kubernetes.io/{signer}"),
            "usages": ["digital signature", purpose],
            "username": "forged",
            "groups": ["system:masters"],
        },
    });
    (key, request)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rbac_grant_and_revoke_by_kubectl() {
    let cluster = Cluster::start().await;
    cluster.aggregate_roles().await;
    let jane = cluster.user("jane", "team").await;
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(jane.get(maps).await.0, 403);
    let can_i =
        |what: &str| kubectl(&cluster, &format!("auth can-i --as jane --as-group team {what}"));
    assert_eq!(can_i("list configmaps").1.trim(), "no");
    kubectl_ok(&cluster, "create role reader --verb=get,list --resource=configmaps");
    kubectl_ok(&cluster, "create rolebinding readers --role=reader --group=team");
    // A new binding is effective at once.
    assert_eq!(jane.get(maps).await.0, 200);
    assert_eq!(can_i("list configmaps").1.trim(), "yes");
    assert_eq!(can_i("list configmaps -n kube-system").1.trim(), "no");
    assert_eq!(can_i("delete configmaps").1.trim(), "no");
    let list = can_i("--list").1;
    assert!(list.contains("configmaps") && list.contains("selfsubjectreviews"), "{list}");
    let table = kubectl_ok(&cluster, "get rolebinding readers -o wide");
    assert!(table.contains("Role/reader") && table.contains("team"), "{table}");
    kubectl_ok(&cluster, "delete rolebinding readers");
    eventually("the end of the right", || async { jane.get(maps).await.0 == 403 }).await;

    kubectl_ok(&cluster, "create clusterrolebinding editors --clusterrole=edit --user=jane");
    assert_eq!(jane.get("/api/v1/pods").await.0, 200);
    let (code, status) = jane.get(&format!("{RBAC}/clusterroles")).await;
    assert_eq!(
        (code, status["message"].as_str().unwrap()),
        (
            403,
            "clusterroles.rbac.authorization.k8s.io is forbidden: User \"jane\" cannot list resource \
             \"clusterroles\" in API group \"rbac.authorization.k8s.io\" at the cluster scope"
        )
    );
    let admin = kubectl_ok(&cluster, "get clusterrole admin -o yaml");
    assert!(admin.contains("localsubjectaccessreviews") && admin.contains("pods/exec"), "{admin}");
    // What is added to a part is added to the whole.
    kubectl_ok(&cluster, "create clusterrole more --verb=get --resource=nodes");
    assert_eq!(jane.get("/api/v1/nodes").await.0, 403);
    kubectl_ok(&cluster, "label clusterrole more rbac.authorization.k8s.io/aggregate-to-edit=true");
    cluster.aggregate_roles().await;
    let nodes = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "nodes", "name": "n1"}},
    });
    let reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    eventually("the aggregated rule", || async {
        jane.create(reviews, nodes.clone()).await["status"]["allowed"] == true
    })
    .await;
    let allowed = jane.create(reviews, nodes).await;
    assert_eq!(
        allowed["status"]["reason"],
        "RBAC: allowed by ClusterRoleBinding \"editors\" of ClusterRole \"edit\" to User \"jane\""
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rbac_escalation_is_forbidden() {
    let cluster = Cluster::start().await;
    cluster.aggregate_roles().await;
    let jane = cluster.user("jane", "team").await;
    kubectl_ok(&cluster, "create rolebinding admins --clusterrole=admin --user=jane");
    let roles = format!("{RBAC}/namespaces/default/roles");
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    let role = |name: &str, verb: &str, resource: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name},
            "rules": [{"verbs": [verb], "apiGroups": [""], "resources": [resource]}],
        })
    };
    jane.create(&roles, role("mine", "get", "pods")).await;
    let (code, status) = jane.call("POST", &roles, Some(role("nodes", "get", "nodes"))).await;
    assert_eq!(code, 403);
    assert!(
        status["message"].as_str().unwrap().contains(
            "is attempting to grant RBAC permissions not currently held:\n\
             {APIGroups:[\"\"], Resources:[\"nodes\"], Verbs:[\"get\"]}"
        ),
        "{status}"
    );
    let widened = json!({"rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    assert_eq!(jane.call("PATCH", &format!("{roles}/mine"), Some(widened)).await.0, 403);
    let binding = |name: &str, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
            "roleRef": {"kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "joe"}],
        })
    };
    let made = jane.create(&bindings, binding("view", "view")).await;
    assert_eq!(made["roleRef"]["apiGroup"], "rbac.authorization.k8s.io");
    let (code, _) = jane.call("POST", &bindings, Some(binding("root", "cluster-admin"))).await;
    assert_eq!(code, 403);
    let moved = json!({"roleRef": {"kind": "ClusterRole", "name": "edit"}});
    let (code, status) = jane.call("PATCH", &format!("{bindings}/view"), Some(moved)).await;
    assert_eq!(code, 422, "{status}");
    // Nor by impersonation.
    let output = kubectl(&cluster, "auth can-i --as jane impersonate users/root");
    assert_eq!(output.1.lines().last().unwrap_or_default().trim(), "no");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csr_of_a_node_is_stamped_and_restricted() {
    let cluster = Cluster::start().await;
    let bootstrapper = cluster.user("system:bootstrap:abcdef", "system:bootstrappers").await;
    let signer = "kube-apiserver-client-kubelet";
    let (_, request) = signing_request("csr-1", signer, "system:node:n7", "system:nodes", &[]);
    let made = bootstrapper.create(REQUESTS, request).await;
    assert_eq!(made["spec"]["username"], "system:bootstrap:abcdef");
    assert_eq!(made["spec"]["groups"], json!(["system:bootstrappers", "system:authenticated"]));
    // A node renews its own certificate, and cannot request another node's.
    let node = cluster.node().await;
    let (_, own) = signing_request("own", signer, "system:node:n1", "system:nodes", &[]);
    node.create(REQUESTS, own).await;
    let (_, other) = signing_request("other", signer, "system:node:n2", "system:nodes", &[]);
    let (code, status) = node.call("POST", REQUESTS, Some(other)).await;
    assert_eq!(code, 403);
    assert!(status["message"].as_str().unwrap().contains("CN=system:node:n1"), "{status}");
    let other_user = cluster.user("joe", "").await;
    let (_, request) = signing_request("s", signer, "system:node:n1", "system:nodes", &[]);
    assert_eq!(other_user.call("POST", REQUESTS, Some(request)).await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn csr_approval_by_kubectl() {
    let cluster = Cluster::start().await;
    let admin = &cluster.admin;
    let (_, request) = signing_request("jane", "kube-apiserver-client", "jane", "team", &[]);
    admin.create(REQUESTS, request).await;
    let table = kubectl_ok(&cluster, "get csr jane");
    assert!(
        table.contains("kubernetes.io/kube-apiserver-client") && table.contains("Pending"),
        "{table}"
    );
    kubectl_ok(&cluster, "certificate approve jane");
    assert!(kubectl_ok(&cluster, "get csr jane").contains("Approved"));
    // What is decided stays so.
    let (_, request) = signing_request("no", "kube-apiserver-client", "joe", "", &[]);
    admin.create(REQUESTS, request).await;
    kubectl_ok(&cluster, "certificate deny no");
    assert!(!kubectl(&cluster, "certificate approve no").0);
    assert!(kubectl_ok(&cluster, "get csr no").contains("Denied"));
    // No certificate for system:masters.
    let (_, request) = signing_request("root", "kube-apiserver-client", "r", "system:masters", &[]);
    assert_eq!(admin.call("POST", REQUESTS, Some(request)).await.0, 403);
    // To approve, one needs the signer's word and not only the verb.
    kubectl_ok(
        &cluster,
        "create clusterrole approver --verb=get,update --resource=certificatesigningrequests/approval,certificatesigningrequests",
    );
    kubectl_ok(&cluster, "create clusterrolebinding approver --clusterrole=approver --user=ann");
    let ann = cluster.user("ann", "").await;
    let (_, request) = signing_request("p", "kube-apiserver-client", "p", "", &[]);
    let mut request = admin.create(REQUESTS, request).await;
    request["status"]["conditions"] = json!([{"type": "Approved", "status": "True"}]);
    let (code, status) =
        ann.call("PUT", &format!("{REQUESTS}/p/approval"), Some(request.clone())).await;
    assert_eq!(code, 403);
    assert!(status["message"].as_str().unwrap().ends_with(
        "user not permitted to approve requests with signerName \"kubernetes.io/kube-apiserver-client\""
    ));
    // The whole of a request is not the way to approve it.
    let (code, after) = ann.call("PUT", &format!("{REQUESTS}/p"), Some(request)).await;
    assert!(code == 200 && after["status"] == json!({}), "{after}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn authorization_denial_is_logged_without_the_body() {
    let mut daemon = Daemon::start(&[]);
    let jane = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
        "user": "jane", "resourceAttributes": {"verb": "get", "resource": "secrets"}}});
    let admin = daemon.client().await;
    let answer = admin.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", jane).await;
    assert_eq!(answer["status"]["allowed"], false);
    let address = std::fs::read_to_string(daemon.kubeconfig()).unwrap();
    let server = address.lines().find_map(|line| line.trim().strip_prefix("server: ")).unwrap();
    let url = format!("{}/api/v1/secrets?fieldSelector=hush", server.trim_matches('"'));
    let output = Command::new("curl").args(["-sk", &url]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("system:anonymous"));
    eventually("the line", || async { daemon.log().contains("request forbidden") }).await;
    let log = daemon.log();
    let line = log.lines().find(|line| line.contains("request forbidden")).unwrap();
    assert!(line.contains("system:anonymous") && line.contains("/api/v1/secrets"), "{line}");
    assert!(!line.contains("hush"), "{line}");
    assert_eq!(daemon.terminate(), Some(0));
}
