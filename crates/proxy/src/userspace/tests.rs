use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::balancer::MOST_CLIENTS;
use super::*;

fn endpoint(number: u8) -> SocketAddr {
    ([10, 0, 0, number], 80).into()
}

fn client(number: u32) -> IpAddr {
    IpAddr::from((10 << 24 | number).to_be_bytes())
}

fn balancer(endpoints: &[u8], affinity: Option<u64>) -> Balancer {
    let mut balancer = Balancer::default();
    set(&mut balancer, endpoints, affinity);
    balancer
}

fn set(balancer: &mut Balancer, endpoints: &[u8], affinity: Option<u64>) {
    let endpoints: Vec<_> = endpoints.iter().copied().map(endpoint).collect();
    balancer.set(&endpoints, affinity.map(Duration::from_secs), 0);
}

fn at(start: Instant, seconds: u64) -> Instant {
    start + Duration::from_secs(seconds)
}

#[test]
fn userspace_endpoints_are_round_robin() {
    let now = Instant::now();
    let mut it = balancer(&[1, 2, 3], None);
    for number in [1, 2, 3, 1, 2] {
        assert_eq!(it.pick(client(1), false, now), Some(endpoint(number)));
    }
    // What stays as it is begins no new turn.
    set(&mut it, &[1, 2, 3], None);
    assert_eq!(it.pick(client(1), false, now), Some(endpoint(3)));
    set(&mut it, &[4], None);
    assert_eq!(it.pick(client(1), false, now), Some(endpoint(4)));
    set(&mut it, &[], None);
    assert_eq!(it.pick(client(1), false, now), None);
    it.set(&[endpoint(1), endpoint(2)], None, usize::MAX);
    assert_eq!(it.pick(client(1), false, now), Some(endpoint(2)));
}

#[test]
fn session_affinity_timeout() {
    let start = Instant::now();
    let mut it = balancer(&[1, 2, 3], Some(100));
    assert_eq!(it.pick(client(1), false, start), Some(endpoint(1)));
    assert_eq!(it.pick(client(2), false, start), Some(endpoint(2)));
    assert_eq!(it.pick(client(1), false, at(start, 99)), Some(endpoint(1)));
    assert_eq!(it.pick(client(1), false, at(start, 198)), Some(endpoint(1)));
    // Each visit restarts the timeout; then it is too late.
    assert_eq!(it.pick(client(1), false, at(start, 298)), Some(endpoint(3)));
    // An endpoint that does not answer.
    assert_eq!(it.pick(client(1), true, at(start, 299)), Some(endpoint(1)));
    assert_eq!(it.pick(client(1), false, at(start, 300)), Some(endpoint(1)));
}

#[test]
fn userspace_session_affinity_ends_with_the_endpoint() {
    let now = Instant::now();
    let mut it = balancer(&[1, 2], Some(100));
    assert_eq!(it.pick(client(1), false, now), Some(endpoint(1)));
    assert_eq!(it.pick(client(2), false, now), Some(endpoint(2)));
    set(&mut it, &[3, 2], Some(100));
    assert_eq!(it.pick(client(2), false, now), Some(endpoint(2)));
    assert_eq!(it.pick(client(1), false, now), Some(endpoint(3)));
    // Without affinity nothing is remembered, also when it comes again.
    set(&mut it, &[3, 2], None);
    set(&mut it, &[3, 2], Some(100));
    assert_eq!(it.pick(client(1), false, now), Some(endpoint(2)));
}

#[test]
fn userspace_session_affinity_clients_are_bounded() {
    let start = Instant::now();
    let mut it = balancer(&[1, 2, 3], Some(100));
    for number in 0..MOST_CLIENTS as u32 {
        it.pick(client(number), false, start);
    }
    // One too many is served all the same, each time in turn.
    let one = client(MOST_CLIENTS as u32);
    let first = it.pick(one, false, start).unwrap();
    assert_ne!(it.pick(one, false, start), Some(first));
    // There is room when others are gone.
    let first = it.pick(one, false, at(start, 100)).unwrap();
    assert_eq!(it.pick(one, false, at(start, 100)), Some(first));
}

