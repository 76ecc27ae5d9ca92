//! Drivers on real sockets, registered as plugins.

use std::time::Duration;

use longshore_metrics::Registry;
use longshore_plugins::{DRA_PLUGIN, Handlers};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::world::{DRIVER, World, pod};
use crate::testing::{Behaviour, ScriptedDriver};

/// The plugin manager of a node.
fn plugin_manager(world: &World) -> AbortOnDropHandle<()> {
    let handlers = Handlers::default().with(DRA_PLUGIN, world.manager.handler());
    let running = longshore_plugins::run(world.dir.path(), handlers, &Registry::default());
    AbortOnDropHandle::new(tokio::spawn(running))
}

async fn within(what: &str, holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(Duration::from_secs(30), wait).await.is_ok(), "{what}");
}

#[tokio::test]
async fn driver_on_a_socket_is_registered_called_and_unregistered() {
    for (services, earlier) in
        [(&["v1.DRAPlugin", "v1beta1.DRAPlugin"][..], false), (&["v1beta1.DRAPlugin"], true)]
    {
        let world = World::start();
        world.driver.unregister(&world.manager);
        let _manager = plugin_manager(&world);
        let registry = world.dir.path().join("plugins_registry");
        let mut listening =
            world.driver.listen(&world.dir.path().join("plugins/gpu"), &registry, services);
        within("it is registered", || world.driver.statuses().contains(&(true, String::new())))
            .await;
        world.put_claim("a", &[DRIVER], &["p"]);
        world.prepare(&pod("p", &["a"])).await.unwrap();
        world.unprepare("p").await.unwrap();
        let calls = world.calls();
        assert_eq!(calls.iter().any(|call| call.starts_with("v1beta1")), earlier, "{calls:?}");
        assert!(
            calls.contains(&"prepare a".to_owned()) && calls.contains(&"unprepare a".to_owned())
        );
        listening.withdraw();
        within("it is unregistered", || world.manager.drivers().get(DRIVER).is_err()).await;
    }
}

#[tokio::test]
async fn driver_that_registers_wrongly_is_notified_and_refused() {
    let world = World::start();
    let _manager = plugin_manager(&world);
    let registry = world.dir.path().join("plugins_registry");
    let cases = [
        (
            "../../etc/passwd",
            &["v1.DRAPlugin"][..],
            "invalid name of a DRA driver \"../../etc/passwd\"",
        ),
        ("a,spec.nodeName=b", &["v1.DRAPlugin"], "invalid name of a DRA driver"),
        ("old.example.com", &["v1alpha3.DRAPlugin"], "none of services supported by the plugin"),
        ("none.example.com", &[], "empty list of supported gRPC services"),
    ];
    for (index, (name, services, text)) in cases.into_iter().enumerate() {
        let driver = ScriptedDriver::new(name);
        let _listening =
            driver.listen(&world.dir.path().join(index.to_string()), &registry, services);
        within(text, || !driver.statuses().is_empty()).await;
        let (registered, error) = driver.statuses()[0].clone();
        assert!(!registered, "{name}");
        assert!(
            error.starts_with("RegisterPlugin error -- plugin validation failed with err: "),
            "{error}"
        );
        assert!(error.contains(text), "{error}");
        assert!(world.manager.drivers().get(name).is_err());
    }
}

#[tokio::test]
async fn driver_that_closes_its_socket_during_a_call_is_an_error() {
    let world = World::start();
    world.driver.unregister(&world.manager);
    let _manager = plugin_manager(&world);
    let registry = world.dir.path().join("plugins_registry");
    let listening =
        world.driver.listen(&world.dir.path().join("gpu"), &registry, &["v1.DRAPlugin"]);
    within("it is registered", || !world.driver.statuses().is_empty()).await;
    world.put_claim("a", &[DRIVER], &["p"]);
    world.driver.on_prepare(Behaviour::Hangs);
    let p = pod("p", &["a"]);
    let (error, ()) = tokio::join!(world.prepare(&p), async {
        within("it is called", || !world.driver.calls().is_empty()).await;
        drop(listening);
    });
    assert!(error.unwrap_err().contains("code = Unavailable"));
    // It comes back on the same sockets, as after an update.
    world.driver.on_prepare(Behaviour::Well);
    let _listening =
        world.driver.listen(&world.dir.path().join("gpu"), &registry, &["v1.DRAPlugin"]);
    within("it is registered again", || world.driver.statuses().len() > 1).await;
    world.prepare(&p).await.unwrap();
}
