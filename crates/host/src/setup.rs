//! The files of a machine: certificates, kubeconfigs, configurations. What `up` and `join` write before
//! anything is started.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::discovery::Cluster;
use crate::error::At;
use crate::files::Created;
use crate::settings::Settings;
use crate::tokens::Token;
use crate::{Error, Paths, Result};

/// The user of the controllers and of the scheduler beside them.
pub(crate) const CONTROLLERS: &str = "system:kube-controller-manager";
/// The user of the DNS server.
pub(crate) const DNS: &str = "system:longshore-dns";

/// Where systemd-resolved and NetworkManager keep what their stubs on loopback pass on: a pod cannot use a
/// stub.
const RESOLVERS: [&str; 2] =
    ["/run/systemd/resolve/resolv.conf", "/run/NetworkManager/no-stub-resolv.conf"];

/// What configurations depend on beside settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The runtime's cgroup driver: `systemd` or `cgroupfs`.
    pub cgroup_driver: String,
    /// Whether the machine has cgroup v2.
    pub is_unified: bool,
    /// The resolver configuration for pods, if `/etc/resolv.conf` is of no use to them.
    pub resolv_conf: Option<PathBuf>,
}

/// PURE: the resolver configuration to use, by the content of `/etc/resolv.conf`.
fn resolv_conf(own: &str, exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut servers = own
        .lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<std::net::IpAddr>().ok());
    let is_stub = servers.next().is_some_and(|address| address.is_loopback());
    let known = RESOLVERS.iter().map(PathBuf::from).find(|path| exists(path));
    known.filter(|_| is_stub)
}

impl Surroundings {
    /// Looks at this machine; the driver is the runtime's.
    pub fn read(cgroup_driver: String) -> Self {
        let own = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        Self {
            cgroup_driver,
            is_unified: longshore_machine::cgroup::is_unified(),
            resolv_conf: resolv_conf(&own, Path::exists),
        }
    }
}

/// PURE: what all nodes of a cluster have in common.
pub fn kubelet_configuration(dns: Ipv4Addr, domain: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        // As kubeadm has it, for machines that it lets join. Those of `longshore join` take their runtime's.
        "cgroupDriver": "systemd",
        "clusterDNS": [dns],
        "clusterDomain": domain,
        "rotateCertificates": true,
        "serverTLSBootstrap": true,
        "staticPodPath": "/etc/kubernetes/manifests",
    })
}

/// PURE: the configuration of the node of this machine: what all have, what is the machine's, and what its
/// administrator sets; `null` takes a field out.
pub fn node_configuration(
    common: Value,
    settings: &Settings,
    paths: &Paths,
    around: &Surroundings,
    own: &Map<String, Value>,
) -> Result<Value> {
    let Value::Object(mut fields) = common else {
        return Err(Error::cluster(
            "the configuration of nodes",
            "it is not a KubeletConfiguration",
        ));
    };
    fields.insert("containerRuntimeEndpoint".into(), json!(settings.runtime));
    fields.insert("cgroupDriver".into(), json!(around.cgroup_driver));
    fields.insert("staticPodPath".into(), json!(paths.manifests()));
    let authentication = fields.entry("authentication").or_insert_with(|| json!({}));
    if let Some(authentication) = authentication.as_object_mut() {
        authentication.insert("x509".into(), json!({"clientCAFile": paths.ca()}));
    }
    if let Some(file) = &around.resolv_conf {
        fields.insert("resolvConf".into(), json!(file));
    }
    if !around.is_unified {
        fields.insert("failCgroupV1".into(), json!(false));
    }
    if !paths.is_machine() {
        fields.insert("podLogsDir".into(), json!(paths.pod_logs()));
    }
    overlay(&mut fields, own);
    Ok(Value::Object(fields))
}

/// PURE: the configuration of kube-proxy, which is in the node's process and has its credential.
pub fn proxy_configuration(settings: &Settings, own: &Map<String, Value>) -> Value {
    let mut fields = Map::from_iter([
        ("apiVersion".to_owned(), json!("kubeproxy.config.k8s.io/v1alpha1")),
        ("kind".to_owned(), json!("KubeProxyConfiguration")),
        ("clusterCIDR".to_owned(), json!(settings.pods.to_string())),
    ]);
    overlay(&mut fields, own);
    Value::Object(fields)
}

fn overlay(fields: &mut Map<String, Value>, own: &Map<String, Value>) {
    fields.extend(own.iter().map(|(key, value)| (key.clone(), value.clone())));
    fields.retain(|_, value| !value.is_null());
}

