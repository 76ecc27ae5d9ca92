//! The server over loopback: real datagrams and connections, and another server that is ours.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hickory_server::proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_server::proto::rr::rdata::{A, SOA, TXT};
use hickory_server::proto::rr::{DNSClass, Name, RData, Record, RecordType};
use proptest::prelude::*;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::forward::Forwarder;
use crate::handler::{Handler, Shared, Step};
use crate::message::Transport;
use crate::metrics::Metrics;
use crate::model::Model;
use crate::zone::tests::{model, service, slice};
use crate::zone::{PodNames, Zone};
use crate::{both, ports, tcp, udp};

const LOCAL: &str = "127.0.0.1:0";
const PATIENCE: Duration = Duration::from_secs(20);

/// A server with the cluster of the zone's tests.
struct Cluster {
    address: SocketAddr,
    model: Model,
    zone: watch::Sender<Arc<Zone>>,
    shared: Arc<Shared>,
}

impl Cluster {
    fn start(upstreams: &[SocketAddr]) -> Self {
        Self::start_at(LOCAL.parse().unwrap(), upstreams)
    }

    fn start_at(address: SocketAddr, upstreams: &[SocketAddr]) -> Self {
        let (socket, listener, address) = both(address).unwrap();
        let (handler, zone, model, shared) = handler(upstreams);
        tokio::spawn(udp::serve(socket, handler.clone()));
        tokio::spawn(tcp::serve(listener, handler));
        Self { address, model, zone, shared }
    }

    fn publish(&mut self) {
        self.zone.send_replace(Arc::new(self.model.snapshot(1)));
    }

    async fn ask(&self, name: &str, kind: RecordType) -> Message {
        let answer = udp_bytes(self.address, &query(name, kind).to_vec().unwrap()).await;
        Message::from_vec(&answer).unwrap()
    }
}

fn handler(upstreams: &[SocketAddr]) -> (Handler, watch::Sender<Arc<Zone>>, Model, Arc<Shared>) {
    let mut model = model(PodNames::Insecure);
    let (zone, published) = watch::channel(Arc::new(model.snapshot(1)));
    let metrics = Metrics::new(53);
    let forwarder = Forwarder::new(upstreams, &metrics);
    let shared = Arc::new(Shared { forwarder, metrics });
    (Handler::new(shared.clone(), published), zone, model, shared)
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut message = Message::new(4711, MessageType::Query, OpCode::Query);
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    message
}

async fn udp_bytes(to: SocketAddr, query: &[u8]) -> Vec<u8> {
    let own = if to.is_ipv4() { LOCAL } else { "[::1]:0" };
    let socket = UdpSocket::bind(own).await.unwrap();
    // From that address alone.
    socket.connect(to).await.unwrap();
    socket.send(query).await.unwrap();
    let mut buffer = vec![0; 65_536];
    let length = timeout(PATIENCE, socket.recv(&mut buffer)).await.unwrap().unwrap();
    buffer.truncate(length);
    buffer
}

