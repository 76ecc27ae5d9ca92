//! `up` and `join`: makes a machine part of a cluster, or starts it when it is. What fails before the
//! machine is part of its cluster leaves nothing.

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use longshore_base::output;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::args::{JoinArgs, UpArgs};
use crate::discovery::{self, Cluster};
use crate::error::{At, reason};
use crate::files::Created;
use crate::lock::Lock;
use crate::runtime::Folders;
use crate::services::{APISERVER, Service, services};
use crate::settings::{Machine, Server, Settings};
use crate::setup::{self, Joined, Surroundings, fields_of, yaml};
use crate::supervisor::Supervisor;
use crate::tokens::{self, Token};
use crate::{Error, Paths, Result, objects, preflight, runtime, units};

const APISERVER_READY: Duration = Duration::from_secs(60);
const JOINED: Duration = Duration::from_secs(120);
const RUNTIME: Duration = Duration::from_secs(10);
const NODE_READY: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// How long a token is valid that `up` prints.
const TOKEN: Duration = Duration::from_secs(24 * 3600);

/// Who runs the programs.
enum Launcher {
    Foreground(Supervisor),
    Systemd,
}

impl Launcher {
    fn start(&mut self, service: &Service) -> Result<()> {
        match self {
            Self::Foreground(supervisor) => supervisor.start(service),
            Self::Systemd => units::start(service)?,
        }
        Ok(())
    }

    /// Why it is of no use to wait.
    fn check(&self) -> Result<()> {
        match self {
            Self::Foreground(supervisor) => supervisor.hopeless().map_or(Ok(()), Err),
            Self::Systemd => Ok(()),
        }
    }

    async fn stop(self) {
        match self {
            Self::Foreground(supervisor) => supervisor.stop().await,
            Self::Systemd => {
                if let Err(error) = units::stop() {
                    output::report(format_args!("longshore: {error}"));
                }
            }
        }
    }
}

/// Everything that a start needs, checked.
struct Start {
    paths: Paths,
    settings: Settings,
    services: Vec<Service>,
    programs: PathBuf,
    around: Surroundings,
    launcher: Launcher,
}

impl Start {
    /// Checks all that can be checked before anything is written. `common` is the configuration that all
    /// nodes have, as far as it is known.
    async fn prepare(
        paths: &Paths,
        settings: Settings,
        common: &Value,
        foreground: bool,
    ) -> Result<Self> {
        let programs = preflight::programs()?;
        let services = services(&settings, paths);
        preflight::check_programs(&programs, &services)?;
        if !foreground {
            check_systemd(paths)?;
            units::check_installed(&services)?;
        }
        // Units that run have their ports.
        if foreground || !settings.is_complete {
            preflight::check_ports(&settings)?;
        }
        preflight::check_space(paths)?;
        let swaps = preflight::swaps(&std::fs::read_to_string("/proc/swaps").unwrap_or_default());
        preflight::check_swap(&swaps, common, &fields_of(settings.node_config.as_ref())?)?;
        let folders = Folders::of(paths, Some(&settings));
        let client = runtime::connect(&settings.runtime, &folders, RUNTIME).await?;
        let driver = preflight::cgroup_driver(&client).await;
        let driver = driver.map_err(|error| runtime::failed(&settings.runtime, error))?;
        let around = Surroundings::read(driver);
        let launcher = match foreground {
            true => Launcher::Foreground(Supervisor::new(&programs, &paths.logs())?),
            false => Launcher::Systemd,
        };
        Ok(Self { paths: paths.clone(), settings, services, programs, around, launcher })
    }

    /// Settings first, so that a set-up that is killed is known as such.
    fn note(&self, created: &mut Created) -> Result<()> {
        created.file(&self.paths.settings(), self.settings.text()?.as_bytes(), 0o600)
    }

    fn write_units(&self, created: &mut Created) -> Result<()> {
        match self.launcher {
            Launcher::Systemd => units::write(created, &self.services, &self.paths),
            Launcher::Foreground(_) => Ok(()),
        }
    }

