//! Plugins that register with a handler that records what it is asked for.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use longshore_grpc::Server;
use longshore_metrics::Registry;
use parking_lot::Mutex;
use tokio::net::UnixListener;
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status};

use crate::registration::registration_server::Registration;
use crate::registration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::{Handler, Handlers, Plugin, Refusal, run, serve_registration};

/// Records calls, and answers registrations of the plugin `no` with a refusal.
#[derive(Default)]
struct Recording {
    calls: Mutex<Vec<String>>,
}

impl Recording {
    fn note(&self, call: String) {
        self.calls.lock().push(call);
    }
}

#[async_trait]
impl Handler for Recording {
    async fn register(&self, plugin: &Plugin) -> Result<(), Refusal> {
        self.note(format!("register {} {:?}", plugin.name, plugin.versions));
        match plugin.name.as_str() {
            "no" => Err(Refusal::Invalid("a reason".to_owned())),
            "later" => Err(Refusal::Failed("a reason".to_owned())),
            _ => Ok(()),
        }
    }

    async fn registered(&self, plugin: &Plugin) {
        self.note(format!("registered {}", plugin.name));
    }

    async fn unregister(&self, plugin: &Plugin) {
        self.note(format!("unregister {}", plugin.name));
    }
}

/// A plugin that says this of itself, and records of what it is notified.
#[derive(Clone)]
struct Scripted {
    info: PluginInfo,
    statuses: Arc<Mutex<Vec<(bool, String)>>>,
    /// Whether it hangs.
    hangs: bool,
}

#[tonic::async_trait]
impl Registration for Scripted {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.statuses.lock().push((status.plugin_registered, status.error));
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

struct Node {
    dir: tempfile::TempDir,
    handler: Arc<Recording>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Node {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let handler = Arc::new(Recording::default());
        let handlers = Handlers::default().with("Recorded", handler.clone());
        let task = tokio::spawn(run(dir.path(), handlers, &Registry::default()));
        Self { dir, handler, task }
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.dir.path().join("plugins_registry").join(name)
    }

    async fn calls(&self, expected: &[&str]) {
        within(
            || *self.handler.calls.lock() == expected,
            || format!("{:?} instead of {expected:?}", self.handler.calls.lock()),
        )
        .await;
    }
}

async fn within(holds: impl Fn() -> bool, what: impl Fn() -> String) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(Duration::from_secs(20), wait).await.is_ok(), "{}", what());
}

fn plugin(kind: &str, name: &str) -> Scripted {
    let info = PluginInfo {
        r#type: kind.to_owned(),
        name: name.to_owned(),
        endpoint: String::new(),
        supported_versions: vec!["v1".to_owned()],
    };
    Scripted { info, statuses: Arc::default(), hangs: false }
}

fn serve(plugin: &Scripted, socket: &Path) -> Server {
    std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
    serve_registration(UnixListener::bind(socket).unwrap(), plugin.clone())
}

#[tokio::test]
async fn plugin_is_registered_while_its_socket_exists() {
    let node = Node::start();
    let socket = node.socket("a.sock");
    let a = plugin("Recorded", "a");
    let server = serve(&a, &socket);
    node.calls(&[r#"register a ["v1"]"#, "registered a"]).await;
    assert_eq!(*a.statuses.lock(), [(true, String::new())]);
    // The socket is made anew, as by a driver that is updated.
    drop(server);
    std::fs::remove_file(&socket).unwrap();
    let _server = serve(&a, &socket);
    let again = [r#"register a ["v1"]"#, "registered a", "unregister a"];
    node.calls(&[&again[..], &again[..2]].concat()).await;
    std::fs::remove_file(&socket).unwrap();
    node.calls(&[again, again].concat()).await;
}

#[tokio::test]
async fn plugin_refused_is_notified_with_upstreams_text() {
    let node = Node::start();
    let cases = [
        (
            plugin("Other", "a"),
            "RegisterPlugin error -- no handler registered for plugin type: Other at socket ",
        ),
        (
            plugin("Recorded", "no"),
            "RegisterPlugin error -- plugin validation failed with err: a reason",
        ),
        (
            plugin("Recorded", "later"),
            "RegisterPlugin error -- plugin registration failed with err: a reason",
        ),
    ];
    for (index, (plugin, text)) in cases.iter().enumerate() {
        let _server = serve(plugin, &node.socket(&format!("{index}.sock")));
        let notified = || plugin.statuses.lock().first().cloned();
        within(|| notified().is_some(), || (*text).to_owned()).await;
        let (registered, error) = notified().unwrap();
        assert!(!registered && error.starts_with(text), "{error}");
    }
    let calls = node.handler.calls.lock().clone();
    assert!(!calls.iter().any(|call| call.starts_with("registered")), "{calls:?}");
}

#[tokio::test]
async fn plugin_that_hangs_or_has_no_name_does_not_delay_others() {
    let node = Node::start();
    let hanging = Scripted { hangs: true, ..plugin("Recorded", "hanging") };
    let _hanging = serve(&hanging, &node.socket("0.sock"));
    let _nameless = serve(&plugin("Recorded", ""), &node.socket("1.sock"));
    let mut many = plugin("Recorded", "many");
    many.info.supported_versions = vec!["v1".to_owned(); 1000];
    let _many = serve(&many, &node.socket("2.sock"));
    let _well = serve(&plugin("Recorded", "well"), &node.socket("3.sock"));
    node.calls(&[r#"register well ["v1"]"#, "registered well"]).await;
}
