//! Nodes and pods of a real apiserver.
#![allow(clippy::unwrap_used)]

use clap::Parser;
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use longshore_apiserver::args::Cli;
use longshore_metrics_api::{ApiDirectory, Directory, ProxySource, Selection, Source};
use serde_json::json;
use tokio_util::sync::CancellationToken;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_of_an_apiserver() {
    let dir = tempfile::tempdir().unwrap();
    let (data, certificates) = (dir.path().join("data"), dir.path().join("pki"));
    let cli = Cli::try_parse_from([
        "longshore-apiserver",
        "--secure-port=0",
        "--bind-address=127.0.0.1",
        &format!("--data-dir={}", data.display()),
        &format!("--cert-dir={}", certificates.display()),
    ])
    .unwrap();
    let apiserver =
        longshore_apiserver::Server::start(cli.serve.config().await.unwrap()).await.unwrap();
    let kubeconfig = Kubeconfig::read_from(apiserver.admin_kubeconfig()).unwrap();
    let stop = CancellationToken::new();
    let _stopped = stop.clone().drop_guard();
    tokio::spawn(apiserver.run(stop));
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
    let client = Client::try_from(config).unwrap();

    let nodes: Api<Node> = Api::all(client.clone());
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        let node = json!({"metadata": {"name": name, "labels": {"zone": zone}}});
        let node = serde_json::from_value(node).unwrap();
        nodes.create(&PostParams::default(), &node).await.unwrap();
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "kube-system");
    let pod = json!({
        "metadata": {"name": "p", "labels": {"app": "x"}},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    let account: ServiceAccount =
        serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "kube-system");
    accounts.create(&PostParams::default(), &account).await.unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();

    let directory = ApiDirectory(client.clone());
    let selected = |labels: &str| Selection {
        label_selector: Some(labels.to_owned()),
        ..Selection::default()
    };
    let found = directory.nodes(&selected("zone in (b,c)")).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].name.as_str(), found[0].labels["zone"].as_str()), ("n2", "b"));
    let error = directory.nodes(&selected("==")).await.unwrap_err();
    assert_eq!((error.code, error.reason.as_str()), (400, "BadRequest"));
    let found = directory.pods(None, &Selection::default()).await.unwrap();
    let names: Vec<_> = found.iter().map(|pod| (pod.namespace.as_deref(), &*pod.name)).collect();
    assert_eq!(names, [(Some("kube-system"), "p")]);
    assert_eq!(directory.pods(Some("default"), &Selection::default()).await.unwrap(), []);
    // nobody answers for it
    assert!(ProxySource(client).page("n1").await.is_err());
}
