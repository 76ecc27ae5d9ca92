//! The companion apiserver on a host, on its embedded store, with the controllers that no cluster of
//! a node and an apiserver does without.
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::command::{program, run};
use crate::daemon::Daemon;
use crate::error::{AtPath, Result};
use crate::host::Host;
use crate::kubectl::Kubectl;
use crate::request::get;
use crate::wait::poll_until;

const START: Duration = Duration::from_secs(30);
const PORT: u16 = 6443;
/// What gives pods their service account and CA, nodes their certificates and roles their rules, and
/// ends namespaces.
const CONTROLLERS: &str = "--controllers=serviceaccount-controller,\
    root-ca-certificate-publisher-controller,certificatesigningrequest-approving-controller,\
    certificatesigningrequest-signing-controller,clusterrole-aggregation-controller,\
    namespace-controller";

/// A running `longshore-apiserver`, reachable from the host and from the machine, and a
/// `longshore-controllers` beside it, which serves no port.
#[derive(Debug)]
pub struct Apiserver {
    certificates: PathBuf,
    node: String,
    args: Vec<String>,
    address: SocketAddr,
    controllers: Option<Daemon>,
    daemon: Daemon,
}

impl Apiserver {
    /// Starts it and waits until it is ready; blocks.
    ///
    /// # Errors
    /// When it is not built, ends, or is not ready in 30 s; the error holds the end of its log.
    pub fn start(host: &Host) -> Result<Self> {
        Self::start_with(host, &[])
    }

    /// [`Apiserver::start`] with further flags.
    ///
    /// # Errors
    /// As for [`Apiserver::start`].
    pub fn start_with(host: &Host, flags: &[&str]) -> Result<Self> {
        let mut server = Self::start_alone(host, flags)?;
        server.start_controllers(host)?;
        Ok(server)
    }

    /// The apiserver without any controllers: whoever starts them has more of them.
    ///
    /// # Errors
    /// As for [`Apiserver::start`].
    pub fn start_alone(host: &Host, flags: &[&str]) -> Result<Self> {
        let dir = host.dir().join("apiserver");
        let store = format!("--data-dir={}", dir.display());
        let mut args = vec![format!("--node-name={}", host.name())];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        Self::launch(host, store, PORT, args)
    }

    /// Starts one of several on an etcd that they share, and waits until it is ready; blocks. They
    /// share their certificates too; the first of them must be on the usual port, 6443.
    ///
    /// # Errors
    /// As for [`Apiserver::start`].
    pub fn start_on_etcd(host: &Host, etcd: &str, port: u16) -> Result<Self> {
        let first = (port == PORT).then(|| format!("--node-name={}", host.name()));
        let is_first = first.is_some();
        let store = format!("--etcd-servers={etcd}");
        let mut server = Self::launch(host, store, port, Vec::from_iter(first))?;
        if is_first {
            server.start_controllers(host)?;
        }
        Ok(server)
    }

    fn launch(host: &Host, store: String, port: u16, more: Vec<String>) -> Result<Self> {
        let dir = host.dir().join("apiserver");
        fs::create_dir_all(&dir).at(&dir)?;
        let (certificates, node) = (dir.join("pki"), host.name());
        let mut args = vec![
            store,
            format!("--cert-dir={}", certificates.display()),
            format!("--bind-address={}", host.node_ip()),
            format!("--secure-port={port}"),
        ];
        args.extend(more);
        let daemon = spawn(host, &args)?;
        let address = SocketAddr::from((host.node_ip(), port));
        let mut server = Self { certificates, node, args, address, controllers: None, daemon };
        server.wait_ready()?;
        Ok(server)
    }

