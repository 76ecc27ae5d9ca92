use super::*;

fn device(health: &str, nodes: Option<&[i64]>) -> Device {
    Device { health: health.to_owned(), nodes: nodes.map(<[i64]>::to_vec) }
}

fn devices(list: &[(&str, &str)]) -> BTreeMap<String, Device> {
    list.iter().map(|(id, health)| ((*id).to_owned(), device(health, None))).collect()
}

fn amount(state: &State, resource: &str) -> Option<(usize, usize)> {
    state.capacity().0.get(resource).map(|own| (own.capacity, own.allocatable))
}

const GPU: &str = "example.com/gpu";

#[tokio::test(start_paused = true)]
async fn device_capacity_of_a_plugin_that_lists_fails_and_goes() {
    let mut state = State::default();
    let generation = state.connected(GPU, DevicePluginOptions::default());
    assert_eq!(amount(&state, GPU), None, "nothing is listed yet");
    assert!(!state.is_device_resource(GPU));
    let list = devices(&[("a", "Healthy"), ("b", "Unhealthy"), ("c", "on fire")]);
    assert_eq!(state.listed(GPU, generation, list), Some(BTreeSet::new()));
    assert_eq!(amount(&state, GPU), Some((3, 1)));
    assert!(state.disconnected(GPU, generation, Instant::now()));
    assert_eq!(amount(&state, GPU), Some((3, 0)));
    assert_eq!(state.next_expiry(), Some(Instant::now() + GRACE));
    tokio::time::advance(GRACE - Duration::from_secs(1)).await;
    assert!(!state.expire(Instant::now()));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(state.expire(Instant::now()));
    assert_eq!(amount(&state, GPU), Some((0, 0)), "the node once had it");
    assert!(!state.is_device_resource(GPU));
    assert_eq!(state.next_expiry(), None);
}

#[tokio::test(start_paused = true)]
async fn device_capacity_of_a_plugin_whose_list_fails_at_once_is_zero() {
    let mut state = State::default();
    let generation = state.connected(GPU, DevicePluginOptions::default());
    state.disconnected(GPU, generation, Instant::now());
    assert_eq!(amount(&state, GPU), Some((0, 0)));
}

#[tokio::test(start_paused = true)]
async fn device_plugin_that_was_replaced_changes_nothing() {
    let mut state = State::default();
    let first = state.connected(GPU, DevicePluginOptions::default());
    let second = state.connected(GPU, DevicePluginOptions::default());
    assert_eq!(state.listed(GPU, first, devices(&[("a", "Healthy")])), None);
    assert!(state.listed(GPU, second, devices(&[("b", "Healthy")])).is_some());
    assert!(!state.disconnected(GPU, first, Instant::now()));
    assert_eq!(amount(&state, GPU), Some((1, 1)));
}

#[tokio::test(start_paused = true)]
async fn device_resources_of_the_checkpoint_have_no_capacity_until_they_register() {
    let pods = BTreeMap::from([("u".to_owned(), PodHoldings::default())]);
    let mut state = State::restored([GPU.to_owned()], pods, Instant::now());
    assert_eq!(amount(&state, GPU), Some((0, 0)));
    assert!(state.is_device_resource(GPU), "a pod that needs it is not admitted without it");
    let generation = state.connected(GPU, DevicePluginOptions::default());
    state.listed(GPU, generation, devices(&[("a", "Healthy")]));
    assert_eq!(amount(&state, GPU), Some((1, 1)));
    assert_eq!(state.next_expiry(), None);
}

#[tokio::test(start_paused = true)]
async fn device_health_changes_concern_the_pods_that_hold_the_device() {
    let mut state = State::default();
    let generation = state.connected(GPU, DevicePluginOptions::default());
    state.listed(GPU, generation, devices(&[("a", "Healthy"), ("b", "Healthy")]));
    for (uid, id) in [("1", "a"), ("2", "b")] {
        let holding = state.holding_of(GPU, &Ids::from([id.to_owned()]));
        let own = BTreeMap::from([(GPU.to_owned(), holding)]);
        state.pods.insert(uid.to_owned(), BTreeMap::from([("c".to_owned(), own)]));
    }
    let changed = state.listed(GPU, generation, devices(&[("a", "Healthy"), ("b", "Unhealthy")]));
    assert_eq!(changed, Some(BTreeSet::from(["2".to_owned()])));
    assert!(state.is_healthy(GPU, "a") && !state.is_healthy(GPU, "b"));
    let changed = state.listed(GPU, generation, devices(&[("b", "Unhealthy")]));
    assert_eq!(changed, Some(BTreeSet::new()), "one that is gone has no health");
    let changed = state.listed(GPU, generation, devices(&[("a", "Healthy"), ("b", "Unhealthy")]));
    assert_eq!(changed, Some(BTreeSet::from(["1".to_owned()])), "it is there again");
}

#[test]
fn device_holdings_are_by_numa_node() {
    let mut state = State::default();
    let generation = state.connected(GPU, DevicePluginOptions::default());
    let list = [("a", None), ("b", Some(&[0_i64, 1][..])), ("c", Some(&[][..]))];
    let list = list.map(|(id, nodes)| (id.to_owned(), device("Healthy", nodes)));
    state.listed(GPU, generation, list.into());
    let ids: Ids = ["a", "b", "c"].map(str::to_owned).into();
    let holding = state.holding_of(GPU, &ids);
    let node = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        holding.by_node,
        [(-1, node(&["a", "c"])), (0, node(&["b"])), (1, node(&["b"]))].into()
    );
    assert_eq!(holding.ids(), ids);
    let devices = holding.devices();
    assert_eq!(devices["a"].nodes, None);
    assert_eq!(devices["b"].nodes, Some(vec![0, 1]));
}

#[test]
fn device_resources_are_bounded() {
    let mut state = State::default();
    for number in 0..MOST_RESOURCES {
        let name = format!("example.com/{number}");
        assert_eq!(state.check_room(&name), Ok(()));
        state.connected(&name, DevicePluginOptions::default());
    }
    assert!(state.check_room(GPU).is_err());
    assert_eq!(state.check_room("example.com/0"), Ok(()), "it is there already");
}
