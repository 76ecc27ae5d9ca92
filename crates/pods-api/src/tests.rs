use longshore_api_types::protobuf::wire;
use longshore_grpc::Endpoint;
use serde_json::json;
use tonic::Code;

use super::v1alpha1::pods_client::PodsClient;
use super::*;

/// Pods that do not change.
struct Fixed(Vec<Arc<Pod>>);

impl Sources for Fixed {
    fn pods(&self) -> Vec<Arc<Pod>> {
        self.0.clone()
    }

    fn pod(&self, uid: &str) -> Option<Arc<Pod>> {
        self.0.iter().find(|pod| spec::uid(pod) == uid).cloned()
    }
}

fn pod(uid: &str, phase: &str) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": format!("pod-{uid}"), "namespace": "ns", "uid": uid},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
        "status": {"phase": phase},
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// A text at that path of field numbers.
fn text(mut message: &[u8], path: &[u32]) -> Option<String> {
    for number in path {
        message = wire::last(message, *number).unwrap()?.bytes().unwrap();
    }
    Some(String::from_utf8(message.to_vec()).unwrap())
}

fn uid(pod: &[u8]) -> String {
    text(pod, &[1, 5]).unwrap()
}

struct Setup {
    client: PodsClient<tonic::transport::Channel>,
    events: PodEvents,
    registry: Registry,
    root: tempfile::TempDir,
    running: tokio::task::JoinHandle<()>,
}

impl Setup {
    async fn start(pods: Vec<Arc<Pod>>) -> Self {
        let (root, registry) = (tempfile::tempdir().unwrap(), Registry::default());
        let events = PodEvents::default();
        let server = PodsApi::new(Fixed(pods), events.clone(), dropped_events(&registry));
        let path = root.path().to_owned();
        let running = tokio::spawn(async move { server.run(&path).await });
        let socket = root.path().join("pods-api/pods-api.sock");
        while tokio::net::UnixStream::connect(&socket).await.is_err() {
            tokio::task::yield_now().await;
        }
        let endpoint = Endpoint::parse(&format!("unix://{}", socket.display())).unwrap();
        let client = PodsClient::new(endpoint.channel());
        Self { client, events, registry, root, running }
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.running.abort();
    }
}

#[tokio::test]
async fn pods_are_listed_and_found_by_uid() {
    let mut setup = Setup::start(vec![pod("b", "Running"), pod("a", "Pending")]).await;
    let listed = setup.client.list_pods(ListPodsRequest {}).await.unwrap().into_inner().pods;
    assert_eq!(listed.iter().map(|pod| uid(pod)).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(text(&listed[1], &[1, 1]).unwrap(), "pod-b");
    assert_eq!(text(&listed[1], &[1, 3]).unwrap(), "ns");
    assert_eq!(text(&listed[1], &[3, 1]).unwrap(), "Running");
    let found = setup.client.get_pod(GetPodRequest { pod_uid: "b".into() }).await.unwrap();
    assert_eq!(found.into_inner().pod, listed[1]);
    let error = setup.client.get_pod(GetPodRequest { pod_uid: "c".into() }).await.unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.message(), "pod with UID c not found");
    assert!(!setup.root.path().join("pods-api/other").exists());
}

#[tokio::test]
async fn watches_begin_with_all_pods() {
    let mut setup = Setup::start(vec![pod("b", "Running"), pod("a", "Pending")]).await;
    let mut events = setup.client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    let mut next = async || {
        let event = events.message().await.unwrap().unwrap();
        let uid = if event.pod.is_empty() { String::new() } else { uid(&event.pod) };
        (event.r#type(), uid, event.pod)
    };
    for (kind, uid) in
        [(EventType::Added, "a"), (EventType::Added, "b"), (EventType::InitialSyncComplete, "")]
    {
        let event = next().await;
        assert_eq!((event.0, event.1.as_str()), (kind, uid));
    }
    assert!(setup.events.are_watched());
    setup.events.send(PodEvent::Added(pod("c", "Pending")));
    setup.events.send(PodEvent::Modified(pod("c", "Running")));
    setup.events.send(PodEvent::Deleted(pod("c", "Failed")));
    for (kind, phase) in [
        (EventType::Added, Some("Pending")),
        (EventType::Modified, Some("Running")),
        (EventType::Deleted, Some("")),
    ] {
        let (found, uid, pod) = next().await;
        assert_eq!((found, uid.as_str()), (kind, "c"));
        assert_eq!(text(&pod, &[3, 1]).as_deref(), phase);
        let name = text(&pod, &[1, 1]).unwrap();
        assert_eq!(name, "pod-c");
        // The name of the first container: a pod that is gone has none.
        let container = text(&pod, &[2, 2, 1]);
        let has_containers = container.as_deref() == Some("c");
        assert_eq!(has_containers, kind != EventType::Deleted);
    }
}

#[tokio::test]
async fn watches_of_slow_clients_end() {
    let mut setup = Setup::start(Vec::new()).await;
    let mut events = setup.client.watch_pods(WatchPodsRequest {}).await.unwrap().into_inner();
    let first = events.message().await.unwrap().unwrap();
    assert_eq!(first.r#type(), EventType::InitialSyncComplete);
    // More at once than the server keeps: it does not run meanwhile.
    for number in 0..10 * BACKLOG {
        setup.events.send(PodEvent::Modified(pod(&number.to_string(), "Running")));
    }
    let error = loop {
        match events.message().await {
            Ok(event) => assert!(event.is_some(), "ends with an error"),
            Err(error) => break error,
        }
    };
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert_eq!(error.message(), "watch client channel closed");
    let text = setup.registry.text();
    assert!(text.contains("\nkubelet_pod_watch_events_dropped_total 1"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn requests_are_limited_and_watches_are_not() {
    let dropped = dropped_events(&Registry::default());
    let server = PodsApi::new(Fixed(Vec::new()), PodEvents::default(), dropped);
    for _ in 0..10 {
        server.list_pods(Request::new(ListPodsRequest {})).await.unwrap();
    }
    let error = server.list_pods(Request::new(ListPodsRequest {})).await.unwrap_err();
    assert_eq!(error.message(), "rejected by rate limit");
    let get = GetPodRequest { pod_uid: "a".into() };
    let error = server.get_pod(Request::new(get)).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    server.watch_pods(Request::new(WatchPodsRequest {})).await.unwrap();
}
