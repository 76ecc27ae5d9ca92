use longshore_metrics::Registry;
use serde_json::{Value, json};

use super::fake::FakeSigner;
use super::*;
use crate::events::Recorder;
use crate::objects::{Changes, Objects};

const CHAIN: &str = "-----BEGIN CERTIFICATE-----\nAAECAw==\n-----END CERTIFICATE-----\n";

/// A node with a signer.
struct World {
    signer: FakeSigner,
    certificates: PodCertificates,
    objects: Objects,
    registry: Registry,
}

impl World {
    fn start() -> Self {
        let signer = FakeSigner::default();
        let registry = Registry::default();
        let node = json!({"metadata": {"name": "n1", "uid": "node-uid"}});
        let node = Arc::new(serde_json::from_value(node).unwrap());
        let (client, node) = (signer.client(), watch::Sender::new(Some(node)).subscribe());
        let (recorder, _task) = Recorder::start(Some(client.clone()), "n1");
        let events = PodEventRecorder::new(recorder);
        let certificates = PodCertificates::new(client.clone(), "n1", node, events, &registry);
        tokio::spawn(certificates.clone().run());
        let objects = Objects::with_certificates(client, certificates.clone());
        Self { signer, certificates, objects, registry }
    }

    fn register(&self, projection: Value) -> (Pod, Changes) {
        let pod = pod(projection);
        let changes = self.objects.register(&pod);
        (pod, changes)
    }

    fn get(&self) -> Result<(String, String), String> {
        let found = self.certificates.get("u1", "v", 1);
        let found = found.map_err(|error| error.to_string())?;
        Ok((found.key.clone(), found.certificates.clone()))
    }

    /// The state that the metric shows of the one source.
    fn state(&self) -> String {
        let text = self.registry.text();
        let sample = text.lines().find(|line| line.starts_with("kubelet_podcertificate_states{"));
        let sample = sample.unwrap_or_default();
        let state = sample.split("state=\"").nth(1).unwrap_or_default();
        state.split('"').next().unwrap_or_default().to_owned()
    }
}

fn pod(projection: Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "p", "namespace": "ns", "uid": "u1"},
        "spec": {
            "serviceAccountName": "sa", "containers": [],
            "volumes": [{"name": "v", "projected": {"sources": [
                {"secret": {"name": "s", "optional": true}},
                {"podCertificate": projection},
            ]}}],
        },
    }))
    .unwrap()
}

fn projection() -> Value {
    json!({
        "signerName": "example.com/s", "keyType": "ED25519", "maxExpirationSeconds": 7200,
        "credentialBundlePath": "bundle.pem", "userAnnotations": {"example.com/a": "b"},
    })
}

fn from_now(minutes: i64) -> String {
    later(clock::now(), SignedDuration::from_mins(minutes)).to_string()
}

#[tokio::test(start_paused = true)]
async fn certificates_are_requested_issued_and_refreshed() {
    let world = World::start();
    assert_eq!(world.get(), Err("no credentials yet for volume \"v\", source 1".to_owned()));
    world.signer.refuse(2);
    let (pod, changes) = world.register(projection());
    let volume = &pod.spec.as_ref().unwrap().volumes.as_ref().unwrap()[0];

    let request = world.signer.request(1).await;
    assert_eq!(world.get(), Err("credential bundle is not issued yet".to_owned()));
    assert_eq!(world.state(), "not_yet_issued");
    let mut sent = request["spec"].clone();
    let proof = sent["stubPKCS10Request"].take();
    assert!(!proof.as_str().unwrap().is_empty());
    let expected = json!({
        "signerName": "example.com/s", "podName": "p", "podUID": "u1",
        "serviceAccountName": "sa", "serviceAccountUID": "sa-uid", "nodeName": "n1",
        "nodeUID": "node-uid", "maxExpirationSeconds": 7200, "stubPKCS10Request": null,
        "unverifiedUserAnnotations": {"example.com/a": "b"},
    });
    assert_eq!(sent, expected);
    assert_eq!(request["metadata"]["generateName"], "req-");
    let owner = json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u1"}]);
    assert_eq!(request["metadata"]["ownerReferences"], owner);

    world.signer.issue(1, CHAIN, &from_now(60), &from_now(120));
    let changed = changes.next().await;
    assert!(changed.touches(&pod, volume));
    let (key, chain) = world.get().unwrap();
    assert_eq!(chain, CHAIN);
    assert!(key.starts_with("-----BEGIN PRIVATE KEY-----\n"));
    assert_eq!(world.state(), "fresh");
    let debug = format!("{:?}", world.certificates.get("u1", "v", 1).unwrap());
    assert!(!debug.contains("PRIVATE"), "{debug}");

    // It is registered again and again, and nothing comes of it before its time.
    world.objects.register(&pod);
    sleep(Duration::from_secs(59 * 60)).await;
    assert_eq!(world.signer.made(), 1);
    sleep(Duration::from_secs(6 * 60 + 1)).await;
    world.signer.request(2).await;
    assert_eq!(world.get().unwrap().0, key, "the old one serves on");

    let block = CHAIN.repeat(2);
    world.signer.issue(2, &block, &from_now(60), &from_now(120));
    changes.next().await;
    let (second, chain) = world.get().unwrap();
    assert_eq!(chain, block);
    assert_ne!(second, key);
    world.objects.unregister("u1");
    assert_eq!(world.get(), Err("no credentials yet for volume \"v\", source 1".to_owned()));
    assert_eq!(world.state(), "");
    sleep(Duration::from_secs(24 * 60 * 60)).await;
    assert_eq!(world.signer.made(), 2);
}

