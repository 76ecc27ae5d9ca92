//! What a node costs that only keeps its pods.
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::cluster::{Cluster, Uses};
use crate::process::Memory;

/// A while in which nothing happened.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Idle {
    pub(crate) seconds: f64,
    pub(crate) millicores: Uses<f64>,
    /// In MiB, at its end.
    pub(crate) memory: Uses<Memory>,
}

pub(crate) async fn run(cluster: &mut Cluster<'_>, seconds: u16) -> Result<Idle> {
    let (start, before) = (Instant::now(), cluster.uses()?);
    tokio::time::sleep(Duration::from_secs(seconds.into())).await;
    let after = cluster.uses()?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = after.cpu_since(&before);
    let millicores = |cpu: f64| cpu * 1000.0 / seconds;
    Ok(Idle {
        seconds,
        millicores: Uses {
            node: millicores(cpu.node),
            apiserver: millicores(cpu.apiserver),
            runtime: millicores(cpu.runtime),
        },
        memory: after.memory(),
    })
}
