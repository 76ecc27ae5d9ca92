//! Inputs of the node's status: health of the container runtime, age of the last relist, images.

use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerImage;
use longshore_base::time;
use longshore_config::GoDuration;
use longshore_cri::Runtime;
use longshore_podstate::observe;
use longshore_podstate::observe::Observer;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::registration::{Feeds, RuntimeHealth};

/// Interval of runtime status checks.
const RUNTIME_PERIOD: Duration = Duration::from_secs(5);
/// The same while the runtime says that it, or its network, is not ready: a node that starts is waited for,
/// and its network may be configured at any moment.
const UNREADY_PERIOD: Duration = Duration::from_millis(500);
/// A runtime that was not ready for this long is down.
const MAX_UNREADY: Duration = Duration::from_secs(30);
/// Timeout of a runtime status check.
const RUNTIME_DEADLINE: Duration = Duration::from_secs(30);
/// Interval of checks of the last relist.
const PLEG_PERIOD: Duration = Duration::from_secs(5);
/// How often images are listed.
const IMAGES_PERIOD: Duration = Duration::from_secs(60);

/// Keeps the inputs up to date. Never ends; drop it to stop.
pub async fn feed(runtime: Runtime, observer: Observer, feeds: Feeds) {
    let Feeds { runtime: health, pleg, images, .. } = feeds;
    // None of them returns.
    tokio::select! {
        () = feed_runtime(&runtime, health) => {}
        () = feed_pleg(observer, pleg) => {}
        () = feed_images(&runtime, images) => {}
    }
}

fn ticks(period: Duration) -> tokio::time::Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

async fn feed_runtime(runtime: &Runtime, health: watch::Sender<RuntimeHealth>) {
    let mut ticks = ticks(RUNTIME_PERIOD);
    let mut answers = true;
    let mut down_at = None;
    let send = |next: RuntimeHealth| {
        health.send_if_modified(|known| {
            let changed = *known != next;
            *known = next;
            changed
        });
    };
    loop {
        let check = async {
            ticks.tick().await;
            check(runtime).await
        };
        let checked = tokio::select! {
            checked = check => checked,
            // A runtime that restarts is not ready for a moment: the node's pods go on meanwhile.
            () = time::until(down_at) => {
                down_at = None;
                let known = health.borrow().clone();
                send(known.down());
                continue;
            }
        };
        match checked {
            Ok(next) => {
                if !std::mem::replace(&mut answers, true) {
                    info!("the container runtime answers again");
                }
                if next.runtime_error.is_some() || next.network_error.is_some() {
                    ticks.reset_after(UNREADY_PERIOD);
                }
                // One that is not ready, by its own account, is not seen to be up.
                let down = match next.runtime_error.is_some() {
                    true => health.borrow().down,
                    false => {
                        down_at = Some(time::after(MAX_UNREADY));
                        None
                    }
                };
                send(RuntimeHealth { down, ..next });
            }
            Err(error) if std::mem::take(&mut answers) => {
                warn!(error, "the container runtime does not answer");
            }
            Err(_) => {}
        }
    }
}

async fn check(runtime: &Runtime) -> Result<RuntimeHealth, String> {
    let request = async { tokio::try_join!(runtime.version(), runtime.status(false)) };
    match tokio::time::timeout(RUNTIME_DEADLINE, request).await {
        Ok(Ok((version, status))) => Ok(RuntimeHealth::new(&version, &status)),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {RUNTIME_DEADLINE:?}")),
    }
}

async fn feed_pleg(observer: Observer, pleg: watch::Sender<Option<String>>) {
    let mut relisted = observer.relisted();
    let mut ticks = ticks(PLEG_PERIOD);
    loop {
        let last = *relisted.borrow_and_update();
        let reason = pleg_error(last.map(|at| at.elapsed()));
        // A change of the age alone is not reported.
        pleg.send_if_modified(|known| {
            let changed = known.is_some() != reason.is_some() || last.is_none() && *known != reason;
            if changed {
                *known = reason;
            }
            changed
        });
        tokio::select! {
            _ = ticks.tick() => {}
            Ok(()) = relisted.changed(), if last.is_none() => {}
        }
    }
}

