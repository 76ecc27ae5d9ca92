//! The image service over a real engine and a real registry.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use longshore_cri::v1::image_service_server::ImageService;
use longshore_cri::v1::*;
use longshore_cri_docker::images::Images;
use longshore_cri_docker::{Settings, connect};
use longshore_testkit::{Docker, DockerOptions, Host, Image, Registry};
use nix::sys::signal::Signal;
use tonic::{Code, Request, Status};

/// How long a pull may be without progress.
const DEADLINE: Duration = Duration::from_secs(15);

/// An engine, and its image service.
struct Engine {
    host: Host,
    docker: Docker,
    images: Images,
}

impl Engine {
    /// `None` where there is no engine. `pinned` is the image of sandboxes.
    async fn start(pinned: &str) -> Result<Option<Self>> {
        if !Docker::is_installed() {
            println!(
                "skipped: no dockerd on this machine (scripts/install-deps.sh test installs docker.io)"
            );
            return Ok(None);
        }
        let host = Host::bare()?;
        let docker = Docker::start(&host, DockerOptions::default())?;
        let settings = Settings {
            docker_endpoint: format!("unix://{}", docker.socket().display()),
            sandbox_image: pinned.to_owned(),
            image_pull_progress_deadline: DEADLINE,
            ..Settings::default()
        };
        let engine = connect(&settings.docker_endpoint, settings.request_timeout)?;
        engine.negotiate().await?;
        let images = Images::new(engine, Arc::new(settings));
        Ok(Some(Self { host, docker, images }))
    }

    async fn end(mut self) -> Result<()> {
        self.docker.stop()?;
        let host = self.host;
        tokio::task::spawn_blocking(move || host.assert_clean()).await?;
        Ok(())
    }

    async fn pull(&self, image: &str, auth: Option<AuthConfig>) -> Result<String, Status> {
        let request = PullImageRequest { image: Some(spec(image)), auth, sandbox_config: None };
        Ok(self.images.pull_image(Request::new(request)).await?.into_inner().image_ref)
    }

    async fn status(&self, image: &str) -> Result<Option<Told>, Status> {
        let request = ImageStatusRequest { image: Some(spec(image)), verbose: true };
        let response = self.images.image_status(Request::new(request)).await?.into_inner();
        assert_eq!(response.info.contains_key("info"), response.image.is_some());
        Ok(response.image)
    }

    /// IDs of the images that a filter finds.
    async fn list(&self, filter: &str) -> Result<Vec<String>, Status> {
        let filter = Some(ImageFilter { image: Some(spec(filter)) });
        let response = self.images.list_images(Request::new(ListImagesRequest { filter })).await?;
        Ok(response.into_inner().images.into_iter().map(|image| image.id).collect())
    }

    async fn remove(&self, image: &str) -> Result<(), Status> {
        let request = RemoveImageRequest { image: Some(spec(image)) };
        self.images.remove_image(Request::new(request)).await.map(|_| ())
    }
}

/// An image as the service tells it.
type Told = longshore_cri::v1::Image;

