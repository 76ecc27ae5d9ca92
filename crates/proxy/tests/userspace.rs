//! Real traffic through relays, led to them by real rules.

use crate::common;

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use common::{in_netns, sh};
use longshore_proxy::Family;
use longshore_proxy::apply::{Backend, Limits, Variant, cleanup};
use longshore_proxy::userspace::{Portal, Protocol, ServicePort, Settings, Userspace};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// A node with an address, and a pod behind a veth pair.
const HOST: &str = "
    ip addr add 10.0.0.9/32 dev lo
    for i in 1 2 3; do ip addr add 10.1.0.$i/32 dev lo; done
    ip netns add pod
    ip link add pod0 type veth peer name eth0 netns pod
    ip addr add 10.2.0.1/24 dev pod0; ip link set pod0 up
    pod='nsenter --net=/run/netns/pod'
    $pod ip addr add 10.2.0.2/24 dev eth0; $pod ip link set eth0 up; $pod ip route add default via 10.2.0.1
    ip route add 10.96.0.0/16 dev pod0 src 10.0.0.9
    echo 1 >/proc/sys/net/ipv4/ip_forward";

fn service(name: &str, protocol: Protocol, endpoints: &[SocketAddr]) -> ServicePort {
    ServicePort {
        name: name.into(),
        protocol,
        portals: vec![Portal {
            address: [10, 96, 0, 10].into(),
            external: false,
            sources: Vec::new(),
        }],
        port: 80,
        node_port: Some(30080),
        affinity: None,
        endpoints: endpoints.to_vec(),
    }
}

/// A server that reads to the end of what it is sent, then answers with its address and that.
async fn tcp_server(address: &str) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut text = String::new();
                stream.read_to_string(&mut text).await.unwrap();
                let answer = format!("{} {text}", address.ip());
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (address, task)
}

/// A server that answers each datagram with its address and that.
async fn udp_server(address: &str) -> (SocketAddr, JoinHandle<()>) {
    let socket = UdpSocket::bind(address).await.unwrap();
    let address = socket.local_addr().unwrap();
    let task = tokio::spawn(async move {
        let mut buffer = [0; 65536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let _ = socket.send_to(format!("{} {text}", address.ip()).as_bytes(), from).await;
        }
    });
    (address, task)
}