/// The fields of an administrator's file of YAML or JSON.
pub(crate) fn fields_of(file: Option<&PathBuf>) -> Result<Map<String, Value>> {
    let Some(path) = file else { return Ok(Map::new()) };
    let text = std::fs::read_to_string(path).at("read", path)?;
    let content = |reason: String| Error::Content { path: path.clone(), reason };
    match yaml(&text).map_err(content)? {
        Value::Object(fields) => Ok(fields),
        _ => Err(content("it has no fields".to_owned())),
    }
}

/// PURE: a document of YAML or JSON.
pub(crate) fn yaml(text: &str) -> std::result::Result<Value, String> {
    serde_saphyr::from_str(text).map_err(|error| error.to_string())
}

/// Writes what a new cluster needs. The apiserver's program makes the certificates.
pub(crate) fn cluster(
    created: &mut Created,
    settings: &Settings,
    paths: &Paths,
    programs: &Path,
    around: &Surroundings,
) -> Result<()> {
    let Some(server) = settings.server() else { return Ok(()) };
    created.directory(&paths.pki(), 0o700)?;
    // The directory may have been there, with other files.
    created.expect_in(&paths.pki());
    created.directory(&paths.state(), 0o700)?;
    created.directory(&paths.volumes(), 0o755)?;
    kubeconfigs(created, settings, paths, programs)?;
    let common = kubelet_configuration(server.dns_address(), &settings.domain);
    node_files(created, common, settings, paths, around)
}

/// Writes the kubeconfigs of a cluster, with certificates that are valid for long enough: those that end
/// soon are made anew.
pub(crate) fn kubeconfigs(
    created: &mut Created,
    settings: &Settings,
    paths: &Paths,
    programs: &Path,
) -> Result<()> {
    let node = format!("system:node:{}", settings.node_name);
    for (user, group, file) in [
        ("kubernetes-admin", "system:masters", paths.admin()),
        (CONTROLLERS, "", paths.controllers()),
        (DNS, "", paths.dns()),
        (node.as_str(), "system:nodes", paths.kubelet()),
    ] {
        created.expect(&file);
        let mut command = Command::new(programs.join("longshore-apiserver"));
        command.arg("kubeconfig").args(["--user", user, "--group", group]);
        command.arg("--server").arg(&settings.url).arg("--cert-dir").arg(paths.pki());
        command.arg("--output").arg(&file);
        run(command)?;
    }
    Ok(())
}

/// Writes what a node of a cluster needs that it has found by its token.
pub(crate) fn agent(
    created: &mut Created,
    found: &Joined<'_>,
    settings: &Settings,
    paths: &Paths,
    around: &Surroundings,
) -> Result<()> {
    created.directory(&paths.pki(), 0o700)?;
    created.directory(&paths.state(), 0o700)?;
    created.file(&paths.ca(), found.cluster.ca.as_bytes(), 0o644)?;
    let bootstrap = token_kubeconfig(found.cluster, found.token);
    created.file(&paths.bootstrap(), bootstrap.as_bytes(), 0o600)?;
    // The node writes it when it has a certificate.
    created.expect(&paths.kubelet());
    node_files(created, found.configuration.clone(), settings, paths, around)
}

/// What a node has learned before it joins.
#[derive(Debug)]
pub(crate) struct Joined<'a> {
    /// The cluster.
    pub(crate) cluster: &'a Cluster,
    /// The token.
    pub(crate) token: &'a Token,
    /// The configuration that all nodes have in common.
    pub(crate) configuration: Value,
}

/// PURE: a kubeconfig with a token, in JSON.
pub(crate) fn token_kubeconfig(cluster: &Cluster, token: &Token) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kubernetes", "cluster": {
            "server": cluster.url,
            "certificate-authority-data": STANDARD.encode(&cluster.ca),
        }}],
        "users": [{"name": "tls-bootstrap-token-user", "user": {"token": token.reveal()}}],
        "contexts": [{"name": "default", "context": {
            "cluster": "kubernetes", "user": "tls-bootstrap-token-user"}}],
        "current-context": "default",
    })
    .to_string()
}

fn node_files(
    created: &mut Created,
    common: Value,
    settings: &Settings,
    paths: &Paths,
    around: &Surroundings,
) -> Result<()> {
    created.directory(&paths.manifests(), 0o755)?;
    created.directory(&paths.kubelet_root(), 0o700)?;
    if !paths.is_machine() {
        created.directory(&paths.pod_logs(), 0o755)?;
    }
    let own = fields_of(settings.node_config.as_ref())?;
    let node = node_configuration(common, settings, paths, around, &own)?;
    created.file(&paths.kubelet_config(), node.to_string().as_bytes(), 0o644)?;
    let proxy = proxy_configuration(settings, &fields_of(settings.proxy_config.as_ref())?);
    created.file(&paths.proxy_config(), proxy.to_string().as_bytes(), 0o644)
}