#[derive(Clone, Debug)]
enum Event {
    Visit(u32, bool),
    Set(Vec<u8>, bool),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0u32..4, any::<bool>()).prop_map(|(client, anew)| Event::Visit(client, anew)),
        1 => (vec(0u8..5, 0..4), any::<bool>()).prop_map(|(it, affinity)| Event::Set(it, affinity)),
        1 => (1u64..80).prop_map(Event::Wait),
    ]
}

proptest! {
/// No client is sent to a missing endpoint, and one with affinity stays unless there is
    /// a reason to go.
    #[test]
    fn session_affinity_and_policies_hold(events in vec(event(), 1..200)) {
        let mut now = Instant::now();
        let mut it = Balancer::default();
        let (mut there, mut sticky) = (Vec::new(), false);
        let mut last: HashMap<u32, (SocketAddr, Instant)> = HashMap::new();
        for event in events {
            match event {
                Event::Wait(seconds) => now = at(now, seconds),
                Event::Set(endpoints, affinity) => {
                    set(&mut it, &endpoints, affinity.then_some(100));
                    there = endpoints.into_iter().map(endpoint).collect();
                    sticky = affinity;
                    last.retain(|_, (endpoint, _)| sticky && there.contains(endpoint));
                }
                Event::Visit(number, anew) => {
                    let picked = it.pick(client(number), anew, now);
                    prop_assert_eq!(picked.is_some(), !there.is_empty());
                    let Some(picked) = picked else { continue };
                    prop_assert!(there.contains(&picked));
                    if let Some((endpoint, visited)) = last.get(&number)
                        && !anew && now - *visited < Duration::from_secs(100) {
                        prop_assert_eq!(picked, *endpoint);
                    }
                    if sticky {
                        last.insert(number, (picked, now));
                    }
                }
            }
        }
    }

    /// Without affinity endpoints get the same share, give or take one.
    #[test]
    fn turns_are_fair(endpoints in 1usize..8, visits in 0u32..100) {
        let mut it = balancer(&(0..endpoints as u8).collect::<Vec<_>>(), None);
        let mut counts = HashMap::new();
        for visit in 0..visits {
            *counts.entry(it.pick(client(visit), false, Instant::now()).unwrap()).or_insert(0) += 1;
        }
        let (least, most) = (visits / endpoints as u32, visits.div_ceil(endpoints as u32));
        prop_assert!(counts.values().all(|count| (least..=most).contains(count)));
    }
}

fn service(name: &str, protocol: Protocol) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        portals: vec![Portal {
            address: [10, 96, 0, 10].into(),
            external: false,
            sources: Vec::new(),
        }],
        port: 80,
        node_port: None,
        affinity: None,
        endpoints: Vec::new(),
    }
}