async fn tcp_bytes(stream: &mut TcpStream, query: &[u8]) -> Vec<u8> {
    stream.write_u16(query.len().try_into().unwrap()).await.unwrap();
    stream.write_all(query).await.unwrap();
    let length = timeout(PATIENCE, stream.read_u16()).await.unwrap().unwrap();
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

fn addresses(message: &Message) -> BTreeSet<String> {
    message.answers.iter().map(|record| record.data.to_string()).collect()
}

/// Another server: it answers names by what they say.
struct Other {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<Message>>>,
}

impl Other {
    async fn start() -> Self {
        Self::forwarding_to(Arc::default()).await
    }

    /// It sends questions of type HINFO on to that address.
    async fn forwarding_to(next: Arc<Mutex<Option<SocketAddr>>>) -> Self {
        let (socket, listener, address) = both(LOCAL.parse().unwrap()).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let seen = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(Self::datagrams(socket, asked.clone(), seen.clone(), next));
        tokio::spawn(Self::connections(listener));
        Self { address, asked, seen }
    }

    async fn datagrams(
        socket: UdpSocket,
        asked: Arc<AtomicUsize>,
        seen: Arc<Mutex<Vec<Message>>>,
        next: Arc<Mutex<Option<SocketAddr>>>,
    ) {
        let mut buffer = [0; 4096];
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            asked.fetch_add(1, Ordering::SeqCst);
            let query = Message::from_vec(&buffer[..length]).unwrap();
            seen.lock().unwrap().push(query.clone());
            let next = *next.lock().unwrap();
            if let Some(next) = next.filter(|_| query.queries[0].query_type() == RecordType::HINFO)
            {
                let answer = udp_bytes(next, &buffer[..length]).await;
                socket.send_to(&answer, from).await.unwrap();
                continue;
            }
            let name = query.queries[0].name().to_string();
            if name.starts_with("forged.") {
                // Others try to be quicker: with another ID, and with another question.
                let mut forged = answer(&query, 1);
                forged.metadata.id = query.metadata.id.wrapping_add(1);
                socket.send_to(&forged.to_vec().unwrap(), from).await.unwrap();
                let mut forged = answer(&query, 1);
                forged.queries[0].set_name(Name::from_ascii("other.").unwrap());
                socket.send_to(&forged.to_vec().unwrap(), from).await.unwrap();
            }
            let reply = match () {
                () if name.starts_with("silent.") => continue,
                () if name.starts_with("odd.") => buffer[..2].to_vec(),
                () if name.starts_with("unreadable.") => {
                    let mut bytes = answer(&query, 1).to_vec().unwrap();
                    bytes.truncate(bytes.len() - 2);
                    bytes
                }
                () if name.starts_with("big.") => {
                    let mut answer = answer(&query, 0);
                    answer.metadata.truncation = true;
                    answer.to_vec().unwrap()
                }
                () if name.starts_with("none.") => {
                    let mut answer = answer(&query, 0);
                    answer.metadata.response_code = ResponseCode::NXDomain;
                    let root = Name::root();
                    let soa = SOA::new(root.clone(), root.clone(), 1, 2, 3, 4, 20);
                    answer.add_authority(Record::from_rdata(root, 20, RData::SOA(soa)));
                    answer.to_vec().unwrap()
                }
                () => answer(&query, 2).to_vec().unwrap(),
            };
            socket.send_to(&reply, from).await.unwrap();
        }
    }

    async fn connections(listener: TcpListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let length = stream.read_u16().await.unwrap();
            let mut bytes = vec![0; length.into()];
            stream.read_exact(&mut bytes).await.unwrap();
            let answer = answer(&Message::from_vec(&bytes).unwrap(), 200).to_vec().unwrap();
            stream.write_u16(answer.len().try_into().unwrap()).await.unwrap();
            stream.write_all(&answer).await.unwrap();
        }
    }
}

/// An answer with so many addresses.
fn answer(query: &Message, count: u8) -> Message {
    let mut answer = Message::response(query.metadata.id, OpCode::Query);
    answer.add_query(query.queries[0].clone());
    for number in 0..count {
        let data = RData::A(A(Ipv4Addr::new(192, 0, 2, number)));
        answer.add_answer(Record::from_rdata(query.queries[0].name().clone(), 60, data));
    }
    answer
}

