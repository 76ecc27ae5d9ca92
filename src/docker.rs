//! CRI over a Docker Engine: what the configuration says → the settings of the services.

use std::time::Duration;

use longshore_config::{Config, CriDockerConfig, DockerConfig};
use longshore_cri_docker::Settings;

/// Of `longshore cri-docker`.
#[must_use]
pub fn daemon_settings(config: CriDockerConfig) -> Settings {
    Settings {
        pod_cidr: config.pod_cidr,
        streaming_address: config.streaming_address,
        streaming_idle_timeout: config.streaming_idle_timeout,
        ..settings(config.docker, config.docker_endpoint, config.request_timeout)
    }
}

/// Of a node that serves itself the engine at this endpoint.
pub(crate) fn node_settings(config: &Config, docker: &DockerConfig, endpoint: &str) -> Settings {
    let kubelet = &config.kubelet;
    Settings {
        pod_cidr: Some(kubelet.pod_cidr.clone()).filter(|cidr| !cidr.is_empty()),
        streaming_idle_timeout: kubelet.streaming_connection_idle_timeout.get(),
        event_statuses: false,
        ..settings(docker.clone(), endpoint.to_owned(), kubelet.runtime_request_timeout.get())
    }
}

fn settings(docker: DockerConfig, docker_endpoint: String, request_timeout: Duration) -> Settings {
    Settings {
        docker_endpoint,
        request_timeout,
        root_dir: docker.root_dir,
        sandbox_image: docker.sandbox_image,
        cni_bin_dirs: docker.cni_bin_dirs,
        cni_conf_dir: docker.cni_conf_dir,
        cni_cache_dir: docker.cni_cache_dir,
        image_pull_progress_deadline: docker.image_pull_progress_deadline,
        ..Settings::default()
    }
}
