//! A request to an apiserver from code that blocks. kubectl is for what people type: where a host is
//! only set up there may be none, as in the virtual machine.
use std::path::Path;
use std::thread;

use hyper::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::runtime;

type Reason = Box<dyn std::error::Error + Send + Sync>;

/// Succeeds when the user of this kubeconfig can read the object at this path. It has a thread to
/// itself, as the caller's may be one of a runtime.
pub(crate) fn get(kubeconfig: &Path, path: &str) -> Result<(), String> {
    let result = thread::scope(|scope| {
        let request = scope.spawn(|| {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(send(kubeconfig, path))
        });
        request.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    result.map_err(|reason| format!("GET {path}: {reason}"))
}

async fn send(kubeconfig: &Path, path: &str) -> Result<(), Reason> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await?;
    // Whatever proxy the machine has, it does not lead to a test host.
    config.proxy_url = None;
    let request = Request::get(path).body(Vec::new())?;
    kube::Client::try_from(config)?.request_text(request).await?;
    Ok(())
}
