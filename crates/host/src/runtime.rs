//! The container runtime of this machine: behind a socket, or a Docker Engine (`docker:///path`), over which CRI is
//! served in this process then, as a node on it does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longshore_cri::{InProcess, Options, Runtime};
use longshore_cri_docker::{Engine, Service, Settings as DockerSettings, images::Images};

use crate::settings::Settings;
use crate::{Error, Paths, Result};

/// How an endpoint begins that is a Docker Engine.
const DOCKER: &str = "docker://";
/// Where plugins of CNI are on distributions; the first that has one is used.
pub(crate) const CNI_PLUGINS: [&str; 3] = ["/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni"];

/// PURE: whether CRI is served over the engine at this endpoint.
pub(crate) fn is_docker(endpoint: &str) -> bool {
    endpoint.starts_with(DOCKER)
}

/// Where CRI over a Docker Engine keeps what it knows of sandboxes, and finds what attaches them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Folders {
    checkpoints: PathBuf,
    cni_configurations: PathBuf,
    cni_plugins: Vec<PathBuf>,
    cni_results: PathBuf,
}

impl Folders {
    /// PURE: those of the node of these settings, whose further flags go first.
    pub(crate) fn of(paths: &Paths, settings: Option<&Settings>) -> Self {
        let given = |flag: &str| {
            let mut args = settings?.node_args.iter().rev();
            args.find_map(|arg| arg.strip_prefix("--")?.strip_prefix(flag)?.strip_prefix('='))
        };
        let folder = |flag, otherwise: PathBuf| given(flag).map_or(otherwise, PathBuf::from);
        let configurations = settings.map_or_else(|| paths.cni(), |settings| settings.cni.clone());
        let plugins: Vec<&str> = match given("cni-bin-dir") {
            Some(list) => list.split(',').collect(),
            None => CNI_PLUGINS.to_vec(),
        };
        Self {
            checkpoints: folder("cri-dockerd-root-directory", paths.checkpoints()),
            cni_configurations: folder("cni-conf-dir", configurations),
            cni_plugins: plugins.into_iter().map(PathBuf::from).collect(),
            cni_results: folder("cni-cache-dir", paths.cni_results()),
        }
    }

    /// PURE: the flags of the node that say so.
    pub(crate) fn flags(&self) -> [String; 4] {
        let plugins: Vec<_> =
            self.cni_plugins.iter().map(|folder| folder.display().to_string()).collect();
        [
            format!("--cri-dockerd-root-directory={}", self.checkpoints.display()),
            format!("--cni-conf-dir={}", self.cni_configurations.display()),
            format!("--cni-bin-dir={}", plugins.join(",")),
            format!("--cni-cache-dir={}", self.cni_results.display()),
        ]
    }

    fn settings(&self, endpoint: &str, timeout: Duration) -> DockerSettings {
        DockerSettings {
            docker_endpoint: endpoint.to_owned(),
            request_timeout: timeout,
            root_dir: self.checkpoints.clone(),
            cni_conf_dir: self.cni_configurations.clone(),
            cni_bin_dirs: self.cni_plugins.clone(),
            cni_cache_dir: self.cni_results.clone(),
            ..DockerSettings::default()
        }
    }
}

/// A client of the runtime at an endpoint, which answers. `timeout` is that of a request.
///
/// # Errors
/// The endpoint is none, or an engine does not answer or is too old.
pub(crate) async fn connect(
    endpoint: &str,
    folders: &Folders,
    timeout: Duration,
) -> Result<Runtime> {
    if !is_docker(endpoint) {
        return client(Options::new(endpoint), timeout);
    }
    let engine = engine(endpoint, timeout)?;
    engine.negotiate().await.map_err(engine_failed)?;
    client(over(engine, endpoint, folders, timeout), timeout)
}

