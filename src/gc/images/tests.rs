use std::collections::{BTreeMap, BTreeSet};

use longshore_client::events::node_reference;
use longshore_config::GoDuration;
use longshore_cri::v1::image_service_server::ImageService;
use longshore_cri::v1::runtime_service_server::RuntimeService;
use longshore_cri::{Options, Server};
use longshore_metrics::Registry;
use longshore_podstate::sources::{Source, Update};
use parking_lot::Mutex as SyncMutex;
use proptest::prelude::*;
use serde_json::json;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

use super::records::Key;
use super::*;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn image(id: &str) -> v1::Image {
    v1::Image {
        id: format!("sha256:{id}"),
        repo_tags: vec![format!("reg.example/{id}:1")],
        size: 100,
        ..v1::Image::default()
    }
}

fn of_handler(id: &str, handler: &str) -> v1::Image {
    let spec = v1::ImageSpec { runtime_handler: handler.to_owned(), ..v1::ImageSpec::default() };
    v1::Image { spec: Some(spec), ..image(id) }
}

fn in_use(names: &[&str]) -> ImagesInUse {
    let mut in_use = ImagesInUse::default();
    names.iter().for_each(|name| in_use.add(name, ""));
    in_use
}

fn policy() -> Policy {
    Policy {
        high: 85,
        low: 80,
        min_age: Duration::ZERO,
        max_age: GoDuration::ZERO,
        by_handler: false,
    }
}

fn ids(candidates: &[Candidate]) -> Vec<&str> {
    candidates.iter().map(|image| image.key.id.trim_start_matches("sha256:")).collect()
}

#[test]
fn image_gc_removes_least_recently_used_first() {
    let mut records = ImageRecords::default();
    let all = ["d", "c", "b", "a"].map(image);
    // Used at 10: a and b; at 20: b. c and d never, c was seen before d.
    records.note(&all[1..], &in_use(&["sha256:a", "reg.example/b:1"]), at(10));
    records.note(&all, &in_use(&["sha256:b"]), at(20));
    let free = candidates(&all, &records, &in_use(&[]));
    assert_eq!(ids(&free), ["c", "d", "a", "b"]);
    let free = candidates(&all, &records, &in_use(&["sha256:c"]));
    assert_eq!(ids(&free), ["d", "a", "b"], "what is in use stays");
    let mut pinned = all.clone();
    pinned[0].pinned = true;
    assert_eq!(ids(&candidates(&pinned, &records, &in_use(&[]))), ["c", "a", "b"]);
    // One that is gone is forgotten: if it comes again, it is new.
    records.note(&all[2..], &in_use(&[]), at(30));
    records.note(&all, &in_use(&[]), at(40));
    assert_eq!(ids(&candidates(&all, &records, &in_use(&[]))), ["c", "d", "a", "b"]);
    assert_eq!(records.get(&Key::of(&all[0], false)).unwrap().first_detected, at(40));
}

#[test]
fn image_gc_respects_minimum_and_maximum_age() {
    let minute = Duration::from_secs(60);
    for (first, used, began, min_age, max_age, may_go, too_old) in [
        (0, None, 0, 0, 0, true, false),
        (941, None, 0, 60, 0, false, false),
        (940, None, 0, 60, 0, true, false),
        // The age counts from the last use and, without one, from the first sight.
        (0, Some(0), 0, 0, 999, true, true),
        (0, Some(1), 0, 0, 999, true, false),
        (0, None, 0, 0, 999, true, true),
        (900, None, 0, 0, 999, true, false),
        // A daemon that was just started waits for as long.
        (0, Some(0), 1, 0, 999, true, false),
    ] {
        let image = Candidate {
            key: Key::default(),
            size: 0,
            first_seen: at(first),
            last_used: used.map(at),
            handler: String::new(),
        };
        let policy = Policy {
            min_age: minute * u32::from(min_age == 60),
            max_age: GoDuration::secs(max_age),
            ..policy()
        };
        let got = (image.may_go(&policy, at(1000)), image.is_too_old(&policy, at(began), at(1000)));
        assert_eq!(got, (may_go, too_old), "{image:?} {policy:?}");
    }
}

