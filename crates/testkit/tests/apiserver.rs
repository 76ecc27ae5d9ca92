//! The apiserver on a host, reached from the machine.
#![allow(clippy::arithmetic_side_effects, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use longshore_testkit::{Apiserver, Host, Kubectl};

#[test]
fn host_apiserver_is_reachable_by_kubectl() {
    let host = Host::bare().unwrap();
    let mut server = Apiserver::start(&host).unwrap();
    let kubectl = server.kubectl();
    assert_eq!(kubectl.run(["get", "--raw", "/readyz"]).unwrap(), "ok");
    let manifest = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}"#;
    kubectl.apply(manifest).unwrap();

    // Killed and started again, it has what it acknowledged.
    server.restart(&host).unwrap();
    kubectl.run(["get", "configmap", "kept"]).unwrap();

    let node = Kubectl::new(server.node_kubeconfig());
    let refused = node.run(["get", "secrets"]).unwrap_err().to_string();
    assert!(refused.contains("Forbidden"), "{refused}");
    let other = Kubectl::new(server.kubeconfig("system:node:other").unwrap());
    other.run(["get", "node", "absent"]).unwrap_err();
    drop(server);
    host.assert_clean();
}