/// The same, but nothing is sent yet: the runtime may be started later, and started anew. An engine is spoken to in
/// its own newest version then, so this is for who reads only.
///
/// # Errors
/// The endpoint is none.
pub(crate) fn reader(endpoint: &str, folders: &Folders, timeout: Duration) -> Result<Runtime> {
    let options = match is_docker(endpoint) {
        true => over(engine(endpoint, timeout)?, endpoint, folders, timeout),
        false => Options::new(endpoint),
    };
    client(options, timeout)
}

fn client(mut options: Options, timeout: Duration) -> Result<Runtime> {
    options.request_timeout = timeout;
    let endpoint = options.runtime_endpoint.clone();
    Runtime::new(options).map_err(|error| failed(&endpoint, error))
}

/// CRI over an engine, in this process.
fn over(engine: Engine, endpoint: &str, folders: &Folders, timeout: Duration) -> Options {
    let settings = Arc::new(folders.settings(endpoint, timeout));
    let service = Service::new(engine.clone(), Arc::clone(&settings));
    let mut options = Options::new(endpoint);
    options.in_process = vec![InProcess::new(endpoint, service, Images::new(engine, settings))];
    options
}

fn engine(endpoint: &str, timeout: Duration) -> Result<Engine> {
    longshore_cri_docker::connect(endpoint, timeout).map_err(engine_failed)
}

/// An engine's errors name it.
fn engine_failed(error: longshore_cri_docker::Error) -> Error {
    Error::cluster("the container runtime", error)
}

/// A runtime that does not answer as it should.
pub(crate) fn failed(endpoint: &str, error: impl ToString) -> Error {
    Error::cluster(format!("the container runtime at {endpoint}"), error)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::args::{NodeArgs, UpArgs};
    use crate::settings::tests::cluster;

    #[test]
    fn runtime_folders_of_docker_are_the_roots_unless_flags_say_others() {
        let paths = Paths::new(Path::new("/r"));
        assert_eq!(
            Folders::of(&paths, None).flags(),
            [
                "--cri-dockerd-root-directory=/r/var/lib/cri-dockerd",
                "--cni-conf-dir=/r/etc/cni/net.d",
                "--cni-bin-dir=/opt/cni/bin,/usr/lib/cni,/usr/libexec/cni",
                "--cni-cache-dir=/r/var/lib/cni/cache",
            ]
        );
        let node_arg = ["--cni-bin-dir=/a,/b", "--cni-cache-dir=/c", "--cni-cache-dir=/d", "--v=4"];
        let node = NodeArgs {
            cni_conf_dir: Some("/conf".into()),
            node_arg: node_arg.map(str::to_owned).to_vec(),
            ..NodeArgs::default()
        };
        let settings = cluster(&UpArgs { node, ..UpArgs::default() }).unwrap();
        assert_eq!(
            Folders::of(&paths, Some(&settings)).flags(),
            [
                "--cri-dockerd-root-directory=/r/var/lib/cri-dockerd",
                "--cni-conf-dir=/conf",
                "--cni-bin-dir=/a,/b",
                "--cni-cache-dir=/d",
            ]
        );
    }

    #[tokio::test]
    async fn runtime_readers_need_no_engine_yet() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = format!("docker://{}/docker.sock", dir.path().display());
        let timeout = Duration::from_secs(1);
        let runtime = reader(&endpoint, &Folders::default(), timeout).unwrap();
        let error = runtime.version().await.unwrap_err().to_string();
        assert!(error.contains("docker.sock"), "{error}");
        assert!(reader("docker://x", &Folders::default(), timeout).is_err());
    }

    #[tokio::test]
    async fn runtime_that_is_no_engine_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let absent = format!("docker://{}/docker.sock", dir.path().display());
        for (endpoint, part) in
            [(absent.as_str(), "is unavailable"), ("docker://folder/x", "not absolute")]
        {
            let connected = connect(endpoint, &Folders::default(), Duration::from_secs(1)).await;
            let error = connected.err().unwrap().to_string();
            assert!(error.contains(part) && error.lines().count() == 1, "{error}");
            let path = endpoint.trim_start_matches("docker://");
            assert_eq!(error.matches(path).count(), 1, "{error}");
        }
    }
}