#[test]
fn image_gc_distinguishes_runtime_handlers_with_the_gate() {
    let images = [of_handler("a", "runc"), of_handler("a", "kata")];
    for (by_handler, expected) in [(false, vec![]), (true, vec!["kata"])] {
        let mut in_use = ImagesInUse { by_handler, ..ImagesInUse::default() };
        in_use.add("sha256:a", "runc");
        let mut records = ImageRecords::default();
        records.note(&images, &in_use, at(1));
        let free = candidates(&images, &records, &in_use);
        assert_eq!(free.iter().map(|c| c.handler.as_str()).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn image_gc_state_survives_restart_and_corruption() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(ImageRecords::load(dir.path()), ImageRecords::default());
    let mut records = ImageRecords::default();
    let images = [image("a"), of_handler("b", "kata")];
    let mut by_handler = ImagesInUse { by_handler: true, ..ImagesInUse::default() };
    records.note(&images, &by_handler, at(5));
    by_handler.add("sha256:a", "");
    records.note(&images, &by_handler, at(7));
    records.save(dir.path()).unwrap();
    assert_eq!(ImageRecords::load(dir.path()), records);
    let path = dir.path().join("image_gc_state");
    let whole = std::fs::read_to_string(&path).unwrap();
    for damage in ["", "{", &whole[..whole.len() / 2], &whole.replace("\"1\"", "\"9\"")] {
        std::fs::write(&path, damage).unwrap();
        assert_eq!(ImageRecords::load(dir.path()), ImageRecords::default(), "{damage}");
    }
    // A clock that was set back makes nothing immortal.
    records.note(&images, &ImagesInUse { by_handler: true, ..ImagesInUse::default() }, at(1));
    let seen = records.get(&Key::of(&images[0], true)).unwrap();
    assert_eq!((seen.first_detected, seen.last_used), (at(1), Some(at(1))));
    let nowhere = records.save(&dir.path().join("none")).unwrap_err().to_string();
    assert!(nowhere.contains("none/image_gc_state"), "{nowhere}");
}

proptest! {
    #[test]
    fn image_gc_candidates_are_unused_images(
        looks in prop::collection::vec(
            (prop::collection::btree_set(0..8_u8, 0..8), prop::collection::btree_set(0..8_u8, 0..4)),
            1..6,
        ),
        pinned in prop::collection::btree_set(0..8_u8, 0..3),
    ) {
        let mut records = ImageRecords::default();
        let mut used: BTreeMap<String, usize> = BTreeMap::new();
        for (turn, (there, held_now)) in looks.iter().enumerate() {
            let images: Vec<v1::Image> = there
                .iter()
                .map(|n| v1::Image { pinned: pinned.contains(n), ..image(&n.to_string()) })
                .collect();
            let names: Vec<String> = held_now.iter().map(|n| format!("reg.example/{n}:1")).collect();
            let in_use = in_use(&names.iter().map(String::as_str).collect::<Vec<_>>());
            records.note(&images, &in_use, at(turn.try_into().unwrap()));
            used.retain(|id, _| there.iter().any(|n| *id == n.to_string()));
            used.extend(held_now.intersection(there).map(|n| (n.to_string(), turn + 1)));
            let free = candidates(&images, &records, &in_use);
            let expected: BTreeSet<String> = there
                .iter()
                .filter(|n| !held_now.contains(n) && !pinned.contains(n))
                .map(ToString::to_string)
                .collect();
            prop_assert_eq!(ids(&free).into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), expected);
            let turns: Vec<usize> =
                ids(&free).into_iter().map(|id| used.get(id).copied().unwrap_or(0)).collect();
            prop_assert!(turns.is_sorted(), "{turns:?}");
        }
    }
}

/// A runtime with images and containers; removals are remembered in their order.
#[derive(Clone)]
struct Fake(Arc<FakeState>);

struct FakeState {
    images: SyncMutex<Vec<v1::Image>>,
    removed: SyncMutex<Vec<String>>,
    /// Not to be removed.
    stuck: &'static str,
    containers: Vec<v1::Container>,
    mountpoint: String,
}

#[tonic::async_trait]
impl ImageService for Fake {
    async fn list_images(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Result<Response<v1::ListImagesResponse>, Status> {
        let images = self.0.images.lock().clone();
        Ok(Response::new(v1::ListImagesResponse { images }))
    }

    async fn remove_image(
        &self,
        request: Request<v1::RemoveImageRequest>,
    ) -> Result<Response<v1::RemoveImageResponse>, Status> {
        let id = request.into_inner().image.unwrap_or_default().image;
        if id == self.0.stuck {
            return Err(Status::internal("read-only file system"));
        }
        self.0.images.lock().retain(|image| image.id != id);
        self.0.removed.lock().push(id.trim_start_matches("sha256:").to_owned());
        Ok(Response::new(v1::RemoveImageResponse::default()))
    }

    async fn image_fs_info(
        &self,
        _: Request<v1::ImageFsInfoRequest>,
    ) -> Result<Response<v1::ImageFsInfoResponse>, Status> {
        let id = v1::FilesystemIdentifier { mountpoint: self.0.mountpoint.clone() };
        let usage = v1::FilesystemUsage { fs_id: Some(id), ..v1::FilesystemUsage::default() };
        let image_filesystems = vec![usage];
        Ok(Response::new(v1::ImageFsInfoResponse { image_filesystems, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn list_containers(
        &self,
        _: Request<v1::ListContainersRequest>,
    ) -> Result<Response<v1::ListContainersResponse>, Status> {
        let containers = self.0.containers.clone();
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Result<Response<v1::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        let image = v1::ImageSpec { image: "sha256:mounted".to_owned(), ..Default::default() };
        let mounts = match id.as_str() {
            "mounts" => vec![v1::Mount { image: Some(image), ..v1::Mount::default() }],
            _ => Vec::new(),
        };
        let status = v1::ContainerStatus {
            id,
            metadata: Some(v1::ContainerMetadata { name: "c".to_owned(), attempt: 0 }),
            created_at: 1,
            image: Some(v1::ImageSpec { image: "i".to_owned(), ..v1::ImageSpec::default() }),
            image_ref: "i".to_owned(),
            mounts,
            ..v1::ContainerStatus::default()
        };
        Ok(Response::new(v1::ContainerStatusResponse { status: Some(status), info: [].into() }))
    }

    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let condition = |name: &str| v1::RuntimeCondition {
            r#type: name.to_owned(),
            status: true,
            ..v1::RuntimeCondition::default()
        };
        let conditions = ["RuntimeReady", "NetworkReady"].map(condition).to_vec();
        let config = json!({"sandboxImage": "reg.example/pause:1"}).to_string();
        Ok(Response::new(v1::StatusResponse {
            status: Some(v1::RuntimeStatus { conditions }),
            info: [("config".to_owned(), config)].into(),
            ..v1::StatusResponse::default()
        }))
    }
}

struct Bench {
    dir: tempfile::TempDir,
    fake: Fake,
    images: Images,
    removed: Arc<SyncMutex<Vec<String>>>,
    _server: Server,
}

impl Bench {
    /// Images a to d, of which b is run and d is mounted; the sandboxes' and a pinned one.
    async fn new(mountpoint: &str, stuck: &'static str, policy: Policy) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut images: Vec<v1::Image> =
            ["a", "b", "c", "mounted", "pause", "pinned"].map(image).to_vec();
        images[5].pinned = true;
        let runs = |id: &str, image: &str, uid: &str| v1::Container {
            id: id.to_owned(),
            pod_sandbox_id: "s".to_owned(),
            metadata: Some(v1::ContainerMetadata { name: id.to_owned(), attempt: 0 }),
            image_ref: image.to_owned(),
            labels: [(labels::POD_UID.to_owned(), uid.to_owned())].into(),
            ..v1::Container::default()
        };
        let containers =
            vec![runs("plain", "sha256:b", "uid-plain"), runs("mounts", "sha256:b", "uid-mounts")];
        let fake = Fake(Arc::new(FakeState {
            images: SyncMutex::new(images),
            removed: SyncMutex::default(),
            stuck,
            containers,
            mountpoint: mountpoint.to_owned(),
        }));
        let socket = dir.path().join("cri.sock");
        let server =
            longshore_cri::serve(UnixListener::bind(&socket).unwrap(), fake.clone(), fake.clone());
        let endpoint = format!("unix://{}", socket.display());
        let cri = Runtime::new(Options::new(endpoint.as_str())).unwrap();
        let desired = Desired::new([Source::Api]);
        let (updates, merged) = mpsc::channel(10);
        let (changes, _changed) = mpsc::channel(10);
        let pod = |name: &str, volumes: serde_json::Value| {
            let metadata = json!({"name": name, "namespace": "ns", "uid": format!("uid-{name}")});
            let spec = json!({"containers": [], "volumes": volumes});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
        };
        let volume = json!([{"name": "v", "image": {"reference": "reg.example/mounted:1"}}]);
        let pods = vec![pod("plain", json!([])), pod("mounts", volume)];
        updates.send((Source::Api, Update::Snapshot(pods))).await.unwrap();
        tokio::spawn(desired.clone().run(merged, changes));
        desired.synced().wait_for(|synced| *synced).await.unwrap();
        let removed: Arc<SyncMutex<Vec<String>>> = Arc::default();
        let (recorder, _) = Recorder::start(None, "node");
        let images = Images::new(Parts {
            cri,
            desired,
            recorder,
            node: node_reference("node"),
            policy,
            root_dir: dir.path().to_owned(),
            pod_logs_dir: dir.path().join("logs"),
            metrics: Metrics::new(&Registry::default()),
            removed: Box::new({
                let removed = removed.clone();
                move |id, _| removed.lock().push(id.to_owned())
            }),
        });
        Self { dir, fake, images, removed, _server: server }
    }

    fn removed(&self) -> Vec<String> {
        self.fake.0.removed.lock().clone()
    }
}

#[tokio::test]
async fn image_gc_keeps_used_pinned_and_sandbox_images() {
    let bench = Bench::new("/", "", policy()).await;
    let freed = bench.images.delete_unused_images().await.unwrap();
    assert_eq!((bench.removed(), freed), (vec!["a".to_owned(), "c".to_owned()], 200));
    assert_eq!(*bench.removed.lock(), ["sha256:a", "sha256:c"]);
    let state = std::fs::read_to_string(bench.dir.path().join("image_gc_state")).unwrap();
    assert!(!state.contains("sha256:a") && state.contains("sha256:b"), "{state}");
    // There is nothing left to go, and that is no error.
    assert_eq!(bench.images.delete_unused_images().await.unwrap(), 0);
}

#[tokio::test]
async fn image_gc_keeps_young_images_on_a_full_disk() {
    let young = Policy { min_age: Duration::from_secs(60), ..policy() };
    let bench = Bench::new("/", "", young).await;
    assert_eq!(bench.images.delete_unused_images().await.unwrap(), 0);
}

#[tokio::test]
async fn image_gc_continues_after_a_failed_removal() {
    let bench = Bench::new("/", "sha256:a", policy()).await;
    let error = bench.images.delete_unused_images().await.unwrap_err().to_string();
    assert_eq!(
        error,
        "wanted to free 9223372036854775807 bytes, but freed 100 bytes space with errors in image deletion: \
         rpc error: code = Internal desc = read-only file system"
    );
    assert_eq!(bench.removed(), ["c"]);
}

#[tokio::test]
async fn image_gc_rejects_zero_capacity() {
    let bench = Bench::new("/proc", "", policy()).await;
    let error = bench.images.collect(Timestamp::now()).await.unwrap_err();
    assert_eq!(error.to_string(), "invalid capacity 0 on image filesystem");
    let bench = Bench::new("/nonexistent/images", "", policy()).await;
    let error = bench.images.collect(Timestamp::now()).await.unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/images: No such file"), "{error}");
}

#[tokio::test]
async fn image_gc_below_threshold_removes_only_old_images() {
    // No disk that a test can run on is so full.
    let high = Policy { high: 101, low: 100, ..policy() };
    let bench = Bench::new("/", "", high).await;
    bench.images.collect(Timestamp::now()).await.unwrap();
    assert!(bench.removed().is_empty());
    let old = Policy { max_age: GoDuration::nanos(1), ..high };
    let bench = Bench::new("/", "", old).await;
    bench.images.record_use().await.unwrap();
    bench.images.collect(Timestamp::now() + Duration::from_secs(60)).await.unwrap();
    assert!(bench.removed().is_empty(), "the daemon is not old enough itself");
    bench.images.collect(Timestamp::UNIX_EPOCH).await.unwrap();
    assert_eq!(bench.removed(), ["a", "c"]);
}

#[tokio::test]
async fn image_gc_failure_names_the_largest_disk_users() {
    // All that there is: more than can ever come free.
    let all = Policy { high: 0, low: 0, ..policy() };
    let bench = Bench::new("/", "", all).await;
    let error = bench.images.collect(Timestamp::now()).await.unwrap_err();
    let Error::Full(message) = error else { panic!("{error}") };
    let middle = "Failed to free sufficient space by deleting unused images (freed ";
    assert!(message.starts_with("Insufficient free disk space on the node's image filesystem ("));
    assert!(message.contains(middle) && message.contains("Biggest users: "), "{message}");
    assert!(message.contains("image reg.example/b:1 (100 B)"), "{message}");
    assert!(!message.contains("reg.example/a:1"), "{message}");
}
