//! An image registry for tests: Debian's `docker-registry`, filled through its own HTTP API.
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest};
use serde_json::json;
use tokio::net::TcpStream;

use crate::daemon::Daemon;
use crate::error::{AtPath, Error, Result};
use crate::host::Host;
use crate::image::Image;
use crate::wait::poll_until;

const START: Duration = Duration::from_secs(20);
/// [`Registry::LOGIN`] as an htpasswd line (bcrypt, which is all that the registry takes).
const HTPASSWD: &str = "puller:$2b$04$longshoretestkitsalt..YOLkgQU0DPBgI7Yt1rLn25C1toGwjFa\n";
/// [`Registry::LOGIN`] as HTTP's basic credentials.
const BASIC: &str = "Basic cHVsbGVyOm9wZW4gc2VzYW1l";

/// A running registry that speaks plain HTTP. Nothing outlives the host.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    login: bool,
    daemon: Daemon,
}

impl Registry {
    /// The user and password of a [`Registry::start_with_login`].
    pub const LOGIN: (&str, &str) = ("puller", "open sesame");

    /// Starts a registry for everyone, on the machine's side of the host's link, and waits until
    /// it listens; blocks.
    ///
    /// # Errors
    /// When it is not installed, ends, or does not listen in 20 s.
    pub fn start(host: &Host, port: u16) -> Result<Self> {
        let command = host.neighbour_command("docker-registry");
        Self::run(host, command, (host.machine_ip(), port), false)
    }

    /// [`Registry::start`] for those who know [`Registry::LOGIN`].
    ///
    /// # Errors
    /// As for [`Registry::start`].
    pub fn start_with_login(host: &Host, port: u16) -> Result<Self> {
        let command = host.neighbour_command("docker-registry");
        Self::run(host, command, (host.machine_ip(), port), true)
    }

    /// [`Registry::start`] on the host itself, for another host to find a way to.
    ///
    /// # Errors
    /// As for [`Registry::start`].
    pub fn start_inside(host: &Host, port: u16) -> Result<Self> {
        let command = host.command("docker-registry");
        Self::run(host, command, (host.node_ip(), port), false)
    }

    fn run(host: &Host, mut command: Command, at: (Ipv4Addr, u16), login: bool) -> Result<Self> {
        let address = SocketAddr::from(at);
        let name = format!("registry-{}", address.port());
        let dir = host.dir().join(&name);
        fs::create_dir_all(&dir).at(&dir)?;
        let mut config = json!({
            "version": 0.1,
            "log": { "accesslog": { "disabled": true }, "level": "warn" },
            "storage": { "filesystem": { "rootdirectory": dir.join("data") } },
            "http": { "addr": address, "secret": "testkit" },
        });
        if login {
            let users = dir.join("htpasswd");
            fs::write(&users, HTPASSWD).at(&users)?;
            config["auth"] = json!({ "htpasswd": { "realm": "testkit", "path": users } });
        }
        // JSON is YAML.
        let file = dir.join("config.yml");
        fs::write(&file, config.to_string()).at(&file)?;
        command.arg("serve").arg(&file);
        let mut daemon = host.spawn(&name, command)?;
        poll_until(START, &format!("{name} to listen"), || {
            daemon.check_running()?;
            let connection = std::net::TcpStream::connect_timeout(&address, START);
            Ok(connection.map(drop).map_err(|e| e.to_string()))
        })?;
        Ok(Self { address, login, daemon })
    }

    /// Its address, with which every image name starts.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process, to signal it or to read its log.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }

    /// Puts an image in as `name` (`repository:tag`) and gives the reference to pull it by.
    ///
    /// # Errors
    /// [`Error::Registry`] with the call that failed.
    pub async fn push(&self, image: &Image, name: &str) -> Result<String> {
        let broken =
            |message: String| Error::Image { reference: image.reference().into(), message };
        let files = image.files().map_err(|e| broken(e.to_string()))?;
        let blob = |descriptor: &Descriptor| {
            let path = format!("blobs/sha256/{}", descriptor.digest().digest());
            files.get(&path).cloned().ok_or_else(|| broken(format!("{path} is missing")))
        };
        let index = files.get("index.json").map(Vec::as_slice).unwrap_or_default();
        let index = ImageIndex::from_reader(index).map_err(|e| broken(e.to_string()))?;
        let [descriptor] = &index.manifests()[..] else {
            return Err(broken("it has not just one manifest".into()));
        };
        let content = blob(descriptor)?;
        let manifest = ImageManifest::from_reader(&*content).map_err(|e| broken(e.to_string()))?;

        let (repository, tag) = name.split_once(':').unwrap_or((name, "latest"));
        for part in manifest.layers().iter().chain([manifest.config()]) {
            self.upload(repository, part, blob(part)?).await?;
        }
        let path = format!("/v2/{repository}/manifests/{tag}");
        self.call(Method::PUT, &path, descriptor.media_type().as_ref(), content).await?;
        Ok(format!("{}/{repository}:{tag}", self.address))
    }

    /// A blob goes where the registry says, in one piece.
    async fn upload(&self, repository: &str, blob: &Descriptor, content: Vec<u8>) -> Result<()> {
        let path = format!("/v2/{repository}/blobs/uploads/");
        let opened = self.call(Method::POST, &path, "", Vec::new()).await?;
        let location = opened.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let location = location.unwrap_or_default();
        let path = location.strip_prefix(&format!("http://{}", self.address)).unwrap_or(location);
        let parting = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{parting}digest={}", blob.digest());
        self.call(Method::PUT, &path, "application/octet-stream", content).await.map(drop)
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>> {
        let call = format!("{method} http://{}{path}", self.address);
        self.exchange(method, path, content_type, body)
            .await
            .map_err(|error| Error::Registry { call, message: error.to_string() })
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
        let stream = TcpStream::connect(self.address).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(HOST, self.address.to_string());
        if !content_type.is_empty() {
            request = request.header(CONTENT_TYPE, content_type);
        }
        if self.login {
            request = request.header(AUTHORIZATION, BASIC);
        }
        let answer = sender.send_request(request.body(Full::new(Bytes::from(body)))?).await?;
        match answer.status() {
            StatusCode::CREATED | StatusCode::ACCEPTED => Ok(answer),
            status => {
                let said = answer.into_body().collect().await?.to_bytes();
                Err(format!("{status}: {}", String::from_utf8_lossy(&said)).into())
            }
        }
    }
}