    /// From now on the machine is part of its cluster.
    fn complete(&mut self) -> Result<()> {
        self.settings.is_complete = true;
        let path = self.paths.settings();
        longshore_base::files::replace(&path, self.settings.text()?.as_bytes()).at("write", &path)
    }

    /// Stops what a failed command has started, before its files go. A machine that was part of its
    /// cluster already keeps its units: what went wrong may be over in a moment.
    async fn abandon(self, was_complete: bool) {
        if !(was_complete && matches!(self.launcher, Launcher::Systemd)) {
            self.launcher.stop().await;
        }
    }

    /// Starts the services whose names `which` takes.
    fn start(&mut self, which: impl Fn(&str) -> bool) -> Result<()> {
        for service in self.services.iter().filter(|service| which(service.name)) {
            self.launcher.start(service)?;
        }
        Ok(())
    }

    /// Waits until `probe` gives something.
    async fn until<T>(
        &self,
        what: &str,
        patience: Duration,
        stop: &CancellationToken,
        probe: impl AsyncFn() -> std::result::Result<T, String>,
    ) -> Result<T> {
        let mut last = "it was not tried".to_owned();
        let polled = async {
            loop {
                match probe().await {
                    Ok(found) => return Ok::<T, Error>(found),
                    Err(reason) => last = reason,
                }
                self.launcher.check()?;
                tokio::time::sleep(POLL).await;
            }
        };
        let outcome = tokio::select! {
            outcome = tokio::time::timeout(patience, polled) => outcome,
            () = stop.cancelled() => return Err(Error::Interrupted),
        };
        outcome.unwrap_or_else(|_| Err(Error::cluster(format!("{what} in {patience:?}"), last)))
    }

    /// Waits for the node, and then runs what runs in the foreground until `stop`.
    async fn finish(self, kubeconfig: &Path, stop: &CancellationToken) -> Result<()> {
        let name = &self.settings.node_name;
        let ready = self
            .until("the node is not Ready", NODE_READY, stop, async || {
                let client = client(kubeconfig).await.map_err(|error| error.to_string())?;
                let nodes: Api<Node> = Api::all(client);
                let node = nodes.get(name).await.map_err(|error| reason(&error))?;
                if self.settings.server().is_some() {
                    mark_control_plane(&nodes, &node, name).await?;
                }
                ready(node)
            })
            .await;
        match (&ready, &self.launcher) {
            (Ok(()), _) => print(&format!("node {name} is Ready\n"))?,
            (Err(Error::Interrupted), _) => {}
            // What is wrong may be mended while it runs.
            (Err(error), Launcher::Foreground(_)) => {
                output::report(format_args!("longshore: {error}; it goes on running"));
            }
            (Err(_), Launcher::Systemd) => {}
        }
        match self.launcher {
            Launcher::Systemd => ready,
            foreground => {
                if !stop.is_cancelled() {
                    print("running in the foreground; Ctrl-C or longshore down stops it\n")?;
                }
                stop.cancelled().await;
                foreground.stop().await;
                print("stopped; pods go on running\n")
            }
        }
    }
}

fn print(text: &str) -> Result<()> {
    output::print(text)
        .map_err(|error| Error::refused(format!("cannot write to standard output: {error}")))
}

/// Units are about the machine and need its systemd.
fn check_systemd(paths: &Paths) -> Result<()> {
    if !paths.is_machine() {
        return Err(Error::refused(format!(
            "units of systemd are about /, and not about {}: add --foreground",
            paths.root().display()
        )));
    }
    if !units::is_booted() {
        return Err(Error::refused(
            "systemd does not run this machine: add --foreground, and keep this command running",
        ));
    }
    Ok(())
}

/// The configuration of the node as it was written, if it was.
fn written(paths: &Paths) -> Value {
    let text = std::fs::read_to_string(paths.kubelet_config()).unwrap_or_default();
    yaml(&text).unwrap_or_default()
}