    /// Starts the controllers and waits for what pods need of them.
    fn start_controllers(&mut self, host: &Host) -> Result<()> {
        let mut command = host.command(program("longshore-controllers")?);
        command.args(["kube-controller-manager", CONTROLLERS, "--secure-port=0"]);
        command.arg("--leader-elect=false").arg("--kubeconfig").arg(self.admin_kubeconfig());
        command.args(self.signing_flags());
        let mut daemon = host.spawn("longshore-controllers", command)?;
        let kubeconfig = self.admin_kubeconfig();
        poll_until(START, "the objects of the namespace default", || {
            daemon.check_running()?;
            let wanted = [
                "/api/v1/namespaces/default/serviceaccounts/default",
                "/api/v1/namespaces/default/configmaps/kube-root-ca.crt",
            ];
            Ok(wanted.iter().try_for_each(|path| get(&kubeconfig, path)))
        })?;
        self.controllers = Some(daemon);
        Ok(())
    }

    /// The flags by which controllers sign with this server's CAs, and publish its CA.
    pub fn signing_flags(&self) -> Vec<String> {
        let file =
            |flag: &str, name: &str| format!("--{flag}={}", self.certificates.join(name).display());
        let signer = |signer: &str, ca: &str| {
            ["cert", "key"].map(|kind| {
                let name = if kind == "cert" { "crt" } else { "key" };
                file(&format!("cluster-signing-{signer}-{kind}-file"), &format!("{ca}.{name}"))
            })
        };
        let mut flags = vec![file("root-ca-file", "ca.crt")];
        flags.extend(signer("kubelet-client", "ca"));
        flags.extend(signer("kube-apiserver-client", "ca"));
        flags.extend(signer("kubelet-serving", "kubelet-serving-ca"));
        flags
    }

    /// Kills it if it runs, starts it again on the same data and waits until it is ready.
    ///
    /// # Errors
    /// As for [`Apiserver::start`].
    pub fn restart(&mut self, host: &Host) -> Result<()> {
        self.daemon.kill()?;
        self.daemon = spawn(host, &self.args)?;
        self.wait_ready()
    }

    fn wait_ready(&mut self) -> Result<()> {
        poll_until(START, "the apiserver to listen", || {
            self.daemon.check_running()?;
            for kubeconfig in [self.admin_kubeconfig(), self.node_kubeconfig()] {
                if !kubeconfig.exists() {
                    return Ok(Err(format!("{} is not there yet", kubeconfig.display())));
                }
            }
            let connection = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
            Ok(connection.map(drop).map_err(|e| e.to_string()))
        })
    }

    /// Its address.
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The kubeconfig of a cluster administrator.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.certificates.join("admin.conf")
    }

    /// The kubeconfig of the host's node, as `system:node:NAME`.
    pub fn node_kubeconfig(&self) -> PathBuf {
        self.certificates.join(format!("kubelet-{}.conf", self.node))
    }

    /// The kubeconfig of another node, which was named by a flag `--node-name` at the start.
    pub fn kubeconfig_of_node(&self, node: &str) -> PathBuf {
        self.certificates.join(format!("kubelet-{node}.conf"))
    }

    /// Writes and gives the kubeconfig of a user of any name.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn kubeconfig(&self, user: &str) -> Result<PathBuf> {
        let file = self.certificates.join(format!("{}.conf", user.replace(':', "-")));
        let mut command = Command::new(program("longshore-apiserver")?);
        command.arg("kubeconfig").arg("--user").arg(user).arg("--server").arg(self.url());
        command.arg("--cert-dir").arg(&self.certificates).arg("--output").arg(&file);
        run(command)?;
        Ok(file)
    }

    /// The CA that signs every client, the apiserver as the node's client among them.
    pub fn client_ca(&self) -> PathBuf {
        self.certificates.join("ca.crt")
    }

    /// kubectl as the administrator.
    pub fn kubectl(&self) -> Kubectl {
        Kubectl::new(self.admin_kubeconfig())
    }

    /// The process, to signal it or to read its log.
    pub fn daemon(&mut self) -> &mut Daemon {
        &mut self.daemon
    }
}

fn spawn(host: &Host, args: &[String]) -> Result<Daemon> {
    let mut command = host.command(program("longshore-apiserver")?);
    command.args(args);
    host.spawn("longshore-apiserver", command)
}