// Finding 8: clients that show nothing make way
#[tokio::test]
async fn server_is_not_locked_by_idle_connections() {
    let cluster = Cluster::start(&[]);
    let mut idle = Vec::new();
    for _ in 0..=tcp::MAX_CONNECTIONS {
        idle.push(TcpStream::connect(cluster.address).await.unwrap());
    }
    let asked = query("kubernetes.default.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    let answer = Message::from_vec(&tcp_bytes(&mut stream, &asked).await).unwrap();
    assert_eq!(addresses(&answer), ["10.96.0.1".to_owned()].into());
}

// Finding 8: a pod's neighbours could have its server restarted, which fails its probes
#[tokio::test]
async fn health_port_is_not_locked_by_idle_connections() {
    let listener = TcpListener::bind(LOCAL).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(ports::serve(listener, ports::health()));
    let mut idle = Vec::new();
    for _ in 0..=ports::MAX_CONNECTIONS {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("OK"), "{answer}");
    server.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_answers_over_udp_and_tcp() {
    let cluster = Cluster::start(&[]);
    let answer = cluster.ask("Kubernetes.default.svc.cluster.local.", RecordType::A).await;
    assert_eq!(answer.metadata.id, 4711);
    assert!(answer.metadata.authoritative && answer.metadata.recursion_desired);
    assert_eq!(answer.queries[0].name().to_string(), "Kubernetes.default.svc.cluster.local.");
    assert_eq!(addresses(&answer), ["10.96.0.1".to_owned()].into());
    assert!(answer.edns.is_none());
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    for (name, code) in [
        ("kubernetes.default.svc.cluster.local.", ResponseCode::NoError),
        ("x.default.svc.cluster.local.", ResponseCode::NXDomain),
        // without other servers
        ("example.com.", ResponseCode::Refused),
    ] {
        let bytes = tcp_bytes(&mut stream, &query(name, RecordType::A).to_vec().unwrap()).await;
        let answer = Message::from_vec(&bytes).unwrap();
        assert_eq!(answer.metadata.response_code, code, "{name}");
        let has_soa = !answer.authorities.is_empty();
        assert_eq!(has_soa, code == ResponseCode::NXDomain, "{name}");
    }
    let page = cluster.shared.metrics.registry.text();
    for line in [
        r#"coredns_dns_requests_total{server="dns://:53",zone=".",view="",proto="udp",family="1",type="A"} 1"#,
        r#"coredns_dns_requests_total{server="dns://:53",zone=".",view="",proto="tcp",family="1",type="A"} 3"#,
        r#"coredns_dns_responses_total{server="dns://:53",zone=".",view="",rcode="NXDOMAIN",plugin="kubernetes"} 1"#,
    ] {
        assert!(page.contains(line), "{line}\n{page}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_replies_from_the_address_that_was_asked() {
    let cluster = Cluster::start_at("0.0.0.0:0".parse().unwrap(), &[]);
    let query = query("kubernetes.default.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    for address in ["127.0.0.1", "127.0.0.2", "127.9.9.9"] {
        // the socket takes datagrams of this address alone
        let to = SocketAddr::new(address.parse().unwrap(), cluster.address.port());
        let answer = udp_bytes(to, &query).await;
        assert_eq!(addresses(&Message::from_vec(&answer).unwrap()).len(), 1, "{address}");
    }
}

/// All addresses of both families at once, where the machine has both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_replies_over_both_families() {
    if UdpSocket::bind("[::1]:0").await.is_err() {
        eprintln!("SKIPPED: no IPv6");
        return;
    }
    let cluster = Cluster::start_at("[::]:0".parse().unwrap(), &[]);
    let query = query("kubernetes.default.svc.cluster.local.", RecordType::A).to_vec().unwrap();
    for address in ["127.0.0.1", "127.0.0.2", "::1"] {
        let to = SocketAddr::new(address.parse().unwrap(), cluster.address.port());
        let answer = udp_bytes(to, &query).await;
        assert_eq!(addresses(&Message::from_vec(&answer).unwrap()).len(), 1, "{address}");
        let mut stream = TcpStream::connect(to).await.unwrap();
        let answer = tcp_bytes(&mut stream, &query).await;
        assert_eq!(addresses(&Message::from_vec(&answer).unwrap()).len(), 1, "{address}");
    }
    let page = cluster.shared.metrics.registry.text();
    assert!(page.contains(r#"proto="udp",family="1",type="A"} 2"#), "{page}");
    assert!(page.contains(r#"proto="udp",family="2",type="A"} 1"#), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_truncates_what_does_not_fit() {
    let mut cluster = Cluster::start(&[]);
    let endpoints: Vec<_> =
        (0..150).map(|number| json!({"address": format!("10.9.0.{number}")})).collect();
    cluster.model.apply_service(&service("shop", "many", json!({"clusterIP": "None"})));
    let web = json!([{"name": "web", "port": 80, "protocol": "TCP"}]);
    cluster.model.apply_slice(&slice("many", "many-1", web, json!(endpoints)));
    cluster.publish();
    let name = "many.shop.svc.cluster.local.";
    for (kind, size) in [
        (RecordType::A, None),
        (RecordType::A, Some(400)),
        (RecordType::A, Some(1000)),
        (RecordType::A, Some(u16::MAX)),
        (RecordType::SRV, Some(1232)),
    ] {
        let mut asked = query(name, kind);
        if let Some(size) = size {
            let mut edns = Edns::new();
            edns.set_max_payload(size);
            asked.set_edns(edns);
        }
        let bytes = udp_bytes(cluster.address, &asked.to_vec().unwrap()).await;
        let answer = Message::from_vec(&bytes).unwrap();
        let max = size.unwrap_or(512).clamp(512, 1232);
        assert!(bytes.len() <= max.into(), "{kind} {size:?}: {}", bytes.len());
        assert!(bytes.len() + 90 > max.into(), "{kind} {size:?}: {}", bytes.len());
        assert!(answer.metadata.truncation);
        assert_eq!(answer.edns.is_some(), size.is_some());
    }
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    let whole = tcp_bytes(&mut stream, &query(name, RecordType::A).to_vec().unwrap()).await;
    let whole = Message::from_vec(&whole).unwrap();
    assert!(!whole.metadata.truncation);
    assert_eq!(addresses(&whole).len(), 150);
    // What is only in the additional section is left out, and nobody has to come back for it.
    let mut asked = query("_web._tcp.headless.shop.svc.cluster.local.", RecordType::SRV);
    asked.set_edns(Edns::new());
    let bytes = udp_bytes(cluster.address, &asked.to_vec().unwrap()).await;
    assert!(!Message::from_vec(&bytes).unwrap().metadata.truncation);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_answers_a_change_at_once() {
    let mut cluster = Cluster::start(&[]);
    let name = "new.shop.svc.cluster.local.";
    for round in 0..50 {
        let ip = format!("10.96.1.{round}");
        cluster.model.apply_service(&service("shop", "new", json!({"clusterIP": ip})));
        cluster.publish();
        assert_eq!(addresses(&cluster.ask(name, RecordType::A).await), [ip].into());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_asks_the_others() {
    let other = Other::start().await;
    let cluster = Cluster::start(&[other.address]);
    let answer = cluster.ask("www.example.com.", RecordType::A).await;
    assert_eq!(addresses(&answer).len(), 2);
    assert!(answer.metadata.recursion_available && !answer.metadata.authoritative);
    assert_eq!(other.asked.load(Ordering::SeqCst), 1);
    // The next is from the cache, whatever its case.
    let answer = cluster.ask("WWW.example.com.", RecordType::A).await;
    assert_eq!(addresses(&answer).len(), 2);
    assert_eq!(other.asked.load(Ordering::SeqCst), 1);
    // denials too
    for _ in 0..2 {
        let answer = cluster.ask("none.example.com.", RecordType::A).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
    }
    assert_eq!(other.asked.load(Ordering::SeqCst), 2);
    // an answer that does not fit comes over TCP, and is cut for the client
    let answer = cluster.ask("big.example.com.", RecordType::A).await;
    assert!(answer.metadata.truncation && answer.answers.len() > 10);
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    let question = query("big.example.com.", RecordType::A).to_vec().unwrap();
    let whole = tcp_bytes(&mut stream, &question).await;
    assert_eq!(Message::from_vec(&whole).unwrap().answers.len(), 200);
    // an alias of the cluster to the outside
    let answer = cluster.ask("external.shop.svc.cluster.local.", RecordType::A).await;
    assert_eq!(answer.answers[0].record_type(), RecordType::CNAME);
    assert_eq!(answer.answers.len(), 3);
    assert!(answer.metadata.authoritative);
    // addresses that are not the cluster's
    let answer = cluster.ask("1.1.1.1.in-addr.arpa.", RecordType::PTR).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    let page = cluster.shared.metrics.registry.text();
    let to = other.address;
    assert!(page.contains(&format!("coredns_forward_requests_total{{to=\"{to}\"}} ")), "{page}");
    assert!(page.contains(
        r#"coredns_cache_hits_total{server="dns://:53",type="denial",zones=".",view=""} 1"#
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_tries_the_next_server() {
    let (closed, other) = (UdpSocket::bind(LOCAL).await.unwrap(), Other::start().await);
    let gone = closed.local_addr().unwrap();
    drop(closed);
    let cluster = Cluster::start(&[gone, other.address]);
    for number in 0..10 {
        let answer = cluster.ask(&format!("www{number}.example.com."), RecordType::A).await;
        assert_eq!(addresses(&answer).len(), 2);
    }
    // What cannot be read is not waited for.
    let answer = cluster.ask("unreadable.example.com.", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
    let nobody = Cluster::start(&[gone]);
    let answer = nobody.ask("www.example.com.", RecordType::A).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_ignores_forged_answers() {
    let other = Other::start().await;
    let cluster = Cluster::start(&[other.address]);
    let answer = cluster.ask("forged.example.com.", RecordType::A).await;
    assert_eq!(addresses(&answer).len(), 2);
    for number in 0..4 {
        cluster.ask(&format!("id{number}.example.com."), RecordType::A).await;
    }
    let seen = other.seen.lock().unwrap();
    let ids: BTreeSet<u16> = seen.iter().map(|query| query.metadata.id).collect();
    assert!(ids.len() >= seen.len() - 1, "{ids:?}");
}

/// The waits of its servers are over at once when all time is theirs.
#[tokio::test(start_paused = true)]
async fn forward_gives_up_on_silent_servers() {
    let other = Other::start().await;
    let (mut handler, _zone, _model, shared) = handler(&[other.address]);
    for name in ["silent.example.com.", "odd.example.com."] {
        let bytes = query(name, RecordType::A).to_vec().unwrap();
        let Step::Wait(waiting) = handler.handle(&bytes, other.address, Transport::Udp) else {
            panic!("{name} is not forwarded");
        };
        let answer = Message::from_vec(&waiting.reply().await).unwrap();
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail, "{name}");
    }
    assert!(shared.forwarder.is_enabled());
}

#[tokio::test]
async fn forward_is_bounded() {
    let silent = UdpSocket::bind(LOCAL).await.unwrap();
    let address = silent.local_addr().unwrap();
    let (mut handler, _zone, _model, shared) = handler(&[address]);
    let mut waiting = Vec::new();
    let mut refused = 0;
    for number in 0..1100 {
        let bytes = query(&format!("a{number}.example.com."), RecordType::A).to_vec().unwrap();
        match handler.handle(&bytes, address, Transport::Udp) {
            Step::Wait(one) => waiting.push(one),
            Step::Reply(bytes) => {
                let answer = Message::from_vec(&bytes).unwrap();
                assert_eq!(answer.metadata.response_code, ResponseCode::Refused);
                refused += 1;
            }
            Step::Ignore => panic!("ignored"),
        }
    }
    assert_eq!((waiting.len(), refused), (1000, 100));
    assert_eq!(shared.metrics.forward.rejected.get(), 100);
    drop(waiting);
    assert!(shared.forwarder.admit().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forward_leaves_out_a_server_that_asks_us() {
    let next = Arc::new(Mutex::new(None));
    let (circular, good) = (Other::forwarding_to(next.clone()).await, Other::start().await);
    let cluster = Cluster::start(&[circular.address, good.address]);
    *next.lock().unwrap() = Some(cluster.address);
    cluster.shared.forwarder.detect_loops().await;
    let before = circular.asked.load(Ordering::SeqCst);
    for number in 0..20 {
        cluster.ask(&format!("www{number}.example.com."), RecordType::A).await;
    }
    assert_eq!(circular.asked.load(Ordering::SeqCst), before);
    assert_eq!(good.asked.load(Ordering::SeqCst), 21);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_refuses_what_is_no_question() {
    let cluster = Cluster::start(&[]);
    let good = query("kubernetes.default.svc.cluster.local.", RecordType::A);
    let bytes = good.to_vec().unwrap();
    let changed = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        bytes
    };
    let mut chaos = good.clone();
    chaos.queries[0].set_query_class(DNSClass::CH);
    let mut future = good.clone();
    let mut edns = Edns::new();
    edns.set_version(7);
    future.set_edns(edns);
    for (sent, code) in [
        (changed(2, 0x28), ResponseCode::NotImp),
        (changed(4, 0xff), ResponseCode::FormErr),
        (changed(5, 0), ResponseCode::FormErr),
        (changed(7, 9), ResponseCode::FormErr),
        (changed(11, 1), ResponseCode::FormErr),
        (bytes[..20].to_vec(), ResponseCode::FormErr),
        (changed(12, 0xc0), ResponseCode::FormErr),
        (chaos.to_vec().unwrap(), ResponseCode::Refused),
    ] {
        let answer = udp_bytes(cluster.address, &sent).await;
        assert!(answer.len() <= sent.len());
        let answer = Message::from_vec(&answer).unwrap();
        assert_eq!(answer.metadata.response_code, code, "{sent:?}");
        assert_eq!(answer.metadata.id, 4711);
    }
    let answer = udp_bytes(cluster.address, &future.to_vec().unwrap()).await;
    let answer = Message::from_vec(&answer).unwrap();
    assert_eq!(u16::from(answer.metadata.response_code), 16);
    assert_eq!(answer.edns.unwrap().version(), 0);
    // Responses and fragments are left alone: two servers do not answer each other.
    let (mut handler, _zone, _model, _shared) = handler(&[]);
    for ignored in [&changed(2, 0x81)[..], &bytes[..11], &[]] {
        let step = handler.handle(ignored, cluster.address, Transport::Udp);
        assert!(matches!(step, Step::Ignore), "{ignored:?}");
    }
    // A connection that sends too much is closed.
    let mut stream = TcpStream::connect(cluster.address).await.unwrap();
    stream.write_u16(u16::MAX).await.unwrap();
    let end = timeout(PATIENCE, stream.read_u16()).await.unwrap();
    assert!(end.is_err());
}

/// Something like a query, with bytes changed.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let names = prop::sample::select(vec![
        "kubernetes.default.svc.cluster.local.",
        "headless.shop.svc.cluster.local.",
        "_web._tcp.headless.shop.svc.cluster.local.",
        "external.shop.svc.cluster.local.",
        "1.0.96.10.in-addr.arpa.",
        "cluster.local.",
        "example.com.",
    ]);
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8);
    let like = (names, any::<u16>(), any::<bool>(), edits, any::<prop::sample::Index>(), 0..9_u8);
    let like = like.prop_map(|(name, kind, has_edns, edits, cut, whether)| {
        let mut message = query(name, RecordType::from(kind));
        if has_edns {
            let mut edns = Edns::new();
            edns.set_max_payload(kind).set_dnssec_ok(true);
            message.set_edns(edns);
        }
        let mut bytes = message.to_vec().unwrap();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if whether == 0 {
            bytes.truncate(cut.index(bytes.len()));
        }
        bytes
    });
    prop_oneof![4 => like, 1 => prop::collection::vec(any::<u8>(), 0..600)]
}

proptest! {
    /// Any bytes: no panic, and nothing longer than was agreed on.
    #[test]
    fn nothing_makes_it_panic(packets in prop::collection::vec(packet(), 1..20)) {
        let (mut handler, _zone, _model, shared) = handler(&["127.0.0.1:9".parse().unwrap()]);
        let source = "127.0.0.1:4711".parse().unwrap();
        for packet in packets {
            for transport in [Transport::Udp, Transport::Tcp] {
                if let Step::Reply(bytes) = handler.handle(&packet, source, transport) {
                    prop_assert!(bytes.len() >= 12 && packet.len() >= 12);
                    prop_assert_eq!(&bytes[..2], &packet[..2]);
                    prop_assert!(bytes[2] & 0x80 != 0);
                    if transport == Transport::Udp {
                        prop_assert!(bytes.len() <= 1232);
                    }
                }
            }
        }
        prop_assert_eq!(shared.metrics.panics.get(), 0);
    }

    /// Any answer of another server can be passed on or is a failure.
    #[test]
    fn nothing_makes_it_panic_in_answers(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let asked = query("example.com.", RecordType::A);
        let mut reply = answer(&asked, 3);
        let text = RData::TXT(TXT::new(vec!["x".to_owned()]));
        reply.add_additional(Record::from_rdata(Name::root(), 7, text));
        let mut bytes = reply.to_vec().unwrap();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(message) = Message::from_vec(&bytes) {
            let _ = message.to_vec();
        }
    }
}