/// PURE: what a machine is to be, by what it is: `None` of a new one; and whether that is new.
fn choose(
    known: Option<Settings>,
    has_flags: bool,
    wanted: impl FnOnce() -> Result<Settings>,
    root: &Path,
) -> Result<Settings> {
    match known {
        Some(known) if known.is_complete => {
            if has_flags {
                let wanted = Settings { is_complete: true, ..wanted()? };
                if wanted != known {
                    return Err(Error::refused(format!(
                        "{} has a cluster with other settings: without flags this starts it, and \
                         longshore reset removes it",
                        root.display()
                    )));
                }
            }
            Ok(known)
        }
        _ => wanted(),
    }
}

/// Makes this machine a cluster, or starts the one that it is.
///
/// # Errors
/// It cannot be, or is not in time; what was made is removed again.
pub async fn up(paths: &Paths, args: &UpArgs, stop: &CancellationToken) -> Result<()> {
    let foreground = args.node.foreground;
    let lock = Lock::take(paths)?;
    let outcome = up_locked(paths, args, foreground, stop).await;
    tidy(lock, paths);
    outcome
}

/// The lock's file goes too where nothing was set up.
fn tidy(lock: Lock, paths: &Paths) {
    if !paths.settings().exists() {
        let _ = crate::files::remove(&paths.logs());
        let _ = lock.remove(paths);
    }
}

async fn up_locked(
    paths: &Paths,
    args: &UpArgs,
    foreground: bool,
    stop: &CancellationToken,
) -> Result<()> {
    let known = Settings::load(paths)?;
    if known.as_ref().is_some_and(|known| known.is_complete && known.server().is_none()) {
        return Err(Error::refused(
            "this machine is a node of another machine's cluster: longshore join starts it, and \
             longshore reset makes it leave",
        ));
    }
    if known.as_ref().is_some_and(|known| !known.is_complete && known.server().is_none()) {
        return Err(Error::refused(
            "longshore join was interrupted on this machine: longshore reset removes what it has made",
        ));
    }
    if known.is_none() {
        preflight::check_foreign(paths)?;
    }
    let plain = UpArgs {
        node: crate::args::NodeArgs { foreground, ..Default::default() },
        ..UpArgs::default()
    };
    let wanted = || Settings::of_cluster(args, paths, &Machine::read());
    let settings = choose(known, *args != plain, wanted, paths.root())?;
    let is_new = !settings.is_complete;
    let mut start = Start::prepare(paths, settings, &written(paths), foreground).await?;
    let mut created = Created::default();
    let made = match make_cluster(&mut start, &mut created, stop).await {
        Ok(client) => start.complete().map(|()| client),
        failed => failed,
    };
    let client = match made {
        Ok(client) => client,
        Err(error) => {
            start.abandon(!is_new).await;
            return Err(error);
        }
    };
    created.keep();
    if let Err(error) = start.start(|name| name != APISERVER) {
        start.abandon(!is_new).await;
        return Err(error);
    }
    let ca = std::fs::read_to_string(paths.ca()).at("read", &paths.ca())?;
    print(&format!(
        "cluster at {}\nkubeconfig {}\n  export KUBECONFIG={}\n",
        start.settings.url,
        paths.admin().display(),
        paths.admin().display()
    ))?;
    if is_new {
        let token = Token::random()?;
        tokens::create(&client, &token, TOKEN, "made by longshore up").await?;
        print(&format!(
            "a second machine joins with\n  {}\n",
            join_line(&start.settings.url, &token, &ca)?
        ))?;
    }
    start.finish(&paths.admin(), stop).await
}

/// PURE: the line with which a machine joins.
pub(crate) fn join_line(url: &str, token: &Token, ca: &str) -> Result<String> {
    let server = url.trim_start_matches("https://");
    let hash = discovery::hash_of(ca)?;
    Ok(format!(
        "longshore join {server} --token {} --discovery-token-ca-cert-hash {hash}",
        token.reveal()
    ))
}