/// Why relists are not healthy, in upstream's words; `age` is that of the last one.
fn pleg_error(age: Option<Duration>) -> Option<String> {
    let Some(age) = age else { return Some("pleg has yet to be successful".to_owned()) };
    let go = |time: Duration| GoDuration::nanos(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
    (age > observe::PLEG_DEADLINE).then(|| {
        let (age, limit) = (go(age), go(observe::PLEG_DEADLINE));
        format!("pleg was last seen active {age} ago; threshold is {limit}")
    })
}

async fn feed_images(runtime: &Runtime, images: watch::Sender<Vec<ContainerImage>>) {
    let mut ticks = ticks(IMAGES_PERIOD);
    loop {
        ticks.tick().await;
        // The last list is kept while the runtime does not answer.
        let Ok(listed) = runtime.list_images(None).await else { continue };
        let mut next: Vec<ContainerImage> = listed
            .into_iter()
            .map(|image| ContainerImage {
                names: Some(image.repo_digests.into_iter().chain(image.repo_tags).collect()),
                size_bytes: i64::try_from(image.size).ok(),
            })
            .collect();
        next.sort_by(|a, b| (b.size_bytes, &b.names).cmp(&(a.size_bytes, &a.names)));
        images.send_if_modified(|known| {
            let changed = *known != next;
            *known = next;
            changed
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use longshore_testkit::scripted::{Fault, ScriptedRuntime};
    use tokio::time::{sleep, timeout};

    use super::*;

    /// The runtime of a test, and what is fed of its health.
    struct Fed {
        world: ScriptedRuntime,
        health: watch::Receiver<RuntimeHealth>,
        _feed: tokio_util::task::AbortOnDropHandle<()>,
    }

    impl Fed {
        fn start() -> Self {
            let world = ScriptedRuntime::default();
            let call_timeout = Duration::from_secs(120);
            let cri = Runtime::in_memory(world.clone(), world.clone(), call_timeout).unwrap();
            let (sender, health) = watch::channel(RuntimeHealth::default());
            let feed = tokio::spawn(async move { feed_runtime(&cri, sender).await });
            Self { world, health, _feed: tokio_util::task::AbortOnDropHandle::new(feed) }
        }

        fn fail(&self, fault: &Fault) {
            (0..20).for_each(|_| self.world.inject("Status", fault.clone()));
        }

        /// The reason, each second.
        async fn reasons(&self, seconds: u64) -> Vec<Option<&'static str>> {
            let mut reasons = Vec::new();
            for _ in 0..seconds {
                sleep(Duration::from_secs(1)).await;
                let reason = self.health.borrow().down;
                if reasons.last() != Some(&reason) {
                    reasons.push(reason);
                }
            }
            reasons
        }
    }

    /// Endpoints vanished each time that the runtime was restarted.
    #[tokio::test(start_paused = true)]
    async fn health_of_a_runtime_ends_thirty_seconds_after_it_was_ready() {
        let mut fed = Fed::start();
        let initial = "container runtime status check may not have completed yet";
        assert_eq!(fed.health.borrow().down, Some(initial));
        fed.health.wait_for(|health| health.down.is_none()).await.unwrap();
        for fault in [Fault::Fails, Fault::Hangs] {
            fed.fail(&fault);
            assert_eq!(fed.reasons(24).await, [None], "{fault:?}");
            assert_eq!(fed.reasons(12).await, [None, Some("container runtime is down")]);
            let known = fed.health.borrow().clone();
            assert_eq!((known.runtime_name(), &known.runtime_error), (Some("scripted"), &None));
            fed.world.end_faults();
            let up = fed.health.wait_for(|health| health.down.is_none());
            timeout(Duration::from_secs(40), up).await.unwrap().unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn health_of_a_runtime_is_known_soon_after_its_network_is_ready() {
        let mut fed = Fed::start();
        fed.health.wait_for(|health| health.network_error.is_none()).await.unwrap();
        for unready in [1, 60] {
            fed.world.world().network_down = true;
            let down = fed.health.wait_for(|health| health.network_error.is_some());
            timeout(2 * RUNTIME_PERIOD, down).await.unwrap().unwrap();
            sleep(Duration::from_secs(unready)).await;
            fed.world.world().network_down = false;
            let up = fed.health.wait_for(|health| health.network_error.is_none());
            timeout(2 * UNREADY_PERIOD, up).await.unwrap().unwrap();
        }
    }

    #[test]
    fn health_of_relists_is_reported_in_upstreams_words() {
        let error = |millis| pleg_error(Some(Duration::from_millis(millis)));
        assert_eq!(pleg_error(None).as_deref(), Some("pleg has yet to be successful"));
        assert_eq!(error(180_000), None);
        let text = "pleg was last seen active 3m0.25s ago; threshold is 3m0s";
        assert_eq!(error(180_250).as_deref(), Some(text));
    }
}