#[tokio::test(start_paused = true)]
async fn certificates_that_are_refused_are_so_for_good() {
    for (kind, verdict, event, state) in
        [("Denied", "denied", "was denied", "denied"), ("Failed", "failed", "failed", "failed")]
    {
        let world = World::start();
        let (_pod, changes) = world.register(projection());
        world.signer.request(1).await;
        world.signer.end(1, kind, "Because", "of \"it\"");
        changes.next().await;
        let expected = format!(
            "PodCertificateRequest was permanently {verdict}: reason=\"Because\" \
             message=\"of \\\"it\\\"\""
        );
        assert_eq!(world.get(), Err(expected));
        let expected = format!(
            "PodCertificateRequest ns/req-1 {event}, reason=\"Because\", message=\"of \\\"it\\\"\""
        );
        assert_eq!(world.signer.event(kind).await, expected);
        assert_eq!(world.state(), state);
        sleep(Duration::from_secs(24 * 60 * 60)).await;
        assert_eq!(world.signer.made(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn certificates_that_are_not_refreshed_in_time_have_events() {
    let world = World::start();
    let (_pod, changes) = world.register(projection());
    world.signer.request(1).await;
    world.signer.issue(1, CHAIN, &from_now(60), &from_now(120));
    changes.next().await;
    world.signer.request(2).await;
    assert_eq!(world.state(), "fresh");
    let overdue = world.signer.event("CertificateOverdueForRefresh").await;
    assert_eq!(overdue, "PodCertificate refresh overdue");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.state(), "overdue_for_refresh");
    assert_eq!(world.signer.event("CertificateExpired").await, "PodCertificate expired");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.state(), "expired");
    assert!(world.get().is_ok(), "it is still all that there is");
    sleep(Duration::from_secs(24 * 60 * 60)).await;
    assert_eq!(world.signer.events("CertificateOverdueForRefresh"), 1);
    assert_eq!(world.signer.events("CertificateExpired"), 1);
    world.signer.issue(2, CHAIN, &from_now(60), &from_now(120));
    changes.next().await;
    assert_eq!(world.state(), "fresh");
}

#[tokio::test(start_paused = true)]
async fn requests_that_are_deleted_are_made_again_after_ten_minutes() {
    let world = World::start();
    let (_pod, changes) = world.register(projection());
    world.signer.request(1).await;
    let made = clock::now();
    world.signer.delete(1);
    world.signer.request(2).await;
    let waited = clock::now().duration_since(made);
    assert!(waited >= SignedDuration::from_mins(10), "{waited:?}");
    assert!(waited <= SignedDuration::from_mins(16), "{waited:?}");
    world.signer.issue(2, CHAIN, &from_now(60), &from_now(120));
    changes.next().await;
    assert!(world.get().is_ok());
}

#[tokio::test(start_paused = true)]
async fn keys_of_unknown_types_are_never_requested() {
    let world = World::start();
    let mut unknown = projection();
    unknown["keyType"] = json!("RSA1024");
    world.register(unknown);
    sleep(Duration::from_secs(60 * 60)).await;
    assert_eq!(world.signer.made(), 0);
    assert_eq!(world.state(), "not_yet_issued");
}