async fn make_cluster(
    start: &mut Start,
    created: &mut Created,
    stop: &CancellationToken,
) -> Result<Client> {
    let server: Server = match start.settings.server() {
        Some(server) => server.clone(),
        None => return Err(Error::refused("these are the settings of a node")),
    };
    let Start { settings, paths, programs, around, .. } = &*start;
    if settings.is_complete {
        setup::kubeconfigs(created, settings, paths, programs)?;
    } else {
        start.note(created)?;
        setup::cluster(created, settings, paths, programs, around)?;
    }
    start.write_units(created)?;
    start.start(|name| name == APISERVER)?;
    let (admin, address) = (start.paths.admin(), (start.settings.address, server.port));
    let client = start
        .until("the apiserver is not ready", APISERVER_READY, stop, async || {
            let listening = tokio::net::TcpStream::connect(address).await;
            listening.map_err(|error| format!("it does not listen: {error}"))?;
            let client = client(&admin).await.map_err(|error| error.to_string())?;
            client.apiserver_version().await.map_err(|error| reason(&error))?;
            Ok(client)
        })
        .await?;
    let ca = std::fs::read_to_string(start.paths.ca()).at("read", &start.paths.ca())?;
    objects::apply(&client, &start.settings, &server, &start.paths, &ca).await?;
    Ok(client)
}

/// Makes this machine a node of a cluster, or starts the node that it is.
///
/// # Errors
/// It cannot be, or is not in time; what was made is removed again.
pub async fn join(paths: &Paths, args: &JoinArgs, stop: &CancellationToken) -> Result<()> {
    let lock = Lock::take(paths)?;
    let outcome = join_locked(paths, args, stop).await;
    tidy(lock, paths);
    outcome
}

async fn join_locked(paths: &Paths, args: &JoinArgs, stop: &CancellationToken) -> Result<()> {
    let foreground = args.node.foreground;
    let known = Settings::load(paths)?;
    if known.as_ref().is_some_and(|known| known.is_complete && known.server().is_some()) {
        return Err(Error::refused(
            "this machine has a cluster of its own: longshore up starts it, and longshore reset removes it",
        ));
    }
    if known.as_ref().is_some_and(|known| !known.is_complete && known.server().is_some()) {
        return Err(Error::refused(
            "longshore up was interrupted on this machine: longshore reset removes what it has made",
        ));
    }
    let known = known.filter(|known| known.is_complete);
    let Some(server) = &args.server else {
        let Some(known) = known else {
            return Err(Error::refused(
                "this machine has not joined a cluster: longshore token create, on a machine of the \
                 cluster, prints the command that it joins with",
            ));
        };
        // The token may have outlived a join that was interrupted at its end.
        crate::files::remove(&paths.bootstrap()).at("remove", &paths.bootstrap())?;
        let mut start = Start::prepare(paths, known, &written(paths), foreground).await?;
        start.start(|_| true)?;
        return start.finish(&paths.kubelet(), stop).await;
    };
    if known.is_some() {
        return Err(Error::refused(
            "this machine has joined a cluster: longshore join without arguments starts its node, and \
             longshore reset makes it leave",
        ));
    }
    let (token, hashes) = credentials(args)?;
    if !paths.settings().exists() {
        preflight::check_foreign(paths)?;
    }
    let cluster = discovery::discover(server, &token, &hashes).await?;
    let known = learn(&cluster, &token, args, paths).await?;
    let mut start = Start::prepare(paths, known.settings, &known.configuration, foreground).await?;
    let mut created = Created::default();
    let found = Joined { cluster: &cluster, token: &token, configuration: known.configuration };
    let joined = make_agent(&mut start, &mut created, &found, stop).await;
    if let Err(error) = joined.and_then(|()| start.complete()) {
        start.abandon(false).await;
        return Err(error);
    }
    created.keep();
    // The node has a certificate, and the token is of no more use.
    crate::files::remove(&paths.bootstrap()).at("remove", &paths.bootstrap())?;
    print(&format!("joined the cluster at {}\n", start.settings.url))?;
    start.finish(&paths.kubelet(), stop).await
}

/// PURE: what vouches for the cluster.
fn credentials(args: &JoinArgs) -> Result<(Token, Vec<String>)> {
    let token = args.token.as_deref().ok_or_else(|| {
        Error::refused(
            "--token is missing: longshore token create, on a machine of the cluster, prints one",
        )
    })?;
    let hashes = args.discovery_token_ca_cert_hash.iter().map(|text| discovery::parse_hash(text));
    let hashes: Vec<String> = hashes.collect::<Result<_>>()?;
    if hashes.is_empty() {
        return Err(Error::refused(
            "--discovery-token-ca-cert-hash is missing: longshore token create prints it with the token, \
             and without it another server could pass for the cluster",
        ));
    }
    Ok((Token::parse(token)?, hashes))
}