async fn ask(to: SocketAddr, text: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(to).await?;
    stream.write_all(text.as_bytes()).await?;
    // The answer comes after the end of the question: halves close one by one.
    stream.shutdown().await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn ask_udp(client: &UdpSocket, to: SocketAddr, text: &str) -> Option<String> {
    client.send_to(text.as_bytes(), to).await.unwrap();
    let mut buffer = [0; 65536];
    let received = timeout(Duration::from_millis(500), client.recv_from(&mut buffer)).await;
    let (length, from) = received.ok()?.ok()?;
    assert_eq!(from, to, "the answer comes from where the question went");
    Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// What a shell in the pod prints.
async fn in_pod(script: &str) -> String {
    let output = tokio::process::Command::new("nsenter")
        .args(["--net=/run/netns/pod", "timeout", "5", "bash", "-ec", script])
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn at(ip: [u8; 4], port: u16) -> SocketAddr {
    (ip, port).into()
}

fn traffic_reaches_a_service(variant: Variant) {
    in_netns(async || {
        sh(HOST);
        let (one, _) = tcp_server("10.1.0.1:8080").await;
        let (two, _) = tcp_server("10.1.0.2:8080").await;
        let (dns, _) = udp_server("10.1.0.3:5353").await;
        let mut it = Userspace::new(Settings::new(ANY, NODE));
        let errors = it.set([
            service("default/web:http", Protocol::Tcp, &[one, two]),
            service("default/dns:dns", Protocol::Udp, &[dns]),
        ]);
        assert!(errors.is_empty(), "{errors:?}");
        let backend = Backend::of(variant, Limits::default()).await.unwrap();
        let iptables = backend.family(Family::V4);
        it.apply(&iptables).await.unwrap();

        // From the node: by the service's address, and by the node's.
        let mut seen = HashSet::new();
        for front in [at([10, 96, 0, 10], 80), at([10, 0, 0, 9], 30080)] {
            for _ in 0..2 {
                let answer = ask(front, "hello").await.unwrap();
                let (from, text) = answer.split_once(' ').unwrap();
                assert_eq!(text, "hello");
                seen.insert(from.to_owned());
            }
        }
        assert_eq!(seen, HashSet::from(["10.1.0.1".to_owned(), "10.1.0.2".to_owned()]));
        let client = UdpSocket::bind("10.0.0.9:0").await.unwrap();
        let answer = ask_udp(&client, at([10, 96, 0, 10], 80), "who").await;
        assert_eq!(answer.as_deref(), Some("10.1.0.3 who"));

        // From the pod.
        let script =
            "exec 3<>/dev/udp/10.96.0.10/80; echo -n who >&3; read -t 2 -u 3 -N 12 it; echo $it";
        assert_eq!(in_pod(script).await, "10.1.0.3 who\n");
        for front in ["10.96.0.10/80", "10.2.0.1/30080"] {
            let script = format!("exec 3<>/dev/tcp/{front}; echo seen >&3");
            in_pod(&script).await;
        }

        // Once more is no more.
        let saved = iptables.save(longshore_proxy::apply::Table::Nat).await.unwrap();
        it.apply(&iptables).await.unwrap();
        let again = iptables.save(longshore_proxy::apply::Table::Nat).await.unwrap();
        let rules = |text: &str| {
            text.lines().filter(|it| it.starts_with('-')).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(rules(&saved), rules(&again));
        assert_eq!(rules(&saved).len(), 4 + 8);
        cleanup(Limits::default()).await.unwrap();
        assert_eq!(
            rules(&iptables.save(longshore_proxy::apply::Table::Nat).await.unwrap()),
            [""; 0]
        );
    });
}

#[test]
fn traffic_reaches_a_service_by_nft() {
    traffic_reaches_a_service(Variant::Nft);
}

#[test]
fn traffic_reaches_a_service_by_legacy() {
    traffic_reaches_a_service(Variant::Legacy);
}

/// A relay on loopback, without rules.
fn relay(
    protocol: Protocol,
    endpoints: &[SocketAddr],
    change: impl Fn(&mut Settings, &mut ServicePort),
) -> (Userspace, ServicePort, SocketAddr) {
    let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let mut settings = Settings::new(local, local);
    let mut port = service("default/it:p", protocol, endpoints);
    change(&mut settings, &mut port);
    let mut it = Userspace::new(settings);
    assert!(it.set([port.clone()]).is_empty());
    let front = SocketAddr::new(local, it.port_of("default/it:p", protocol).unwrap());
    (it, port, front)
}

#[test]
fn userspace_tcp_transfers_in_both_directions() {
    in_netns(async || {
        let echo = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = echo.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = echo.accept().await.unwrap();
            let (mut read, mut write) = stream.into_split();
            tokio::io::copy(&mut read, &mut write).await.unwrap();
        });
        let (_it, _, front) = relay(Protocol::Tcp, &[endpoint], |_, _| {});
        let (mut read, mut write) = TcpStream::connect(front).await.unwrap().into_split();
        let sent: Vec<u8> = (0..8 << 20).map(|i: u32| (i % 251) as u8).collect();
        let copy = sent.clone();
        tokio::spawn(async move {
            write.write_all(&copy).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        read.read_to_end(&mut received).await.unwrap();
        assert!(received == sent, "{} bytes of {}", received.len(), sent.len());
    });
}

#[test]
fn userspace_tcp_retries_other_endpoints() {
    in_netns(async || {
        let (here, _) = tcp_server("127.0.0.1:0").await;
        let gone = at([127, 0, 0, 1], 9);
        let (mut it, mut port, front) = relay(Protocol::Tcp, &[gone, here], |_, port| {
            port.affinity = Some(Duration::from_secs(60));
        });
        // Also a client that was sent to it before.
        for _ in 0..4 {
            assert_eq!(ask(front, "x").await.unwrap(), "127.0.0.1 x");
        }
        port.endpoints = vec![gone];
        it.set([port.clone()]);
        assert!(ask(front, "x").await.is_err());
        port.endpoints = Vec::new();
        it.set([port]);
        let error = ask(front, "x").await.unwrap_err();
        assert!(
            matches!(
                error.kind(),
                std::io::ErrorKind::ConnectionReset
                    | std::io::ErrorKind::NotConnected
                    | std::io::ErrorKind::BrokenPipe
            ),
            "{error}"
        );
    });
}

#[test]
fn userspace_session_affinity_by_client_address() {
    in_netns(async || {
        sh(HOST);
        let (one, _) = tcp_server("10.1.0.1:8080").await;
        let (two, _) = tcp_server("10.1.0.2:8080").await;
        let (_it, _, front) = relay(Protocol::Tcp, &[one, two], |settings, port| {
            settings.listen = ANY;
            port.affinity = Some(Duration::from_secs(1));
        });
        let ask_from = async |address: &str| {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(address.parse().unwrap(), 0)).unwrap();
            let mut stream = socket.connect(at([10, 0, 0, 9], front.port())).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        let first = ask_from("10.0.0.9").await;
        let other = ask_from("10.1.0.3").await;
        assert_ne!(first, other);
        for _ in 0..3 {
            assert_eq!(ask_from("10.0.0.9").await, first);
            assert_eq!(ask_from("10.1.0.3").await, other);
        }
        sleep(Duration::from_millis(1100)).await;
        // Turns go on: the first of the two to come back gets the first.
        assert_eq!(ask_from("10.1.0.3").await, first);
    });
}

#[test]
fn userspace_connections_outlive_their_service() {
    in_netns(async || {
        let (here, _) = tcp_server("127.0.0.1:0").await;
        let (mut it, port, front) = relay(Protocol::Tcp, &[here], |_, _| {});
        let mut open = TcpStream::connect(front).await.unwrap();
        let mut other = TcpStream::connect(front).await.unwrap();
        open.write_all(b"still ").await.unwrap();
        sleep(Duration::from_millis(50)).await;
        it.set([]);
        sleep(Duration::from_millis(50)).await;
        assert!(TcpStream::connect(front).await.is_err());
        open.write_all(b"here").await.unwrap();
        open.shutdown().await.unwrap();
        let mut answer = String::new();
        open.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "127.0.0.1 still here");
        it.set([port]);
        drop(it);
        let ended = timeout(Duration::from_secs(2), other.read(&mut [0; 8])).await.unwrap();
        assert!(!ended.is_ok_and(|length| length > 0));
    });
}

#[test]
fn userspace_udp_sessions_are_bounded() {
    in_netns(async || {
        let (here, _) = tcp_server("127.0.0.1:0").await;
        let (_it, _, front) = relay(Protocol::Tcp, &[here], |settings, _| settings.sessions = 2);
        let first = TcpStream::connect(front).await.unwrap();
        let second = TcpStream::connect(front).await.unwrap();
        let third = ask(front, "third");
        tokio::pin!(third);
        assert!(timeout(Duration::from_millis(300), &mut third).await.is_err());
        drop(first);
        assert_eq!(third.await.unwrap(), "127.0.0.1 third");
        drop(second);
        // Clients of UDP beyond the bound are not served until another has gone.
        let (here, _) = udp_server("127.0.0.1:0").await;
        let (_it, _, front) = relay(Protocol::Udp, &[here], |settings, _| {
            settings.sessions = 1;
        });
        let first = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let second = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        assert!(ask_udp(&first, front, "x").await.is_some());
        second.send_to(b"lost", front).await.unwrap();
        sleep(Duration::from_millis(600)).await;
        assert_eq!(ask_udp(&second, front, "x").await.as_deref(), Some("127.0.0.1 x"));
    });
}

#[test]
fn userspace_udp_session_lasts_until_idle() {
    in_netns(async || {
        sh(HOST);
        let (one, _) = udp_server("10.1.0.1:5353").await;
        let (two, stop) = udp_server("10.1.0.2:5353").await;
        let (_it, _, front) = relay(Protocol::Udp, &[one, two], |_, _| {});
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let first = ask_udp(&client, front, "").await.unwrap();
        let second = ask_udp(&other, front, "").await.unwrap();
        assert_ne!(first, second);
        for _ in 0..10 {
            assert_eq!(ask_udp(&client, front, "").await.unwrap(), first);
            assert_eq!(ask_udp(&other, front, "").await.unwrap(), second);
            sleep(Duration::from_millis(60)).await;
        }
        // Large ones pass whole.
        let large = "x".repeat(40_000);
        assert!(ask_udp(&client, front, &large).await.unwrap().ends_with(&large));
        sleep(Duration::from_millis(700)).await;
        let turns =
            [ask_udp(&other, front, "").await.unwrap(), ask_udp(&client, front, "").await.unwrap()];
        assert_eq!(turns, [first, second]);
        // An endpoint that refuses costs its client one datagram.
        stop.abort();
        let _ = stop.await;
        let mut answers = 0;
        for _ in 0..12 {
            answers += usize::from(ask_udp(&client, front, "").await.is_some());
            answers += usize::from(ask_udp(&other, front, "").await.is_some());
        }
        assert!(answers >= 10, "{answers} of 24");
    });
}

#[test]
fn userspace_udp_many_clients() {
    in_netns(async || {
        let (here, _) = udp_server("127.0.0.1:0").await;
        let (_it, _, front) = relay(Protocol::Udp, &[here], |_, _| {});
        let front = Arc::new(front);
        // As many at once as the kernel's buffers hold.
        let clients: Vec<_> = (0..200)
            .map(|number| {
                let front = front.clone();
                tokio::spawn(async move {
                    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
                    let text = number.to_string();
                    let answer = ask_udp(&client, *front, &text).await;
                    assert_eq!(answer, Some(format!("127.0.0.1 {text}")));
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
    });
}
