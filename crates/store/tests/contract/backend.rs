//! The backends: a file in a temporary folder, and an etcd server of its own for each test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longshore_store::Store;
use tempfile::TempDir;

pub(crate) struct Embedded {
    pub(crate) store: Arc<dyn Store>,
    _folder: TempDir,
}

impl Embedded {
    pub(crate) async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("store");
        Embedded {
            store: longshore_store::open(path.to_str().unwrap()).await.unwrap(),
            _folder: folder,
        }
    }
}

pub(crate) struct Etcd {
    pub(crate) store: Arc<dyn Store>,
    /// As `host:port`.
    pub(crate) endpoint: String,
    pub(crate) server: Child,
    _folder: TempDir,
}

impl Etcd {
    pub(crate) async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let (client, peer) =
            (format!("127.0.0.1:{}", free_port()), format!("http://127.0.0.1:{}", free_port()));
        let server = Command::new("/usr/bin/etcd")
            .args(["--name", "test", "--data-dir"])
            .arg(folder.path())
            .args(["--listen-client-urls", &format!("http://{client}")])
            .args(["--advertise-client-urls", &format!("http://{client}")])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            .args(["--experimental-watch-progress-notify-interval", "500ms"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("Debian's package etcd-server provides /usr/bin/etcd");
        // from here on the server is ended whatever happens
        let mut ending = Ending(Some(server));
        let started = Instant::now();
        loop {
            match longshore_store::open(&format!("etcd://{client}")).await {
                Ok(store) => {
                    {
                        let server = ending.0.take().unwrap();
                        return Etcd { store, endpoint: client, server, _folder: folder };
                    };
                }
                Err(error) => assert!(
                    started.elapsed() < Duration::from_secs(30),
                    "etcd does not start: {error}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        end(&mut self.server);
    }
}

struct Ending(Option<Child>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.as_mut().map(end);
    }
}

fn end(server: &mut Child) {
    let _ = server.kill();
    let _ = server.wait();
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