struct Known {
    settings: Settings,
    configuration: Value,
}

/// What the cluster tells those who join.
async fn learn(cluster: &Cluster, token: &Token, args: &JoinArgs, paths: &Paths) -> Result<Known> {
    let kubeconfig = setup::token_kubeconfig(cluster, token);
    let client = client_of(&kubeconfig).await?;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-system");
    let read = async |name: &str, key: &str| {
        let what = format!("the config map {name} in kube-system");
        let map = maps.get_opt(name).await.map_err(|error| Error::api(&what, &error))?;
        let text = map.and_then(|map| map.data?.remove(key));
        text.map(|text| yaml(&text).map_err(|error| Error::cluster(&what, error))).transpose()
    };
    let configuration = read("kubelet-config", "kubelet").await?.ok_or_else(|| {
        Error::cluster(
            "the config map kubelet-config in kube-system",
            "the cluster has none with a field kubelet",
        )
    })?;
    let about = read("kubeadm-config", "ClusterConfiguration").await?.unwrap_or_default();
    let own = Settings::of_agent(args, &cluster.url, paths, &Machine::read())?;
    let pods = about["networking"]["podSubnet"].as_str().and_then(|text| text.parse().ok());
    let domain = configuration["clusterDomain"].as_str().map(str::to_owned);
    let settings = Settings {
        pods: pods.unwrap_or(own.pods),
        domain: domain.unwrap_or_else(|| own.domain.clone()),
        ..own
    };
    let nodes: Api<Node> = Api::all(client);
    let twin = nodes.get_opt(&settings.node_name).await;
    let twin =
        twin.map_err(|error| Error::api("cannot look for a node of the same name", &error))?;
    if twin.as_ref().is_some_and(is_ready) {
        return Err(Error::refused(format!(
            "the cluster has a node {} already, which is Ready: delete it, or give another name with --node-name",
            settings.node_name
        )));
    }
    Ok(Known { settings, configuration })
}

async fn make_agent(
    start: &mut Start,
    created: &mut Created,
    found: &Joined<'_>,
    stop: &CancellationToken,
) -> Result<()> {
    start.note(created)?;
    setup::agent(created, found, &start.settings, &start.paths, &start.around)?;
    start.write_units(created)?;
    start.start(|_| true)?;
    let (kubeconfig, name) = (start.paths.kubelet(), start.settings.node_name.clone());
    let joined = start.until("the node has not joined", JOINED, stop, async || {
        let client = client(&kubeconfig).await.map_err(|error| error.to_string())?;
        let nodes: Api<Node> = Api::all(client);
        nodes.get(&name).await.map(drop).map_err(|error| reason(&error))
    });
    joined.await
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|one| one.type_ == "Ready" && one.status == "True")
}

/// The label that says what the machine is, as kubeadm sets it. A node cannot set it for itself, and the
/// controllers approve a serving certificate for the apiserver's address only for a node that has it.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

async fn mark_control_plane(
    nodes: &Api<Node>,
    node: &Node,
    name: &str,
) -> std::result::Result<(), String> {
    if node.labels().contains_key(CONTROL_PLANE) {
        return Ok(());
    }
    let label = Patch::Merge(json!({"metadata": {"labels": {CONTROL_PLANE: ""}}}));
    let marked = nodes.patch(name, &PatchParams::default(), &label).await;
    marked.map(drop).map_err(|error| reason(&error))
}

/// Or what it lacks.
fn ready(node: Node) -> std::result::Result<(), String> {
    if is_ready(&node) {
        return Ok(());
    }
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    Err(ready
        .and_then(|ready| ready.message)
        .unwrap_or_else(|| "it has no condition yet".to_owned()))
}

/// A client with the credentials of a kubeconfig.
pub(crate) async fn client(path: &Path) -> Result<Client> {
    let text = std::fs::read_to_string(path).at("read", path)?;
    client_of(&text).await.map_err(|error| match error {
        Error::Cluster { reason, .. } => Error::Content { path: path.to_owned(), reason },
        other => other,
    })
}

