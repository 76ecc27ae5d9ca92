//! Inputs of the node's status: health of the container runtime, age of the last relist, images.

use std::time::Duration;

use k8s_openapi::api::core::v1::ContainerImage;
use longshore_cri::Runtime;
use longshore_podstate::observe;
use longshore_podstate::observe::Observer;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tracing::{info, warn};

use crate::registration::{Feeds, RuntimeHealth};

/// Interval of runtime status checks.
const RUNTIME_PERIOD: Duration = Duration::from_secs(5);
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
    let mut up = true;
    loop {
        ticks.tick().await;
        let request = async { tokio::try_join!(runtime.version(), runtime.status(false)) };
        let answer = match tokio::time::timeout(RUNTIME_DEADLINE, request).await {
            Ok(Ok((version, status))) => Ok(RuntimeHealth::new(&version, &status)),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {RUNTIME_DEADLINE:?}")),
        };
        let (now_up, next) = match answer {
            Ok(next) => (true, next),
            Err(error) => {
                if up {
                    warn!(error, "the container runtime does not answer");
                }
                (false, health.borrow().clone().down(&error))
            }
        };
        if now_up && !up {
            info!("the container runtime answers again");
        }
        up = now_up;
        health.send_if_modified(|known| {
            let changed = *known != next;
            *known = next;
            changed
        });
    }
}

async fn feed_pleg(observer: Observer, pleg: watch::Sender<Option<String>>) {
    let started = Instant::now();
    let relisted = observer.relisted();
    let mut ticks = ticks(PLEG_PERIOD);
    loop {
        ticks.tick().await;
        let reason = observe::overdue(*relisted.borrow(), started).map(|age| {
            let (age, limit) = (age.as_secs(), observe::PLEG_DEADLINE.as_secs());
            format!("pleg was last seen active {age}s ago; threshold is {limit}s")
        });
        // A change of the age alone is not reported.
        pleg.send_if_modified(|known| {
            let changed = known.is_some() != reason.is_some();
            if changed {
                *known = reason;
            }
            changed
        });
    }
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
