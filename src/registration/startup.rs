//! Metrics of node startup.

use std::time::Duration;

use longshore_metrics::{Gauge, Registry};
use nix::time::ClockId;
use procfs::process::Process;

/// Times since boot. Reported only by the daemon that registered the node.
#[derive(Debug)]
pub struct Startup {
    daemon: Option<Duration>,
    tried: Option<Duration>,
    made: Option<Duration>,
    ready: bool,
    before_daemon: Gauge,
    before_registration: Gauge,
    registration: Gauge,
    after_registration: Gauge,
    whole: Gauge,
}

impl Startup {
    /// Registers the families.
    pub fn new(registry: &Registry) -> Self {
        Self {
            daemon: daemon_began(),
            tried: None,
            made: None,
            ready: false,
            before_daemon: registry.gauge(
                "kubelet_node_startup_pre_kubelet_duration_seconds",
                "From the machine's start to the daemon's, in seconds.",
            ),
            before_registration: registry.gauge(
                "kubelet_node_startup_pre_registration_duration_seconds",
                "From the daemon's start to when it began to register the node, in seconds.",
            ),
            registration: registry.gauge(
                "kubelet_node_startup_registration_duration_seconds",
                "From then on until the node was registered, in seconds.",
            ),
            after_registration: registry.gauge(
                "kubelet_node_startup_post_registration_duration_seconds",
                "From then on until the node was ready, in seconds.",
            ),
            whole: registry.gauge(
                "kubelet_node_startup_duration_seconds",
                "From the machine's start until the node was ready, in seconds.",
            ),
        }
    }

    /// Registration is about to start.
    pub(super) fn registration_started(&mut self) {
        self.tried = self.tried.or_else(now);
    }

    /// The node object was created.
    pub(super) fn registered(&mut self) {
        let (Some(daemon), Some(tried), Some(made), None) =
            (self.daemon, self.tried, now(), self.made)
        else {
            return;
        };
        self.made = Some(made);
        self.before_daemon.set(daemon.as_secs_f64());
        self.before_registration.set(tried.saturating_sub(daemon).as_secs_f64());
        self.registration.set(made.saturating_sub(tried).as_secs_f64());
    }

    /// The node was reported ready.
    pub(super) fn ready(&mut self) {
        let (Some(made), Some(ready), false) = (self.made, now(), self.ready) else { return };
        self.ready = true;
        self.after_registration.set(ready.saturating_sub(made).as_secs_f64());
        self.whole.set(ready.as_secs_f64());
    }
}

fn now() -> Option<Duration> {
    ClockId::CLOCK_BOOTTIME.now().ok().map(Duration::from)
}

/// When this process was started.
fn daemon_began() -> Option<Duration> {
    let stat = Process::myself().and_then(|own| own.stat()).ok()?;
    Some(Duration::from_secs_f64(stat.starttime as f64 / procfs::ticks_per_second() as f64))
}

#[cfg(test)]
mod tests {
    use longshore_metrics::parse::parse;

    use super::*;

    #[test]
    fn node_startup_durations_add_up() {
        let registry = Registry::default();
        let mut startup = Startup::new(&registry);
        let value = |part: &str| {
            let name = format!("kubelet_node_startup_{part}duration_seconds");
            parse(&registry.text()).unwrap().sum(&name, &[]).unwrap()
        };
        startup.ready();
        startup.registered();
        assert_eq!((value(""), value("pre_kubelet_")), (0.0, 0.0), "no attempt yet");
        startup.registration_started();
        std::thread::sleep(Duration::from_millis(20));
        startup.registered();
        let registration = value("registration_");
        assert!((0.02..10.0).contains(&registration), "{registration}");
        startup.registration_started();
        startup.registered();
        assert_eq!(value("registration_"), registration, "it is registered once");
        startup.ready();
        let parts = ["pre_kubelet_", "pre_registration_", "registration_", "post_registration_"];
        let sum: f64 = parts.into_iter().map(value).sum();
        let whole = value("");
        assert!((sum - whole).abs() < 0.001 && whole > 0.02, "{sum} {whole}");
        startup.ready();
        assert_eq!(value(""), whole, "it gets ready once");
    }
}