/// Runs a program to its end; what it says when it fails is the error's reason.
pub(crate) fn run(mut command: Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let name = program.rsplit('/').next().unwrap_or(&program).to_owned();
    let output = command.output().map_err(|error| Error::program(&program, error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let reason = match line.trim().trim_start_matches("Error: ") {
        "" => output.status.to_string(),
        line => line.to_owned(),
    };
    Err(Error::program(&name, reason))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::UpArgs;
    use crate::settings::tests::cluster as settings_of;

    fn around() -> Surroundings {
        Surroundings { cgroup_driver: "systemd".into(), is_unified: true, resolv_conf: None }
    }

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().cloned().unwrap()
    }

    #[test]
    fn setup_of_a_node_is_the_clusters_then_the_machines_then_the_administrators() {
        let settings = settings_of(&UpArgs::default()).unwrap();
        let common =
            kubelet_configuration(settings.server().unwrap().dns_address(), "cluster.local");
        let own = object(json!({"maxPods": 7, "clusterDomain": "x", "serverTLSBootstrap": null}));
        let paths = Paths::new(Path::new("/r"));
        let config =
            node_configuration(common.clone(), &settings, &paths, &around(), &own).unwrap();
        assert_eq!(config["maxPods"], 7);
        assert_eq!(config["clusterDomain"], "x");
        assert_eq!(config.get("serverTLSBootstrap"), None);
        assert_eq!(config["clusterDNS"], json!(["10.96.0.10"]));
        assert_eq!(config["cgroupDriver"], "systemd");
        assert_eq!(
            config["authentication"]["x509"]["clientCAFile"],
            "/r/etc/kubernetes/pki/ca.crt"
        );
        assert_eq!(config["authentication"]["anonymous"]["enabled"], false);
        assert_eq!(config["podLogsDir"], "/r/var/log/pods");
        assert_eq!(config.get("failCgroupV1"), None);
        let old = Surroundings { is_unified: false, resolv_conf: Some("/x".into()), ..around() };
        let machine = Paths::new(Path::new("/"));
        let config = node_configuration(common, &settings, &machine, &old, &Map::new()).unwrap();
        assert_eq!((&config["failCgroupV1"], &config["resolvConf"]), (&json!(false), &json!("/x")));
        assert_eq!(config.get("podLogsDir"), None);
        for odd in [json!(null), json!([]), json!("x")] {
            let own = Map::new();
            assert!(node_configuration(odd, &settings, &machine, &around(), &own).is_err());
        }
    }

    #[test]
    fn setup_resolver_of_pods_is_no_stub() {
        let all = |_: &Path| true;
        let none = |_: &Path| false;
        let table = [
            ("nameserver 127.0.0.53\n", Some(RESOLVERS[0])),
            ("search a\nnameserver ::1\n", Some(RESOLVERS[0])),
            ("nameserver 198.18.0.1\nnameserver 127.0.0.1\n", None),
            ("", None),
            ("nameserver x", None),
        ];
        for (text, expected) in table {
            assert_eq!(resolv_conf(text, all), expected.map(PathBuf::from), "{text}");
            assert_eq!(resolv_conf(text, none), None);
        }
    }

    #[test]
    fn setup_reads_the_administrators_fields() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("node.yaml");
        std::fs::write(&file, "maxPods: 7\nevictionHard:\n  memory.available: 0%\n").unwrap();
        let fields = fields_of(Some(&file)).unwrap();
        assert_eq!(fields["evictionHard"]["memory.available"], "0%");
        assert!(fields_of(None).unwrap().is_empty());
        for bad in ["- a", "x", "a: [", ""] {
            std::fs::write(&file, bad).unwrap();
            let error = fields_of(Some(&file)).unwrap_err().to_string();
            assert!(error.contains("node.yaml"), "{bad:?}: {error}");
        }
    }

    #[test]
    fn setup_program_failures_are_one_line() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; echo 'Error: no space' >&2; echo more >&2; exit 3"]);
        assert_eq!(run(command).unwrap_err().to_string(), "sh: no space");
        let mut silent = Command::new("sh");
        silent.args(["-c", "exit 3"]);
        assert!(run(silent).unwrap_err().to_string().contains("exit status: 3"));
        let absent = run(Command::new("/nowhere/program")).unwrap_err().to_string();
        assert!(absent.contains("/nowhere/program"), "{absent}");
    }

    #[test]
    fn setup_bootstrap_kubeconfig_is_one() {
        let cluster = Cluster { url: "https://a:6443".into(), ca: "CA".into() };
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let text = token_kubeconfig(&cluster, &token);
        let config = kube::config::Kubeconfig::from_yaml(&text).unwrap();
        assert_eq!(config.current_context.as_deref(), Some("default"));
        assert!(config.auth_infos[0].auth_info.as_ref().unwrap().token.is_some());
    }
}