/// A client of an administrator.
///
/// # Errors
/// There is no such kubeconfig, or it cannot be used.
pub async fn administrator(kubeconfig: &Path) -> Result<Client> {
    if !kubeconfig.exists() {
        return Err(Error::refused(format!(
            "{} is not there: this machine has no cluster; give the kubeconfig of one with --kubeconfig",
            kubeconfig.display()
        )));
    }
    client(kubeconfig).await
}

/// The line with which a machine joins the cluster of this client, by its config map `cluster-info`.
///
/// # Errors
/// The cluster has no such config map.
pub async fn join_command(client: &Client, token: &Token) -> Result<String> {
    let what = "the config map cluster-info in kube-public";
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "kube-public");
    let map = maps.get("cluster-info").await.map_err(|error| Error::api(what, &error))?;
    let text = map.data.and_then(|mut data| data.remove("kubeconfig")).unwrap_or_default();
    let invalid = |reason: &str| Error::cluster(what, reason);
    let config = Kubeconfig::from_yaml(&text).map_err(|_| invalid("it has no kubeconfig"))?;
    let cluster = config.clusters.into_iter().next().and_then(|named| named.cluster);
    let cluster = cluster.ok_or_else(|| invalid("it names no cluster"))?;
    let ca = STANDARD.decode(cluster.certificate_authority_data.unwrap_or_default());
    let ca = ca.ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let ca = ca.ok_or_else(|| invalid("it has no CA"))?;
    join_line(&cluster.server.unwrap_or_default(), token, &ca)
}

async fn client_of(kubeconfig: &str) -> Result<Client> {
    let failed = |error: String| Error::cluster("cannot connect to the cluster", error);
    let kubeconfig =
        Kubeconfig::from_yaml(kubeconfig).map_err(|error| failed(error.to_string()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| failed(error.to_string()))?;
    // A proxy for the internet does not lead to a cluster.
    config.proxy_url = None;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.read_timeout = Some(Duration::from_secs(60));
    Client::try_from(config).map_err(|error| failed(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::cluster;

    #[test]
    fn start_keeps_the_settings_of_a_cluster() {
        let wanted = || cluster(&UpArgs::default());
        let root = Path::new("/");
        let new = choose(None, false, wanted, root).unwrap();
        assert!(!new.is_complete);
        let other = UpArgs { port: Some(7443), ..UpArgs::default() };
        let interrupted = cluster(&other).unwrap();
        assert_eq!(choose(Some(interrupted), false, wanted, root).unwrap(), new);
        let complete = Settings { is_complete: true, ..cluster(&other).unwrap() };
        assert_eq!(choose(Some(complete.clone()), false, wanted, root).unwrap(), complete);
        let same = || cluster(&other);
        assert_eq!(choose(Some(complete.clone()), true, same, root).unwrap(), complete);
        let error = choose(Some(complete), true, wanted, root).unwrap_err().to_string();
        assert!(error.contains("longshore reset"), "{error}");
    }

    #[test]
    fn start_join_wants_token_and_hash() {
        let hash = format!("sha256:{}", "0".repeat(64));
        let args = |token: Option<&str>, hashes: &[&str]| JoinArgs {
            server: Some("a:6443".into()),
            token: token.map(str::to_owned),
            discovery_token_ca_cert_hash: hashes.iter().map(|&hash| hash.to_owned()).collect(),
            ..JoinArgs::default()
        };
        assert!(credentials(&args(Some("abcdef.0123456789abcdef"), &[&hash])).is_ok());
        for (token, hashes, part) in [
            (None, vec![hash.as_str()], "--token is missing"),
            (Some("abcdef.0123456789abcdef"), vec![], "--discovery-token-ca-cert-hash is missing"),
            (Some("abcdef.0123456789abcdef"), vec!["sha256:0"], "64 hexadecimal"),
            (Some("abc"), vec![hash.as_str()], "abcdef.0123456789abcdef"),
        ] {
            let error = credentials(&args(token, &hashes)).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
