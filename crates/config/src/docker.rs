//! What both `longshore cri-docker` and a node on an endpoint `docker://` are told of CRI over a Docker Engine:
//! cri-dockerd's flags, which the kubelet had as long as dockershim was part of it.

use std::path::PathBuf;
use std::time::Duration;

use super::GoDuration;

/// The settings of CRI over a Docker Engine, without the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DockerConfig {
    /// Where checkpoints of sandboxes are.
    pub root_dir: PathBuf,
    /// The image of sandboxes.
    pub sandbox_image: String,
    /// Folders of CNI's plugins.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// The folder of CNI's configurations.
    pub cni_conf_dir: PathBuf,
    /// The folder of CNI's results.
    pub cni_cache_dir: PathBuf,
    /// A pull without progress for so long is ended.
    pub image_pull_progress_deadline: Duration,
}

/// The values of these flags, as given.
#[derive(Debug)]
pub(super) struct DockerFlags {
    pub(super) root_dir: String,
    pub(super) sandbox_image: String,
    pub(super) cni_bin_dirs: Vec<String>,
    pub(super) cni_conf_dir: String,
    pub(super) cni_cache_dir: String,
    pub(super) image_pull_progress_deadline: GoDuration,
}

impl Default for DockerFlags {
    fn default() -> Self {
        Self {
            root_dir: "/var/lib/cri-dockerd".to_owned(),
            sandbox_image: "registry.k8s.io/pause:3.10".to_owned(),
            cni_bin_dirs: vec!["/opt/cni/bin".to_owned()],
            cni_conf_dir: "/etc/cni/net.d".to_owned(),
            cni_cache_dir: "/var/lib/cni/cache".to_owned(),
            image_pull_progress_deadline: GoDuration::secs(60),
        }
    }
}

impl DockerFlags {
    /// # Errors
    /// The first that is wrong.
    pub(super) fn checked(&self) -> Result<DockerConfig, String> {
        if self.sandbox_image.is_empty() {
            return Err("--pod-infra-container-image: must not be empty".to_owned());
        }
        let bin_dirs = self.cni_bin_dirs.iter().map(|folder| absolute("--cni-bin-dir", folder));
        Ok(DockerConfig {
            root_dir: absolute("--cri-dockerd-root-directory", &self.root_dir)?,
            sandbox_image: self.sandbox_image.clone(),
            cni_bin_dirs: bin_dirs.collect::<Result<_, _>>()?,
            cni_conf_dir: absolute("--cni-conf-dir", &self.cni_conf_dir)?,
            cni_cache_dir: absolute("--cni-cache-dir", &self.cni_cache_dir)?,
            image_pull_progress_deadline: positive(
                "--image-pull-progress-deadline",
                self.image_pull_progress_deadline,
            )?,
        })
    }
}

pub(super) fn absolute(flag: &str, path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    if path.is_absolute() { Ok(path) } else { Err(format!("{flag}: {path:?} is not absolute")) }
}

/// A request without any time would never succeed.
pub(super) fn positive(flag: &str, span: GoDuration) -> Result<Duration, String> {
    if span.as_nanos() > 0 { Ok(span.get()) } else { Err(format!("{flag}: must be above zero")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_flags_have_cri_dockerds_defaults_and_are_checked() {
        let config = DockerFlags::default().checked().unwrap();
        assert_eq!(config.sandbox_image, "registry.k8s.io/pause:3.10");
        assert_eq!(config.cni_bin_dirs, [PathBuf::from("/opt/cni/bin")]);
        let wrong = [
            DockerFlags { sandbox_image: String::new(), ..DockerFlags::default() },
            DockerFlags { cni_bin_dirs: vec!["bin".into()], ..DockerFlags::default() },
            DockerFlags { cni_conf_dir: "net.d".into(), ..DockerFlags::default() },
            DockerFlags { cni_cache_dir: String::new(), ..DockerFlags::default() },
            DockerFlags { root_dir: "x".into(), ..DockerFlags::default() },
            DockerFlags {
                image_pull_progress_deadline: GoDuration::ZERO,
                ..DockerFlags::default()
            },
        ];
        for flags in wrong {
            assert!(flags.checked().is_err(), "{flags:?}");
        }
    }
}