#[tokio::test]
async fn userspace_rules_redirect_to_relay_ports() {
    let any = IpAddr::from([0; 4]);
    let mut it = Userspace::new(Settings::new(any, [192, 0, 2, 1].into()));
    let external =
        Portal { address: [198, 51, 100, 1].into(), external: true, sources: Vec::new() };
    let mut web = service("default/web:http", Protocol::Tcp);
    web.portals.push(external);
    web.node_port = Some(30080);
    let dns = service("kube-system/dns:dns", Protocol::Udp);
    assert!(it.set([dns, web]).is_empty());
    let tcp = it.port_of("default/web:http", Protocol::Tcp).unwrap();
    let udp = it.port_of("kube-system/dns:dns", Protocol::Udp).unwrap();
    let web = "-m comment --comment default/web:http -m tcp --dport";
    let dns = "-m comment --comment kube-system/dns:dns -m udp --dport 80";
    assert_eq!(
        it.rules(),
        format!(
            "*nat
:KUBE-PORTALS-CONTAINER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
:KUBE-NODEPORT-CONTAINER - [0:0]
:KUBE-NODEPORT-HOST - [0:0]
-A KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 -p tcp {web} 80 -j REDIRECT --to-ports {tcp}
-A KUBE-PORTALS-HOST -d 10.96.0.10/32 -p tcp {web} 80 -j DNAT --to-destination 192.0.2.1:{tcp}
-A KUBE-PORTALS-CONTAINER -d 198.51.100.1/32 -p tcp {web} 80 -m physdev ! --physdev-is-in -j REDIRECT --to-ports {tcp}
-A KUBE-PORTALS-CONTAINER -d 198.51.100.1/32 -p tcp {web} 80 -m addrtype --dst-type LOCAL -j REDIRECT --to-ports {tcp}
-A KUBE-PORTALS-HOST -d 198.51.100.1/32 -p tcp {web} 80 -m addrtype --dst-type LOCAL -j DNAT --to-destination 192.0.2.1:{tcp}
-A KUBE-NODEPORT-CONTAINER -p tcp {web} 30080 -j REDIRECT --to-ports {tcp}
-A KUBE-NODEPORT-HOST -p tcp {web} 30080 -j DNAT --to-destination 192.0.2.1:{tcp}
-A KUBE-PORTALS-CONTAINER -d 10.96.0.10/32 -p udp {dns} -j REDIRECT --to-ports {udp}
-A KUBE-PORTALS-HOST -d 10.96.0.10/32 -p udp {dns} -j DNAT --to-destination 192.0.2.1:{udp}
COMMIT
*filter
:KUBE-NODEPORT-NON-LOCAL - [0:0]
-A KUBE-NODEPORT-NON-LOCAL -p tcp {web} {tcp} -m conntrack --ctstate NEW -j ACCEPT
COMMIT
"
        )
    );
}

/// `loadBalancerSourceRanges` hold in this mode too.
#[tokio::test]
async fn load_balancer_source_ranges_allow_only_their_clients() {
    let any = IpAddr::from([0; 4]);
    let mut it = Userspace::new(Settings::new(any, [192, 0, 2, 1].into()));
    let mut web = service("default/web:http", Protocol::Tcp);
    web.portals = vec![Portal {
        address: [198, 51, 100, 1].into(),
        external: false,
        sources: vec!["192.0.2.0/24".parse().unwrap(), "203.0.113.7/32".parse().unwrap()],
    }];
    assert!(it.set([web]).is_empty());
    let rules = it.rules();
    let portals: Vec<_> = rules.lines().filter(|rule| rule.contains("-d 198.51.100.1")).collect();
    assert_eq!(portals.len(), 4, "{rules}");
    for (rule, source) in portals.iter().zip(["192.0.2.0/24", "192.0.2.0/24", "203.0.113.7/32"]) {
        assert!(rule.contains(&format!(" -s {source} ")), "{rule}");
    }
}

#[tokio::test]
async fn userspace_relay_port_is_stable_and_in_range() {
    let local = IpAddr::from([127, 0, 0, 1]);
    let settings = Settings { ports: Some(29_117..=29_118), ..Settings::new(local, local) };
    let mut it = Userspace::new(settings);
    let names = ["a/a:p", "b/b:p", "c/c:p"];
    let services =
        |names: &[&str]| names.iter().map(|name| service(name, Protocol::Tcp)).collect::<Vec<_>>();
    let errors = it.set(services(&names[..2]));
    assert!(errors.is_empty(), "{errors:?}");
    let port = it.port_of(names[0], Protocol::Tcp).unwrap();
    assert!((29_117..=29_118).contains(&port));
    let errors = it.set(services(&names));
    assert_eq!(
        errors.iter().map(Error::to_string).collect::<Vec<_>>(),
        ["service port c/c:p (tcp): listen on 127.0.0.1: Address already in use (os error 98)"]
    );
    assert_eq!(it.port_of(names[0], Protocol::Tcp), Some(port));
    // A port that is given back serves another.
    it.set(services(&names[..1]));
    tokio::task::yield_now().await;
    assert!(it.set(services(&[names[0], names[2]])).is_empty());
    assert_eq!(it.port_of(names[0], Protocol::Tcp), Some(port));
    assert!(it.port_of(names[1], Protocol::Tcp).is_none());
}