fn spec(image: &str) -> ImageSpec {
    ImageSpec { image: image.to_owned(), ..ImageSpec::default() }
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

/// An image with that user.
fn image(name: &str, user: &str) -> Result<Image> {
    let builder = Image::busybox_builder(&format!("longshore.local/{name}:1"))?.user(user);
    Ok(builder.file("name", 0o644, name).build()?)
}

#[tokio::test]
async fn images_are_pulled_listed_and_removed() -> Result<()> {
    let Some(engine) = Engine::start("longshore.local/pause:1").await? else { return Ok(()) };
    let registry = Registry::start(&engine.host, 5000)?;
    let first = registry.push(&image("first", "1000:2000")?, "team/first:v1").await?;
    registry.push(&image("first", "1000:2000")?, "other/first:v2").await?;
    let second = registry.push(&image("second", "nobody:nogroup")?, "team/second:latest").await?;
    let repository = |reference: &str| reference.rsplit_once(':').unwrap().0.to_owned();

    let id = engine.pull(&first, None).await?;
    assert!(id.starts_with("sha256:"), "{id}");
    let status = engine.status(&first).await?.expect("it was pulled");
    assert_eq!((&status.id, &status.repo_tags[..]), (&id, &[first.clone()][..]));
    assert_eq!((status.uid.map(|uid| uid.value), status.username.as_str()), (Some(1000), ""));
    assert!(status.size > 1 << 20 && !status.pinned, "{status:?}");
    let [digested] = &status.repo_digests[..] else { panic!("{status:?}") };
    assert!(digested.starts_with(&format!("{}@sha256:", repository(&first))));
    // without a tag, latest is meant; and its user has a name
    let other = engine.pull(&repository(&second), None).await?;
    let status = engine.status(&second).await?.expect("it was pulled");
    assert_eq!((&status.id, status.uid, status.username.as_str()), (&other, None, "nobody"));

    let hex = id.strip_prefix("sha256:").unwrap();
    for name in [
        &id,
        hex,
        &hex[..12],
        digested,
        &format!("{first}@{}", digested.split_once('@').unwrap().1),
    ] {
        assert_eq!(engine.status(name).await?.map(|image| image.id).as_ref(), Some(&id), "{name}");
        let listed = engine.list(name).await?;
        assert_eq!(listed, std::slice::from_ref(&id), "{name}");
    }
    let missing = digested.replace(&repository(&first), "other.local/first");
    for name in ["busybox", "x.y/a:1", &missing, &format!("x.y/a@{id}"), &"0".repeat(64), "0123"] {
        assert_eq!(engine.status(name).await?, None, "{name}");
        assert!(engine.list(name).await?.is_empty(), "{name}");
        engine.remove(name).await?;
    }
    for name in ["", "A b", "a?x=1", "../x", "http://x/y"] {
        assert_eq!(code(engine.status(name).await), Code::InvalidArgument, "{name}");
        assert_eq!(code(engine.pull(name, None).await), Code::InvalidArgument, "{name}");
        assert_eq!(code(engine.remove(name).await), Code::InvalidArgument, "{name}");
    }
    assert_eq!(engine.list(&repository(&first)).await?, std::slice::from_ref(&id));
    assert_eq!(engine.list("").await?.len(), 2);

    // by its ID with all tags and digests, of all repositories
    engine.pull(&first.replace("team/first:v1", "other/first:v2"), None).await?;
    engine.pull(digested, None).await?;
    assert_eq!(engine.status(&id).await?.expect("it is there").repo_tags.len(), 2);
    let (create, body) = ("/containers/create?name=user", format!(r#"{{"Image":"{id}"}}"#));
    assert_eq!(engine.docker.request("POST", create, body.as_bytes())?.0, 201);
    assert_eq!(code(engine.remove(&id).await), Code::FailedPrecondition);
    assert_eq!(engine.status(&id).await?.expect("it is used").repo_tags.len(), 2, "it is whole");
    assert_eq!(engine.docker.request("DELETE", "/containers/user", b"")?.0, 204);
    let removals = std::array::from_fn::<_, 5, _>(|_| engine.remove(&id));
    for removed in futures::future::join_all(removals).await {
        removed?;
    }
    assert_eq!(engine.status(&id).await?, None);
    // by a tag, and by a digest
    engine.remove(&second).await?;
    engine.pull(digested, None).await?;
    assert!(engine.status(digested).await?.expect("it was pulled").repo_tags.is_empty());
    engine.remove(digested).await?;
    assert!(engine.list("").await?.is_empty());

    engine.docker.load(&Image::pause()?)?;
    let pinned = engine.status("longshore.local/pause:1").await?.expect("it was loaded");
    assert!(pinned.pinned && pinned.size > 0, "{pinned:?}");
    let usage = engine.images.image_fs_info(Request::new(ImageFsInfoRequest {})).await?;
    let usage = usage.into_inner();
    let [used] = &usage.image_filesystems[..] else { panic!("{usage:?}") };
    let root = engine.docker.data_root().to_string_lossy().into_owned();
    assert_eq!(used.fs_id.as_ref().map(|id| &id.mountpoint), Some(&root));
    assert!(used.used_bytes.is_some_and(|bytes| bytes.value >= pinned.size));
    drop(registry);
    engine.end().await
}

#[tokio::test]
async fn images_are_pulled_with_credentials_of_every_kind() -> Result<()> {
    use base64::Engine as _;
    let Some(engine) = Engine::start("").await? else { return Ok(()) };
    let registry = Registry::start_with_login(&engine.host, 5001)?;
    let reference = registry.push(&image("secret", "")?, "team/secret:1").await?;
    let (user, password) = Registry::LOGIN;
    let words = |password: &str| AuthConfig {
        username: user.to_owned(),
        password: password.to_owned(),
        ..AuthConfig::default()
    };
    let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    let address = registry.address().to_string();
    let at = |server: &str| AuthConfig { server_address: server.to_owned(), ..words(password) };
    for (name, auth, expected) in [
        ("nothing", None, Code::Unauthenticated),
        ("a wrong password", Some(words("wrong?>~")), Code::Unauthenticated),
        ("those of another registry", Some(at("https://other.local")), Code::Unauthenticated),
        (
            "no base64",
            Some(AuthConfig { auth: "??".to_owned(), ..AuthConfig::default() }),
            Code::InvalidArgument,
        ),
        ("user and password", Some(words(password)), Code::Ok),
        ("auth", Some(AuthConfig { auth: encoded, ..AuthConfig::default() }), Code::Ok),
        ("those of this registry", Some(at(&format!("http://{address}/v2/"))), Code::Ok),
    ] {
        let pulled = engine.pull(&reference, auth).await;
        assert_eq!(
            pulled.as_ref().err().map_or(Code::Ok, Status::code),
            expected,
            "{name}: {pulled:?}"
        );
        engine.remove(&reference).await?;
    }
    assert!(engine.list("").await?.is_empty());
    drop(registry);
    engine.end().await
}

#[tokio::test]
async fn pulls_that_fail_leave_nothing_behind() -> Result<()> {
    let Some(engine) = Engine::start("").await? else { return Ok(()) };
    let mut registry = Registry::start(&engine.host, 5002)?;
    let reference = registry.push(&image("there", "")?, "team/there:1").await?;
    let repository = reference.rsplit_once(':').unwrap().0;
    let digest = format!("{repository}@sha256:{}", "0123456789abcdef".repeat(4));
    for missing in [&digest, &format!("{repository}:2"), &repository.replace("there", "nothing")] {
        assert_eq!(code(engine.pull(missing, None).await), Code::NotFound, "{missing}");
    }
    // a registry that does not answer any more
    registry.daemon().signal(Signal::SIGSTOP);
    let stalled = engine.pull(&reference, None).await;
    registry.daemon().signal(Signal::SIGCONT);
    let status = stalled.expect_err("nothing came");
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert!(engine.list("").await?.is_empty());
    let (status, dangling) = engine.docker.request("GET", "/images/json?all=1", b"")?;
    assert_eq!((status, dangling), (200, serde_json::json!([])));
    // and one that is gone
    let address = registry.address();
    drop(registry);
    let gone = engine.pull(&format!("{address}/team/there:1"), None).await;
    assert_eq!(code(gone), Code::Unavailable);
    engine.end().await
}
